"""Schedules, as requests and as answers.

This module only shapes requests; the server validates them.  Answers may have
unknown fields and may lack new ones, as everywhere in `shapes`.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal, TypedDict

import msgspec

from duetime.sdk.errors import Duration
from duetime.sdk.shapes.answers import Problem
from duetime.sdk.shapes.durations import as_duration
from duetime.sdk.shapes.tasks import Delivery, Priority, RetryPolicy, Target

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]
Misfire = Literal["fire_latest", "fire_all", "skip"]
Origin = Literal["api", "file", "code"]
ScheduleState = Literal["active", "paused", "ended"]
#: A whole day, or {"from", "to"}, {"cron"} or {"calendar"}.
Exclusion = str | date | Mapping[str, object]

_SPEC = ("cron", "every", "phase", "after", "rrule", "calendar", "dates", "exclude")
_TASK = (
    *("queue", "priority", "target", "retry", "timeout", "sla", "labels", "requires", "delivery", "expires_after"),
    *("concurrency_key", "rate_key"),
)
_DURATIONS = (
    "every",
    "phase",
    "after",
    "jitter",
    "misfire_threshold",
    "catchup_window",
    "timeout",
    "sla",
    "expires_after",
)


class DstPolicy(TypedDict, total=False):
    """What to do with local times that a clock change leaves out (gap) or repeats (overlap)."""

    gap: Literal["shift", "skip"]
    overlap: Literal["first", "last", "both"]


class TimesOptions(TypedDict, total=False):
    """When a schedule fires: the union of what is given, minus `exclude`."""

    cron: str | Sequence[str] | None
    every: Duration | None
    phase: Duration | None
    after: Duration | None
    rrule: str | Sequence[str] | None
    calendar: Sequence[Mapping[str, str | int]] | None
    dates: Sequence[str | datetime] | None
    exclude: Sequence[Exclusion] | None
    timezone: str | None
    dst: DstPolicy | None
    jitter: Duration | None
    start_at: datetime | str | None
    end_at: datetime | str | None


class DeclareOptions(TimesOptions, total=False):
    """The parts of a schedule other than its name, type and payload."""

    max_fires: int | None
    overlap: Overlap | None
    misfire: Misfire | None
    misfire_threshold: Duration | None
    catchup_window: Duration | None
    catchup_rate: float | None
    pause_on_failure: bool | None
    queue: str | None
    priority: Priority | None
    target: Target | dict[str, object] | str | None
    retry: RetryPolicy | dict[str, object] | None
    timeout: Duration | None
    sla: Duration | None
    labels: dict[str, str] | None
    requires: list[str] | tuple[str, ...] | None
    delivery: Delivery | None
    expires_after: Duration | None
    concurrency_key: str | None
    rate_key: str | None
    paused: bool | None
    note: str | None
    source: str | None


class ScheduleOptions(DeclareOptions, total=False):
    """The options of `Client.schedule`."""

    version: int | None
    origin: Origin | None
    force: bool | None


def shape_times(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the form of the API: the parts of the spec in `spec`, durations as seconds or texts."""
    fields = {name: value for name, value in options.items() if value is not None}
    for name in ("start_at", "end_at"):
        instant = fields.get(name)
        if isinstance(instant, datetime) and instant.tzinfo is None:
            raise ValueError(f"{name} has no time zone: use datetime.now(UTC) or another aware datetime")
    for name in _DURATIONS:
        if name in fields:
            fields[name] = as_duration(fields[name])
    spec = {name: fields.pop(name) for name in _SPEC if name in fields}
    return {"spec": spec, **fields}


def shape_schedule(type: str, payload: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition in the form of the API."""
    definition = shape_times(options)
    task: dict[str, Any] = {name: definition.pop(name) for name in _TASK if name in definition}
    if isinstance(task.get("target"), str):
        task["target"] = Target(task["target"])
    return {**definition, "task": {"type": type, "payload": payload, **task}}


class Fire(msgspec.Struct, frozen=True):
    """One time: when, also by the clock of the schedule's zone, and the effect of DST or an exclusion."""

    at: datetime
    local: str = ""
    note: str | None = None
    excluded: bool = False


class Counters(msgspec.Struct, frozen=True):
    """How many times had which outcome since the schedule was created."""

    fired: int = 0
    skipped: int = 0
    missed: int = 0
    buffered: int = 0


class Skip(msgspec.Struct, frozen=True):
    at: datetime | None = None
    fire_time: datetime | None = None
    reason: str = ""


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as the server returns it: the definition with its defaults, and its current state."""

    name: str
    state: str = ""
    spec: dict[str, Any] = {}
    timezone: str = "UTC"
    dst: dict[str, str] = {}
    jitter: float = 0.0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    overlap: str = "skip"
    misfire: str = "fire_latest"
    misfire_threshold: float | None = None
    catchup_window: float | None = None
    catchup_rate: float | None = None
    pause_on_failure: bool = False
    #: The template of its tasks.
    task: dict[str, Any] = {}
    note: str | None = None
    origin: str = "api"
    source: str = ""
    version: int = 0
    counters: Counters = msgspec.field(default_factory=Counters)
    #: Times that wait for an earlier run to end.
    buffered_now: int = 0
    last_skip: Skip | None = None
    next_fire_time: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    #: What it does, as a sentence. Lists omit this and `next_fires`.
    words: str | None = None
    next_fires: list[Fire] | None = None


class PutResult(msgspec.Struct, frozen=True):
    """The result for one schedule of a batch: what was done, or a problem."""

    name: str = ""
    version: int | None = None
    result: str | None = None
    error: Problem | None = None


class PutResults(msgspec.Struct, frozen=True):
    results: list[PutResult] = []
    accepted: int = 0
    rejected: int = 0


class DeletedSchedule(msgspec.Struct, frozen=True):
    name: str = ""
    #: Open tasks that were cancelled with it.
    cancelled: int = 0


class Triggered(msgspec.Struct, frozen=True):
    #: The id of the task that was made.
    task: str
    fire_time: datetime | None = None


class Run(msgspec.Struct, frozen=True):
    """One time of a schedule, and what happened at it."""

    fire_time: datetime
    at: datetime | None = None
    cause: str = "schedule"
    outcome: str = ""
    reason: str | None = None
    task: str | None = None
    #: The state of the task. None if there is none, or if its retention is over.
    state: str | None = None
    #: When the task was over. If that was before the fire time, `reason` says why.
    ended_at: datetime | None = None


class Backfill(msgspec.Struct, frozen=True):
    """The tasks of a past range, made at a rate."""

    id: int
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    rate: float = 0.0
    state: str = ""
    #: Tasks made so far.
    created_count: int = 0
    #: Every time up to here is done.
    reached: datetime | None = None
    created_at: datetime | None = None
    ended_at: datetime | None = None
    #: Why it makes no tasks now. None: it continues.
    waits_for: str | None = None


class Preview(msgspec.Struct, frozen=True):
    """When a schedule fires, and which of its times are excluded."""

    words: str = ""
    fires: list[Fire] = []


class Calendar(msgspec.Struct, frozen=True):
    """Times that many schedules can exclude."""

    name: str
    dates: list[Any] = []
    version: int = 0
    updated_at: datetime | None = None


class CalendarPut(msgspec.Struct, frozen=True):
    name: str
    version: int = 0
    #: Schedules whose next time was computed again.
    replanned: int = 0
