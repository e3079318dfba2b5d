"""Of two movers one finds nothing: each race forced by a transaction that is held open."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg

from duetime.database.pool import Database
from duetime.ids import EARLIEST, just_after, lane_of
from duetime.lifecycle.tasks.claim import SQL as CLAIM_SQL
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.lifecycle.tasks.onward import SQL as ONWARD_SQL
from duetime.lifecycle.tasks.steer import SQL as STEER_SQL
from duetime.model.task import LeasedTask, Outcome, TaskState
from engine import Engine

Value = TypeVar("Value")


@asynccontextmanager
async def held_open(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """A transaction that commits when the block ends."""
    async with connection.transaction():
        yield


async def blocked(database: Database, work: Awaitable[Value]) -> "asyncio.Task[Value]":
    """Start work and return once it waits for somebody else's lock."""
    task = asyncio.ensure_future(work)
    for _ in range(500):
        rows = await database.fetch(
            "SELECT count(*) AS waiting FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        if rows[0]["waiting"]:
            return task
        await asyncio.sleep(0.01)
    raise AssertionError(f"nobody waits for a lock: {task}")


async def claim_by_hand(connection: asyncpg.Connection, engine: Engine, worker: str = "w") -> None:
    holder = await engine.holders.register(engine.tenant, worker)
    lane = await engine.lanes.ensure(engine.lane_key())
    arguments = {
        "lanes": [lane],
        "hints": [EARLIEST],
        "rooms": [100],
        "slots": [0],
        "until": just_after(engine.database.clock.now_ms() + 5),
        "now_ms": engine.database.clock.now_ms() + 5,
        "holders": [holder] * 100,
        "now": None,
    }
    rows = await connection.fetch(CLAIM_SQL["claim_due"].sql, *CLAIM_SQL["claim_due"].arguments(arguments))
    assert any(row["task"] is not None for row in rows)


async def cancel_by_hand(connection: asyncpg.Connection, task: uuid.UUID) -> None:
    statement = STEER_SQL["cancel"]
    rows = await connection.fetch(
        statement.sql, *statement.arguments({"lanes": [lane_of(task)], "tasks": [task], "detail": None, "now": None})
    )
    assert len(rows) == 1


async def succeed_by_hand(connection: asyncpg.Connection, task: LeasedTask) -> None:
    statement = ONWARD_SQL["end_succeeded"]
    columns = {
        "lanes": None,
        "lane": task.lane,
        "tasks": [task.id],
        "numbers": None,
        "number": task.number,
        "holders": None,
        "holder": task.holder,
        "started_us": None,
        "completed_us": None,
        "results": None,
        "details": None,
    }
    assert len(await connection.fetch(statement.sql, *statement.arguments(columns))) == 1


async def test_a_claim_goes_around_a_row_that_somebody_keeps(engine: Engine, other: asyncpg.Connection) -> None:
    tasks = await engine.submit(5)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM due WHERE task = $1 FOR UPDATE", tasks[2])

    leased = await engine.claim("w", room=4)

    assert [task.id for task in leased] == [*tasks[:2], *tasks[3:]]
    await transaction.rollback()
    assert [task.id for task in await engine.claim("w", room=4)] == [tasks[2]]


async def test_a_share_that_was_taken_meanwhile_does_not_hide_what_lies_behind(
    engine: Engine, other: asyncpg.Connection
) -> None:
    tasks = await engine.submit(5)
    transaction = other.transaction()
    await transaction.start()
    for task in tasks[:2]:
        await cancel_by_hand(other, task)
    lane = lane_of(tasks[0])
    holder = await engine.holders.register(engine.tenant, "w")
    until = just_after(engine.database.clock.now_ms() + 5)
    claiming = asyncio.ensure_future(claim_due(engine.database, [LaneOrder(lane, EARLIEST, [(holder, 2)])], until))
    await asyncio.sleep(0)
    await transaction.commit()

    claims = await claiming

    # Whether it waited, went around, or came too late for the cancellation to matter: it never looks drained.
    taken = [wake for wake, _ in claims.taken.get(lane, [])]
    assert taken in ([], tasks[2:4])
    assert taken or claims.later[lane] == tasks[1]


async def test_two_claimers_on_one_lane_share_it_without_doubles(engine: Engine, database_url: str) -> None:
    tasks = await engine.submit(2_000)
    other_database = await Database.open(database_url)
    second = Engine(other_database)
    second.tenant = engine.tenant

    async def drain(claimer: Engine, worker: str) -> list[uuid.UUID]:
        got: list[uuid.UUID] = []
        # A claim whose share another one took comes back with nothing, and is made again.
        while (leased := await claimer.claim(worker, room=37)) or await claimer.database.fetch("SELECT FROM due"):
            got += [task.id for task in leased]
        return got

    try:
        one, two = await asyncio.gather(drain(engine, "one"), drain(second, "two"))
    finally:
        await other_database.close()

    assert sorted(one + two) == sorted(tasks)


async def test_a_settlement_that_waits_for_a_cancel_is_told_so(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    async with held_open(other):
        await cancel_by_hand(other, task)
        settling = await blocked(engine.database, engine.settle(leased))

    assert (await settling).cancelled == [task]
    assert await engine.outcomes(task) == ["cancelled"]


async def test_a_cancel_that_waits_for_a_settlement_changes_nothing(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    [leased] = await engine.claim()
    async with held_open(other):
        await succeed_by_hand(other, leased)
        cancelling = await blocked(engine.database, engine.steering.cancel([task]))

    verdict = (await cancelling)[task]
    assert (verdict.changed, verdict.state) == (False, TaskState.SUCCEEDED)


async def test_a_lapse_that_waits_for_a_settlement_leaves_it_alone(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    [leased] = await engine.claim()
    async with held_open(other):
        await succeed_by_hand(other, leased)
        lapsing = await blocked(engine.database, engine.lapse())

    await lapsing
    assert await engine.state(task) is TaskState.SUCCEEDED
    assert await engine.outcomes(task) == ["succeeded"]


async def test_a_settlement_after_a_lapse_is_lost(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    await engine.lapse()

    settled = await engine.settle(leased)

    assert (settled.settled, settled.lost) == ([], [task])
    assert await engine.state(task) is TaskState.READY


async def test_the_same_report_repeated_gets_the_same_answer(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()

    answers = await asyncio.gather(*[engine.settle(leased) for _ in range(20)])

    assert {tuple(answer.settled) for answer in answers} == {(task,)}
    assert await engine.outcomes(task) == ["succeeded"]


async def test_another_outcome_for_a_settled_attempt_is_lost(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    await engine.settle(leased)

    assert (await engine.settle(leased, Outcome.FAILED)).lost == [task]
    assert await engine.state(task) is TaskState.SUCCEEDED


async def test_a_worker_cannot_settle_what_another_holds(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim("one")
    await engine.holders.register(engine.tenant, "two")

    assert (await engine.settle(leased, worker="two")).lost == [task]
    assert (await engine.settle(leased, worker="never heard of")).lost == [task]
    assert await engine.state(task) is TaskState.RUNNING


async def test_a_task_that_nobody_holds_cannot_be_settled(engine: Engine) -> None:
    tasks = await engine.submit(2, delay=60.0)
    leased = [
        LeasedTask(task, lane_of(task), 1, 1, "", b"", *[engine.database.clock.now()] * 2, 0, 0, 0) for task in tasks
    ]
    await engine.holders.register(engine.tenant, "w")

    assert (await engine.settle(leased)).lost == tasks
    assert await engine.state(tasks[0]) is TaskState.SCHEDULED


async def test_a_released_attempt_cannot_be_settled(engine: Engine) -> None:
    [task] = await engine.submit()
    leased = await engine.claim()
    await engine.settle(leased, Outcome.RELEASED)

    assert (await engine.settle(leased)).lost == [task]
    [second] = await engine.claim()
    assert (second.number, second.failures, second.crashes, second.releases) == (2, 0, 0, 0)


async def test_of_two_redrives_one_moves_the_task(engine: Engine) -> None:
    tasks = await engine.submit(50)
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)

    verdicts = await asyncio.gather(*[engine.steering.redrive(tasks) for _ in range(4)])

    assert sum(verdict[task].changed for verdict in verdicts for task in tasks) == 50
    assert len(await engine.claim()) == 50


async def test_a_cancel_that_waits_for_a_claim_cancels_the_running_task(
    engine: Engine, other: asyncpg.Connection
) -> None:
    [task] = await engine.submit()
    async with held_open(other):
        await claim_by_hand(other, engine)
        cancelling = await blocked(engine.database, engine.steering.cancel([task]))

    assert (await cancelling)[task].state is TaskState.CANCELLED
    answer = await engine.holders.beat(engine.tenant, "w", [])
    assert (answer.lost, answer.cancelled) == ([], [])
    assert await engine.outcomes(task) == ["cancelled"]


async def test_a_claim_passes_by_a_task_that_is_being_cancelled(engine: Engine, other: asyncpg.Connection) -> None:
    tasks = await engine.submit(2)
    async with held_open(other):
        await cancel_by_hand(other, tasks[0])
        assert [leased.id for leased in await engine.claim()] == [tasks[1]]

    assert await engine.claim() == []
    assert await engine.state(tasks[0]) is TaskState.CANCELLED


async def test_a_pause_that_waits_for_a_claim_says_running(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    async with held_open(other):
        await claim_by_hand(other, engine)
        pausing = await blocked(engine.database, engine.steering.pause([task]))

    verdict = (await pausing)[task]
    assert (verdict.changed, verdict.state) == (False, TaskState.RUNNING)


async def test_a_reschedule_that_waits_for_a_claim_says_running(engine: Engine, other: asyncpg.Connection) -> None:
    [task] = await engine.submit()
    async with held_open(other):
        await claim_by_hand(other, engine)
        moving = await blocked(engine.database, engine.steering.reschedule([task], engine.database.clock.now()))

    verdict = (await moving)[task]
    assert (verdict.changed, verdict.state) == (False, TaskState.RUNNING)


async def test_a_pause_that_waits_for_a_pause_says_paused(engine: Engine) -> None:
    tasks = await engine.submit(20)

    verdicts = await asyncio.gather(*[engine.steering.pause(tasks) for _ in range(4)])

    assert sum(verdict[task].changed for verdict in verdicts for task in tasks) == 20
    assert {verdict[task].state for verdict in verdicts for task in tasks} == {TaskState.PAUSED}


async def test_a_beat_that_comes_in_time_saves_its_holder(engine: Engine) -> None:
    [task] = await engine.submit()
    await engine.claim()
    holder = await engine.holders.register(engine.tenant, "w")
    seen = (await engine.database.fetch("SELECT beats FROM holder WHERE id = $1", holder))[0]["beats"]
    await engine.holders.beat(engine.tenant, "w", [])

    ended = await engine.end_silent([(holder, seen)])

    assert ended == set()
    assert await engine.state(task) is TaskState.RUNNING
