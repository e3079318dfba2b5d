"""What the answer to a call says of its target's health, apart from what it means for the task.

A target that answers is healthy, whatever it says to the request: only its own
failures (no answer, 5xx) and its signs of overload (429, 503) count against it.
A refused address says nothing of the host behind it.
"""

from datetime import datetime
from typing import NamedTuple

from duetime.executor.exchange import read_retry_after
from duetime.executor.messages import NoResponse, Response
from duetime.http1.messages import Reason
from duetime.model.breaker_status import Ending

_OVERLOAD = frozenset({429, 503})
_NOT_THE_TARGETS = frozenset({Reason.REFUSED, Reason.INTERNAL})


class TargetHealth(NamedTuple):
    ending: Ending
    retry_after: float | None = None
    #: What happened, as text for people.
    detail: str = ""


WELL = TargetHealth("ok")
ABANDONED = TargetHealth("abandoned")
RETURNED = TargetHealth("returned")


def health_of(answer: Response | NoResponse, now: datetime) -> TargetHealth:
    if isinstance(answer, NoResponse):
        return ABANDONED if answer.reason in _NOT_THE_TARGETS else TargetHealth("failed", None, answer.message)
    if answer.status < 500 and answer.status != 429:
        return WELL
    detail = f"it answered {answer.status}"
    if answer.status not in _OVERLOAD:
        return TargetHealth("failed", None, detail)
    wait = next((value for name, value in answer.headers if name == b"retry-after"), None)
    return TargetHealth("overloaded", read_retry_after(None if wait is None else wait.decode("latin-1"), now), detail)
