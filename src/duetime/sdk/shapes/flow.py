"""Task types, queues and limits, as requests and as answers.

This module only shapes requests; the server validates them.  Answers may have
unknown fields and may lack new ones, as everywhere in `shapes`.
"""

from datetime import datetime
from typing import Any, TypedDict

import msgspec

from duetime.sdk.errors import Duration, FieldError
from duetime.sdk.shapes.durations import as_duration
from duetime.sdk.shapes.tasks import Priority, RetryPolicy, Unique


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many attempts run at once, and how many start per second. An absent value means no limit."""

    max_running: int | None = None
    rate: float | None = None
    #: How many may start at once after a quiet time. Default: one second's worth.
    burst: int | None = None
    #: Keep `max_running` even while two nodes feed the tenant.
    strict: bool = False


class TypeLimits(Limits, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a type. With a key, which is a place in the payload, each value there has its own limit."""

    concurrency_key: str | None = None
    rate_key: str | None = None


class TypeDefaults(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Values for submissions of the type that do not set their own."""

    queue: str | None = None
    priority: Priority | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    sla: Duration | None = None

    def __post_init__(self) -> None:
        self.timeout = as_duration(self.timeout)
        self.sla = as_duration(self.sla)


class RateLimit(msgspec.Struct, omit_defaults=True):
    """Submissions beyond `limit` in a period are refused. `key` is a place in the payload."""

    limit: int
    period: Duration
    key: str | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period) or 0.0


class Throttle(RateLimit, omit_defaults=True):
    """Attempts start at this pace; further ones wait."""

    #: How many more may start at once after a quiet time.
    burst: int = 0


class TypeDebounce(msgspec.Struct, omit_defaults=True):
    """Of several submissions within the period only the last one runs. `key` is a place in the payload."""

    period: Duration
    key: str | None = None
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        self.period = as_duration(self.period) or 0.0
        self.timeout = as_duration(self.timeout)


class TypeOptions(TypedDict, total=False):
    """All settings of a type. The keys of its rules are places in the payload (`customer`, `order.shop`)."""

    #: A JSON Schema for payloads.
    schema: dict[str, Any] | bool | None
    defaults: TypeDefaults | dict[str, object] | None
    limits: TypeLimits | dict[str, object] | None
    throttle: Throttle | dict[str, object] | None
    rate_limit: RateLimit | dict[str, object] | None
    debounce: TypeDebounce | dict[str, object] | None
    unique: Unique | dict[str, object] | None


class TaskType(msgspec.Struct, frozen=True):
    """A registered type. What it does not set is None. Its rules are as the API returns them, durations in seconds."""

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
        """Return the settings in the form that `put_type` takes. Types are replaced whole: change these."""
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
    """The type as it is now, and what it means for waiting tasks."""

    name: str
    version: int = 0
    #: How many waiting tasks were checked, at most 10,000, and how many of them do not match the schema.
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
    """A queue. Without a version it has no settings."""

    name: str
    state: str = "active"
    limits: Limits = msgspec.field(default_factory=Limits)
    kinds: list[str] = []
    classes: list[str] = []
    version: int | None = None
    updated_at: datetime | None = None
    #: What a change means for existing tasks, in the answer to it.
    notes: list[str] = []
    #: How long workers that lease from it may be silent, if they do not set this themselves.
    max_silence: float | None = None


class KeyLimit(msgspec.Struct, frozen=True):
    """The limit of a key, or of each key that matches a pattern."""

    name: str
    max_running: int | None = None
    rate: float | None = None
    burst: int | None = None
    strict: bool = False
    version: int = 0
    updated_at: datetime | None = None
    notes: list[str] = []
