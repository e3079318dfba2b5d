"""Places under strict caps, on a real database: nodes that feed one tenant keep its cap together, and take turns."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from duetime.database.pool import Database
from duetime.ids import SHARDS
from duetime.lifecycle.tasks.park import Cap, StrictPlace, await_places, take_places
from duetime.model.limits import Limits
from duetime.model.task import Kind, LeasedTask
from duetime.scheduler.feed import Ask, Feeder
from duetime.scheduler.rulebook import Book
from engine import Engine

_MOVED = "SELECT count(*) AS count FROM due WHERE wake <> task"


class Pair:
    """Two feeders, each with one of the two shards of a tenant; neither hears of the other's ends."""

    def __init__(self, engine: Engine, lanes: list[int]) -> None:
        self.engine = engine
        self.feeders = [Feeder(engine.database, engine.lanes, engine.onward) for _ in range(2)]
        for feeder, lane in zip(self.feeders, lanes, strict=True):
            feeder.feed_only(frozenset({lane % SHARDS}))
            engine.wake_also(feeder.wake)

    async def lease(self, place: int, room: int = 10, wait: float = 0.3) -> list[LeasedTask]:
        holder = await self.engine.holders.register(self.engine.tenant, f"w{place}")
        ask = Ask(holder, self.engine.tenant, Kind.PULL, None, frozenset(), room)
        return await self.feeders[place].lease(ask, wait)

    async def limit(self, limits: Limits) -> None:
        for feeder in self.feeders:
            await feeder.limit(Book(tenants={self.engine.tenant: limits}))

    async def spread(self) -> None:
        for feeder in self.feeders:
            await feeder.share({self.engine.tenant: 2})


@pytest.fixture
async def pair(database: Database) -> AsyncIterator[Pair]:
    engine = await Engine.open(database)
    home = engine.lane_key()
    lanes = [await engine.lanes.ensure(msgspec.structs.replace(home, part=part)) for part in (0, 1)]
    assert lanes[0] % SHARDS != lanes[1] % SHARDS
    engine.submitter.rule({engine.tenant: 2})
    pair = Pair(engine, lanes)
    for feeder in pair.feeders:
        await feeder.start()
    yield pair
    for feeder in pair.feeders:
        await feeder.stop()


async def test_what_runs_when_a_tenant_is_spread_has_places_at_once(pair: Pair) -> None:
    await pair.limit(Limits(max_running=3))
    await pair.engine.submit(12)
    running = await pair.lease(0)
    assert len(running) == 3

    await pair.spread()

    assert await pair.lease(1) == []
    await pair.engine.settle(running[:1], worker="w0")
    assert len(await pair.lease(1, wait=5.0)) == 1


async def test_more_than_the_cap_run_and_all_of_them_count(pair: Pair) -> None:
    await pair.engine.submit(12)
    running = await pair.lease(0, room=4)
    await pair.limit(Limits(max_running=2))
    await pair.spread()

    await pair.engine.settle(running[:2], worker="w0")

    assert await pair.lease(1) == []
    await pair.engine.settle(running[2:3], worker="w0")
    assert len(await pair.lease(1, wait=5.0)) == 1


async def test_a_node_leaves_rows_alone_while_another_has_all_places(pair: Pair) -> None:
    await pair.spread()
    await pair.limit(Limits(max_running=2))
    await pair.engine.submit(200)
    assert len(await pair.lease(0)) == 2

    assert await pair.lease(1, wait=0.5) == []

    [row] = await pair.engine.database.fetch(_MOVED)
    assert row["count"] <= 2


async def test_a_node_that_waits_for_a_place_gets_one_though_the_other_always_asks(pair: Pair) -> None:
    await pair.spread()
    await pair.limit(Limits(max_running=1))
    pair.engine.ended.listen(pair.feeders[0].ended)
    await pair.engine.submit(400)
    waiting = asyncio.create_task(pair.lease(1, wait=20.0))
    had = 0
    async with asyncio.timeout(20.0):
        while not waiting.done() and had < 150:
            running = await pair.lease(0, room=1, wait=0.05)
            had += len(running)
            # Long enough for the other to have looked, and found none.
            await asyncio.sleep(0.06)
            await pair.engine.settle(running, worker="w0")

    assert len(await waiting) == 1


async def test_who_waits_for_a_place_is_left_one_and_who_comes_later_is_not(pair: Pair) -> None:
    database, tenant = pair.engine.database, pair.engine.tenant
    pair.engine.submitter.rule({})
    await pair.engine.submit(3)
    tasks = await pair.engine.claim()
    first, second, third = [StrictPlace(tenant, "strict", 1, task) for task in tasks]
    assert await take_places(database, [first], 1) == {0}
    assert await take_places(database, [second], 2) == set()
    assert await await_places(database, [Cap(tenant, "strict", 1)], 2) == set()
    await pair.engine.settle(tasks[:1])
    await database.execute("UPDATE limit_slot SET taken_at = clock_timestamp() + interval '1 hour' WHERE slot = 0")

    assert await take_places(database, [third], 3) == set()
    assert await await_places(database, [Cap(tenant, "strict", 1)], 3) == set()
    assert await await_places(database, [Cap(tenant, "strict", 1)], 2) == {0}
    assert await take_places(database, [second], 2) == {0}
    await pair.engine.settle(tasks[1:2])
    assert await take_places(database, [third], 3) == {0}


async def test_an_attempt_that_asks_again_keeps_its_place_and_takes_no_second(pair: Pair) -> None:
    database, tenant = pair.engine.database, pair.engine.tenant
    pair.engine.submitter.rule({})
    await pair.engine.submit(3)
    tasks = await pair.engine.claim()
    first, second, third = [StrictPlace(tenant, "strict", 2, task) for task in tasks]
    assert await take_places(database, [first, second]) == {0, 1}
    await pair.engine.settle(tasks[:1])

    assert await take_places(database, [second]) == {0}
    assert await take_places(database, [third]) == {0}
