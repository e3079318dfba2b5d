"""The feeder on a real database: on time, to whoever has room, and nothing stays behind."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest
from structlog.testing import capture_logs

from duetime.database.pool import Database
from duetime.database.settings import PLANNER_SETTINGS
from duetime.ids import make_id
from duetime.lifecycle.submission.storing import SQL as SUBMIT_SQL
from duetime.model.task import Kind, TaskState
from duetime.scheduler.core import Core
from duetime.scheduler.feed import Ask, Feeder
from engine import Engine
from lifecycle.test_races import held_open


@pytest.fixture
async def engine(database: Database) -> Engine:
    engine = await Engine.open(database)
    await engine.lanes.ensure(engine.lane_key())
    return engine


@pytest.fixture
async def feeder(engine: Engine) -> AsyncIterator[Feeder]:
    feeder = Feeder(engine.database, engine.lanes, engine.onward)
    engine.wake_also(feeder.wake)
    await feeder.start()
    yield feeder
    await feeder.stop()


async def ask_of(engine: Engine, worker: str = "w", room: int = 10, **changes: object) -> Ask:
    holder = await engine.holders.register(engine.tenant, worker)
    fields: dict[str, object] = {
        "holder": holder,
        "tenant": engine.tenant,
        "kind": Kind.PULL,
        "queues": frozenset({"default"}),
        "tags": frozenset(),
        "room": room,
    }
    return Ask(**(fields | changes))  # type: ignore[arg-type]


async def test_a_waiting_poll_gets_a_task_as_soon_as_it_is_submitted(engine: Engine, feeder: Feeder) -> None:
    polling = asyncio.ensure_future(feeder.lease(await ask_of(engine), 30.0))
    await asyncio.sleep(0)

    [task] = await engine.submit()

    assert [leased.id for leased in await polling] == [task]


async def test_a_future_task_arrives_when_it_is_due_and_never_early(engine: Engine, feeder: Feeder) -> None:
    [task] = await engine.submit(delay=0.3)

    [leased] = await feeder.lease(await ask_of(engine), 30.0)

    assert leased.id == task
    rows = await engine.database.fetch("SELECT picked_at >= to_timestamp(due_ms(task) / 1000.0) AS in_time FROM claim")
    assert rows[0]["in_time"]


async def test_a_poll_ends_empty_when_its_wait_is_over(engine: Engine, feeder: Feeder) -> None:
    await engine.submit(queue="another")

    assert await feeder.lease(await ask_of(engine), 0.05) == []


async def test_a_poll_gets_no_more_than_it_has_room_for(engine: Engine, feeder: Feeder) -> None:
    await engine.submit(25)

    first = await feeder.lease(await ask_of(engine, room=10), 5.0)
    second = await feeder.lease(await ask_of(engine, room=10), 5.0)
    third = await feeder.lease(await ask_of(engine, room=10), 5.0)

    assert [len(first), len(second), len(third)] == [10, 10, 5]


async def test_several_polls_share_a_backlog(engine: Engine, feeder: Feeder) -> None:
    asks = [await ask_of(engine, f"w{number}", room=30) for number in range(4)]
    polls = [asyncio.ensure_future(feeder.lease(ask, 30.0)) for ask in asks]
    await asyncio.sleep(0)

    tasks = await engine.submit(100)
    answers = await asyncio.gather(*polls)

    assert sorted(task.id for answer in answers for task in answer) == sorted(tasks)
    for ask, answer in zip(asks, answers, strict=True):
        assert {task.holder for task in answer} == {ask.holder}


async def test_a_task_that_needs_a_tag_waits_for_a_worker_that_has_it(engine: Engine, feeder: Feeder) -> None:
    key = engine.lane_key()
    needs_gpu = type(key)(key.tenant, key.queue, key.priority, key.kind, ("gpu",))
    task = engine.new_task()
    [answer] = await engine.submitter.submit([type(task)(needs_gpu, task.type, task.payload)])

    assert await feeder.lease(await ask_of(engine), 0.05) == []
    [leased] = await feeder.lease(await ask_of(engine, "g", tags=frozenset({"gpu", "fast"})), 30.0)

    assert leased.id == answer.id  # type: ignore[union-attr]


async def test_what_was_claimed_for_a_caller_that_left_is_given_back(engine: Engine, feeder: Feeder) -> None:
    polling = asyncio.ensure_future(feeder.lease(await ask_of(engine), 30.0))
    await asyncio.sleep(0)
    engine_submit = asyncio.ensure_future(engine.submit())
    while not feeder._core.is_being_served(1):
        await asyncio.sleep(0)
    polling.cancel()
    [task] = await engine_submit
    with contextlib.suppress(asyncio.CancelledError):
        await polling

    [leased] = await feeder.lease(await ask_of(engine, "other"), 30.0)

    assert leased.id == task
    assert (leased.failures, leased.crashes, leased.releases) == (0, 0, 0)


async def test_a_poll_ends_with_its_holder_and_a_claim_under_way_for_it_is_given_back(
    engine: Engine, feeder: Feeder
) -> None:
    ask = await ask_of(engine)
    poll = asyncio.create_task(feeder.lease(ask, 30.0))
    async with engine.database.connection() as connection, held_open(connection):
        await connection.execute("LOCK TABLE claim IN SHARE MODE")
        [task] = await engine.submit()
        async with asyncio.timeout(10):
            while not await is_claiming(engine.database):
                await asyncio.sleep(0.01)

        feeder.polls.forget({ask.holder})
        assert await asyncio.wait_for(poll, 10.0) == []

    assert await feeder.lease(ask, 30.0) == []
    heir = await ask_of(engine, "heir")
    [leased] = await feeder.lease(heir, 30.0)
    assert (leased.id, leased.number, leased.releases) == (task, 2, 0)
    assert await engine.outcomes(task) == ["released"]


async def is_claiming(database: Database) -> bool:
    """Whether a claim waits for a lock: nothing else here takes one."""
    rows = await database.fetch(
        "SELECT count(*) AS waiting FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(rows[0]["waiting"])


async def test_an_expired_task_is_not_handed_out(engine: Engine, feeder: Feeder) -> None:
    now = engine.database.clock.now()
    [late, good] = await engine.submit(1, expires_at=now - timedelta(seconds=1)) + await engine.submit()

    leased = []
    while not leased:
        leased = await feeder.lease(await ask_of(engine), 30.0)

    assert [task.id for task in leased] == [good]
    while (state := await engine.state(late)) is TaskState.RUNNING:
        await asyncio.sleep(0.01)
    assert state is TaskState.EXPIRED


@contextlib.asynccontextmanager
async def a_commit_that_comes_late(url: str, engine: Engine, seconds_ago: int) -> AsyncIterator[uuid.UUID]:
    """A submission whose statement ran then, and whose commit becomes visible when the block ends."""
    lane = await engine.lanes.ensure(engine.lane_key())
    minted_ms = engine.database.clock.now_ms() - seconds_ago * 1000
    task = make_id(minted_ms, 5, lane)
    await engine.partitions.ensure([minted_ms])
    arguments = {
        "now": engine.database.clock.now() - timedelta(seconds=seconds_ago),
        "minted_ms": minted_ms,
        "tolerance_ms": 5_000,
        "ahead_ms": 10,
        "lanes": None,
        "lane": lane,
        "ids": [task],
        "types": None,
        "type": "late",
        "payloads": [b"{}"],
        "options": [None],
        "labels": [None],
        "run_us": [None],
        "expires_ats": [None],
        "holders": [],
    }
    connection = await asyncpg.connect(url, server_settings=PLANNER_SETTINGS)
    try:
        async with connection.transaction():
            rows = await connection.fetch(SUBMIT_SQL["submit"].sql, *SUBMIT_SQL["submit"].arguments(arguments))
            assert rows
            yield task
    finally:
        await connection.close()


async def test_a_commit_that_becomes_visible_minutes_late_is_found(
    engine: Engine, feeder: Feeder, database_url: str
) -> None:
    async with a_commit_that_comes_late(database_url, engine, seconds_ago=600) as task:
        # The lane is used and drained meanwhile, and looked at again and again.
        await engine.submit(50)
        while await feeder.lease(await ask_of(engine), 0.2):
            pass
        for _ in range(5):
            await feeder._looker.step()

    # The next look from the beginning comes the later, the longer the last one took: on a busy machine, after a while.
    [leased] = await feeder.lease(await ask_of(engine), 120.0)
    assert leased.id == task


async def test_a_late_commit_is_found_by_a_feeder_that_started_meanwhile(engine: Engine, database_url: str) -> None:
    first = Feeder(engine.database, engine.lanes, engine.onward)
    await first.start()
    async with a_commit_that_comes_late(database_url, engine, seconds_ago=600) as task:
        for _ in range(5):
            await first._looker.step()
        await first._looker.keep_hints()
        await first.stop()
        second = Feeder(engine.database, engine.lanes, engine.onward)
        await second.start()
        assert await second.lease(await ask_of(engine), 0.05) == []

    # Only a look can find it: nobody told this feeder.  As above, it comes after a while on a busy machine.
    [leased] = await second.lease(await ask_of(engine), 120.0)
    assert leased.id == task
    await second.stop()


async def test_a_lane_is_drained_for_certain_only_when_every_open_transaction_has_ended(
    engine: Engine, feeder: Feeder, database_url: str
) -> None:
    lane = await engine.lanes.ensure(engine.lane_key())
    async with a_commit_that_comes_late(database_url, engine, seconds_ago=0) as task:
        for _ in range(4):
            await feeder._looker.step()
        assert feeder._looker.hints.low(lane) < task

    await feeder.lease(await ask_of(engine), 30.0)
    for _ in range(4):
        await feeder._looker.step()
    assert feeder._looker.hints.low(lane) > uuid.UUID(int=0)


async def test_a_clock_that_went_back_loses_no_row(engine: Engine, feeder: Feeder) -> None:
    await engine.submit(5)
    await feeder.lease(await ask_of(engine), 5.0)
    for _ in range(3):
        await feeder._looker.step()
    lane = await engine.lanes.ensure(engine.lane_key())
    past_ms = engine.database.clock.now_ms() - 3_600_000
    await engine.partitions.ensure([past_ms])
    await engine.database.execute(
        "INSERT INTO task (lane, id, type, payload, run_at) VALUES ($1, $2, 't', '{}', now())",
        lane,
        make_id(past_ms, 1, lane),
    )
    await engine.database.execute(
        "INSERT INTO due (lane, wake, task, number) VALUES ($1, $2, $2, 1)", lane, make_id(past_ms, 1, lane)
    )

    engine.database.clock.jumped(-3_600_000_000)
    await feeder._looker.step()

    [leased] = await feeder.lease(await ask_of(engine), 30.0)
    assert leased.id == make_id(past_ms, 1, lane)


async def test_a_stopping_feeder_answers_its_polls(engine: Engine) -> None:
    feeder = Feeder(engine.database, engine.lanes, engine.onward)
    await feeder.start()
    polling = asyncio.ensure_future(feeder.lease(await ask_of(engine), 600.0))
    await asyncio.sleep(0)

    await feeder.stop()

    assert await polling == []


class BreakingCore(Core):
    """Breaks once, where the feeder asks it when to look again."""

    has_broken = False

    def next_ms(self) -> int | None:
        if not self.has_broken:
            self.has_broken = True
            raise ValueError("the core broke")
        return super().next_ms()


async def test_a_feeder_that_dies_is_reported_and_feeds_again(engine: Engine) -> None:
    feeder = Feeder(engine.database, engine.lanes, engine.onward, make_core=BreakingCore)
    engine.wake_also(feeder.wake)

    with capture_logs() as said:
        await feeder.start()
        [task] = await engine.submit()
        [leased] = await feeder.lease(await ask_of(engine), 30.0)

    assert leased.id == task
    died = [line["work"] for line in said if line["event"] == "background work died and is started again"]
    assert died == ["feed"]
    assert feeder.trouble == "the node has to start its work anew: feed"
    await feeder.stop()
