"""Request bodies: the body of every request.

Unknown fields are refused, because a misspelt option that is silently ignored is
only noticed days later.  A payload or result is kept as the bytes that were sent.
Defaults of durations are plain numbers, so that the schema can show them.  Checks
that a type cannot express are in `validation`.
"""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from duetime.api.bodies.seconds import (
    Backoff,
    Delay,
    KeyRetention,
    RetryAfter,
    RetrySpan,
    Silence,
    Sla,
    Timeout,
    Wait,
)
from duetime.api.tasks.flow_schemas import DebounceRequest, UniqueRequest, printable
from duetime.model.retry import DEFAULT_RETRY
from duetime.model.task import Delivery, TaskState

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
LABEL_KEY_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}$"
#: The minimum for a printable text, as a pattern; the format `printable` is the whole rule.
PRINTABLE = "[^\\u0000-\\u001F\\u007F-\\u009F]"
MAX_BULK = 10_000
MAX_IDS = 10_000
MAX_SETTLEMENTS = 5_000
MAX_HELD = 10_000
#: The end of the year 9998 in microseconds since 1970: a time that the database can hold in every zone.
LATEST_US = 253_370_764_799_999_999


def said(description: str, **schema: Any) -> Meta:
    """A description and schema for readers; the check itself is in `validation`."""
    return Meta(description=description, extra_json_schema=schema or None)


def _name(description: str) -> Meta:
    return said(description, pattern=NAME_PATTERN, minLength=1, maxLength=128)


Priority = Literal["critical", "high", "normal", "low"]
Instant = Annotated[datetime, Meta(tz=True)]
Moment = Annotated[
    Instant | Annotated[int, Meta(ge=0, le=LATEST_US)],
    Meta(description="A time: RFC 3339, or whole microseconds since 1970 (UTC)."),
]
TypeName = Annotated[str, _name("The kind of work. Workers have a handler for each type.")]
QueueName = Annotated[str, _name("The queue. It is created on first use.")]
Tag = Annotated[str, said("A tag.", pattern=NAME_PATTERN, minLength=1, maxLength=128)]
Labels = Annotated[
    dict[
        Annotated[str, said("A label's name.", pattern=LABEL_KEY_PATTERN, minLength=1, maxLength=63)],
        Annotated[str, said("Printable text.", format="printable", pattern=f"^{PRINTABLE}{{0,255}}$", maxLength=255)],
    ],
    Meta(max_length=32, description="Up to 32 names and values by which the task can be found."),
]
WorkerName = Annotated[
    str,
    said(
        "Names one worker process from its start to its end: add random characters at each start.",
        format="printable",
        pattern=f"^{PRINTABLE}{{1,200}}$",
        minLength=1,
        maxLength=200,
    ),
]


ConcurrencyKey = Annotated[str, printable("Tasks of the same key share the limit that is set for it.")]
RateKey = Annotated[str, printable("Tasks of the same key share the rate that is set for it.")]


class TargetRequest(Struct, forbid_unknown_fields=True):
    """An HTTP endpoint that does the work."""

    url: Annotated[
        str,
        said(
            "Where to send the task: http or https, without user name and password.",
            format="uri",
            pattern="^[Hh][Tt][Tt][Pp][Ss]?://",
            maxLength=2083,
        ),
    ]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "POST"
    headers: Annotated[
        dict[
            Annotated[str, said("A header's name.", pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", format="header-name")],
            Annotated[str, said("ASCII without control characters.", pattern="^([!-~]([ -~\\t]*[!-~])?)?$")],
        ],
        Meta(
            max_length=64,
            description="Headers to send, 16 KB in all. These cannot be given because duetime sets them: `Host`, "
            "`Content-Length`, `Idempotency-Key`, connection headers, `webhook-…` and `duetime-…`. "
            "`Authorization`, `Cookie`, `X-Api-Key` and the like are secret: they are stored encrypted and "
            "shown as `***`.",
        ),
    ] = {}
    secret_headers: (
        Annotated[
            list[
                Annotated[str, said("A header's name.", pattern="^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", format="header-name")]
            ],
            Meta(max_length=64, description="Names of further headers that are secret."),
        ]
        | UnsetType
    ) = UNSET
    timeout: Timeout | None = None
    retry_on: Annotated[
        list[Annotated[int, Meta(ge=400, le=599)]],
        Meta(max_length=32, description="Statuses that are retried although they normally count as permanent."),
    ] = []


class RetryRequest(Struct, forbid_unknown_fields=True):
    """When a failed attempt is tried again (the names and meaning of Cloud Tasks).

    Without any of it: 20 attempts, with waits that double from 1 s to 1 h, each up to 10 % shorter or longer. A task
    that always fails is a dead letter after about 8 hours.
    """

    max_attempts: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | UnsetType,
        Meta(
            description="The most attempts, including the first. Default: 20.",
            extra_json_schema={"default": DEFAULT_RETRY.max_attempts},
        ),
    ] = UNSET
    min_backoff: Backoff = cast(Backoff, DEFAULT_RETRY.min_backoff)
    max_backoff: Annotated[
        Backoff | UnsetType,
        Meta(description="The longest wait between attempts. Default: one hour, or `min_backoff` if that is longer."),
    ] = UNSET
    max_doublings: Annotated[
        int,
        Meta(ge=0, le=60, description="How often the wait doubles. After that it grows by the same amount each time."),
    ] = DEFAULT_RETRY.max_doublings
    max_retry_duration: RetrySpan | None = None
    max_crashes: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | UnsetType,
        Meta(
            description="The number of attempts that may be lost because their worker died. When it is reached, the "
            "task becomes a dead letter. Default: 3.",
            extra_json_schema={"default": DEFAULT_RETRY.max_crashes},
        ),
    ] = UNSET


class PlainTaskRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A task to be submitted whose fields need no further checks, like most tasks."""

    type: TypeName
    payload: Annotated[Raw, Meta(description="Any JSON, up to 64 KiB. Default: null.")] = field(default_factory=Raw)
    queue: Annotated[
        QueueName | UnsetType, Meta(description="Default: the queue in the type's defaults, else `default`.")
    ] = UNSET
    priority: Annotated[
        Priority | UnsetType, Meta(description="Default: the priority in the type's defaults, else `normal`.")
    ] = UNSET
    run_at: Annotated[
        Instant | None,
        Meta(
            description="When to run the task (RFC 3339), up to 10 years ahead. A time in the past means now. Not "
            "allowed with `delay`."
        ),
    ] = None
    delay: Delay | None = None


class TaskRequest(PlainTaskRequest, forbid_unknown_fields=True, gc=False):
    """A task to be submitted."""

    target: TargetRequest | None = None
    retry: RetryRequest | None = None
    timeout: Timeout | None = None
    expires_at: Annotated[
        Instant | None, Meta(description="The task does not start at or after this time. Must be later than `run_at`.")
    ] = None
    idempotency_key: Annotated[
        Annotated[str, said("", format="printable", pattern=f"^{PRINTABLE}{{1,255}}$", minLength=1, maxLength=255)]
        | None,
        Meta(
            description="Identifies the task. Submitting the same body again with the same key returns the same "
            "task. Another body with this key is refused with 409. The key is free again when the task is "
            "over and `idempotency_ttl` has passed. A dead letter does not count as over."
        ),
    ] = None
    idempotency_ttl: KeyRetention = cast(KeyRetention, 86_400.0)
    requires: Annotated[
        list[Tag], Meta(max_length=16, description="Tags that a worker must have to receive the task.")
    ] = []
    sla: Sla | None = None
    delivery: Annotated[
        Delivery, Meta(description="With `at_most_once` a task that was handed out is never tried again.")
    ] = "at_least_once"
    labels: Labels | None = None
    concurrency_key: ConcurrencyKey | None = None
    rate_key: RateKey | None = None
    debounce: DebounceRequest | None = None
    unique: UniqueRequest | None = None


class DeadFilterRequest(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Which dead letters: all given fields must match."""

    type: TypeName | None = None
    queue: QueueName | None = None
    priority: Priority | None = None
    label: Annotated[
        list[
            Annotated[
                str,
                said(
                    "A label as `name=value`.",
                    format="label",
                    pattern=f"^[A-Za-z0-9][A-Za-z0-9._:/-]{{0,62}}={PRINTABLE}{{0,255}}$",
                ),
            ]
        ],
        Meta(max_length=32, description="Labels that the task must have."),
    ] = []
    from_: Annotated[Instant | None, Meta(description="Only tasks due at or after this time.")] = None
    to: Annotated[Instant | None, Meta(description="Only tasks due before this time.")] = None
    schedule: Annotated[
        Annotated[str, Meta(pattern=NAME_PATTERN)] | None,
        Meta(description="Only tasks made by the schedule with this name."),
    ] = None


