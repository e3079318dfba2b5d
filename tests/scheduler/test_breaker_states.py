"""What breakers found out is written down thinly, and read by the process that calls next."""

import random
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from duetime.admin.breaker_states import retire_memories
from duetime.database.pool import Database
from duetime.ids import SHARDS
from duetime.model.task import Kind, LaneKey, LeasedTask, Options, PriorityClass, Target
from duetime.scheduler import breaker_states
from duetime.scheduler.breaker_states import BreakerStates
from duetime.scheduler.breakers import Breakers
from engine import Engine

HOST = "a.example:443"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Process:
    """Breakers of one process that feeds all shards, and a time of their own."""

    def __init__(self, database: Database, engine: Engine, lane: int) -> None:
        self.now = database.clock.now_ms()
        self.engine, self.lane = engine, lane
        self.breakers = Breakers(engine.lanes.key_of, lambda: self.now, chance=random.Random(5))
        self.states = BreakerStates(database, engine.lanes, self.breakers)

    def fail(self, count: int = 60, url: str = "https://a.example/hook") -> None:
        for _ in range(count):
            self.now += 50
            picked_at = EPOCH + timedelta(milliseconds=self.now)
            options = Options(target=Target(url))
            task = LeasedTask(uuid.uuid4(), self.lane, 1, 1, "t", b"", picked_at, picked_at, 0, 0, 0, options)
            self.breakers.report(task, "failed", detail="it answered 500")

    def available(self, host: str = HOST) -> int | None:
        breaker = self.breakers.find(self.engine.tenant, host)
        return None if breaker is None else breaker.available(self.now)


class World:
    def __init__(self, database: Database, engine: Engine, lane: int) -> None:
        self.database, self.engine, self.lane = database, engine, lane

    def process(self) -> Process:
        return Process(self.database, self.engine, self.lane)

    async def rows(self) -> list[tuple[str, str]]:
        rows = await self.database.fetch("SELECT host, memory ->> 'phase' AS phase FROM breaker_state ORDER BY host")
        return [(row["host"], row["phase"]) for row in rows]

    async def written(self) -> int:
        """How many rows were inserted or written anew."""
        [row] = await self.database.fetch("SELECT count(DISTINCT xmin::text) AS writes FROM breaker_state")
        return int(row["writes"])


@pytest.fixture
async def world(database: Database) -> World:
    engine = await Engine.open(database)
    lane = await engine.lanes.ensure(LaneKey(engine.tenant, "default", PriorityClass.NORMAL, Kind.PUSH))
    return World(database, engine, lane)


async def test_a_process_that_starts_knows_which_hosts_are_not_called(world: World) -> None:
    first = world.process()
    first.fail()
    await first.states.save()

    second = world.process()
    second.now = first.now
    await second.states.recall(None)

    assert second.available() == first.available() == 0
    assert second.breakers.is_slowed(world.engine.tenant, HOST)
    assert second.breakers.states(world.engine.tenant)[0].next_probe_ms == (
        first.breakers.states(world.engine.tenant)[0].next_probe_ms
    )
    second.now += 10_000
    assert second.available() == 3


async def test_of_shards_that_are_anothers_nothing_is_read(world: World) -> None:
    first, second = world.process(), world.process()
    first.fail()
    await first.states.save()

    await second.states.recall(frozenset({(world.lane + 1) % SHARDS}))
    assert second.available() is None
    await second.states.recall(frozenset({world.lane % SHARDS}))
    assert second.available() == 0


async def test_a_host_that_goes_on_failing_costs_a_write_for_each_change_and_not_for_each_call(world: World) -> None:
    process = world.process()
    process.fail(10)
    await process.states.save()
    assert await world.rows() == []

    process.fail(60)
    await process.states.save()
    [before] = await world.database.fetch("SELECT stored_at FROM breaker_state")
    process.fail(30)
    await process.states.save()

    [after] = await world.database.fetch("SELECT stored_at FROM breaker_state")
    assert before == after
    assert process.states._news == set()


async def test_many_hosts_share_one_statement(world: World) -> None:
    process = world.process()
    for number in range(20):
        process.fail(60, f"https://h{number}.example/")
    await process.states.save()

    assert len(await world.rows()) == 20
    assert await world.written() == 1


async def test_what_could_not_be_written_is_written_when_the_database_takes_it(world: World) -> None:
    process = world.process()
    process.fail()
    await world.database.fetch("ALTER TABLE breaker_state RENAME TO away")
    with pytest.raises(Exception, match="breaker_state"):
        await process.states.save()
    await world.database.fetch("ALTER TABLE away RENAME TO breaker_state")

    await process.states.save()

    assert await world.rows() == [(HOST, "open")]


async def test_the_row_goes_when_a_breaker_has_nothing_to_say_any_more(world: World) -> None:
    process = world.process()
    process.fail()
    await process.states.save()
    process.breakers.obey({(world.engine.tenant, HOST): "closed"})
    await process.states.save()
    assert await world.rows() == []

    process.breakers.obey({})
    process.fail()
    await process.states.save()
    process.now += 3_600_000
    process.breakers.obey({})
    await process.states.save()
    assert await world.rows() == []


async def test_what_another_process_has_written_since_stays(world: World) -> None:
    first, second = world.process(), world.process()
    first.fail()
    await first.states.save()
    second.fail()
    await second.states.save()

    first.breakers.obey({(world.engine.tenant, HOST): "closed"})
    await first.states.save()

    assert await world.rows() == [(HOST, "open")]


async def test_what_a_process_has_learned_since_counts_more_than_the_row(world: World) -> None:
    first, second = world.process(), world.process()
    first.fail()
    await first.states.save()
    second.now = world.database.clock.now_ms() + 60_000
    second.fail()
    mine = second.breakers.find(world.engine.tenant, HOST)

    await second.states.recall(None)

    assert second.breakers.find(world.engine.tenant, HOST) is mine


async def test_a_tenant_has_so_many_rows_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_states, "MAX_ROWS_PER_TENANT", 5)
    process = world.process()
    for number in range(8):
        process.fail(60, f"https://h{number}.example/")
    await process.states.save()
    assert len(await world.rows()) == 5


async def test_old_rows_are_not_read_and_at_last_removed(world: World) -> None:
    first, second = world.process(), world.process()
    first.fail()
    await first.states.save()
    await world.database.fetch("UPDATE breaker_state SET stored_at = stored_at - interval '16 minutes'")
    await second.states.recall(None)
    assert second.available() is None

    await retire_memories(world.database)
    assert len(await world.rows()) == 1
    await world.database.fetch("UPDATE breaker_state SET stored_at = stored_at - interval '1 hour'")
    await retire_memories(world.database)
    assert await world.rows() == []
