"""Hand a task to a waiting holder in the commit that stores it.

If a task is due at once, nothing else is due in its lane, and a holder waits with
room, the task would be put into `due` only to be claimed a moment later.  It
is stored with its claim instead: one statement in place of two, and one commit
less until it starts.  The scheduler decides whether there is such a holder; this
module has the types that both sides use.
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

    #: By lane, groups of requests for tasks that handle the same types (None: every type) with their places. There is
    #: one place for each row that may have these types: the number of the request and its holder, the last first.
    by_lane: dict[int, list[tuple[frozenset[str] | None, list[tuple[int, int]]]]]
    #: The requests for tasks that take part. Each gets a result at the end.
    numbers: frozenset[int]
    #: By task, the request for tasks and the holder for which it is stored.
    taken: dict[uuid.UUID, tuple[int, int]] = field(default_factory=dict)
    #: When the tasks were stored. None as long as that is not certain.
    picked_at: datetime | None = None

    def take(self, lane: int, identifier: uuid.UUID, type_name: str) -> int | None:
        """Return the holder that gets this task. None: the task waits in `due`."""
        for types, places in self.by_lane.get(lane, ()):
            if places and (types is None or type_name in types):
                self.taken[identifier] = places.pop()
                return self.taken[identifier][1]
        return None


class WaitingHolders(Protocol):
    """The part that knows which holders wait for tasks."""

    def reserve(self, wanted: Mapping[int, int]) -> Reservation | None:
        """Reserve room for at most this many tasks of each lane, all due now. `hand_over` must follow."""
        ...

    def hand_over(self, reservation: Reservation, tasks: Mapping[int, list[LeasedTask]]) -> None:
        """Hand over what was stored for each request for tasks. A request without tasks continues to wait."""
        ...


def lease(task: NewTask, identifier: uuid.UUID, lane: int, holder: int, picked_at: datetime) -> LeasedTask:
    """Return the first attempt of a task that was stored a moment ago, in the form that a claim returns."""
    due_at = from_ms(due_ms_of(identifier))
    leased = LeasedTask(identifier, lane, 1, holder, task.type, task.payload, due_at, picked_at, 0, 0, 0)
    if not isinstance(task, DetailedTask):
        return leased
    labels = msgspec.json.encode(task.labels) if task.labels else None
    return msgspec.structs.replace(leased, options=task.options, labels=labels, expires_at=task.expires_at)
