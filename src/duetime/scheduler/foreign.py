"""Foreign rows: rows of types that the holder for which they were claimed does not handle.

They are parked in the lanes of their types (`gating`).  If most of a claim was foreign,
more foreign rows follow in the lane: they are moved as well, without being claimed.
"""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from duetime.database.pool import Database
from duetime.lifecycle.tasks.sift import MAX_SIFTED, Move, Sifted, sift
from duetime.model.task import LaneKey, LeasedTask
from duetime.scheduler.plan import Order

#: After one claim at most this many statements move the rows that follow; then the lane has its turn again.
MAX_SIFTS = 4


@dataclass
class Foreign:
    """The foreign rows in a claim of one lane."""

    places: frozenset[int]
    claimed: int
    #: By type and home: the key of the lane for such rows, and where they were moved.
    moves: dict[tuple[str, int], tuple[LaneKey, Move]] = field(default_factory=dict)

    @property
    def is_most(self) -> bool:
        return 2 * len(self.places) >= self.claimed


def find_foreign(
    order: Order, rows: Sequence[tuple[uuid.UUID, LeasedTask]], types: Mapping[int, frozenset[str]]
) -> frozenset[int]:
    """The places of rows whose holder does not handle them."""
    found: list[int] = []
    place = 0
    for number, count in order.asks:
        accepted = types.get(number)
        if accepted is not None:
            upto = min(place + count, len(rows))
            found += [each for each in range(place, upto) if rows[each][1].type not in accepted]
        place += count
    return frozenset(found)


async def sift_behind(
    database: Database, lane: int, hint: uuid.UUID, until: uuid.UUID, moves: Sequence[Move], step_ms: int
) -> AsyncIterator[Sifted]:
    """Move a limited number of such rows from the front of a lane; yields what each statement did."""
    for _ in range(MAX_SIFTS):
        sifted = await sift(database, lane, hint, until, moves, step_ms)
        yield sifted
        if sifted.last is None or sifted.looked_at < MAX_SIFTED or 2 * sifted.moved < sifted.looked_at:
            return
        hint = sifted.last
