"""What a task is: its states, its options, its limits, as pure data.

`Options` is what a task carries beside type and payload; it is stored with the
task as JSON and is absent (NULL) where everything is the default.
"""

import enum
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from duetime.model.retry import RetryPolicy

if TYPE_CHECKING:
    from duetime.model.flow import Flow

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_REQUEST_BYTES = 16 * 1024 * 1024
MAX_BATCH = 5_000
MAX_RESULT_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024
DEFAULT_TIMEOUT_SECONDS = 300.0
MAX_TIMEOUT_SECONDS = 24 * 3600.0
DEFAULT_QUEUE: Final = "default"
DEFAULT_PRIORITY: Final = "normal"
#: How long an idempotency key is kept at least.
DEFAULT_KEY_SECONDS = 24 * 3600.0


class TaskState(enum.StrEnum):
    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    RETRYING = "retrying"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


#: The states that a task can be in. Nothing makes one task wait for another yet.
SHOWN_STATES = tuple(state for state in TaskState if state is not TaskState.BLOCKED)


class Outcome(enum.IntEnum):
    """How an attempt ended; the number is what is stored."""

    SUCCEEDED = 1
    FAILED = 2
    SNOOZED = 3
    LAPSED = 4
    RELEASED = 5
    CANCELLED = 6
    EXPIRED = 7
    UNKNOWN = 8

    @property
    def word(self) -> str:
        return self.name.lower()


class PriorityClass(enum.IntEnum):
    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Kind(enum.IntEnum):
    """Who runs the tasks of a lane: the tenant's workers, or duetime's executor."""

    PULL = 0
    PUSH = 1


Delivery = Literal["at_least_once", "at_most_once"]


class Target(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An HTTP endpoint that runs the task."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    #: Headers that hold secrets, sealed (`model.vault`); they are opened only to make the call.
    secret_headers: dict[str, str] = {}
    #: Seconds for the whole call; if absent, the task's timeout.
    timeout: float | None = None
    #: Statuses that are tried again although they count as permanent (or any 4xx: "4xx").
    retry_on: list[int] = []


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored with a task beyond its columns."""

    target: Target | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    sla: float | None = None
    delivery: Delivery = "at_least_once"
    requires: list[str] = []
    idempotency_key: str | None = None
    schedule: str | None = None
    trace: str | None = None
    #: The keys that limit the task besides its tenant, queue and type: tasks with the same key share a limit.
    concurrency_key: str | None = None
    rate_key: str | None = None


class LaneKey(msgspec.Struct, frozen=True, cache_hash=True):
    """What identifies a lane: its tasks are served in due order, by the same holders."""

    tenant: int
    queue: str
    priority: PriorityClass
    kind: Kind
    requires: tuple[str, ...] = ()
    #: What its tasks wait for besides their turn (`model.gates`); '' for the tasks' home lane.
    gate: str = ""
    #: Which shard of its tenant, if the tenant is spread over several.
    part: int = 0


class NewTask(msgspec.Struct, frozen=True, gc=False):
    """A validated request for one task, ready to be submitted.

    The class says which fields a task may have.  A `NewTask` itself is plain, like most tasks: due now, with only its
    lane, its type and its payload.  `make_task` chooses the smallest class with room for the fields; code that knows
    that a task is plain makes a `NewTask` itself.  Later code looks at the class first, and at the fields only if the
    class has them.
    """

    lane: LaneKey
    type: str
    payload: bytes

    def detailed(self) -> "DetailedTask":
        """Return the task with all fields that a task can have, for code that shows or changes it."""
        return DetailedTask(self.lane, self.type, self.payload)

    @property
    def has_secrets(self) -> bool:
        return False


class TimedTask(NewTask, frozen=True, gc=False):
    """A task that is plain except for its time: `make_task` gets one of `run_at` and `delay`."""

    run_at: datetime | None = None
    delay: float | None = None

    def detailed(self) -> "DetailedTask":
        return DetailedTask(self.lane, self.type, self.payload, self.run_at, self.delay)


class DetailedTask(TimedTask, frozen=True, gc=False):
    """A task with more fields than a time.  It may have no time (`lifecycle.submission.batch.has_time`)."""

    expires_at: datetime | None = None
    options: Options | None = None
    labels: dict[str, str] | None = None
    idempotency_key: str | None = None
    idempotency_ttl: float = DEFAULT_KEY_SECONDS
    #: The hash of the request: the same key with another body is a conflict. With secrets there is one hash for each
    #: key of the vault; the first is stored.
    fingerprint: bytes = b""
    #: The rules between the submission and its task; None for nearly all tasks.
    flow: "Flow | None" = None

    def detailed(self) -> "DetailedTask":
        return self

    @property
    def has_secrets(self) -> bool:
        options = self.options
        return options is not None and options.target is not None and bool(options.target.secret_headers)


def make_task(
    lane: LaneKey,
    type: str,
    payload: bytes,
    run_at: datetime | None = None,
    delay: float | None = None,
    expires_at: datetime | None = None,
    options: Options | None = None,
    labels: dict[str, str] | None = None,
    idempotency_key: str | None = None,
    idempotency_ttl: float = DEFAULT_KEY_SECONDS,
    fingerprint: bytes = b"",
    flow: "Flow | None" = None,
) -> NewTask:
    """Make a task of the smallest class for these fields. A delay of zero counts as none, and so do empty labels."""
    delay, labels = delay or None, labels or None
    if expires_at is None and options is None and labels is None and idempotency_key is None and flow is None:
        if run_at is None and delay is None:
            return NewTask(lane, type, payload)
        return TimedTask(lane, type, payload, run_at, delay)
    return DetailedTask(
        lane,
        type,
        payload,
        run_at,
        delay,
        expires_at,
        options,
        labels,
        idempotency_key,
        idempotency_ttl,
        fingerprint,
        flow,
    )


class Waiting(msgspec.Struct, frozen=True):
    """Counts that a waiting or running task carries from attempt to attempt."""

    number: int
    failures: int = 0
    crashes: int = 0
    releases: int = 0


class LeasedTask(msgspec.Struct, frozen=True, gc=False):
    """One attempt, claimed for one holder, with everything that is needed to run it."""

    id: uuid.UUID
    lane: int
    number: int
    holder: int
    type: str
    payload: bytes
    run_at: datetime
    picked_at: datetime
    failures: int
    crashes: int
    releases: int
    options: Options | None = None
    #: The stored JSON object, carried through unparsed.
    labels: bytes | None = None
    expires_at: datetime | None = None

    @property
    def is_recovered(self) -> bool:
        """A former holder died or forgot it: this holder has to report that it runs before it runs it."""
        return self.crashes + self.releases > 0
