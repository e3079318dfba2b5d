"""Move rows out of the way whose types no waiting holder handles, many in one statement.

A claimed task whose holder does not handle its type is parked row by row (`park`).
Behind it there may be a hundred thousand more: they are never claimed, and cost
only one statement for each thousand.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import take_salts

SQL = load(__package__, "sift.sql")

#: How many rows one statement looks at.
MAX_SIFTED = 1_000


@dataclass(frozen=True)
class Move:
    """Tasks of this type, at home in this lane, go to that one; in their own home they wait for this long."""

    type: str
    home: int
    lane: int
    wait_ms: int = 0


@dataclass(frozen=True)
class Sifted:
    looked_at: int
    #: The last row that was looked at.
    last: uuid.UUID | None
    moved: int
    #: The first new wake of each lane.
    wakes: list[uuid.UUID]


async def sift(
    database: Database, lane: int, hint: uuid.UUID, until: uuid.UUID, moves: Sequence[Move], step_ms: int
) -> Sifted:
    """Carry out the moves among the next rows of a lane (`hint < wake < until`)."""
    [row] = await database.run(
        SQL["sift"],
        lane=lane,
        hint=hint,
        until=until,
        most=MAX_SIFTED,
        types=[move.type for move in moves],
        homes=[move.home for move in moves],
        lanes=[move.lane for move in moves],
        waits_ms=[move.wait_ms for move in moves],
        step_ms=step_ms,
        salt=take_salts(MAX_SIFTED),
    )
    return Sifted(row["looked_at"], row["last"], row["moved"], list(row["wakes"]))
