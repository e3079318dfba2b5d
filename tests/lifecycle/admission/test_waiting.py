"""When the waiting tasks of a tenant are counted, by a clock of the test's own."""

import asyncio

from duetime.errors import Unavailable
from duetime.lifecycle.admission.waiting import Bound, WaitingRoom


class World:
    """A tenant whose waiting tasks are what the test says."""

    def __init__(self, waiting: int = 0, cost: float = 0.0) -> None:
        self.now = 1000.0
        self.waiting, self.cost = waiting, cost
        self.counts: list[int] = []
        self.is_away = False
        #: So many tasks can wait in the whole installation.
        self.fits = 10**15
        self.room = WaitingRoom(self.count, self.bound, monotonic=lambda: self.now)

    async def bound(self) -> Bound:
        return Bound(self.fits, {})

    async def count(self, tenant: int, most: int) -> int:
        self.counts.append(most)
        await asyncio.sleep(0)
        if self.is_away:
            raise Unavailable("away")
        self.now += self.cost
        return min(self.waiting, most)


async def test_what_was_accepted_since_the_count_is_added() -> None:
    world = World(waiting=5)

    taken = [await world.room.take(1, 100, 30) for _ in range(4)]

    assert taken == [30, 30, 30, 5]
    assert world.counts == [101]


async def test_a_count_is_made_anew_before_anything_is_refused_but_not_each_time() -> None:
    world = World(waiting=100)
    assert await world.room.take(1, 100, 1) == 0
    for _ in range(50):
        assert world.room.take_now(1, 100, 1) == 0
    world.waiting, world.now = 99, world.now + 1.0

    assert world.room.take_now(1, 100, 1) is None
    assert await world.room.take(1, 100, 1) == 1
    assert len(world.counts) == 2


async def test_an_expensive_count_is_used_for_longer() -> None:
    world = World(waiting=0, cost=2.0)
    await world.room.take(1, 1000, 1)

    world.now += 90
    assert world.room.take_now(1, 1000, 1) == 1
    assert world.room.take_now(1, 1000, 990) is None
    await asyncio.sleep(0)
    assert len(world.counts) == 1
    world.now += 20
    assert world.room.take_now(1, 1000, 1) == 1
    await world.room.take(1, 1000, 990)
    # There was room, so the one did not wait; what used it up waited for the count that was under way.
    assert len(world.counts) == 2


async def test_many_who_come_at_once_share_one_count() -> None:
    world = World(waiting=7)

    taken = await asyncio.gather(*(world.room.take(1, 10, 1) for _ in range(20)))

    assert sum(taken) == 3
    assert len(world.counts) == 1


async def test_all_or_none() -> None:
    world = World(waiting=7)

    assert await world.room.take(1, 10, 4, is_whole=True) == 0
    assert await world.room.take(1, 10, 3, is_whole=True) == 3


async def test_while_the_database_is_away_nothing_is_refused() -> None:
    world = World(waiting=10)
    world.is_away = True

    assert await world.room.take(1, 10, 5) == 5
    world.is_away, world.now = False, world.now + 60
    assert await world.room.take(1, 10, 5) == 0


async def test_a_quota_that_is_gone_is_forgotten() -> None:
    world = World(waiting=10)
    await world.room.take(1, 10, 1)

    world.room.keep_only(lambda tenant: False)
    world.room.give_back(1, 1)

    assert world.room.take_now(1, 10, 1) is None
    await world.room.close()
