"""The rows that a page or a look-up reads do not grow with the lane, the partitions or the history."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from depth import far
from duetime.database.pool import Database
from duetime.errors import SearchIncomplete
from duetime.lifecycle.tasks.state import read_states
from duetime.model.task import Outcome, TaskState
from duetime.views.explain import explain
from duetime.views.filters import TaskFilter
from duetime.views.patience import FIRST_ROWS, Patience
from duetime.views.scan import task_ids
from duetime.views.tasks import get_task, list_tasks
from views.arrange import MINUTE, World

#: More than any bound by two orders; the planner sees no statistics either way.
CROWD = far(200_000, 1_000_000)


@dataclass
class Reads:
    """What the statements of one call read, by table."""

    rows: dict[str, int] = field(default_factory=dict)
    scans: set[str] = field(default_factory=set)

    def add(self, node: dict[str, Any]) -> None:
        if "Relation Name" in node and (loops := node["Actual Loops"]):
            table = str(node["Relation Name"]).split("_")[0]
            # An average per loop: to two decimals in PostgreSQL 18, to a whole number in 15.
            seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            self.rows[table] = self.rows.get(table, 0) + round(seen * loops)
            self.scans.add(f"{node['Node Type']} on {table}")
        for child in node.get("Plans", []):
            self.add(child)


class ExplainingDatabase(Database):
    """A database that explains each of its statements before it runs it."""

    reads: Reads | None = None

    async def fetch(self, sql: str, *arguments: object, timeout: float = 10.0) -> list[asyncpg.Record]:
        if self.reads is not None:
            async with self.connection() as connection:
                told = await connection.fetchval(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", *arguments)
            self.reads.add(json.loads(told)[0]["Plan"])
        return await super().fetch(sql, *arguments, timeout=timeout)


@pytest.fixture
async def explaining(each_url: str) -> AsyncIterator[tuple[ExplainingDatabase, World]]:
    database = await ExplainingDatabase.open(each_url, size=2)
    assert isinstance(database, ExplainingDatabase)
    yield database, await World.make(database)
    await database.close()


async def test_pages_of_a_crowded_lane_read_a_bounded_number_of_rows(
    explaining: tuple[ExplainingDatabase, World],
) -> None:
    database, world = explaining
    lane = await world.lane()
    # Never analysed, and with empty partitions behind and ahead.
    await world.partitions.ensure([world.now_ms + days * 86_400_000 for days in (-1, 1, 2, 40, 400, 800)])
    await world.crowd(lane, CROWD)
    await world.history(lane, CROWD // 4)
    waiting = await world.waiting(-MINUTE, wake_in=2 * MINUTE, failures=1, number=2)
    await world.attempt(waiting, 1, Outcome.FAILED)
    limit = 50

    async def page(wanted: TaskFilter) -> dict[str, int]:
        database.reads = Reads()
        await list_tasks(database, world.lanes, world.tenant.id, "acme", wanted, None, limit, now=world.now)
        assert not [scan for scan in database.reads.scans if not scan.startswith("Index")], database.reads.scans
        rows, database.reads = database.reads.rows, None
        return rows

    async def piece(wanted: TaskFilter) -> dict[str, int]:
        """Of a search that has no time for more than one."""
        database.reads = Reads()
        with pytest.raises(SearchIncomplete):
            await task_ids(
                database,
                world.lanes,
                world.tenant.id,
                wanted,
                None,
                FIRST_ROWS - 1,
                now=world.now,
                patience=Patience(empty_seconds=0.0),
            )
        assert not [scan for scan in database.reads.scans if not scan.startswith("Index")], database.reads.scans
        rows, database.reads = database.reads.rows, None
        return rows

    # What each shown task costs: itself, its place, and its last attempt thrice (state, weight, list).
    shown = {"task": limit, "due": 2 * limit, "attempt": 3 * limit}
    for state, source in (("scheduled", "due"), ("ready", "due"), ("succeeded", "attempt"), (None, "task")):
        rows = await page(TaskFilter.of(state=state))
        assert rows.get(source, 0) <= shown[source] + limit + 1, (state, rows)
        assert sum(rows.values()) <= sum(shown.values()) + limit + 1, (state, rows)
    rows = await page(TaskFilter.of(state="retrying"))
    assert sum(rows.values()) <= 10, rows
    # What matches nothing is looked for in pieces, each by index.
    for wanted, source in (
        (TaskFilter.of(state="scheduled", type="rare"), "due"),
        (TaskFilter.of(state="expired", type="rare"), "attempt"),
        (TaskFilter.of(state="succeeded", type="rare"), "attempt"),
        (TaskFilter.of(type="rare", labels=["team=a"]), "task"),
    ):
        rows = await piece(wanted)
        assert rows[source] <= FIRST_ROWS, (wanted, rows)
        assert rows.get("task", 0) <= FIRST_ROWS, (wanted, rows)

    database.reads = Reads()
    await get_task(database, world.lanes, world.tenant.id, "acme", waiting, now=world.now)
    await read_states(database, [waiting], now=world.now)
    assert sum(database.reads.rows.values()) <= 10, database.reads

    database.reads = Reads()
    await explain(database, world.lanes, None, world.tenant.id, waiting, now=world.now)
    assert database.reads.rows["due"] <= 1_003, database.reads

    database.reads = Reads()
    wanted = TaskFilter(state=TaskState.SCHEDULED)
    ids, following = await task_ids(database, world.lanes, world.tenant.id, wanted, None, 10_000, now=world.now)
    assert len(ids) == 10_000
    assert following is not None
    assert database.reads.rows == {"due": 10_001}


async def test_many_lanes_share_the_rows_of_a_page(explaining: tuple[ExplainingDatabase, World]) -> None:
    database, world = explaining
    lanes = [await world.lane(f"queue-{number}") for number in range(100)]
    for lane in lanes[:-1]:
        await world.crowd(lane, 30)
    await world.crowd(lanes[-1], 10_000)

    database.reads = Reads()
    page = await list_tasks(
        database, world.lanes, world.tenant.id, "acme", TaskFilter(state=TaskState.SCHEDULED), None, 200, now=world.now
    )

    # 100 lanes of which one has more: full pages, although no lane was read 200 rows deep at first.
    assert len(page.items) == 200
    assert page.next is not None
    assert database.reads.rows["due"] <= FIRST_ROWS + 2 * 200
