"""Request bodies for schedules and calendars."""

from typing import Annotated, Literal, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from duetime.api.bodies.requests import (
    NAME_PATTERN,
    ConcurrencyKey,
    Instant,
    Labels,
    Priority,
    QueueName,
    RateKey,
    RetryRequest,
    Tag,
    TargetRequest,
    TypeName,
)
from duetime.api.bodies.seconds import Seconds, Sla, Timeout
from duetime.model.schedule import DEFAULT_MISFIRE_THRESHOLD_SECONDS, MIN_CATCHUP_WINDOW_SECONDS, Misfire, Overlap
from duetime.model.task import Delivery
from duetime.recurrence import CalendarEntry, Dst, Exclusion

MAX_SCHEDULE_BATCH = 1_000
MAX_PREVIEW = 1_000
MAX_NAME = 128
MAX_SOURCE = 200
MAX_VERSION = 2_147_483_647
#: PostgreSQL stores no NUL in a text.
NO_NUL = "^[^\\u0000]*$"
_DAY = 86_400.0


class Every(Seconds):
    minimum, maximum = 1.0, 3_653 * _DAY
    purpose = "A fixed rate, counted from 1970 plus `phase`"


class Phase(Seconds):
    maximum = 3_653 * _DAY
    purpose = "Shifts a fixed rate"


class After(Seconds):
    minimum, maximum = 1.0, 3_653 * _DAY
    purpose = "How long after the end of a run the next one begins"


class Jitter(Seconds):
    maximum = _DAY
    purpose = "Spreads fires over this long, always the same for one schedule"


class CatchupWindow(Seconds):
    minimum, maximum = MIN_CATCHUP_WINDOW_SECONDS, 366 * _DAY
    purpose = "How late a fire may be made up for"


class MisfireThreshold(Seconds):
    minimum, maximum = 1.0, _DAY
    purpose = "How late a fire may be and still count as on time"


class ExpiresAfter(Seconds):
    minimum, maximum = 0.001, 366 * _DAY
    purpose = "How long after its time a task may still be started"