class FilterRequest(DeadFilterRequest, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Which tasks: all given fields must match."""

    state: TaskState | None = None


Cursor = Annotated[
    str, Meta(max_length=200, description="The `next` of the previous answer.", extra_json_schema={"format": "cursor"})
]


class BulkRequest(Struct, forbid_unknown_fields=True):
    """Tasks by filter; `{}` as the filter means all tasks of the tenant."""

    filter: FilterRequest
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK, description="The most tasks to examine in this call.")] = 1_000
    cursor: Cursor | None = None


class BulkRescheduleRequest(BulkRequest, forbid_unknown_fields=True):
    """Tasks by filter, and their new time: exactly one of `run_at` and `delay`."""

    run_at: Instant | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET


class RescheduleRequest(Struct, forbid_unknown_fields=True):
    """The new time: exactly one of the two."""

    run_at: Instant | UnsetType = UNSET
    delay: Delay | UnsetType = UNSET


class DropRequest(Struct, forbid_unknown_fields=True):
    """Dead letters: exactly one of `ids`, `filter` and `all`."""

    ids: Annotated[list[uuid.UUID], Meta(max_length=MAX_IDS)] | UnsetType = UNSET
    filter: DeadFilterRequest | UnsetType = UNSET
    all: bool | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK, description="The most dead letters to examine in this call.")] = 1_000
    cursor: Cursor | None = None


class RedriveRequest(DropRequest, forbid_unknown_fields=True):
    """Dead letters: exactly one of `ids`, `filter` and `all`."""

    rate: Annotated[
        Annotated[float, Meta(ge=0.01, le=1_000_000)] | None,
        Meta(description="Tasks per second, so that a redrive does not flood its handlers. Absent: all at once."),
    ] = None


class LeaseRequest(Struct, forbid_unknown_fields=True):
    """Ask for tasks that are due."""

    worker: WorkerName
    queues: Annotated[
        Annotated[list[QueueName], Meta(max_length=1_000)] | None,
        Meta(description="Only tasks from these queues. null: from all queues."),
    ] = None
    tags: Annotated[list[Tag], Meta(max_length=64, description="The worker's tags, for tasks that require them.")] = []
    types: Annotated[
        Annotated[list[TypeName], Meta(min_length=1, max_length=1_000)] | None,
        Meta(
            description="Only tasks of these types, which are those that the worker handles. null: tasks of all types."
        ),
    ] = None
    max: Annotated[
        int, Meta(ge=1, le=1000, description="The most tasks to lease. Ask for no more than the worker has room for.")
    ] = 1
    wait: Wait = cast(Wait, 0.0)
    max_silence: Annotated[Silence | None, Meta(description="null: the value that is set for its queues.")] = None


class FailureBody(Struct, forbid_unknown_fields=True):
    """Why an attempt failed."""

    message: Annotated[str, Meta(max_length=16_384)]
    kind: Annotated[
        Literal["transient", "permanent", "unknown"],
        Meta(description="With `permanent` there are no further attempts. `unknown` is tried again, like `transient`."),
    ] = "transient"
    detail: Annotated[Raw, Meta(description="Any JSON.")] = field(default_factory=Raw)


class Settlement(Struct, forbid_unknown_fields=True, gc=False):
    """How one attempt ended."""

    id: uuid.UUID
    attempt: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    outcome: Annotated[
        Literal["succeeded", "failed", "snoozed", "released"],
        Meta(
            description="`released`: the worker returns the task because it stops or has no room. Give `started_at` "
            "if the attempt had begun. Neither `released` nor `snoozed` uses up an attempt."
        ),
    ]
    result: Annotated[Raw | UnsetType, Meta(description="Any JSON, up to 64 KiB.")] = UNSET
    error: FailureBody | None = None
    retry_after: RetryAfter | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None


class SettleRequest(Struct, forbid_unknown_fields=True):
    """Outcomes of attempts that the worker holds."""

    worker: WorkerName
    settlements: Annotated[list[Settlement], Meta(max_length=MAX_SETTLEMENTS)]


class HeldAttempt(Struct, forbid_unknown_fields=True, gc=False):
    """An attempt that the worker holds."""

    id: uuid.UUID
    attempt: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    started: Annotated[bool, Meta(description="false: the attempt waits in the worker and has not begun.")] = True


class BeatRequest(Struct, forbid_unknown_fields=True):
    """A sign of life that names every attempt that the worker holds."""

    worker: WorkerName
    attempts: Annotated[list[HeldAttempt], Meta(max_length=MAX_HELD)] = []
    leaving: Annotated[
        bool, Meta(description="This is the last beat: the worker signs off and releases all that it still holds.")
    ] = False
