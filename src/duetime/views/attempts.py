"""Attempts as users see them, decoded from what is stored."""

from datetime import datetime

import asyncpg
import msgspec
from msgspec import Raw

from duetime.model.task import Outcome


class AttemptView(msgspec.Struct, frozen=True):
    """One try; `outcome` and `completed_at` are null while it runs.

    While it runs, `started_at` is the time of the first beat that said that it had begun; null until then.
    """

    number: int
    outcome: str | None
    worker: str | None
    picked_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    #: HTTP status of the target's answer.
    status: int | None
    response: Raw | None
    error: Raw | None
    reason: str | None


_NULL = Raw(b"null")


class _Response(msgspec.Struct):
    status: int | None = None


class _Detail(msgspec.Struct):
    """What `attempt.detail` holds; keys may be absent."""

    error: Raw = _NULL
    response: Raw = _NULL
    status: int | None = None
    reason: str | None = None


_decode_detail = msgspec.json.Decoder(_Detail).decode
_decode_response = msgspec.json.Decoder(_Response).decode


def attempts_of(row: asyncpg.Record) -> list[AttemptView]:
    """The attempts in order; the running one, if there is one, comes last.

    The end of a task that was not running, as by a cancellation, is stored like an attempt, but does not count as one.
    """
    attempts = [attempt_view(*each) for each in reversed(row["attempts"])]
    attempts = [each for each in attempts if each.picked_at is not None]
    if row["claim_number"] is not None:
        number, worker, picked_at = row["claim_number"], row["worker"], row["picked_at"]
        attempts.append(attempt_view(number, None, worker, picked_at, row["started_at"], None, None))
    return attempts


def count_omitted(row: asyncpg.Record) -> int:
    """How many attempts are not shown: they are numbered from 1, and the last ones are read."""
    return row["attempts"][-1][0] - 1 if row["attempts"] else 0


def attempt_view(
    number: int,
    outcome: int | None,
    worker: str | None,
    picked_at: datetime | None,
    started_at: datetime | None,
    completed_at: datetime | None,
    stored: bytes | None,
) -> AttemptView:
    detail = _decode_detail(stored) if stored else _Detail()
    status = detail.status
    response, error = _present(detail.response), _present(detail.error)
    if status is None and response is not None:
        status = _decode_response(response).status
    return AttemptView(
        number=number,
        outcome=Outcome(outcome).word if outcome is not None else None,
        worker=worker,
        picked_at=picked_at,
        started_at=started_at,
        completed_at=completed_at,
        status=status,
        response=response,
        error=error,
        reason=detail.reason,
    )


def reason_of(stored: bytes | None) -> str | None:
    """What was reported at the end of an attempt."""
    return _decode_detail(stored).reason if stored else None


def _present(value: Raw) -> Raw | None:
    return None if bytes(value) == b"null" else value
