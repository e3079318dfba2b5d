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
    replaces: Annotated[uuid.UUID | None, Meta(description="The debounced task whose place it took.")] = None


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
    description="What the server takes the worker for: another one than before if it counted as dead in between. What "
    "was leased as one and not begun is confirmed by a beat before it begins as another."
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
        Meta(description="A former holder died or forgot it: send a beat that names it as started before running it."),
    ]
    crashes: Annotated[
        int, Meta(description="How many holders died while they ran it. From 2 on, begin such tasks one at a time.")
    ]


class LeaseAnswer(Struct):
    """The leased tasks, and how often to send a beat."""

    tasks: list[LeasedAnswer]
    beat_every: Annotated[float, Meta(description="Seconds between two beats.")]
    max_silence: Annotated[float, Meta(description="Seconds without a beat after which the worker counts as dead.")]
    begin_within: Annotated[
        float,
        Meta(
            description="Seconds since the worker sent this request. What has not begun by then may be somebody "
            "else's: it begins only after a beat that named it was answered and did not call it lost."
        ),
    ]
    holder: Annotated[str, _HOLDER]


class EndedAttempt(Struct, gc=False):
    """One attempt of a task."""

    id: uuid.UUID
    attempt: int


_LOST = Meta(description="The attempts that `lost` means. Absent if there are none.")
_CANCELLED = Meta(description="The attempts that `cancelled` means. Absent if there are none.")


class SettleAnswer(Struct):
    """Which of the reports were stored, and which were not."""

    settled: Annotated[int, Meta(description="How many reports were taken.")]
    lost: Annotated[list[uuid.UUID], Meta(description="Not held by this worker (any more): discard the work.")]
    cancelled: Annotated[list[uuid.UUID], Meta(description="Cancelled while they ran.")]
    dead: Annotated[
        list[uuid.UUID] | UnsetType,
        Meta(description="Of the reports that were taken: these tasks are dead letters now. Absent if there are none."),
    ] = UNSET
    lost_attempts: Annotated[list[EndedAttempt] | UnsetType, _LOST] = UNSET
    cancelled_attempts: Annotated[list[EndedAttempt] | UnsetType, _CANCELLED] = UNSET


class BeatAnswer(Struct):
    """Attempts that the worker has to stop."""

    lost: Annotated[list[uuid.UUID], Meta(description="Their tasks; the same task once for each of its attempts.")]
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
    notes: Annotated[list[str], Meta(description="What one might not expect of it.")] = []


class SecretAnswer(Struct):
    """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""

    secret: Annotated[
        str, Meta(description="`whsec_` and base64.", extra_json_schema={"pattern": "^whsec_[A-Za-z0-9+/]+=*$"})
    ]
    former_until: Annotated[
        datetime | None, Meta(description="Until then calls are signed with the secret before it as well.")
    ] = None


class SecretRotated(SecretAnswer):
    """The new secret."""

    notes: Annotated[list[str], Meta(description="What does not sign any more, if it did.")] = []


class HealthAnswer(Struct):
    """Whether the process is alive, or ready."""

    status: Literal["ok"] = "ok"
