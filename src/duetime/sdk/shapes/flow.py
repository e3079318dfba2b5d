"""Task types, queues and limits as they are sent and as they are received.

What is sent is only shaped here; the server judges it.  Answers take fields that
they do not know and lack fields that are new, as those of `shapes` do.
"""

from datetime import datetime
from typing import Any, TypedDict

import msgspec

from duetime.sdk.errors import Duration, FieldError
from duetime.sdk.shapes.durations import as_duration
from duetime.sdk.shapes.tasks import Priority, RetryPolicy, Unique


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many attempts run at once, and how many start in a second; what is left out is not limited."""

    max_running: int | None = None
    rate: float | None = None
    #: How many may start at once after a rest; one second's worth.
    burst: int | None = None
    #: Keep `max_running` even while two nodes feed the tenant.
    strict: bool = False


class TypeLimits(Limits, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a type; with a key, a place in the payload, each value there has them for itself."""

    concurrency_key: str | None = None
    rate_key: str | None = None


class TypeDefaults(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a submission of the type gets where it says nothing."""

    queue: str | None = None
    priority: Priority | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    sla: Duration | None = None

    def __post_init__(self) -> None:
        self.timeout = as_duration(self.timeout)
        self.sla = as_duration(self.sla)


class RateLimit(msgspec.Struct, omit_defaults=True):
    """Submissions beyond so many in a period are refused; `key` is a place in the payload."""

    limit: int
    period: Duration
    key: str | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period) or 0.0


class Throttle(RateLimit, omit_defaults=True):
    """Attempts start at this pace; what is beyond it waits."""

    #: How many more may start at once after a rest.
    burst: int = 0


class TypeDebounce(msgspec.Struct, omit_defaults=True):
    """Of submissions that follow each other within the period the last one runs; `key` is a place in the payload."""

    period: Duration
    key: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period) or 0.0
        self.timeout = as_duration(self.timeout)


class TypeOptions(TypedDict, total=False):
    """All that a type can say; the keys of its rules are places in the payload (`customer`, `order.shop`)."""

    #: A JSON Schema for payloads.
    schema: dict[str, Any] | bool | None
    defaults: TypeDefaults | dict[str, object] | None
    limits: TypeLimits | dict[str, object] | None
    throttle: Throttle | dict[str, object] | None
    rate_limit: RateLimit | dict[str, object] | None
    debounce: TypeDebounce | dict[str, object] | None
    unique: Unique | dict[str, object] | None


class TaskType(msgspec.Struct, frozen=True):
    """A registered type; what it does not say is None.  Its rules are as the API tells them, durations in seconds."""

    name: str
    schema: Any = None
    defaults: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    throttle: dict[str, Any] | None = None
    rate_limit: dict[str, Any] | None = None
    debounce: dict[str, Any] | None = None
    unique: dict[str, Any] | None = None
    version: int = 0
    updated_at: datetime | None = None

    def options(self) -> TypeOptions:
        """What it says, as `put_type` takes it: a type is replaced whole, so a change starts from here."""
        return {
            "schema": self.schema,
            "defaults": self.defaults,
            "limits": self.limits,
            "throttle": self.throttle,
            "rate_limit": self.rate_limit,
            "debounce": self.debounce,
            "unique": self.unique,
        }


class TypePut(msgspec.Struct, frozen=True):
    """The type as it is now, and what it means for tasks that wait."""

    name: str
    version: int = 0
    #: Waiting tasks that were looked at, at most 10,000, and how many of them do not match the schema.
    waiting_sampled: int = 0
    waiting_invalid: int = 0


class TypeMismatch(msgspec.Struct, frozen=True):
    """A waiting task that would not match, and where."""

    task: str
    errors: list[FieldError] = []


class TypePreview(msgspec.Struct, frozen=True):
    """What `put_type` would mean."""

    name: str
    is_new: bool = False
    waiting_sampled: int = 0
    waiting_invalid: int = 0
    #: The first few that would not match.
    examples: list[TypeMismatch] = []


class Queue(msgspec.Struct, frozen=True):
    """A queue; without a version nothing is set for it."""

    name: str
    state: str = "active"
    limits: Limits = msgspec.field(default_factory=Limits)
    kinds: list[str] = []
    classes: list[str] = []
    version: int | None = None
    updated_at: datetime | None = None
    #: What a change means for tasks that are there already, in the answer to it.
    notes: list[str] = []
    #: How long workers that take from it may be silent, if they do not say it themselves.
    max_silence: float | None = None


class KeyLimit(msgspec.Struct, frozen=True):
    """The limit of a key, or of each key that a pattern fits."""

    name: str
    max_running: int | None = None
    rate: float | None = None
    burst: int | None = None
    strict: bool = False
    version: int = 0
    updated_at: datetime | None = None
    notes: list[str] = []
