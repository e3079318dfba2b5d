"""Holders that are given work and do not beat: they get no more, nor does who comes after them under their name."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from duetime.database.pool import Database
from duetime.model.task import Kind
from duetime.scheduler.feed import Feeder
from duetime.scheduler.hearing import UNHEARD_SECONDS, Hearing
from duetime.scheduler.liveness import Liveness
from duetime.scheduler.plan import Ask
from engine import Engine


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ask_of(holder: int, worker: str = "w") -> Ask:
    return Ask(holder, 1, Kind.PULL, None, frozenset(), 10, worker=worker)


def look_each_second(hearing: Hearing, clock: Clock, beats: dict[int, int], seconds: float) -> list[Ask]:
    """All those that get nothing any more by the end."""
    found = []
    for _ in range(int(seconds)):
        clock.now += 1.0
        found += hearing.look(beats)
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hearing(clock: Clock) -> Hearing:
    return Hearing(clock)


def test_who_was_given_work_and_does_not_beat_gets_no_more_until_it_does(hearing: Hearing, clock: Clock) -> None:
    ask = ask_of(1)
    hearing.look({1: 5})
    hearing.gave(ask)
    assert look_each_second(hearing, clock, {1: 5}, UNHEARD_SECONDS - 1.0) == []
    assert not hearing.is_unheard(ask)

    assert look_each_second(hearing, clock, {1: 5}, 1.0) == [ask]
    assert hearing.is_unheard(ask)
    assert hearing.look({1: 5}) == []
    hearing.look({1: 6})

    assert not hearing.is_unheard(ask)


def test_who_beats_or_was_given_nothing_is_heard(hearing: Hearing, clock: Clock) -> None:
    hearing.look({1: 5, 2: 5})
    for beats in range(6, 30):
        hearing.gave(ask_of(1))
        clock.now += 3.0
        assert hearing.look({1: beats, 2: 5}) == []

    assert not hearing.is_unheard(ask_of(1))
    assert not hearing.is_unheard(ask_of(2))


def test_a_database_that_was_away_makes_nobody_unheard(hearing: Hearing, clock: Clock) -> None:
    hearing.gave(ask_of(1))
    clock.now = 600.0
    hearing.interrupted()

    assert hearing.look({1: 0}) == []
    assert look_each_second(hearing, clock, {1: 0}, UNHEARD_SECONDS) == [ask_of(1)]


def test_a_node_that_stood_still_makes_nobody_unheard(hearing: Hearing, clock: Clock) -> None:
    hearing.gave(ask_of(1))
    clock.now = 600.0

    assert hearing.look({1: 0}) == []
    assert look_each_second(hearing, clock, {1: 0}, UNHEARD_SECONDS) == [ask_of(1)]


def test_under_the_name_of_one_that_ended_unheard_nothing_is_given_before_a_beat(
    hearing: Hearing, clock: Clock
) -> None:
    hearing.gave(ask_of(1))
    hearing.forget({1})
    following = ask_of(2)

    assert hearing.is_unheard(following)
    assert not hearing.is_unheard(ask_of(3, "another"))
    assert not hearing.is_unheard(replace(ask_of(5), tenant=2))
    hearing.look({2: 0})
    assert hearing.is_unheard(following)
    hearing.forget({2})
    assert hearing.is_unheard(ask_of(4))
    hearing.look({4: 1})
    assert not hearing.is_unheard(ask_of(4))


def test_names_are_not_kept_without_end(hearing: Hearing) -> None:
    for holder in range(1, 10_010):
        hearing.gave(ask_of(holder, f"w{holder}"))
        hearing.forget({holder})

    assert not hearing.is_unheard(ask_of(20_000, "w1"))
    assert hearing.is_unheard(ask_of(20_000, "w10009"))


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


async def test_an_open_poll_waits_for_a_beat_of_its_holder(engine: Engine, feeder: Feeder) -> None:
    clock = Clock()
    feeder.polls.hearing = Hearing(clock)
    holder = await engine.holders.register(engine.tenant, "w")
    ask = replace(ask_of(holder), tenant=engine.tenant)
    [first] = await engine.submit()
    assert [task.id for task in await feeder.lease(ask, 10.0)] == [first]
    open_before = asyncio.create_task(feeder.lease(ask, 60.0))
    while not feeder.polls:
        await asyncio.sleep(0)
    for _ in range(int(UNHEARD_SECONDS)):
        clock.now += 1.0
        feeder.polls.hear({holder: 0})
    open_after = asyncio.create_task(feeder.lease(replace(ask, queues=frozenset({"default"})), 60.0))
    lane = engine.lanes.find(engine.lane_key())
    assert lane is not None

    # Somebody else is served meanwhile.
    [second] = await engine.submit()
    heir = replace(ask_of(await engine.holders.register(engine.tenant, "heir"), "heir"), tenant=engine.tenant)
    told = await feeder.describe(lane)
    assert [task.id for task in await feeder.lease(heir, 10.0)] == [second]
    assert (told.has_holders, told.workers, told.unheard) == (False, 0, ("w",))
    assert not open_before.done()
    assert not open_after.done()

    third = await engine.submit(2)
    feeder.polls.hear({holder: 1})
    done, _ = await asyncio.wait({open_before, open_after}, return_when=asyncio.FIRST_COMPLETED, timeout=10.0)
    assert {task.id for poll in done for task in poll.result()} <= set(third)
    assert done
    feeder.polls.end_all()
    await asyncio.wait({open_before, open_after})


async def test_an_open_poll_ends_when_another_node_has_ended_its_holder(engine: Engine, feeder: Feeder) -> None:
    holder = await engine.holders.register(engine.tenant, "w")
    liveness = Liveness(engine.database, engine.holders, engine.onward, feeder.polls)
    poll = asyncio.create_task(feeder.lease(replace(ask_of(holder), tenant=engine.tenant), 60.0))
    while not feeder.polls:
        await asyncio.sleep(0)
    await liveness.step()
    assert not poll.done()

    # No message of it arrives.
    await engine.database.execute("UPDATE holder SET ended_at = now() WHERE id = $1", holder)
    await liveness.step()

    assert await asyncio.wait_for(poll, 10.0) == []