Cron = Annotated[
    str,
    Meta(
        max_length=1_000,
        description="Five fields, six with the second first, or seven with the year last; `@daily` …; L, W, #, H.",
        extra_json_schema={"format": "cron"},
    ),
]
RecurrenceRule = Annotated[
    str,
    Meta(
        max_length=1_000,
        description="An RRULE (RFC 5545), with or without DTSTART.",
        extra_json_schema={"format": "rrule"},
    ),
]
Note = Annotated[str, Meta(max_length=1_000, pattern=NO_NUL)]
ScheduleName = Annotated[
    str,
    Meta(
        description="The schedule's name.",
        extra_json_schema={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": MAX_NAME},
    ),
]


class SpecRequest(Struct, forbid_unknown_fields=True):
    """When to fire: the union of all that is given, minus `exclude`."""

    cron: Cron | Annotated[list[Cron], Meta(max_length=100)] = []
    every: Every | None = None
    phase: Phase = cast(Phase, 0.0)
    after: After | None = None
    rrule: RecurrenceRule | Annotated[list[RecurrenceRule], Meta(max_length=10)] = []
    calendar: Annotated[
        list[CalendarEntry], Meta(max_length=100, description="Times by fields, each as a cron field is written.")
    ] = []
    dates: Annotated[
        list[Annotated[str, Meta(max_length=40, extra_json_schema={"format": "local-time"})]],
        Meta(max_length=1_000, description="Single times: 2027-03-01T09:00 in the schedule's zone, or with an offset."),
    ] = []
    exclude: Annotated[
        list[Exclusion],
        Meta(
            max_length=1_000,
            description="What to exclude: days (`2027-12-24`), ranges (`from`, `to`), a `cron`, or a named `calendar`.",
        ),
    ] = []


class TemplateRequest(Struct, forbid_unknown_fields=True):
    """The task that each fire makes: everything that a task can have except its time."""

    type: TypeName
    payload: Annotated[
        Raw,
        Meta(
            description="Any JSON, up to 64 KiB. In its strings `{{fire_time}}` and similar placeholders are filled in."
        ),
    ] = field(default_factory=Raw)
    queue: QueueName | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    target: TargetRequest | None = None
    retry: RetryRequest | None = None
    timeout: Timeout | None = None
    expires_after: ExpiresAfter | None = None
    requires: Annotated[list[Tag], Meta(max_length=16)] = []
    sla: Sla | None = None
    delivery: Delivery = "at_least_once"
    labels: Labels | None = None
    concurrency_key: ConcurrencyKey | UnsetType | None = UNSET
    rate_key: RateKey | UnsetType | None = UNSET


class ScheduleTimes(Struct, forbid_unknown_fields=True):
    """When a schedule fires."""

    spec: SpecRequest
    timezone: Annotated[
        str,
        Meta(
            max_length=100,
            description="An IANA time zone, such as Europe/Berlin.",
            extra_json_schema={"format": "timezone"},
        ),
    ] = "UTC"
    dst: Dst = field(default_factory=Dst)
    jitter: Jitter = cast(Jitter, 0.0)
    start_at: Instant | None = None
    end_at: Instant | None = None


class SchedulePolicies(ScheduleTimes, forbid_unknown_fields=True, kw_only=True):
    """When to fire, and what to do if something goes wrong."""

    max_fires: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    overlap: Annotated[Overlap, Meta(description="What to do if an earlier run is not over.")] = Overlap.SKIP
    misfire: Annotated[Misfire, Meta(description="What to do with times that were missed.")] = Misfire.FIRE_LATEST
    misfire_threshold: MisfireThreshold = cast(MisfireThreshold, DEFAULT_MISFIRE_THRESHOLD_SECONDS)
    catchup_window: CatchupWindow | UnsetType = UNSET
    catchup_rate: (
        Annotated[float, Meta(ge=0.01, le=1_000, description="The most late fires per second.")] | UnsetType
    ) = UNSET
    pause_on_failure: bool = False
    paused: bool | None = None
    note: Note | None = None
    origin: Literal["api", "file", "code"] = "api"
    source: Annotated[
        str,
        Meta(
            max_length=MAX_SOURCE, pattern=NO_NUL, description="The file set or program that the schedule comes from."
        ),
    ] = ""
    version: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_VERSION)] | None,
        Meta(
            description="The version to replace. 0: no schedule may exist yet. If the version is another one, the "
            "answer is 409."
        ),
    ] = None
    force: Annotated[bool, Meta(description="Take over a schedule that has another origin.")] = False


class ScheduleRequest(SchedulePolicies, forbid_unknown_fields=True, kw_only=True):
    """A schedule: when to fire, which task to make, and what to do if something goes wrong."""

    task: TemplateRequest


class NamedScheduleRequest(ScheduleRequest, forbid_unknown_fields=True, kw_only=True):
    name: ScheduleName


class ScheduleBatchRequest(Struct, forbid_unknown_fields=True):
    items: Annotated[list[NamedScheduleRequest], Meta(max_length=MAX_SCHEDULE_BATCH)]


class NameAlone(Struct):
    """An item of which only the name is read."""

    name: str = ""


class RawScheduleBatch(Struct, forbid_unknown_fields=True):
    """The batch with unread items: each item is read separately, so that one wrong item does not affect the others."""

    items: Annotated[list[Raw], Meta(max_length=MAX_SCHEDULE_BATCH)]


class PreviewRequest(SchedulePolicies, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """When a schedule would fire: from its times, or from the whole schedule, which is then checked as a whole."""

    task: TemplateRequest | None = None

    name: Annotated[ScheduleName | None, Meta(description="The seed for `H` fields and jitter.")] = None
    from_: Instant | None = None
    count: Annotated[int, Meta(ge=1, le=MAX_PREVIEW)] = 10


class NoteRequest(Struct, forbid_unknown_fields=True):
    note: Note | None = None


class TriggerRequest(Struct, forbid_unknown_fields=True):
    as_of: Annotated[Instant | None, Meta(description="The time that the run stands for. Default: now.")] = None


class BackfillRequest(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Make the tasks of a past range, from its first time until just before its end."""

    from_: Instant
    to: Instant
    rate: Annotated[float, Meta(ge=0.01, le=1_000, description="The most tasks per second.")] = 10.0


class CalendarRequest(Struct, forbid_unknown_fields=True):
    """Times that many schedules leave out."""

    dates: Annotated[list[Exclusion], Meta(max_length=1_000)]
