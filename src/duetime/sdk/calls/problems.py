"""What the server's problem details mean: which error to raise, and when to try again."""

import email.utils
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from duetime.sdk.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    SearchIncomplete,
    ServerUnavailable,
    Unauthorized,
)
from duetime.sdk.shapes.answers import Problem

_decode_problem = msgspec.json.Decoder(Problem).decode

_ERRORS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: ServerUnavailable,
    502: ServerUnavailable,
    503: ServerUnavailable,
    504: ServerUnavailable,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error that an answer stands for."""
    try:
        problem = _decode_problem(body)
    except msgspec.DecodeError:
        # This answer is not from duetime but from a proxy in between.
        problem = Problem(detail=body[:200].decode("utf-8", "replace").strip())
    kind = _ERRORS.get(status, ApiError) if problem.next is None else SearchIncomplete
    error = kind(
        problem.detail or problem.title or f"the server answered {status}",
        status=status,
        code=problem.code or f"http_{status}",
        errors=problem.errors,
        retry_after=read_retry_after(headers.get("Retry-After")),
        answered_at=read_date(headers.get("Date")),
        request_id=problem.request_id or headers.get("X-Request-Id") or "",
    )
    if isinstance(error, SearchIncomplete):
        error.next = problem.next or ""
    return error


def read_retry_after(value: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return the seconds to wait. The header holds seconds or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    instant = read_date(value)
    return None if instant is None else max(0.0, (instant - now()).total_seconds())


def read_date(value: str | None) -> datetime | None:
    """Parse a date in the format of HTTP."""
    try:
        instant = email.utils.parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
