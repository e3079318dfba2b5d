"""The input and output of the core: asks of holders, and plans for claims."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from duetime.model.gates import type_at
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.meter import Limitation
from duetime.scheduler.rooms import Slots


@dataclass(frozen=True)
class Ask:
    """A holder's room, and what it can run."""

    holder: int
    #: None: every tenant, for an executor of a node.
    tenant: int | None
    kind: Kind
    #: None: every queue.
    queues: frozenset[str] | None
    tags: frozenset[str]
    room: int
    #: The types that it handles; None: every type.
    types: frozenset[str] | None = None
    #: The holder's name, for people and for `hearing`; an older node does not send it.
    worker: str = ""
    #: For an executor: how its room is divided.  It can be asked at any time, so a waiting ask stays correct.
    slots: Slots | None = field(default=None, compare=False)

    def fits(self, key: LaneKey) -> bool:
        """Whether the lane may have tasks for it; only the lanes of types say which type each row has."""
        return self.serves(key) and (
            self.types is None or not key.gate or (name := type_at(key.gate)) is None or name in self.types
        )

    def serves(self, key: LaneKey) -> bool:
        """Whether it takes from such a lane, if it handles the types in it."""
        return (
            key.kind is self.kind
            and (self.tenant is None or key.tenant == self.tenant)
            and (self.queues is None or key.queue in self.queues)
            and self.tags.issuperset(key.requires)
        )


def handled_by(asks: Iterable[Ask]) -> tuple[str, ...] | None:
    """The types that these asks handle together; None: every type."""
    types: set[str] = set()
    for ask in asks:
        if ask.types is None:
            return None
        types |= ask.types
    return tuple(sorted(types))


@dataclass(frozen=True)
class Order:
    """Take up to `room` rows of one lane; the first of them go to the first ask."""

    lane: int
    hint: uuid.UUID
    room: int
    #: (ask, how many rows) in order; the counts add up to `room`.
    asks: tuple[tuple[int, int], ...]
    #: The lane's share within its tenant, at that time.
    share: float = 1.0


@dataclass(frozen=True)
class Plan:
    orders: tuple[Order, ...]
    #: By the number of the ask.
    holder_of_ask: dict[int, int]
    #: By the number of the ask, the types that it handles; asks that handle every type are left out.
    types: Mapping[int, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class LaneStatus:
    """What the core knows of a lane, for people who ask why a task waits."""

    has_holders: bool
    waiting_polls: int
    room: int
    is_known: bool
    #: The limits that are used up, in words, and when each opens by itself.
    limited_by: tuple[tuple[Limitation, str, datetime | None], ...] = ()
    #: How many workers there are for such a lane, whatever types they handle, and which types; None: every type.
    workers: int = 0
    handled: tuple[str, ...] | None = None
    #: Workers that would count if their beats were heard.
    unheard: tuple[str, ...] = ()
