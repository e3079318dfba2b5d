"""Turns that become known while the loop is busy or asleep: each is taken by the next step, not by the next look."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from api.client import until
from duetime.admin.invariants import check_invariants
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import due_ms_of, lane_of
from duetime.lifecycle.schedules.fire import DueSchedules, Fired, fire, read_due
from duetime.model.schedule import Overlap
from duetime.recurrence import Spec
from duetime.scheduler.firing import Decided, Firing
from engine import Engine
from scheduler.schedules import put, schedule_of
from scheduler.test_firing import MovableClock

Reading = dict[int, uuid.UUID]


@pytest.fixture
async def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def engine(database_url: str, clock: MovableClock) -> AsyncIterator[Engine]:
    database = await Database.open(database_url, clock=clock)
    engine = await Engine.open(database)
    yield engine
    found = await check_invariants(database, deep=True)
    await database.close()
    assert found == []


@pytest.fixture
def elsewhere() -> set[int]:
    """The lanes that another node feeds."""
    return set()


@pytest.fixture
def firing(engine: Engine, elsewhere: set[int]) -> Firing:
    firing = Firing(
        engine.database,
        engine.partitions,
        engine.schedules,
        engine.backfills,
        engine.recurrences,
        engine.steering,
        engine._wake,
        feeds=lambda lane: lane not in elsewhere,
    )
    engine.wake_also(lambda wakes: firing.wake(wake for wake in wakes if lane_of(wake) < 256))
    return firing


async def put_every_second(engine: Engine, *names: str) -> None:
    """Their first turn is at once: times are planned two seconds ahead."""
    await put(engine, *[schedule_of(engine, name, spec=Spec(every=1.0), overlap=Overlap.ALLOW) for name in names])


async def count_fired(engine: Engine, name: str) -> int:
    return (await engine.schedules.find(engine.tenant, name)).fired


async def has_fired(engine: Engine, name: str, times: int) -> bool:
    return await count_fired(engine, name) >= times


async def has_come(clock: MovableClock, moment_ms: int) -> bool:
    return clock.now_ms() >= moment_ms


async def wake_of(engine: Engine, name: str) -> uuid.UUID:
    [row] = await engine.database.fetch(
        "SELECT wake FROM schedule_state JOIN schedule ON schedule.id = schedule WHERE name = $1", name
    )
    wake: uuid.UUID = row["wake"]
    return wake


async def test_a_turn_that_is_told_of_while_its_lane_is_read_is_taken_next(
    engine: Engine, firing: Firing, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_every_second(engine, "known")
    reads: list[DueSchedules] = []

    async def read_then_tell(database: Database, since: Reading, until: uuid.UUID, batch: int) -> DueSchedules:
        """What is stored behind this read's snapshot, with a turn that lies before its end, is told of at once."""
        found = await read_due(database, since, until, batch)
        if not reads:
            clock.ahead_ms = 10
            await put_every_second(engine, "told")
            clock.ahead_ms = 4_000
            [first] = since.values()
            assert first < await wake_of(engine, "told") < until
        reads.append(found)
        return found

    clock.ahead_ms = 4_000
    monkeypatch.setattr("duetime.scheduler.firing.read_due", read_then_tell)
    await firing.step()
    assert [len(read.schedules) for read in reads] == [1]
    assert await count_fired(engine, "told") == 0

    assert await firing.step() is not None

    assert await count_fired(engine, "told") > 0


async def test_a_look_does_not_give_a_turn_twice_that_is_under_way(
    engine: Engine, firing: Firing, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(6)]
    monkeypatch.setattr("duetime.scheduler.firing.BATCH", 3)
    await put_every_second(engine, *names)
    given: list[str] = []

    async def fire_and_list(database: Database, partitions: Partitions, turns: Sequence[Decided]) -> Fired:
        given.extend(schedule.name for schedule, _, _ in turns)
        return await fire(database, partitions, turns)

    monkeypatch.setattr("duetime.scheduler.firing.fire", fire_and_list)
    await firing.step()
    # The batch that was read is still in due, and the look sees it.
    firing.wake([min([await wake_of(engine, name) for name in names])])
    for _ in range(4):
        await firing.step()
    await firing.stop()

    assert sorted(given[: len(names)]) == names
    assert [await count_fired(engine, name) > 0 for name in names] == [True] * len(names)


async def test_a_shard_that_comes_back_is_fired_again(
    engine: Engine, firing: Firing, elsewhere: set[int], clock: MovableClock
) -> None:
    await put_every_second(engine, "s")
    await firing.start()
    try:
        await until(lambda: has_fired(engine, "s", 1))
        wake = await wake_of(engine, "s")
        elsewhere.add(lane_of(wake))
        # Its turn goes by, and the loop finds nothing to wait for.
        await until(lambda: has_come(clock, due_ms_of(wake) + 50))
        assert await wake_of(engine, "s") == wake
        before = await count_fired(engine, "s")

        elsewhere.clear()

        await until(lambda: has_fired(engine, "s", before + 1))
    finally:
        await firing.stop()


async def test_a_database_that_is_away_is_asked_again_after_a_while_and_no_turn_is_forgotten(
    engine: Engine, firing: Firing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    is_away = True

    async def read_or_fail(database: Database, since: Reading, until: uuid.UUID, batch: int) -> DueSchedules:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if is_away:
            raise Unavailable("the database does not answer")
        return await read_due(database, since, until, batch)

    await put_every_second(engine, "s")
    monkeypatch.setattr("duetime.scheduler.firing.read_due", read_or_fail)
    running = asyncio.create_task(firing._run())
    try:
        for _ in range(100):
            await asyncio.sleep(0)
        # It waits, although what it had taken out was put back.
        assert 1 <= asked <= 2
        is_away = False

        await until(lambda: has_fired(engine, "s", 1))
    finally:
        await firing.stop()
        await running
