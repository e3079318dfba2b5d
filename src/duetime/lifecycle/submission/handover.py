"""Hand a task to whoever waits for it, in the commit that stores it.

A task that is due at once, in a lane where nothing else is due, while a holder
waits with room, would be put into `due` only to be claimed a moment later.  It
is stored with its claim instead: one statement in place of two, and one commit
less until it starts.  Whether there is such a holder is the scheduler's to
say; here is what both sides speak of.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from duetime.clock import from_ms
from duetime.ids import due_ms_of
from duetime.model.task import DetailedTask, LeasedTask, NewTask


@dataclass
class Reservation:
    """Room of waiting holders, kept for tasks that are being stored."""

    #: By lane, groups of asks that handle the same types (None: every type) with their places, one for each row that
    #: may be of these: the ask's number and its holder, the last first.
    by_lane: dict[int, list[tuple[frozenset[str] | None, list[tuple[int, int]]]]]
    #: The asks that take part; each is told at the end what came of it.
    numbers: frozenset[int]
    #: By task, the ask and the holder that it is stored for.
    taken: dict[uuid.UUID, tuple[int, int]] = field(default_factory=dict)
    #: When they were stored; None as long as that is not certain.
    picked_at: datetime | None = None

    def take(self, lane: int, identifier: uuid.UUID, type_name: str) -> int | None:
        """The holder that gets this task; None: it waits in due."""
        for types, places in self.by_lane.get(lane, ()):
            if places and (types is None or type_name in types):
                self.taken[identifier] = places.pop()
                return self.taken[identifier][1]
        return None


class WaitingHolders(Protocol):
    """Whoever knows which holders wait for tasks."""

    def reserve(self, wanted: Mapping[int, int]) -> Reservation | None:
        """Room for up to so many tasks of each lane, all due now; `hand_over` must follow."""
        ...

    def hand_over(self, reservation: Reservation, tasks: Mapping[int, list[LeasedTask]]) -> None:
        """By ask, what was stored for it; whoever got nothing waits on."""
        ...


def lease(task: NewTask, identifier: uuid.UUID, lane: int, holder: int, picked_at: datetime) -> LeasedTask:
    """The first attempt at a task that was stored a moment ago, as a claim would give it."""
    due_at = from_ms(due_ms_of(identifier))
    leased = LeasedTask(identifier, lane, 1, holder, task.type, task.payload, due_at, picked_at, 0, 0, 0)
    if not isinstance(task, DetailedTask):
        return leased
    labels = msgspec.json.encode(task.labels) if task.labels else None
    return msgspec.structs.replace(leased, options=task.options, labels=labels, expires_at=task.expires_at)
