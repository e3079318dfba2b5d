"""Tasks, as requests and as answers.

Answers may have unknown fields and may lack new ones, so an older SDK works
with a newer server and the other way round.
"""

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from duetime.sdk.errors import ApiError, Duration
from duetime.sdk.shapes.answers import Problem
from duetime.sdk.shapes.durations import as_duration

Priority = Literal["critical", "high", "normal", "low"]
Delivery = Literal["at_least_once", "at_most_once"]
State = Literal["scheduled", "ready", "running", "retrying", "paused", "succeeded", "dead", "cancelled", "expired"]
FINAL_STATES = frozenset({"succeeded", "dead", "cancelled", "expired"})


class RetryPolicy(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When a failed attempt is tried again. Absent values get the server's defaults.

    These are 20 attempts, with waits that double from 1 s to 1 h and vary by a tenth: about 8 hours in all.
    """

    max_attempts: int | None = None
    min_backoff: Duration | None = None
    max_backoff: Duration | None = None
    max_doublings: int | None = None
    max_retry_duration: Duration | None = None
    #: How many attempts may be lost because their worker died. The last one makes the task a dead letter. Default: 3.
    max_crashes: int | None = None

    def __post_init__(self) -> None:
        self.min_backoff = as_duration(self.min_backoff)
        self.max_backoff = as_duration(self.max_backoff)
        self.max_retry_duration = as_duration(self.max_retry_duration)


class Target(msgspec.Struct, omit_defaults=True):
    """An HTTP endpoint that runs the task, in place of a worker."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    #: Names of further headers whose values are secret, beside `Authorization`, `Cookie`, `X-Api-Key` and the like.
    secret_headers: list[str] = []
    timeout: Duration | None = None
    retry_on: list[int] = []

    def __post_init__(self) -> None:
        self.timeout = as_duration(self.timeout)


class Unique(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One task at a time: while a task with the same key (or payload, without a key) exists, that one is returned."""

    key: str | None = None
    #: The states in which a task counts as existing. Default: all that are not over.
    states: list[State] | None = None
    #: How long after its submission it counts in any state.
    period: Duration | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period)


class Debounce(msgspec.Struct, omit_defaults=True):
    """A later submission with the same key replaces the waiting one and waits for another `period`."""

    key: str
    period: Duration
    #: It runs this long after the first submission at the latest.
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period) or 0.0
        self.timeout = as_duration(self.timeout)


class SubmitOptions(TypedDict, total=False):
    """The options of `submit`, other than type and payload."""

    run_at: datetime | str | None
    delay: Duration | None
    queue: str | None
    priority: Priority | None
    target: Target | dict[str, object] | str | None
    retry: RetryPolicy | dict[str, object] | None
    timeout: Duration | None
    expires_at: datetime | str | None
    idempotency_key: str | None
    idempotency_ttl: Duration | None
    requires: list[str] | tuple[str, ...] | None
    sla: Duration | None
    delivery: Delivery | None
    labels: dict[str, str] | None
    concurrency_key: str | None
    rate_key: str | None
    unique: Unique | dict[str, object] | None
    debounce: Debounce | dict[str, object] | None


class Submission(msgspec.Struct, omit_defaults=True, gc=False):
    """A task to be submitted.  The server validates it; here it only has to be encodable."""

    type: str
    payload: Any = None
    run_at: datetime | str | None = None
    delay: Duration | None = None
    queue: str | None = None
    priority: Priority | None = None
    target: Target | dict[str, object] | str | None = None
    retry: RetryPolicy | dict[str, object] | None = None
    timeout: Duration | None = None
    expires_at: datetime | str | None = None
    idempotency_key: str | None = None
    idempotency_ttl: Duration | None = None
    requires: list[str] | tuple[str, ...] | None = None
    sla: Duration | None = None
    delivery: Delivery | None = None
    labels: dict[str, str] | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    unique: Unique | dict[str, object] | None = None
    debounce: Debounce | dict[str, object] | None = None

    def __post_init__(self) -> None:
        for instant, name in ((self.run_at, "run_at"), (self.expires_at, "expires_at")):
            if isinstance(instant, datetime) and instant.tzinfo is None:
                raise ValueError(f"{name} has no time zone: use datetime.now(UTC) or another aware datetime")
        if isinstance(self.target, str):
            self.target = Target(self.target)
        self.delay = as_duration(self.delay)
        self.timeout = as_duration(self.timeout)
        self.idempotency_ttl = as_duration(self.idempotency_ttl)
        self.sla = as_duration(self.sla)


class AttemptError(msgspec.Struct, frozen=True):
    message: str = ""
    kind: str = "transient"
    detail: Any = None


class Attempt(msgspec.Struct, frozen=True):
    """One try at a task."""

    number: int
    outcome: str | None = None
    worker: str | None = None
    picked_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    status: int | None = None
    response: Any = None
    error: AttemptError | None = None


class Task(msgspec.Struct, frozen=True):
    """A task as the server returns it."""

    id: str
    type: str = ""
    queue: str = "default"
    priority: str = "normal"
    state: str = ""
    tenant: str | None = None
    payload: Any = None
    labels: dict[str, str] | None = None
    run_at: datetime | None = None
    #: For a rescheduled task, the time with which it was submitted. `run_at` is the new one.
    first_run_at: datetime | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    next_run_at: datetime | None = None
    #: How many attempts may still be made, not counting the running one. None from an older server.
    attempts_left: int | None = None
    schedule: str | None = None
    result: Any = None
    #: The latest attempts. `Client.attempts` returns all.
    attempts: list[Attempt] = []
    #: How many earlier attempts are omitted here.
    attempts_omitted: int = 0
    sla: float | None = None
    sla_met: bool | None = None
    target: Any = None
    retry: Any = None
    timeout: float | None = None
    delivery: str = "at_least_once"
    requires: list[str] = []
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    #: In the answer to a debounced submission: the waiting task that this one replaced.
    replaces: str | None = None
    #: For a dead letter: why and since when.
    dead_reason: str | None = None
    died_at: datetime | None = None
    #: When it was over, and the reason if one was given. None until then.
    ended_at: datetime | None = None
    end_reason: str | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


class DeadLetter(msgspec.Struct, frozen=True):
    """A task that was given up, with its last error. `get` returns all its attempts."""

    id: str
    type: str = ""
    queue: str = "default"
    priority: str = "normal"
    labels: dict[str, str] | None = None
    run_at: datetime | None = None
    created_at: datetime | None = None
    reason: str = ""
    died_at: datetime | None = None
    #: The number of its attempts.
    attempts: int = 0
    worker: str | None = None
    status: int | None = None
    error: AttemptError | None = None


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """The result for one item of a batch: a task, or a problem."""

    id: str | None = None
    state: str | None = None
    #: The task existed already, under the same idempotency or unique key.
    repeated: bool = False
    #: The waiting task that it replaced.
    replaces: str | None = None
    error: Problem | None = None


#: What the verbs take: an id, or one of the objects above that has an id.
TaskOrId = Task | DeadLetter | BatchItem | str | uuid.UUID


def id_of(task: TaskOrId) -> str:
    """Return the id of the argument. Raise a TypeError, before anything is sent, if it has none."""
    if isinstance(task, Task | DeadLetter | BatchItem):
        if task.id is None:
            raise TypeError("this item of the batch was refused: it is no task, and has no id")
        return task.id
    if not isinstance(task, str | uuid.UUID):
        raise TypeError(f"a Task or the id of one is needed, not {type(task).__name__}")
    return str(task)


class BatchResult(msgspec.Struct):
    """A result for each item, in order."""

    results: list[BatchItem] = []
    accepted: int = 0
    rejected: int = 0

    def __iter__(self) -> Iterator[BatchItem]:
        return iter(self.results)

    @property
    def ids(self) -> list[str | None]:
        """Return the ids in order, with None for each refused item."""
        return [item.id for item in self.results]

    def add(self, other: "BatchResult") -> None:
        self.results += other.results
        self.accepted += other.accepted
        self.rejected += other.rejected

    def replace(self, places: list[int], other: "BatchResult") -> None:
        """Put the results of items that were sent again in their places."""
        for place, item in zip(places, other.results, strict=True):
            self.results[place] = item
        self.accepted += other.accepted
        self.rejected -= other.accepted

    def raise_for_errors(self) -> None:
        """Raise for the first item that was refused, if there is one."""
        for place, item in enumerate(self.results):
            if item.error is not None:
                problem = item.error
                raise ApiError(
                    f"item {place}: {problem.detail or problem.title}",
                    status=problem.status,
                    code=problem.code,
                    errors=problem.errors,
                )


class BulkResult(msgspec.Struct, frozen=True):
    """The result of one call of a bulk verb. Continue with `next` until it is None."""

    matched: int = 0
    changed: int = 0
    redriven: int = 0
    dropped: int = 0
    next: str | None = None


class Reason(msgspec.Struct, frozen=True):
    """One thing that a task waits for."""

    reason: str = ""
    detail: str = ""
    #: When this reason goes away by itself, if it does.
    until: datetime | None = None


class Explanation(msgspec.Struct, frozen=True):
    """Why a task is in its state, and what would let it continue."""

    id: str = ""
    state: str = ""
    due_at: datetime | None = None
    waiting_for: list[Reason] = []
    #: Waiting tasks before it in its lane; "1000+" when there are more than were counted.
    position: int | str | None = None
    what_would_free_it: str = ""
