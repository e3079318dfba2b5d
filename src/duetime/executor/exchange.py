"""Build the request of a leased task, and turn the answer into a report.

Pure: no I/O, and the caller passes the time.  Every attempt of a task carries the
same `Idempotency-Key`, and the signature covers exactly the bytes that are sent.
This module alone decides which answers are worth another try.
"""

import base64
import codecs
import functools
import re
import urllib.parse
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Literal, NamedTuple

import msgspec

from duetime.clock import to_us
from duetime.executor.messages import NoResponse, Request, Response, Timings
from duetime.executor.signing import sign
from duetime.http1.messages import Headers, Reason
from duetime.lifecycle.tasks.settle import Report
from duetime.model.origin import Origin, TargetError, default_port, host_of, split_origin
from duetime.model.reserved_headers import is_reserved
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, LeasedTask, Outcome, Target

MAX_RETRY_AFTER_SECONDS = 24 * 3600.0
_TRANSIENT_STATUSES = frozenset({408, 425, 429})
_MAX_HEADER_CHARACTERS = 1024
_USER_AGENT = f"duetime/{version('duetime')}"

_KEPT_HEADERS = {
    name.encode(): name
    for name in (
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "etag",
        "location",
        "retry-after",
        "server",
        "traceparent",
        "via",
        "www-authenticate",
        "x-correlation-id",
        "x-request-id",
    )
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_TEXTUAL = re.compile(
    r"text/|application/(.*\+)?(json|xml)|application/x-www-form-urlencoded|.*charset=", re.IGNORECASE
)
_JSON = re.compile(r"application/(.*\+)?json\s*(;|$)", re.IGNORECASE)
_DELTA_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?")
_DUE_AT = "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of an attempt's `error`."""

    message: str
    kind: Literal["transient", "permanent"]
    detail: "ErrorDetail | None" = None


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: str
    status: int | None = None
    timings: Timings | None = None


class KeptResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of an answer; `body_encoding` is set when the body is not text."""

    status: int
    headers: msgspec.Raw
    body: str
    body_truncated: bool
    timings: Timings
    body_encoding: Literal["base64"] | None = None


@functools.lru_cache(maxsize=2048)
def split_url(url: str) -> tuple[Origin, str, str]:
    """Origin, request target and `Host` of a URL; raises TargetError."""
    origin, parts = split_origin(url)
    path = urllib.parse.quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + urllib.parse.quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    shown_host = f"[{origin.host}]" if ":" in origin.host else origin.host
    is_usual = origin.port == default_port(origin.scheme)
    return origin, path, shown_host if is_usual else f"{shown_host}:{origin.port}"


def host_of_task(task: LeasedTask) -> str:
    """The host and port whose limit of concurrent calls the task counts against."""
    target = task.options.target if task.options is not None else None
    return host_of(target.url) if target is not None else ""


def timeout_of(task: LeasedTask) -> float:
    options = task.options
    if options is None:
        return DEFAULT_TIMEOUT_SECONDS
    return (options.target.timeout if options.target else None) or options.timeout or DEFAULT_TIMEOUT_SECONDS


def build_request(
    task: LeasedTask,
    secret: bytes,
    now_seconds: int,
    queue: str | None,
    opened: Mapping[str, str] | None = None,
    *,
    former: bytes | None = None,
    tenant: int = 0,
) -> Request:
    """Build the request of one attempt: signed, with its secret headers opened. Raises TargetError."""
    options = task.options
    target = options.target if options is not None else None
    if options is None or target is None:
        raise TargetError("the task has no target")
    own = target.headers
    if target.secret_headers:
        if opened is None or opened.keys() != target.secret_headers.keys():
            # Without the secret headers it would be another call.
            raise TargetError("the task's secret headers were not opened")
        own = {**own, **opened}
    head = _head_of(target.method, target.url, tuple(own.items()), task.type, queue, options.trace)
    body = task.payload if head.has_body else b""
    task_id = str(task.id)
    signature = sign(secret, task_id, now_seconds, body)
    if former is not None:
        # The newest signature comes first: most receivers stop at the first that matches.
        signature += f" {sign(former, task_id, now_seconds, body)}"
    text = (
        f"{head.text}"
        f"{head.framing % len(body)}"
        f"Idempotency-Key: {task_id}\r\nDuetime-Task-Id: {task_id}\r\n"
        f"Duetime-Attempt: {task.number}\r\nDuetime-Due-At: {_rfc3339(task.run_at)}\r\n"
        f"webhook-id: {task_id}\r\nwebhook-timestamp: {now_seconds}\r\n"
        f"webhook-signature: {signature}\r\n\r\n"
    )
    return Request(head.origin, text.encode() + body, head.is_head, tenant)


class _Head(NamedTuple):
    """What the requests of many tasks have in common; `%` marks the parts that differ."""

    origin: Origin
    text: str
    framing: str
    has_body: bool
    is_head: bool


@functools.lru_cache(maxsize=512)
def _head_of(
    method: str, url: str, own: tuple[tuple[str, str], ...], type: str, queue: str | None, trace: str | None
) -> _Head:
    origin, path, host = split_url(url)
    if not _TOKEN.fullmatch(method):
        raise TargetError("the target's method is not valid")
    if not all(_FIELD_VALUE.fullmatch(value or "") for value in (type, queue, trace)):
        raise TargetError("the task's type, queue or trace does not fit into a header")
    method = method.upper()
    has_body = method not in ("GET", "HEAD")
    # A header that the task sets replaces one of these.
    headers = {"user-agent": f"User-Agent: {_USER_AGENT}\r\n", "accept": "Accept: */*\r\n"}
    if has_body:
        headers["content-type"] = "Content-Type: application/json\r\n"
    if trace is not None:
        headers["traceparent"] = f"traceparent: {trace}\r\n"
    for name, value in own:
        lowered = name.lower()
        # The API accepts no reserved header, but a stored task may be older than that rule.
        if is_reserved(lowered):
            continue
        if not _TOKEN.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise TargetError(f"the header {name!r} is not valid")
        headers[lowered] = f"{name}: {value}\r\n"
    of_queue = f"Duetime-Queue: {queue}\r\n" if queue is not None else ""
    return _Head(
        origin,
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{''.join(headers.values())}Accept-Encoding: identity\r\n"
        f"Duetime-Type: {type}\r\n{of_queue}",
        "Content-Length: %d\r\n" if has_body else "%.0s" if method == "GET" else "Connection: close\r\n%.0s",
        has_body,
        method == "HEAD",
    )


def _rfc3339(instant: datetime) -> str:
    at = instant.astimezone(UTC)
    # isoformat takes twice as long.
    return _DUE_AT % (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond // 1000)


# From an answer to a report.


def report_answer(
    task: LeasedTask, answer: Response | NoResponse, started_at: datetime, completed_at: datetime
) -> Report:
    """What an answer means for the attempt."""
    if isinstance(answer, NoResponse):
        return report_failure(
            task.id,
            task.number,
            answer.message,
            reason=answer.reason,
            is_permanent=answer.reason is Reason.REFUSED,
            timings=answer.timings,
            started_at=started_at,
            completed_at=completed_at,
        )
    head = _kept_of(answer.headers)
    text = _as_text(answer, head.is_textual)
    response = _encode(
        KeptResponse(
            answer.status,
            head.shown,
            text if text is not None else base64.b64encode(answer.body).decode(),
            answer.is_truncated,
            answer.timings,
            None if text is not None else "base64",
        )
    )
    if 200 <= answer.status < 300:
        return Report(
            id=task.id,
            number=task.number,
            outcome=Outcome.SUCCEEDED,
            result=_json_result(answer) if head.is_json else None,
            started_us=to_us(started_at),
            completed_us=to_us(completed_at),
            response=response,
        )
    target = task.options.target if task.options is not None else None
    is_permanent = not is_worth_a_retry(answer.status, target)
    error = Error(
        f"the target answered {answer.status}",
        "permanent" if is_permanent else "transient",
        ErrorDetail("status", answer.status),
    )
    return Report(
        id=task.id,
        number=task.number,
        outcome=Outcome.FAILED,
        error=_encode(error),
        is_permanent=is_permanent,
        retry_after=None if is_permanent else read_retry_after(head.retry_after, completed_at),
        started_us=to_us(started_at),
        completed_us=to_us(completed_at),
        response=response,
    )


def report_failure(
    task_id: uuid.UUID,
    number: int,
    message: str,
    *,
    reason: str,
    is_permanent: bool = False,
    timings: Timings | None = None,
    retry_after: float | None = None,
    started_at: datetime | None = None,
    completed_at: datetime | None = None,
) -> Report:
    """Report an attempt that failed without an answer."""
    error = Error(message, "permanent" if is_permanent else "transient", ErrorDetail(reason, timings=timings))
    return Report(
        id=task_id,
        number=number,
        outcome=Outcome.FAILED,
        error=_encode(error),
        is_permanent=is_permanent,
        retry_after=retry_after,
        started_us=None if started_at is None else to_us(started_at),
        completed_us=None if completed_at is None else to_us(completed_at),
    )


def report_release(
    task_id: uuid.UUID, number: int, message: str, *, reason: str, started_at: datetime | None, completed_at: datetime
) -> Report:
    """Report an attempt that began and is released without using it up: the task is not to blame."""
    return Report(
        id=task_id,
        number=number,
        outcome=Outcome.RELEASED,
        error=_encode(Error(message, "transient", ErrorDetail(reason))),
        started_us=None if started_at is None else to_us(started_at),
        completed_us=to_us(completed_at),
    )


def is_worth_a_retry(status: int, target: Target | None) -> bool:
    if status in _TRANSIENT_STATUSES or 500 <= status < 600:
        return True
    return target is not None and status in target.retry_on


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a number or an HTTP date as seconds to wait, 0 to one day; None if it is neither."""
    if value is None:
        return None
    value = value.strip()
    if _DELTA_SECONDS.fullmatch(value):
        return min(float(value), MAX_RETRY_AFTER_SECONDS)
    try:
        until = parsedate_to_datetime(value)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        seconds = (to_us(until) - to_us(now)) / 1_000_000
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


class _KeptHead(NamedTuple):
    """What is stored of an answer's headers, and what they say about its body."""

    shown: msgspec.Raw
    is_textual: bool
    is_json: bool
    retry_after: str | None


# A server mostly sends the same headers as in its last answer.
@functools.lru_cache(maxsize=128)
def _kept_of(headers: Headers) -> _KeptHead:
    kept: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = _KEPT_HEADERS.get(raw_name)
        if name is not None and name not in kept:
            kept[name] = raw_value[:_MAX_HEADER_CHARACTERS].decode("latin-1").strip()
    content_type = kept.get("content-type", "")
    return _KeptHead(
        msgspec.Raw(_encode(kept)),
        _TEXTUAL.match(content_type) is not None,
        _JSON.match(content_type) is not None,
        kept.get("retry-after"),
    )


def _as_text(answer: Response, is_textual: bool) -> str | None:
    """The body as text; None if it is not text."""
    try:
        if answer.is_truncated:
            # The kept part may end within a character, which is then cut off.
            text = codecs.getincrementaldecoder("utf-8")().decode(answer.body)
        else:
            text = answer.body.decode()
    except UnicodeDecodeError:
        return answer.body.decode(errors="replace") if is_textual else None
    return text if is_textual or "\x00" not in text else None


def _json_result(answer: Response) -> bytes | None:
    if answer.is_truncated or not answer.body:
        return None
    try:
        answer.body.decode()
        _decode(answer.body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    return answer.body
