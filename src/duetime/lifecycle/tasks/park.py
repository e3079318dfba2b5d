"""Park tasks that a limit keeps from starting, and hold places under strict caps."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import lane_of, take_salts
from duetime.lifecycle.tasks.onward import decode_options
from duetime.model.attempt import Attempt, Past
from duetime.model.task import LeasedTask, Options

SQL = load(__package__, "park.sql")


@dataclass(frozen=True)
class Parked:
    """A claimed task that has to wait: in which lane, and how long at least."""

    task: LeasedTask
    lane: int
    wait_ms: int = 0


@dataclass(frozen=True)
class Running:
    lane: int
    id: uuid.UUID
    number: int
    type: str
    payload: bytes
    options: Options | None


@dataclass(frozen=True)
class StrictPlace:
    """One attempt that needs a place under one strict cap."""

    tenant: int
    name: str
    cap: int
    task: LeasedTask | Running


async def park(database: Database, parked: Sequence[Parked]) -> list[uuid.UUID]:
    """Put claimed tasks back into `due`, in the lane of their gate. Return their wakes."""
    rows = await database.run(
        SQL["park"],
        lanes=[each.task.lane for each in parked],
        tasks=[each.task.id for each in parked],
        numbers=[each.task.number for each in parked],
        holders=[each.task.holder for each in parked],
        picked_ats=[each.task.picked_at for each in parked],
        gates=[each.lane for each in parked],
        waits_ms=[each.wait_ms for each in parked],
        salt=take_salts(len(parked)),
        now=None,
    )
    return [row["wake"] for row in rows]


async def read_running(database: Database, lanes: Sequence[int]) -> list[Running]:
    rows = await database.run(SQL["read_running"], lanes=list(lanes))
    return [
        Running(
            row["lane"],
            row["task"],
            row["number"],
            row["type"],
            row["payload"],
            decode_options(row["options"]) if row["options"] else None,
        )
        for row in rows
    ]


async def read_ended(database: Database, attempts: Sequence[Attempt]) -> list[Past]:
    """Which of these no longer run."""
    rows = await database.run(
        SQL["read_ended"],
        lanes=[lane_of(task) for task, _ in attempts],
        tasks=[task for task, _ in attempts],
        numbers=[number for _, number in attempts],
    )
    return [Past(row["task"], row["number"]) for row in rows]


async def retire_places(database: Database, before: datetime) -> None:
    await database.run(SQL["retire_slots"], before=before)


@dataclass(frozen=True)
class Cap:
    """A strict cap of a tenant."""

    tenant: int
    name: str
    most: int


async def await_places(database: Database, caps: Sequence[Cap], asker: int) -> set[int]:
    """Which of these caps (by position) may have a place now, for a node that was refused one."""
    rows = await database.run(
        SQL["await_slots"],
        tenants=[cap.tenant for cap in caps],
        names=[cap.name for cap in caps],
        caps=[cap.most for cap in caps],
        asker=asker,
    )
    return {row["ordinal"] - 1 for row in rows}


async def take_places(database: Database, places: Sequence[StrictPlace], asker: int = 0) -> set[int]:
    """Take places; return which (by position) could be had. `asker` is the node."""
    rows = await database.run(
        SQL["take_slots"],
        asker=asker,
        tenants=[place.tenant for place in places],
        names=[place.name for place in places],
        caps=[place.cap for place in places],
        lanes=[place.task.lane for place in places],
        tasks=[place.task.id for place in places],
        numbers=[place.task.number for place in places],
    )
    return {row["ordinal"] - 1 for row in rows}
