"""Retention on a real database: what is finished goes with its partition, what is open stays and can go on.

The clock is set: tasks live forty days ago, and then it is today.
"""

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from duetime.clock import from_ms
from duetime.database.partitions import DATA_PATH, read_partitions
from duetime.database.pool import Database
from duetime.ids import just_before, make_id
from duetime.lifecycle.tasks import retire
from duetime.lifecycle.tasks.retire import (
    SQL,
    freeze_partitions,
    retire_partitions,
    retire_requests,
    retire_rows,
    trim_oldest,
)
from duetime.lifecycle.tasks.settle import Report
from duetime.model.task import Outcome, TaskState
from duetime.scheduler.upkeep import Upkeep
from engine import Engine
from properties.life_world import SetClock, TimedDatabase

DAY = 24 * 3600.0
DAY_MS = 86_400_000
AGO = 40
RETENTION = timedelta(days=7)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[TimedDatabase]:
    clock = SetClock()
    database = await TimedDatabase.open(database_url, clock=clock)
    assert isinstance(database, TimedDatabase)
    clock.set_ms -= AGO * DAY_MS
    for table in (*DATA_PATH, "request_key"):
        for name in await partitions_of(database, table):
            await database.execute(f"DROP TABLE {name}")
    yield database
    await database.close()


async def pass_days(engine: Engine, days: float) -> None:
    clock = engine.database.clock
    assert isinstance(clock, SetClock)
    clock.set_ms += round(days * DAY_MS)
    await engine.partitions.make_ahead()


def upkeep_of(engine: Engine, *, dead_days: float = 30) -> Upkeep:
    return Upkeep(
        engine.database,
        engine.partitions,
        engine.lanes,
        engine.steering,
        retention=RETENTION,
        dead_retention=timedelta(days=dead_days),
    )


async def partitions_of(database: Database, table: str) -> list[str]:
    rows = await database.fetch(
        "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = to_regclass($1)", table
    )
    return sorted(row["relname"] for row in rows)


async def rows_about(database: Database, task: uuid.UUID) -> int:
    rows = await database.fetch(
        "SELECT (SELECT count(*) FROM task WHERE id = $1) + (SELECT count(*) FROM attempt WHERE task = $1)"
        " + (SELECT count(*) FROM due WHERE task = $1) AS count",
        task,
    )
    count: int = rows[0]["count"]
    return count


async def a_day_of(engine: Engine) -> dict[str, uuid.UUID]:
    """One task for each way to be finished, and one for each way to be still open a month later."""
    names = ["succeeded", "cancelled", "retrying", "snoozed", "dead", "running", "paused"]
    tasks = dict(zip(names, await engine.submit(len(names)), strict=True))
    await engine.steering.pause([tasks["paused"]])
    leased = {task.id: task for task in await engine.claim()}
    await engine.settle([leased[tasks["succeeded"]]], result=b"1")
    await engine.settle([leased[tasks["retrying"]]], Outcome.FAILED, retry_after=60 * DAY)
    await engine.settle([leased[tasks["snoozed"]]], Outcome.SNOOZED, retry_after=60.0)
    await engine.settle([leased[tasks["dead"]]], Outcome.FAILED, is_permanent=True)
    await engine.steering.cancel([tasks["cancelled"]])
    [tasks["overdue"]] = await engine.submit()
    [tasks["scheduled"]] = await engine.submit(delay=60 * DAY)
    return tasks


FINISHED = {"succeeded", "cancelled"}
LATER_STATES = {
    "retrying": TaskState.RETRYING,
    "snoozed": TaskState.READY,
    "dead": TaskState.DEAD,
    "running": TaskState.RUNNING,
    "paused": TaskState.PAUSED,
    "overdue": TaskState.READY,
    "scheduled": TaskState.SCHEDULED,
}


async def test_finished_tasks_go_with_their_partition_and_open_ones_stay(engine: Engine) -> None:
    tasks = await a_day_of(engine)
    old = {table: set(await partitions_of(engine.database, table)) - {f"{table}_oldest"} for table in DATA_PATH}
    await pass_days(engine, AGO)

    await upkeep_of(engine).retire()

    left = {table: set(await partitions_of(engine.database, table)) for table in DATA_PATH}
    day = f"{from_ms(engine.database.clock.now_ms() - AGO * DAY_MS):%Y%m%d}"
    for table in DATA_PATH:
        gone = old[table] - left[table]
        assert any(day in name for name in gone), (table, gone)
        assert f"{table}_oldest" in left[table]
    for name, task in tasks.items():
        assert await engine.state(task) is LATER_STATES.get(name), name
        assert (await rows_about(engine.database, task) == 0) == (name in FINISHED), name


async def test_a_late_copy_of_the_trim_leaves_what_was_moved_to_the_oldest_partition_since(engine: Engine) -> None:
    tasks = await a_day_of(engine)
    async with engine.database.connection() as connection:
        [(oldest, (_, end)), *_] = await read_partitions(connection, "task")
    await pass_days(engine, AGO)
    await upkeep_of(engine).retire()

    await engine.database.run(
        SQL["trim_oldest"].spelled(oldest=oldest, key="id"),
        lanes=[],
        tasks=[],
        end=just_before(end),
        before=engine.database.clock.now() - RETENTION,
    )

    for name, state in LATER_STATES.items():
        assert await engine.state(tasks[name]) is state, name


