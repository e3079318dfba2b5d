"""How the runs of a schedule ended."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import lane_of
from duetime.model.task import TaskState
from duetime.views.attempts import reason_of

SQL = load(__package__, "runs.sql")


@dataclass(frozen=True)
class RunEnd:
    """When a run was over, and the reason if one was given."""

    at: datetime
    reason: str | None


async def read_ends(database: Database, tasks: Sequence[uuid.UUID]) -> dict[uuid.UUID, RunEnd]:
    """The ends of those of the tasks that are over."""
    rows = await database.run(SQL["read_ends"], lanes=[lane_of(task) for task in tasks], ids=list(tasks))
    return {row["id"]: RunEnd(row["completed_at"], reason_of(row["detail"])) for row in rows}


def why_early(end: RunEnd, fire_time: datetime, state: TaskState | None) -> str | None:
    """Why a run was over before its time, which would otherwise look like a mistake."""
    if end.at >= fire_time:
        return None
    if state is TaskState.CANCELLED:
        return "cancelled before its time"
    return "it ran before its time, because somebody had it run at once"
