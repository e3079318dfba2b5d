"""Read which state tasks are in, for verbs that found nothing to move.

A state is not stored: it is where the task's row lies.  All six tables are
read in one statement, so the answer is one snapshot and never "nowhere"
because a move happened between two looks.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import lane_of
from duetime.model.task import TaskState

SQL = load(__package__, "state.sql")

#: Lanes are positive 32-bit integers in the database; an id may claim to have a higher one.
_LANES_END = 1 << 31


async def read_states(
    database: Database, ids: Sequence[uuid.UUID], *, now: datetime | None = None
) -> dict[uuid.UUID, TaskState]:
    """The state of each id. An id that is missing in the answer is not a task."""
    possible = sorted({task for task in ids if lane_of(task) < _LANES_END})
    if not possible:
        return {}
    rows = await database.run(SQL["read_states"], lanes=[lane_of(task) for task in possible], ids=possible, now=now)
    return {row["id"]: TaskState(row["state"]) for row in rows if row["state"] is not None}