async def test_open_tasks_go_on_from_the_oldest_partition(engine: Engine) -> None:
    tasks = await a_day_of(engine)
    await pass_days(engine, AGO)
    await upkeep_of(engine).retire()

    settled = await engine.settler.settle(engine.tenant, "w", [Report(tasks["running"], 1, Outcome.SUCCEEDED)])
    assert settled.settled == [tasks["running"]]
    assert (await engine.steering.redrive([tasks["dead"]]))[tasks["dead"]].changed
    assert (await engine.steering.resume([tasks["paused"]]))[tasks["paused"]].changed
    assert (await engine.steering.run_now([tasks["retrying"]]))[tasks["retrying"]].changed
    assert (await engine.steering.cancel([tasks["scheduled"]]))[tasks["scheduled"]].changed
    leased = await engine.claim()
    assert {task.id for task in leased} == {
        tasks[name] for name in ("dead", "paused", "retrying", "snoozed", "overdue")
    }
    assert {task.id: task.number for task in leased}[tasks["dead"]] == 2
    await engine.settle(leased)

    for name, task in tasks.items():
        if name in LATER_STATES:
            state = TaskState.CANCELLED if name == "scheduled" else TaskState.SUCCEEDED
            assert await engine.state(task) is state, name
    assert await engine.outcomes(tasks["dead"]) == ["failed", "succeeded"]
    assert await engine.outcomes(tasks["snoozed"]) == ["snoozed", "succeeded"]


async def test_what_was_kept_and_is_over_by_now_is_trimmed(engine: Engine) -> None:
    tasks = await a_day_of(engine)
    await pass_days(engine, AGO)
    await upkeep_of(engine).retire()
    await engine.settle(await engine.claim())

    await trim_oldest(engine.database, engine.database.clock.now() + timedelta(days=1))

    trimmed = {"snoozed", "overdue"}
    for name, task in tasks.items():
        is_gone = name in FINISHED | trimmed
        assert (await rows_about(engine.database, task) == 0) == is_gone, name
        assert await engine.state(task) is (None if is_gone else LATER_STATES[name]), name


async def test_a_new_time_goes_with_its_task(engine: Engine) -> None:
    tasks = await engine.submit(3, delay=60.0)
    done, waiting, young = [*tasks[:2], *await engine.submit(delay=39 * DAY)]
    now = engine.database.clock.now()
    await engine.steering.reschedule([done], now)
    await engine.steering.reschedule([waiting, young], now + timedelta(days=60))
    await engine.settle(await engine.claim())
    await engine.steering.cancel([young])
    await pass_days(engine, AGO)

    await upkeep_of(engine).retire()

    rows = await engine.database.fetch("SELECT task, run_at FROM rescheduled ORDER BY run_at, task")
    assert {row["task"] for row in rows} == {waiting, young}
    assert await rows_about(engine.database, done) == 0


async def test_places_in_lists_go_with_their_tasks(engine: Engine) -> None:
    [old] = await engine.submit(delay=DAY)
    [young] = await engine.submit(delay=AGO * DAY)
    await engine.steering.cancel([old, young])
    await pass_days(engine, AGO)

    await upkeep_of(engine).retire()

    assert [row["task"] for row in await engine.database.fetch("SELECT task FROM listed")] == [young]
    assert await engine.state(young) is TaskState.CANCELLED


async def test_what_waits_in_young_partitions_is_not_touched(engine: Engine) -> None:
    await pass_days(engine, AGO - 5)
    tasks = await a_day_of(engine)
    await pass_days(engine, 5)
    before = {table: await partitions_of(engine.database, table) for table in DATA_PATH}
    rows = {name: await rows_about(engine.database, task) for name, task in tasks.items()}
    names = {name for table in DATA_PATH for name in before[table]}

    dropped = await retire_partitions(engine.database, engine.database.clock.now_ms() - 7 * DAY_MS)

    assert set(dropped) <= names
    assert {name: await rows_about(engine.database, task) for name, task in tasks.items()} == rows


async def test_a_partition_in_use_is_left_for_the_next_time(engine: Engine, other: asyncpg.Connection) -> None:
    [first] = await engine.submit()
    await engine.settle(await engine.claim())
    await pass_days(engine, 1)
    [second] = await engine.submit()
    await engine.settle(await engine.claim())
    await pass_days(engine, AGO - 1)
    before_ms = engine.database.clock.now_ms() - 7 * DAY_MS
    used = (await partitions_of(engine.database, "task"))[0]
    assert used < "task_oldest"

    async with other.transaction():
        await other.fetch(f"SELECT count(*) FROM {used}")
        dropped = await retire_partitions(engine.database, before_ms)

        assert not [name for name in dropped if name.startswith("task_")]
        assert [name for name in dropped if name.startswith("due_")]
    dropped = await retire_partitions(engine.database, before_ms)

    assert used in dropped
    assert [await rows_about(engine.database, task) for task in (first, second)] == [0, 0]


