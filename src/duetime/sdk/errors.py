"""Every error the SDK raises.

SdkError
├── ConfigurationError        no address, no key, or a worker that cannot start
├── ApiError                  the server answered with a problem (status, code, detail, errors)
│   ├── InvalidRequest        400, 405, 413, 415, 422: the request is wrong; `errors` names the fields
│   ├── Unauthorized          401
│   ├── Forbidden             403
│   ├── NotFound              404
│   ├── Conflict              409: the state of things forbids it: the task's, an idempotency key used for something
│   │                         else, a schedule of another origin (`other_origin`) or version (`version_conflict`)
│   ├── SearchIncomplete      503 (`search_incomplete`): nothing was found in the time that one request has; `next` is
│   │                         the cursor to go on from
│   └── ServerUnavailable     429, 502, 503, 504: tried again for `retry_for` seconds, then raised; at once if the
│       │                     type's rate limit refused it (`rate_limited`, with `retry_after`)
│       └── ServerUnreachable no answer at all
├── BatchIncomplete           `submit_many` stopped half way; `result` says what was accepted
├── WaitTimeout               `wait` saw no final state in time (a TimeoutError too)
├── NotInTransaction          `once` needs a transaction of the handler's own
└── HandlerSignal             raised by handlers, for the worker
    ├── Retry                 failed; try again, after `after` if given
    ├── Permanent             failed; trying again would not help
    ├── Snooze                not now; costs no attempt
    └── TaskCancelled         raised by `context.check()`: stop, nobody wants the result
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from duetime.sdk.shapes.tasks import BatchResult, Task

Duration = float | str | timedelta


class FieldError(msgspec.Struct, frozen=True):
    """Where in the request something is wrong, and what would be right."""

    path: str = ""
    message: str = ""


class SdkError(Exception):
    """The root of the tree."""


class ConfigurationError(SdkError):
    """The client or worker cannot start like this."""


class ApiError(SdkError):
    """The server answered with a problem."""

    def __init__(
        self,
        detail: str,
        *,
        status: int = 0,
        code: str = "",
        errors: tuple[FieldError, ...] = (),
        retry_after: float | None = None,
        answered_at: datetime | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.errors = errors
        self.retry_after = retry_after
        #: The time by the server's clock.
        self.answered_at = answered_at
        #: The id of the request in the server's log.
        self.request_id = request_id

    def __str__(self) -> str:
        named = "; ".join(f"{error.path}: {error.message}" for error in self.errors)
        text = f"{self.detail} ({self.code})" + (f" [{named}]" if named and named not in self.detail else "")
        return f"{text} (request {self.request_id})" if self.request_id else text


class InvalidRequest(ApiError):
    """The request is wrong; sending it again would not help."""


class Unauthorized(ApiError):
    """There is no key, or it is not valid."""


class Forbidden(ApiError):
    """The key does not allow this."""


class NotFound(ApiError):
    """There is no such task, schedule or calendar for this tenant."""


class Conflict(ApiError):
    """The current state forbids it."""


class SearchIncomplete(ApiError):
    """Nothing that matches was found within the time limit of one request. Continue with `next` as the cursor."""

    next: str = ""


class ServerUnavailable(ApiError):
    """The server cannot do it now; trying again is safe."""


class ServerUnreachable(ServerUnavailable):
    """No answer arrived; trying again is safe."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, code="unreachable")


class BatchIncomplete(SdkError):
    """A later part of a batch failed after earlier parts had been accepted."""

    def __init__(self, result: "BatchResult", cause: SdkError) -> None:
        super().__init__(f"{result.accepted} tasks were accepted, then: {cause}")
        self.result = result


class WaitTimeout(SdkError, TimeoutError):
    """The task was not over in time. `task` is its last known state."""

    def __init__(self, task: "Task", seconds: float) -> None:
        super().__init__(f"task {task.id} is still {task.state} after {seconds:g} s")
        self.task = task


class NotInTransaction(SdkError):
    """`once` needs a transaction: without one the key and the effect would not be committed together."""


class HandlerSignal(SdkError):
    """Raised by a handler to say how its attempt ended."""


class Retry(HandlerSignal):
    """The attempt failed. Try again after `after`, or as the task's retry policy says."""

    def __init__(
        self, message: str = "the handler asked for another attempt", *, after: Duration | None = None
    ) -> None:
        super().__init__(message)
        self.after = after


class Permanent(HandlerSignal):
    """The attempt failed for good: the task becomes a dead letter at once."""

    def __init__(self, message: str = "the handler failed for good") -> None:
        super().__init__(message)


class Snooze(HandlerSignal):
    """The task cannot run now. Run it again after this time; no attempt is used up."""

    def __init__(self, after: Duration) -> None:
        super().__init__(f"snoozed for {after}")
        self.after = after


class TaskCancelled(HandlerSignal):
    """The attempt was cancelled, timed out or taken over: stop and clean up."""
