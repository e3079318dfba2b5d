"""A database whose clock has jumped: nothing is claimed early, and nothing at all until the clock was read again."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from duetime.database.pool import Database
from duetime.ids import EARLIEST, due_ms_of, just_after, lane_of
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.model.task import Kind
from duetime.recurrence import Spec
from duetime.scheduler.clock_sync import ClockSync
from duetime.scheduler.feed import Ask, Feeder
from engine import Engine
from proxy import proxied
from scheduler.schedules import put, schedule_of
from scheduler.test_firing import find, firing_of

MINUTE_US = 60_000_000


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


async def ask_of(engine: Engine) -> Ask:
    holder = await engine.holders.register(engine.tenant, "w")
    return Ask(holder, engine.tenant, Kind.PULL, frozenset({"default"}), frozenset(), 10)


@pytest.mark.parametrize("is_locked", [False, True], ids=["claim_due", "claim_around"])
async def test_what_the_database_does_not_call_due_is_not_claimed_and_its_answer_sets_the_node_right(
    engine: Engine, database_url: str, is_locked: bool
) -> None:
    """The database's clock has gone back by a minute since the node read it."""
    [now] = await engine.submit()
    [soon] = await engine.submit(delay=30.0)
    lane, clock = lane_of(now), engine.database.clock
    holder = await engine.holders.register(engine.tenant, "w")
    jumps: list[int] = []
    clock.observe(clock.now_us() + MINUTE_US)
    clock.jumped.listen(jumps.append)
    other = await Database.open(database_url, size=1)

    async with other.connection() as connection, connection.transaction():
        if is_locked:
            # Who wants it finds it locked and goes around it.
            [blocked] = await engine.submit(1)
            clock.observe(clock.now_us() + MINUTE_US)
            jumps.clear()
            await connection.fetch("SELECT FROM due WHERE task = $1 FOR UPDATE", blocked)
        claims = await claim_due(
            engine.database, [LaneOrder(lane, EARLIEST, [(holder, 10)])], just_after(clock.now_ms())
        )
    await other.close()

    assert [wake for wake, _ in claims.taken[lane]] == [now]
    assert claims.later[lane] == soon
    assert clock.now_ms() < due_ms_of(soon)
    assert len(jumps) == 1
    assert -MINUTE_US * 1.5 < jumps[0] < -MINUTE_US * 0.5


async def test_nothing_is_claimed_after_a_jump_until_the_clock_was_read(engine: Engine, feeder: Feeder) -> None:
    clock = engine.database.clock
    clock.observe(clock.now_us() - 6_000_000)
    # Its ids are too old, so the clock is read, and that is the next jump.
    [task] = await engine.submit()
    assert clock.is_held

    waited = await feeder.lease(await ask_of(engine), 0.3)
    is_claimed = await engine.database.fetch("SELECT FROM claim")
    await engine.database.read_clock()
    assert not clock.is_held

    assert (waited, is_claimed) == ([], [])
    [leased] = await feeder.lease(await ask_of(engine), 30.0)
    assert leased.id == task


async def test_schedules_wait_for_the_clock_as_well(engine: Engine) -> None:
    firing = firing_of(engine)
    await put(engine, schedule_of(engine, spec=Spec(every=1.0)))
    await firing.look()
    clock = engine.database.clock
    clock.observe(clock.now_us() + 3_600_000_000)

    pause = await firing.step()

    assert pause is None
    state = await find(engine)
    assert (state.fired, state.missed) == (0, 0), "an hour has not gone by"


async def test_an_answer_that_is_wrong_for_a_moment_does_nothing(engine: Engine, feeder: Feeder) -> None:
    clock_sync = ClockSync(engine.database)
    [later] = await engine.submit(delay=60.0)
    polling = asyncio.ensure_future(feeder.lease(await ask_of(engine), 60.0))
    await asyncio.sleep(0)

    with capture_logs() as said:
        engine.database.clock.observe(engine.database.clock.now_us() + 3_600_000_000)
        async with asyncio.timeout(30):
            while engine.database.clock.is_held:
                await asyncio.sleep(0.01)
        [now] = await engine.submit()
        leased = await polling
    await clock_sync.stop()

    assert [task.id for task in leased] == [now]
    rows = await engine.database.fetch("SELECT task FROM due")
    assert [row["task"] for row in rows] == [later]
    jumps = [line["seconds"] for line in said if line["event"] == "the database's clock jumped"]
    assert [round(seconds) for seconds in jumps] == [3600, -3600]


async def test_the_hold_outlasts_a_database_that_is_away(database_url: str) -> None:
    async with proxied(database_url) as (proxy, url):
        database = await Database.open(url)
        engine = await Engine.open(database)
        feeder = Feeder(database, engine.lanes, engine.onward)
        engine.wake_also(feeder.wake)
        clock_sync = ClockSync(database)
        await feeder.start()
        proxy.is_away = True
        proxy.cut()

        database.clock.observe(database.clock.now_us() - 6_000_000)
        await asyncio.sleep(0.3)
        assert database.clock.is_held
        proxy.is_away = False

        async with asyncio.timeout(30):
            while database.clock.is_held:
                await asyncio.sleep(0.01)
        [task] = await engine.submit()
        [leased] = await feeder.lease(await ask_of(engine), 30.0)
        assert leased.id == task
        await clock_sync.stop()
        await feeder.stop()
        await database.close()
