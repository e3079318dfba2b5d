"""Messages between the nodes that share the shards: requests and replies, in the form in which they are sent.

Each is a MessagePack array that begins with its tag; a message with another tag or
another form is not understood, and dropped.
"""

import uuid

import msgspec

from duetime.database.lineage import TimelinePosition
from duetime.lifecycle.holders.holders import BeatResult, Named
from duetime.model.attempt import Past
from duetime.model.breaker_status import BreakerStatus
from duetime.model.task import LeasedTask
from duetime.model.tenant_breaker import Record
from duetime.scheduler.plan import Ask, LaneStatus

# Requests


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """These rows were put into due."""

    wakes: list[uuid.UUID]


class Lease(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A worker's poll, forwarded."""

    ask: Ask
    wait_seconds: float


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """These attempts have ended."""

    attempts: list[Past]


class LaneMade(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A lane is new, or belongs to another gate now."""

    lane: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A holder's beat, for the node that hears it."""

    tenant: int
    name: str
    attempts: list[Named]
    key: int | None = None


class Left(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """This holder has ended."""

    holder: int


class DescribeLane(msgspec.Struct, frozen=True, array_like=True, tag=6):
    lane: int


class DescribeBreakers(msgspec.Struct, frozen=True, array_like=True, tag=7):
    tenant: int


class CountOutcomes(msgspec.Struct, frozen=True, array_like=True, tag=8):
    tenants: list[int]


class BreakersForced(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A breaker was forced by hand: read the forced breakers now."""


class DatabaseAt(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """How far the caller's database is; the receiver's may have been replaced by it."""

    place: TimelinePosition


class NodesChanged(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The nodes have changed: read them again."""


Request = (
    Wake
    | Lease
    | Ended
    | LaneMade
    | Beat
    | Left
    | DescribeLane
    | DescribeBreakers
    | CountOutcomes
    | BreakersForced
    | DatabaseAt
    | NodesChanged
)

# Replies


class Done(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The message was received."""


class Leased(msgspec.Struct, frozen=True, array_like=True, tag=1):
    tasks: list[LeasedTask]


class Beaten(msgspec.Struct, frozen=True, array_like=True, tag=2):
    answer: BeatResult


class LaneDescribed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    status: LaneStatus


class BreakersDescribed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    breakers: list[BreakerStatus]


class OutcomesCounted(msgspec.Struct, frozen=True, array_like=True, tag=5):
    records: dict[int, Record]


Reply = Done | Leased | Beaten | LaneDescribed | BreakersDescribed | OutcomesCounted

encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
decode_request = msgspec.msgpack.Decoder[Request](Request).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode
