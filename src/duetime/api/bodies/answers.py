"""Answer bodies: the body of every answer that is not a view."""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from duetime.api.bodies.requests import Priority
from duetime.api.problems import Problem
from duetime.errors import FieldError
from duetime.model.task import Delivery, TaskState


class Accepted(Struct, omit_defaults=True, gc=False):
    """An item of a batch that is now a task."""

    id: uuid.UUID
    state: TaskState
    #: The key or the request was known already: this is the task that was made for it.
    repeated: Annotated[
        bool, Meta(description="The task was there already, under the same idempotency or unique key.")
    ] = False
    replaces: Annotated[uuid.UUID | None, Meta(description="The debounced task that it replaced.")] = None


class Rejected(Struct):
    """An item of a batch that was refused."""

    error: Problem


class BatchAnswer(Struct):
    """A result for each item, in order."""

    results: list[Any]
    accepted: int
    rejected: int


class BatchProblem(Struct):
    """An atomic batch with wrong items: nothing of it was stored."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError]
    results: list[Rejected | None]
    request_id: Annotated[str, Meta(description="The header `X-Request-Id`.")]


_HOLDER = Meta(
    description="The identity under which the server knows the worker. It changes if the worker counted as dead in "
    "between. An attempt that was leased under the former identity and has not begun must be confirmed by a "
    "beat before it begins."
)


class LeasedAnswer(Struct, gc=False):
    """One attempt for the worker to run."""

    id: uuid.UUID
    type: str
    queue: str
    payload: Raw
    attempt: int
    run_at: datetime
    timeout: float
    labels: Annotated[Raw, Meta(description="The task's labels.", extra_json_schema={"type": ["object", "null"]})]
    trace: str | None
    priority: Priority
    delivery: Delivery
    recovered: Annotated[
        bool,
        Meta(
            description="An earlier holder died or forgot the task. Before running it, send a beat that names it "
            "as started."
        ),
    ]
    crashes: Annotated[
        int, Meta(description="How many holders died while running it. If 2 or more, run such tasks one at a time.")
    ]


class LeaseAnswer(Struct):
    """The leased tasks, and how often to send a beat."""

    tasks: list[LeasedAnswer]
    beat_every: Annotated[float, Meta(description="Seconds between two beats.")]
    max_silence: Annotated[float, Meta(description="Seconds without a beat after which the worker counts as dead.")]
    begin_within: Annotated[
        float,
        Meta(
            description="If a task has not begun within this many seconds after this request was sent, another "
            "worker may have it. Begin it only after a beat that named it was answered and did not list it "
            "as lost."
        ),
    ]
    holder: Annotated[str, _HOLDER]


class EndedAttempt(Struct, gc=False):
    """One attempt of a task."""

    id: uuid.UUID
    attempt: int


_LOST = Meta(description="The attempts of the tasks in `lost`. Absent if there are none.")
_CANCELLED = Meta(description="The attempts of the tasks in `cancelled`. Absent if there are none.")


class SettleAnswer(Struct):
    """Which of the reports were stored, and which were not."""

    settled: Annotated[int, Meta(description="How many reports were accepted.")]
    lost: Annotated[
        list[uuid.UUID], Meta(description="Tasks that this worker does not hold (any more): discard their results.")
    ]
    cancelled: Annotated[list[uuid.UUID], Meta(description="Tasks that were cancelled while they ran.")]
    dead: Annotated[
        list[uuid.UUID] | UnsetType,
        Meta(description="Tasks that are dead letters after an accepted report. Absent if there are none."),
    ] = UNSET
    lost_attempts: Annotated[list[EndedAttempt] | UnsetType, _LOST] = UNSET
    cancelled_attempts: Annotated[list[EndedAttempt] | UnsetType, _CANCELLED] = UNSET


class BeatAnswer(Struct):
    """Attempts that the worker has to stop."""

    lost: Annotated[
        list[uuid.UUID],
        Meta(
            description="Tasks that the worker does not hold any more. A task is "
            "listed once for each of its lost attempts."
        ),
    ]
    cancelled: list[uuid.UUID]
    lost_attempts: Annotated[list[EndedAttempt] | UnsetType, _LOST] = UNSET
    cancelled_attempts: Annotated[list[EndedAttempt] | UnsetType, _CANCELLED] = UNSET
    holder: Annotated[str | UnsetType, _HOLDER] = UNSET


class BulkAnswer(Struct):
    """How many tasks the filter found, how many the verb changed, and where to go on."""

    matched: int
    changed: int
    next: str | None


class RedriveAnswer(Struct):
    matched: int
    redriven: int
    next: str | None


class DropAnswer(Struct):
    matched: int
    dropped: int
    next: str | None


class KeyMade(Struct):
    """A new key, shown this once."""

    id: int
    key: str
    role: str
    tenant: str
    notes: Annotated[list[str], Meta(description="Effects that the caller may not expect.")] = []


class SecretAnswer(Struct):
    """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""

    secret: Annotated[
        str,
        Meta(
            description="The secret: `whsec_` followed by base64.",
            extra_json_schema={"pattern": "^whsec_[A-Za-z0-9+/]+=*$"},
        ),
    ]
    former_until: Annotated[
        datetime | None, Meta(description="Until this time calls are also signed with the former secret.")
    ] = None


class SecretRotated(SecretAnswer):
    """The new secret."""

    notes: Annotated[list[str], Meta(description="Which former secret stopped signing, if one did.")] = []


class HealthAnswer(Struct):
    """Whether the process is alive, or ready."""

    status: Literal["ok"] = "ok"
