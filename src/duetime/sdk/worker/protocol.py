"""The bodies of the worker protocol as types, for both directions; see docs/worker-protocol.md."""

from datetime import datetime
from typing import Literal

import msgspec

LEASE_PATH = "/v1/workers/lease"
SETTLE_PATH = "/v1/workers/settle"
BEAT_PATH = "/v1/workers/beat"

MAX_LEASE = 1000
MAX_TYPES = 1000
MAX_RESULT_BYTES = 64 * 1024
MAX_DETAIL_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 2 * 1024
BEAT_EVERY_SECONDS = 3.0


class LeaseRequest(msgspec.Struct):
    worker: str
    #: None: from all of the tenant's queues.
    queues: tuple[str, ...] | None
    tags: tuple[str, ...]
    max: int
    wait: float
    max_silence: float | msgspec.UnsetType = msgspec.UNSET
    #: The types that the worker handles. Absent: every type.
    types: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class LeasedTask(msgspec.Struct, gc=False):
    """One attempt that this worker holds, with all data to run it."""

    id: str
    type: str
    attempt: int
    queue: str = "default"
    #: Decoded when the attempt runs, into the type of its handler.
    payload: msgspec.Raw = msgspec.Raw(b"null")
    run_at: datetime | None = None
    timeout: float | None = None
    labels: dict[str, str] | None = None
    priority: str = "normal"
    delivery: str = "at_least_once"
    recovered: bool = False
    #: How many crashes of its holders it was lost in. None: the server is too old to say.
    crashes: int | None = None
    trace: str | None = None


class Lease(msgspec.Struct):
    tasks: list[LeasedTask] = []
    beat_every: float = BEAT_EVERY_SECONDS
    #: The worker counts as dead after this many seconds without a beat.
    max_silence: float | None = None
    #: If a task has not begun this many seconds after the request was sent, it begins only if a beat has confirmed it.
    #: None: the server is too old to say.
    begin_within: float | None = None
    #: The identity under which the server knows this worker. It changes if the worker counted as dead in between.
    #: None: the server is too old to say.
    holder: str | None = None


class Failure(msgspec.Struct, omit_defaults=True):
    message: str
    kind: Literal["transient", "permanent"] = "transient"
    detail: str | None = None


class Settlement(msgspec.Struct, omit_defaults=True, gc=False):
    id: str
    attempt: int
    # It has no default: omit_defaults would leave out the most frequent outcome.
    outcome: Literal["succeeded", "failed", "snoozed", "released"]
    result: msgspec.Raw | None = None
    error: Failure | None = None
    retry_after: float | None = None
    #: Microseconds since 1970, by the worker's clock.
    started_at: int | None = None
    completed_at: int | None = None


class SettleRequest(msgspec.Struct):
    worker: str
    settlements: list[Settlement]


class NamedAttempt(msgspec.Struct):
    id: str
    attempt: int
    started: bool


class BeatRequest(msgspec.Struct, omit_defaults=True):
    worker: str
    attempts: list[NamedAttempt]
    #: The last beat: the worker signs off.
    leaving: bool = False


class EndedAttempt(msgspec.Struct, gc=False):
    id: str
    attempt: int


class Verdicts(msgspec.Struct):
    """The answer to a beat and to a settlement: which attempts are no longer this worker's."""

    #: Tasks, listed once for each affected attempt.
    lost: list[str] = []
    cancelled: list[str] = []
    #: In the answer to a settlement: tasks that are dead letters after these reports.
    dead: list[str] = []
    #: The attempts of the tasks in `lost` and `cancelled`. None: there are none, or the server is too old to say.
    lost_attempts: list[EndedAttempt] | None = None
    cancelled_attempts: list[EndedAttempt] | None = None
    #: In the answer to a beat, as in a lease.
    holder: str | None = None


encode = msgspec.json.Encoder().encode
read_lease = msgspec.json.Decoder(Lease).decode
read_verdicts = msgspec.json.Decoder(Verdicts).decode
