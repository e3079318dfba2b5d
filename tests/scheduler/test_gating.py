"""Limits on a real database: what is over one is parked once, at its gate, and nothing is lost or overtaken."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from duetime.admin.invariants import check_invariants
from duetime.budgets.postgres import PostgresBudgets
from duetime.clock import from_ms, to_us
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SHARDS, due_ms_of, make_id
from duetime.lifecycle import lanes as lanes_module
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.park import Parked, Running, StrictPlace, park, read_ended, take_places
from duetime.lifecycle.tasks.settle import Report
from duetime.model.attempt import Attempt, Past
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.limits import Limits, TypeLimits
from duetime.model.task import Kind, LeasedTask, NewTask, Options, Outcome, Target, TaskState
from duetime.scheduler import gating
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.feed import Ask, Feeder
from duetime.scheduler.rulebook import Book
from duetime.views.explain import explain
from duetime.views.filters import TaskFilter
from duetime.views.tasks import list_tasks
from engine import Engine, submitted

_IS_MOVED = "SELECT wake <> task AS moved FROM due WHERE task = $1"


@pytest.fixture
async def engine(database: Database) -> Engine:
    engine = await Engine.open(database)
    await engine.lanes.ensure(engine.lane_key())
    return engine


@pytest.fixture
def breaker_config() -> BreakerConfig:
    return DEFAULT


@pytest.fixture
def breakers(engine: Engine, breaker_config: BreakerConfig) -> Breakers:
    return Breakers(engine.lanes.key_of, engine.database.clock.now_ms, config=breaker_config)


@pytest.fixture
async def feeder(engine: Engine, breakers: Breakers) -> AsyncIterator[Feeder]:
    feeder = Feeder(
        engine.database, engine.lanes, engine.onward, breakers=breakers, budgets=PostgresBudgets(engine.database)
    )
    engine.wake_also(feeder.wake)
    engine.ended.listen(feeder.ended)
    await feeder.start()
    yield feeder
    await feeder.stop()


async def ask_of(engine: Engine, room: int = 10, worker: str = "w") -> Ask:
    holder = await engine.holders.register(engine.tenant, worker)
    return Ask(holder, engine.tenant, Kind.PULL, None, frozenset(), room)


def keyed(engine: Engine, **limits: Limits) -> Book:
    return Book(key_limits=lambda tenant, key: limits.get(key), keyed=frozenset({engine.tenant}))


async def lease(engine: Engine, feeder: Feeder, room: int = 10, wait: float = 5.0) -> list[LeasedTask]:
    return await feeder.lease(await ask_of(engine, room), wait)


async def parked(engine: Engine) -> set[uuid.UUID]:
    return {row["task"] for row in await engine.database.fetch("SELECT task FROM due WHERE home IS NOT NULL")}


async def until_parked(engine: Engine, tasks: list[uuid.UUID]) -> None:
    async with asyncio.timeout(10.0):
        while await parked(engine) != set(tasks):
            await asyncio.sleep(0.01)


async def test_what_is_over_its_keys_cap_is_parked_and_runs_when_one_ends(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=2)))
    tasks = await engine.submit(5, options=Options(concurrency_key="shop"))
    free = await engine.submit(1)

    first = await lease(engine, feeder)

    assert [task.id for task in first] == [*tasks[:2], *free]
    await until_parked(engine, tasks[2:])
    assert await lease(engine, feeder, wait=0.05) == []
    await engine.settle(first[:1])
    [third] = await lease(engine, feeder)
    assert (third.id, third.number) == (tasks[2], 1)
    await engine.settle([first[1], third])
    assert [task.id for task in await lease(engine, feeder)] == tasks[3:]
    assert await check_invariants(engine.database, deep=True) == []


async def test_a_later_task_does_not_overtake_those_at_the_gate(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    tasks = await engine.submit(3, options=Options(concurrency_key="shop"))
    first = await lease(engine, feeder)
    await until_parked(engine, tasks[1:])
    late = await engine.submit(1, options=Options(concurrency_key="shop"))
    order = [task.id for task in first]

    for _ in range(3):
        await engine.settle(first)
        first = await lease(engine, feeder)
        order += [task.id for task in first]

    assert order == [*tasks, *late]


async def test_a_row_of_a_limited_key_is_read_twice_and_no_more(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, sms=Limits(rate=0.001, burst=1)))
    await engine.submit(200, options=Options(rate_key="sms"))
    free = await engine.submit(5)
    got: list[uuid.UUID] = []
    while len(got) < 5:
        got += [task.id for task in await lease(engine, feeder, room=50)]
    assert got == free
    numbers = await engine.database.fetch("SELECT DISTINCT number, releases FROM due WHERE home IS NOT NULL")

    for _ in range(5):
        assert await lease(engine, feeder, wait=0.01) == []

    rows = await engine.database.fetch("SELECT count(*) AS count, count(DISTINCT lane) AS lanes FROM due")
    assert [tuple(row) for row in rows] == [(200, 1)]
    assert [tuple(row) for row in numbers] == [(1, 0)]


async def test_a_limit_of_a_type_holds_for_what_waited_and_ran_before_it_was_set(
    engine: Engine, feeder: Feeder
) -> None:
    tasks = await engine.submit(6)
    running = await lease(engine, feeder, room=3)

    limits = TypeLimits(max_running=2)
    await feeder.limit(Book(type_limits=lambda tenant, name: limits, typed=frozenset({engine.tenant})))

    assert await lease(engine, feeder, wait=0.1) == []
    await until_parked(engine, tasks[3:])
    await engine.settle(running[:2])
    assert [task.id for task in await lease(engine, feeder)] == [tasks[3]]


async def test_each_value_of_a_types_key_has_the_limit_for_itself(engine: Engine, feeder: Feeder) -> None:
    limits = TypeLimits(max_running=1, concurrency_key="shop")
    await feeder.limit(Book(type_limits=lambda tenant, name: limits, typed=frozenset({engine.tenant})))
    first = await engine.submit(2, payload=b'{"shop": "a"}')
    second = await engine.submit(2, payload=b'{"shop": "b"}')

    leased = await lease(engine, feeder)

    assert [task.id for task in leased] == [first[0], second[0]]
    await until_parked(engine, [first[1], second[1]])


async def test_what_is_parked_can_be_listed_explained_paused_resumed_and_cancelled(
    engine: Engine, feeder: Feeder
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    tasks = await engine.submit(4, options=Options(concurrency_key="shop"), labels={"a": "b"})
    [running] = await lease(engine, feeder)
    await until_parked(engine, tasks[1:])

    assert {await engine.state(task) for task in tasks[1:]} == {TaskState.READY}
    wanted = TaskFilter(state=TaskState.READY, type="test.task", labels=("a=b",))
    page = await list_tasks(engine.database, engine.lanes, engine.tenant, "default", wanted, None, 10)
    assert {item.id for item in page.items} == set(tasks[1:])
    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, tasks[2])
    assert told is not None
    assert [waiting.reason for waiting in told.waiting_for] == ["cap", "position"]
    assert "concurrency_key 'shop' has 1 running" in told.waiting_for[0].detail
    assert told.position == 1

    await engine.steering.pause(tasks[1:3])
    await engine.steering.cancel(tasks[3:])
    await engine.settle([running])
    assert await lease(engine, feeder, wait=0.05) == []
    await engine.steering.resume([tasks[2]])
    assert [task.id for task in await lease(engine, feeder)] == [tasks[2]]
    assert await engine.state(tasks[3]) is TaskState.CANCELLED
    assert await check_invariants(engine.database, deep=True) == []


async def test_a_limit_that_is_gone_lets_what_is_parked_run(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=0)))
    tasks = await engine.submit(3, options=Options(concurrency_key="shop"))
    assert await lease(engine, feeder, wait=0.05) == []
    await until_parked(engine, tasks)

    await feeder.limit(Book())

    assert [task.id for task in await lease(engine, feeder)] == tasks


async def test_a_retry_passes_the_gate_again(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    [task] = await engine.submit(1, options=Options(concurrency_key="shop"))
    [first] = await lease(engine, feeder)

    await engine.settle([first], Outcome.FAILED, retry_after=0.0)

    [second] = await lease(engine, feeder)
    assert (second.id, second.number) == (task, 2)


async def test_a_feeder_that_takes_over_counts_what_runs(engine: Engine, feeder: Feeder) -> None:
    book = keyed(engine, shop=Limits(max_running=2))
    await feeder.limit(book)
    tasks = await engine.submit(4, options=Options(concurrency_key="shop"))
    running = await lease(engine, feeder)
    await until_parked(engine, tasks[2:])
    await feeder.stop()

    successor = Feeder(engine.database, engine.lanes, engine.onward)
    await successor.limit(book)
    await successor.start()
    try:
        assert await lease(engine, successor, wait=0.05) == []
        # Nobody tells it of the end: it looks.
        await engine.settle(running[:1])
        assert [task.id for task in await lease(engine, successor)] == [tasks[2]]
    finally:
        await successor.stop()


async def test_a_strict_cap_holds_between_two_feeders_of_one_lane(engine: Engine, feeder: Feeder) -> None:
    book = Book(queues={(engine.tenant, "default"): Limits(max_running=3, strict=True)})
    other = Feeder(engine.database, engine.lanes, engine.onward)
    await feeder.limit(book)
    await other.limit(book)
    await other.start()
    engine.ended.listen(other.ended)
    try:
        await engine.submit(20)
        done = 0
        async with asyncio.timeout(30.0):
            while done < 20:
                leases = await asyncio.gather(
                    lease(engine, feeder, room=2, wait=0.05), lease(engine, other, room=2, wait=0.05)
                )
                got = [task for each in leases for task in each]
                assert len(got) <= 3
                await engine.settle(got)
                done += len(got)
    finally:
        await other.stop()


async def test_two_feeders_of_a_spread_tenant_share_its_rate_and_its_cap(engine: Engine, feeder: Feeder) -> None:
    book = Book(tenants={engine.tenant: Limits(rate=40, burst=5)}, queues={(engine.tenant, "q"): Limits(max_running=2)})
    other = Feeder(engine.database, engine.lanes, engine.onward, budgets=PostgresBudgets(engine.database))
    for each in (feeder, other):
        await each.share({engine.tenant: 2})
        await each.limit(book)
    await other.start()
    try:
        await engine.submit(100)
        loop, started = asyncio.get_running_loop(), 0
        began = loop.time()
        while loop.time() < began + 1.0:
            leases = await asyncio.gather(
                lease(engine, feeder, room=5, wait=0.1), lease(engine, other, room=5, wait=0.1)
            )
            started += sum(len(each) for each in leases)
        # A bucket that is new begins with a second's worth.
        assert 0 < started <= 40 * (loop.time() - began) + 40 + 5

        await feeder.limit(Book(queues=book.queues))
        await other.limit(Book(queues=book.queues))
        await engine.submit(10, queue="q")
        asks = [replace(await ask_of(engine, 5), queues=frozenset({"q"})) for _ in range(2)]
        first, second = await asyncio.gather(feeder.lease(asks[0], 0.5), other.lease(asks[1], 0.5))
        assert 1 <= len(first) + len(second) <= 2
    finally:
        await other.stop()


async def test_what_an_open_breaker_keeps_is_parked_and_other_hosts_go_on(
    engine: Engine, feeder: Feeder, breakers: Breakers
) -> None:
    await feeder.limit(Book(slowed=breakers.is_slowed, has_slowed=breakers.has_slowed))
    tasks = [
        msgspec.structs.replace(
            engine.new_task(options=Options(target=Target(f"http://{host}.example/x"))),
            lane=engine.lane_key(kind=Kind.PUSH),
        )
        for host in ("down", "well", "down", "well")
    ]
    ids = [submitted(each) for each in await engine.submitter.submit(tasks)]
    breakers.obey({(engine.tenant, "down.example:80"): "open"})
    ask = replace(await ask_of(engine), kind=Kind.PUSH)

    leased = await feeder.lease(ask, 5.0)

    assert [task.id for task in leased] == [ids[1], ids[3]]
    await until_parked(engine, [ids[0], ids[2]])
    assert await feeder.lease(ask, 0.05) == []
    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, ids[0])
    assert told is not None
    assert told.waiting_for[0].reason == "breaker"
    breakers.obey({})
    assert [task.id for task in await feeder.lease(ask, 5.0)] == [ids[0], ids[2]]


def call_of(engine: Engine, **options: object) -> NewTask:
    task = engine.new_task(options=Options(target=Target("http://a.example/x"), **options))  # type: ignore[arg-type]
    return msgspec.structs.replace(task, lane=engine.lane_key(kind=Kind.PUSH))


#: A ramp that begins with five, and goes on however slow the test is.
RAMP = BreakerConfig(ramp_rate=5.0, ramp_free_rate=40.0, ramp_doubles_ms=10_000, ramp_gap_ms=60_000)
RAMPING = pytest.mark.parametrize("breaker_config", [RAMP], ids=["ramp"])


async def heed(feeder: Feeder, breakers: Breakers, **more: Any) -> None:
    await feeder.limit(Book(slowed=breakers.is_slowed, has_slowed=breakers.has_slowed, **more))


@RAMPING
async def test_a_flood_at_a_host_that_rested_is_parked_and_let_through_by_and_by(
    engine: Engine, feeder: Feeder, breakers: Breakers
) -> None:
    await heed(feeder, breakers)
    ids = [submitted(each) for each in await engine.submitter.submit([call_of(engine)] * 20)]
    ask = replace(await ask_of(engine, 100), kind=Kind.PUSH)

    first = await feeder.lease(ask, 5.0)

    # Some of the next second's may have come while they were claimed.
    assert [task.id for task in first] == ids[: len(first)]
    assert 5 <= len(first) < 15
    breakers.began(engine.tenant, "a.example:80", 500, engine.database.clock.now_ms())
    [seen] = breakers.states(engine.tenant)
    assert (seen.host, seen.state) == ("a.example:80", "ramping")
    async with asyncio.timeout(5.0):
        while ids[-1] not in await parked(engine):
            await asyncio.sleep(0.01)
    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, ids[-1])
    assert told is not None
    assert told.waiting_for[0].reason == "breaker"
    assert "ramping after a rest" in told.waiting_for[0].detail

    breakers.obey({(engine.tenant, "a.example:80"): "closed"})
    rest: list[LeasedTask] = []
    async with asyncio.timeout(10.0):
        while len(first) + len(rest) < 20:
            rest += await feeder.lease(ask, 1.0)
    assert sorted(task.id for task in [*first, *rest]) == sorted(ids)


@RAMPING
async def test_a_few_calls_at_a_host_that_rested_are_neither_parked_nor_shown(
    engine: Engine, feeder: Feeder, breakers: Breakers
) -> None:
    await heed(feeder, breakers)
    ids = [submitted(each) for each in await engine.submitter.submit([call_of(engine)] * 5)]

    leased = await feeder.lease(replace(await ask_of(engine), kind=Kind.PUSH), 5.0)

    assert [task.id for task in leased] == ids
    assert breakers.states(engine.tenant) == []
    assert not breakers.has_slowed(engine.tenant)
    assert breakers.of(engine.tenant, "a.example:80").in_flight == 5


@RAMPING
async def test_what_another_limit_keeps_is_no_call_for_the_ramp(
    engine: Engine, feeder: Feeder, breakers: Breakers
) -> None:
    key = {"key_limits": lambda tenant, key: Limits(max_running=1), "keyed": frozenset({engine.tenant})}
    await heed(feeder, breakers, **key)
    ids = [submitted(each) for each in await engine.submitter.submit([call_of(engine, concurrency_key="one")] * 4)]

    [leased] = await feeder.lease(replace(await ask_of(engine), kind=Kind.PUSH), 5.0)

    assert leased.id == ids[0]
    breaker = breakers.of(engine.tenant, "a.example:80")
    assert breaker.in_flight == 1
    assert breaker.state == "closed"


@RAMPING
async def test_what_is_handed_over_as_it_is_stored_counts_for_the_ramp(
    engine: Engine, feeder: Feeder, breakers: Breakers
) -> None:
    await heed(feeder, breakers)
    submitter = Submitter(engine.database, engine.lanes, engine.partitions, feeder.wake, holders=feeder)
    await engine.lanes.ensure(engine.lane_key(kind=Kind.PUSH))
    asking = asyncio.create_task(feeder.lease(replace(await ask_of(engine, 100), kind=Kind.PUSH), 5.0))
    await asyncio.sleep(0)

    await submitter.submit([call_of(engine)] * 12)

    handed = await asking
    breaker = breakers.of(engine.tenant, "a.example:80")
    assert breaker.in_flight == len(handed) == 12
    assert breakers.is_slowed(engine.tenant, "a.example:80")


async def test_without_a_lane_at_its_gate_a_task_waits_at_home(
    engine: Engine, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_GATES_PER_TENANT", 1)
    await feeder.limit(keyed(engine, one=Limits(max_running=0), two=Limits(max_running=0)))
    [first] = await engine.submit(1, options=Options(concurrency_key="one"))
    assert await lease(engine, feeder, wait=0.05) == []
    await until_parked(engine, [first])
    [second] = await engine.submit(1, options=Options(concurrency_key="two"))
    assert await lease(engine, feeder, wait=0.05) == []
    async with asyncio.timeout(5.0):
        while not (
            rows := await engine.database.fetch("SELECT wake <> task AS moved FROM due WHERE task = $1", second)
        ):
            await asyncio.sleep(0.01)
    assert rows[0]["moved"]
    assert await parked(engine) == {first}

    # The lane of a gate that is past serves another.
    await engine.steering.cancel([first])
    async with asyncio.timeout(10.0):
        while await parked(engine) != {second}:
            await lease(engine, feeder, wait=0.05)


async def test_a_place_that_an_attempt_has_already_is_its_own_when_it_asks_again(engine: Engine) -> None:
    await engine.submit(1)
    [task] = await engine.claim()
    place = StrictPlace(engine.tenant, "strict", 1, task)
    assert await take_places(engine.database, [place]) == {0}

    # Another cap had none for it: it was parked, and was claimed again with the same number.
    assert await take_places(engine.database, [place]) == {0}


async def test_a_lower_strict_cap_counts_those_who_have_the_places_above_it(engine: Engine) -> None:
    await engine.submit(5)
    tasks = await engine.claim()
    three = [StrictPlace(engine.tenant, "strict", 3, task) for task in tasks[:3]]
    assert await take_places(engine.database, three) == {0, 1, 2}
    await engine.settle(tasks[:2])

    assert await take_places(engine.database, [StrictPlace(engine.tenant, "strict", 1, tasks[3])]) == set()
    both = [StrictPlace(engine.tenant, "strict", 2, task) for task in tasks[3:]]
    assert await take_places(engine.database, both) == {0}


async def test_a_shard_that_could_not_be_counted_is_counted_later(
    engine: Engine, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await feeder.limit(Book(queues={(engine.tenant, "default"): Limits(max_running=3)}))
    every = frozenset(range(SHARDS))
    feeder.feed_only(frozenset())
    feeder.feed_only(every)

    async def away(database: Database, lanes: Sequence[int]) -> list[Running]:
        raise Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(gating, "read_running", away)
        with pytest.raises(Unavailable):
            await feeder.look_at(every)
    [task] = await engine.submit(1)

    assert [each.id for each in await lease(engine, feeder)] == [task]


async def test_limits_that_cannot_be_checked_keep_no_place(
    engine: Engine, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1, strict=True)))
    await engine.submit(1, options=Options(concurrency_key="shop"))

    async def fails(database: Database, places: Sequence[StrictPlace]) -> set[int]:
        raise RuntimeError("whatever it is")

    with monkeypatch.context() as patch:
        patch.setattr(gating, "take_places", fails)
        assert await lease(engine, feeder, wait=0.2) == []
    await engine.lapse()

    [task] = await lease(engine, feeder)
    assert task.number == 2


async def test_a_row_in_a_lane_that_was_given_to_another_queue_goes_to_its_own_queue(
    engine: Engine, feeder: Feeder
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=0)))
    [task] = await engine.submit(1, options=Options(concurrency_key="shop"))
    assert await lease(engine, feeder, wait=0.05) == []
    await until_parked(engine, [task])
    [row] = await engine.database.fetch("UPDATE lane SET queue = 'other' WHERE gate <> '' RETURNING id")
    await engine.lanes.learn(row["id"])
    holder = await engine.holders.register(engine.tenant, "other")
    other = Ask(holder, engine.tenant, Kind.PULL, frozenset({"other"}), frozenset(), 10)
    feeder.wake([make_id(1, 1, row["id"])])

    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))

    assert await feeder.lease(other, 0.2) == []
    assert [each.id for each in await lease(engine, feeder)] == [task]


async def test_a_gate_too_long_for_a_lane_of_its_own_harms_nobody(engine: Engine, feeder: Feeder) -> None:
    chance = random.Random(1)
    words = ["".join(chr(chance.randrange(0x20000, 0x2A000)) for _ in range(255)) for _ in range(4)]
    limit = TypeLimits(max_running=1, rate=1000, concurrency_key="a", rate_key="b")
    await feeder.limit(
        Book(
            type_limits=lambda tenant, name: limit,
            typed=frozenset({engine.tenant}),
            key_limits=lambda tenant, key: Limits(max_running=1, rate=1000),
            keyed=frozenset({engine.tenant}),
        )
    )
    payload = msgspec.json.encode({"a": words[0], "b": words[1]})
    options = Options(concurrency_key=words[2], rate_key=words[3])
    tasks = await engine.submit(2, options=options, payload=payload)
    [first] = await lease(engine, feeder)
    assert first.id == tasks[0]
    async with asyncio.timeout(5.0):
        while not await engine.database.fetch(_IS_MOVED, tasks[1]):
            await asyncio.sleep(0.01)

    await engine.settle([first])
    [second] = await lease(engine, feeder)
    assert second.id == tasks[1]


async def test_a_look_for_ends_does_not_end_what_was_started_meanwhile(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    await engine.submit(1, options=Options(concurrency_key="shop"))
    first = await lease(engine, feeder)
    gates = feeder._gates

    async def read_late(database: Database, attempts: Sequence[Attempt]) -> list[Past]:
        await engine.settle(first, Outcome.RELEASED)
        ended = await read_ended(database, attempts)
        await lease(engine, feeder)
        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gating, "read_ended", read_late)
        await gates.notice_ended()

    assert len(feeder._core.governor.running) == 1


async def test_a_late_word_of_an_attempts_end_leaves_the_next_attempts_place_alone(
    engine: Engine, feeder: Feeder
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    [task, waits] = await engine.submit(2, options=Options(concurrency_key="shop"))
    [first] = await lease(engine, feeder)
    await until_parked(engine, [waits])
    await engine.steering.pause([waits])
    await engine.settle([first], Outcome.FAILED, retry_after=0.0)
    [second] = await lease(engine, feeder)
    assert (second.id, second.number) == (task, 2)
    await engine.steering.resume([waits])

    feeder.ended([Past(task, 1)])

    assert await lease(engine, feeder, wait=0.1) == []
    feeder.ended([Past(task, 2)])
    assert [each.id for each in await lease(engine, feeder)] == [waits]


@pytest.mark.parametrize("way", ["a poll that was given up", "a worker", "two beats"])
async def test_what_is_given_back_before_it_began_costs_a_rate_nothing(
    engine: Engine, feeder: Feeder, way: str
) -> None:
    # Filled up by now, and the next token would come in a quarter of an hour.
    feeder._core.governor.since_ms -= 3_600_000
    await feeder.limit(Book(queues={(engine.tenant, "default"): Limits(rate=0.001, burst=1)}))
    [task, _] = await engine.submit(2)
    leased = await lease(engine, feeder)
    assert [each.id for each in leased] == [task]
    assert await lease(engine, feeder, wait=0.05) == []

    match way:
        case "a poll that was given up":
            await feeder.give_back(leased)
        case "a worker":
            await engine.settle(leased, Outcome.RELEASED)
        case _:
            for _ in range(2):
                await engine.holders.beat(engine.tenant, "w", [])

    assert len(await lease(engine, feeder)) == 1


@pytest.mark.parametrize("way", ["a worker that had begun", "a worker that is gone"])
async def test_what_may_have_begun_has_used_its_token(engine: Engine, feeder: Feeder, way: str) -> None:
    feeder._core.governor.since_ms -= 3_600_000
    await feeder.limit(Book(queues={(engine.tenant, "default"): Limits(rate=0.001, burst=1)}))
    await engine.submit(1)
    leased = await lease(engine, feeder)

    if way == "a worker that had begun":
        now = engine.database.clock.now()
        reports = [Report(task.id, task.number, Outcome.RELEASED, started_us=to_us(now)) for task in leased]
        await engine.settler.settle(engine.tenant, "w", reports)
    else:
        await engine.lapse()

    assert await lease(engine, feeder, wait=0.1) == []


async def test_a_task_that_is_too_late_costs_a_rate_nothing(engine: Engine, feeder: Feeder) -> None:
    feeder._core.governor.since_ms -= 3_600_000
    await feeder.limit(Book(queues={(engine.tenant, "default"): Limits(rate=0.001, burst=1)}))
    [late] = await engine.submit(1, expires_at=engine.database.clock.now() + timedelta(milliseconds=1))
    [task] = await engine.submit(1)
    while engine.database.clock.now() < from_ms(due_ms_of(task) + 5):
        await asyncio.sleep(0.001)

    got: list[LeasedTask] = []
    async with asyncio.timeout(5.0):
        while not got:
            got = await lease(engine, feeder, wait=0.5)

    assert [each.id for each in got] == [task]
    assert await engine.state(late) is TaskState.EXPIRED


async def test_nobody_overtakes_a_task_that_is_on_its_way_to_the_gate(
    engine: Engine, feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    [first, second] = await engine.submit(2, options=Options(concurrency_key="shop"))
    is_parking, may_park = asyncio.Event(), asyncio.Event()

    async def park_slowly(database: Database, rows: Sequence[Parked]) -> list[uuid.UUID]:
        # Only the second task takes long to get there.
        if not is_parking.is_set():
            is_parking.set()
            await may_park.wait()
        return await park(database, rows)

    monkeypatch.setattr(gating, "park", park_slowly)
    [running] = await lease(engine, feeder)
    assert running.id == first
    await is_parking.wait()
    await engine.settle([running])
    third, free = [*await engine.submit(1, options=Options(concurrency_key="shop")), *await engine.submit(1)]

    assert [task.id for task in await lease(engine, feeder)] == [free]
    may_park.set()
    [running] = await lease(engine, feeder)
    assert running.id == second
    await engine.settle([running])
    assert [task.id for task in await lease(engine, feeder)] == [third]