async def test_a_partition_with_a_backlog_is_kept_whole(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retire, "MAX_MOVED", 2)
    crowd = await engine.submit(3)
    await pass_days(engine, 1)
    [next_day] = await engine.submit()
    await pass_days(engine, AGO - 1)

    dropped = await retire_partitions(engine.database, engine.database.clock.now_ms() - 7 * DAY_MS)

    assert {name.split("_")[0] for name in dropped} == {"attempt"}
    for task in [*crowd, next_day]:
        assert await engine.state(task) is TaskState.READY
    assert len(await engine.claim()) == 4


async def test_only_one_node_at_a_time_retires(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    await engine.settle(await engine.claim())
    await pass_days(engine, AGO)
    await other.fetch("SELECT pg_advisory_lock(hashtext('duetime retire'))")

    await upkeep_of(engine).retire()
    assert await rows_about(engine.database, task) == 2
    await other.fetch("SELECT pg_advisory_unlock(hashtext('duetime retire'))")
    await upkeep_of(engine).retire()

    assert await rows_about(engine.database, task) == 0


async def test_partitions_whose_time_is_over_are_frozen_once(engine: Engine) -> None:
    await engine.submit(3)
    await engine.settle(await engine.claim())
    [paused] = await engine.submit()
    await engine.steering.pause([paused])
    today = f"{engine.database.clock.now():%Y%m%d}"
    midnight_ms = (engine.database.clock.now_ms() // 86_400_000 + 1) * 86_400_000
    await pass_days(engine, 1)

    frozen = await freeze_partitions(engine.database, midnight_ms)

    assert sorted(frozen) == [f"{table}_{today}_000000" for table in sorted(DATA_PATH)]
    assert await freeze_partitions(engine.database, midnight_ms) == []
    rows = await engine.database.fetch(
        "SELECT age(relfrozenxid) AS age FROM pg_class WHERE relname = ANY ($1)", [f"task_{today}_000000"]
    )
    assert rows[0]["age"] < 100
    assert (await engine.steering.resume([paused]))[paused].changed


async def test_request_keys_go_with_their_hour(engine: Engine, other: asyncpg.Connection) -> None:
    now_ms = engine.database.clock.now_ms()
    old, young = (make_id(now_ms - hours * 3_600_000, 7, 0) for hours in (0, -5))
    await engine.submitter.submit([engine.new_task()], old, b"f")
    await pass_days(engine, 5 / 24)
    await engine.submitter.submit([engine.new_task()], young, b"f")
    before_ms = engine.database.clock.now_ms() - 2 * 3_600_000

    async with other.transaction():
        await other.fetch("SELECT count(*) FROM request_key")
        assert await retire_requests(engine.database, before_ms) == []
    dropped = await retire_requests(engine.database, before_ms)

    assert dropped
    rows = await engine.database.fetch("SELECT id FROM request_key")
    assert [row["id"].int >> 80 for row in rows] == [young.int >> 80]
    [again] = await engine.submitter.submit([engine.new_task()], young, b"f")
    assert not getattr(again, "is_new", True)


async def test_expired_keys_and_forgotten_holders_are_removed(engine: Engine) -> None:
    await engine.submit(idempotency_key="old")
    await engine.settle(await engine.claim("living"), worker="living")
    await engine.submit()
    await engine.claim("busy", room=1)
    for name in ("busy", "idle", "living"):
        await engine.holders.register(engine.tenant, name)
    await engine.database.execute(
        "UPDATE holder SET ended_at = clock_timestamp() - interval '30 days' WHERE name <> 'living'"
    )
    await pass_days(engine, 1.5)
    await engine.submit(idempotency_key="young")
    await engine.settle(await engine.claim("living"), worker="living")

    await retire_rows(engine.database, engine.database.clock.now(), RETENTION)
    assert [row["key"] for row in await engine.database.fetch("SELECT key FROM idempotency_key")] == ["young"]
    await pass_days(engine, AGO)
    await retire_rows(engine.database, engine.database.clock.now(), RETENTION)

    assert await engine.database.fetch("SELECT key FROM idempotency_key") == []
    names = {row["name"] for row in await engine.database.fetch("SELECT name FROM holder")}
    # What a holder left behind must still be told apart from what it ran.
    assert names == {"busy", "living"}


async def test_dead_letters_past_their_retention_are_dropped(engine: Engine) -> None:
    [old] = await engine.submit()
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)
    await pass_days(engine, 20)
    [young] = await engine.submit()
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)
    await pass_days(engine, 20)

    await upkeep_of(engine, dead_days=30).tidy()

    assert await engine.state(young) is TaskState.DEAD
    assert await engine.state(old) is TaskState.CANCELLED
    assert await engine.outcomes(old) == ["failed", "cancelled"]
    await upkeep_of(engine).retire()
    assert await engine.state(young) is TaskState.DEAD
    assert await engine.state(old) is None
