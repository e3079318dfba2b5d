"""A worker gets only what it handles; what it does not waits for others, moved once, in order, without an attempt."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from asks import NOW, ask_for, key_of, plan_of, take, wake_of
from duetime.admin.invariants import check_invariants
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.lifecycle import lanes as lanes_module
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.sift import MAX_SIFTED
from duetime.model.gates import encode_gate, is_for_type_alone, limits_at, type_at, with_type
from duetime.model.limits import Limits, TypeLimits
from duetime.model.task import Kind, LeasedTask, Options, Outcome, TaskState
from duetime.scheduler.core import Core
from duetime.scheduler.feed import Feeder
from duetime.scheduler.foreign import MAX_SIFTS
from duetime.scheduler.plan import Ask
from duetime.scheduler.reserving import MAX_LANES_PER_RESERVE
from duetime.scheduler.rulebook import Book
from duetime.views.explain import explain
from duetime.views.tasks import due_at_of, read_tasks
from engine import Engine, submitted

OF_B = encode_gate(with_type((), "b"))

# The gate of a type


def test_a_gate_tells_the_type_of_what_waits_there_and_what_limits_it() -> None:
    key = (("key", "shop", ""),)

    assert type_at("") is None
    assert type_at(encode_gate(key)) is None
    assert type_at(OF_B) == type_at(encode_gate(with_type(key, "b"))) == "b"
    assert type_at(encode_gate((("type_key", "b", "c-7"),))) == "b"
    assert limits_at(encode_gate(with_type(key, "b"))) == key
    assert [is_for_type_alone(gate) for gate in ("", OF_B, encode_gate(with_type(key, "b")))] == [False, True, False]


def test_who_waits_behind_a_limit_of_its_type_has_no_other_gate() -> None:
    of_type = (("type", "b", ""),)

    assert with_type(of_type, "b") == of_type


# The core's part


def test_an_ask_takes_from_the_lanes_of_its_types_and_no_others() -> None:
    in_lane = msgspec.structs.replace(key_of(), gate=OF_B)

    assert ask_for(types=frozenset({"a", "b"})).fits(in_lane)
    assert ask_for().fits(in_lane)
    assert not ask_for(types=frozenset({"a"})).fits(in_lane)
    assert ask_for(types=frozenset({"a"})).serves(in_lane)


def test_what_waits_for_its_type_comes_before_what_is_at_home() -> None:
    core = Core()
    core.woke(257, key_of(), wake_of(257))
    core.woke(513, msgspec.structs.replace(key_of(), gate=OF_B), wake_of(513))
    core.ask(1, ask_for(types=frozenset({"b"})))
    core.ask(2, ask_for(types=frozenset({"a"})))

    plan = plan_of(core)

    assert {order.lane: [number for number, _ in order.asks] for order in plan.orders} == {257: [2], 513: [1]}
    take(core, plan, {513: [wake_of(513)], 257: [wake_of(257)]})
    core.woke(257, key_of(), wake_of(257, unique=1))
    core.ask(3, ask_for(types=frozenset({"b"})))
    assert [order.lane for order in plan_of(core).orders] == [257], "there is nothing more of its type"


def test_other_queues_and_classes_do_not_wait_for_a_type() -> None:
    core = Core()
    core.woke(257, key_of(queue="other"), wake_of(257))
    core.woke(513, msgspec.structs.replace(key_of(), gate=OF_B), wake_of(513))
    core.ask(1, ask_for(types=frozenset({"b"})))

    assert {order.lane for order in plan_of(core).orders} == {257, 513}


def test_many_types_that_nobody_handles_do_not_end_handing_over() -> None:
    core = Core()
    for number in range(MAX_LANES_PER_RESERVE + 1):
        lane = 256 * (number + 2) + 1
        core.woke(lane, msgspec.structs.replace(key_of(), gate=encode_gate(with_type((), f"t{number}"))), wake_of(lane))
    core.ask(1, ask_for(types=frozenset({"a"})))

    assert core.reserve({257: (key_of(), 1)}, NOW) == {257: [(1, 1)]}


def test_nothing_is_planned_of_a_lane_that_is_held() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257, unique=5))
    plan = plan_of(core)
    take(core, plan, {257: [wake_of(257, unique=unique) for unique in range(10)]})
    core.ask(2, ask_for())

    assert core.hold(257) == wake_of(257, unique=9)
    assert core.plan(NOW) is None
    core.woke(257, key_of(), wake_of(257, unique=3))
    core.let_go(257)

    assert plan_of(core).orders[0].hint < wake_of(257, unique=3)
    assert core.hold(999) is None


# On a real database


class CountingDatabase(Database):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.statements = Counter[str]()

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = 10.0
    ) -> list[asyncpg.Record]:
        self.statements[statement.name] += 1
        return await super().run_with(statement, parameters, timeout)

    async def run(self, statement: Statement, *, timeout: float = 10.0, **parameters: object) -> list[asyncpg.Record]:
        return await self.run_with(statement, parameters, timeout)


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[CountingDatabase]:
    database = await CountingDatabase.open(database_url)
    assert isinstance(database, CountingDatabase)
    yield database
    await database.close()


@pytest.fixture
async def engine(counting: CountingDatabase) -> Engine:
    engine = await Engine.open(counting)
    await engine.lanes.ensure(engine.lane_key())
    return engine


@pytest.fixture
async def feeder(engine: Engine) -> AsyncIterator[Feeder]:
    feeder = await feed(engine)
    yield feeder
    await feeder.stop()


async def feed(engine: Engine) -> Feeder:
    feeder = Feeder(engine.database, engine.lanes, engine.onward)
    engine.wake_also(feeder.wake)
    engine.ended.listen(feeder.ended)
    await feeder.start()
    return feeder


async def lease(
    engine: Engine, feeder: Feeder, *types: str, room: int = 10, wait: float = 5.0, queue: str = "default"
) -> list[LeasedTask]:
    """What a worker gets that handles these types, or all if none is given."""
    worker = f"worker of {' '.join(types)}"
    holder = await engine.holders.register(engine.tenant, worker)
    accepted = frozenset(types) if types else None
    ask = Ask(holder, engine.tenant, Kind.PULL, frozenset({queue}), frozenset(), room, accepted)
    return await feeder.lease(ask, wait)


async def submit(engine: Engine, types: str, **options: object) -> list[uuid.UUID]:
    """A task of each type, in one batch."""
    tasks = [engine.new_task(type=name, **options) for name in types]  # type: ignore[arg-type]
    return [submitted(each) for each in await engine.submitter.submit(tasks)]


async def gates(engine: Engine) -> Counter[str]:
    """What waits where, by the gate of its lane."""
    rows = await engine.database.fetch("SELECT lane.gate FROM due JOIN lane ON lane.id = due.lane")
    return Counter(row["gate"] for row in rows)


async def until_at(engine: Engine, expected: dict[str, int]) -> None:
    async with asyncio.timeout(10.0):
        while await gates(engine) != expected:
            await asyncio.sleep(0.01)


def ids(tasks: list[LeasedTask]) -> list[uuid.UUID]:
    return [task.id for task in tasks]


async def test_each_worker_gets_what_it_handles_and_the_rest_waits_for_others(engine: Engine, feeder: Feeder) -> None:
    tasks = await submit(engine, "abab")

    first = await lease(engine, feeder, "a")
    assert ids(first) == [tasks[0], tasks[2]]
    await until_at(engine, {OF_B: 2})
    assert await engine.state(tasks[1]) is TaskState.READY
    second = await lease(engine, feeder, "b")

    assert [(task.id, task.number, task.failures, task.releases) for task in second] == [
        (tasks[1], 1, 0, 0),
        (tasks[3], 1, 0, 0),
    ]
    await engine.settle(first, worker="worker of a")
    await engine.settle(second, worker="worker of b")
    assert await engine.outcomes(tasks[1]) == ["succeeded"]
    assert await check_invariants(engine.database, deep=True) == []


async def test_what_nobody_handles_is_moved_once_and_not_read_again(
    engine: Engine, feeder: Feeder, counting: CountingDatabase
) -> None:
    await submit(engine, "bbbb")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 4})
    counting.statements.clear()

    for _ in range(5):
        assert await lease(engine, feeder, "a", wait=0.01) == []
    [free] = await submit(engine, "a")

    assert ids(await lease(engine, feeder, "a")) == [free]
    assert counting.statements["claim_due"] == 1
    assert counting.statements["park"] == 0


async def test_who_handles_it_is_served_at_once_when_it_comes(engine: Engine, feeder: Feeder) -> None:
    tasks = await submit(engine, "bb")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 2})

    assert ids(await lease(engine, feeder, "b", wait=60.0)) == tasks


async def test_who_handles_everything_gets_what_was_moved_too(engine: Engine, feeder: Feeder) -> None:
    tasks = await submit(engine, "bc")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 1, encode_gate(with_type((), "c")): 1})

    assert set(ids(await lease(engine, feeder))) == set(tasks)


async def test_a_worker_that_waits_for_a_type_is_found_by_what_was_parked_for_it(
    engine: Engine, feeder: Feeder
) -> None:
    waiting = asyncio.ensure_future(lease(engine, feeder, "b", wait=60.0))
    other = asyncio.ensure_future(lease(engine, feeder, "a", wait=60.0))
    await asyncio.sleep(0)

    tasks = await submit(engine, "ba")

    assert [ids(await waiting), ids(await other)] == [tasks[:1], tasks[1:]]
    assert [task.number for task in waiting.result()] == [1]


async def test_a_type_keeps_its_order_through_its_lane(engine: Engine, feeder: Feeder) -> None:
    tasks = await submit(engine, "bbbbbb")
    assert await lease(engine, feeder, "a", room=2, wait=0.05) == []
    late = await submit(engine, "bb")
    got: list[uuid.UUID] = []
    while len(got) < 8:
        assert await lease(engine, feeder, "a", room=1, wait=0.01) == []
        got += ids(await lease(engine, feeder, "b", room=1))

    assert got == [*tasks, *late]


async def test_a_task_is_handed_over_only_to_who_handles_it(engine: Engine, feeder: Feeder) -> None:
    engine.submitter = Submitter(engine.database, engine.lanes, engine.partitions, engine._wake, holders=feeder)
    polls = [asyncio.ensure_future(lease(engine, feeder, name, wait=0.5)) for name in "ab"]
    async with asyncio.timeout(5.0):
        while len(feeder.polls) < 2:
            await asyncio.sleep(0.01)

    of_b, of_c = await submit(engine, "bc")

    assert [ids(await poll) for poll in polls] == [[], [of_b]]
    assert engine.woken[0] == of_c, "only what nobody handles was not handed over"
    assert [task.number for task in await lease(engine, feeder, "c")] == [1]


async def test_a_single_task_is_handed_over_only_to_who_handles_it(engine: Engine, feeder: Feeder) -> None:
    engine.submitter = Submitter(engine.database, engine.lanes, engine.partitions, engine._wake, holders=feeder)
    of_a = asyncio.ensure_future(lease(engine, feeder, "a", wait=60.0))
    async with asyncio.timeout(5.0):
        while not feeder.polls:
            await asyncio.sleep(0.01)
    first, second = await asyncio.gather(
        *(engine.submitter.submit([engine.new_task(type=name, idempotency_key=name)]) for name in "ba")
    )

    assert ids(await of_a) == [submitted(second[0])]
    assert ids(await lease(engine, feeder, "b")) == [submitted(first[0])]


# With limits


def keyed(engine: Engine, **limits: Limits) -> Book:
    return Book(key_limits=lambda tenant, key: limits.get(key), keyed=frozenset({engine.tenant}))


async def test_a_key_of_several_types_serves_all_of_them_and_moves_each_task_a_bounded_number_of_times(
    engine: Engine, feeder: Feeder, counting: CountingDatabase
) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    tasks = await submit(engine, "abababab", options=Options(concurrency_key="shop"))
    types = dict(zip(tasks, "abababab", strict=True))
    order: list[uuid.UUID] = []
    counting.statements.clear()

    async with asyncio.timeout(30.0):
        while len(order) < len(tasks):
            for name in "ab":
                got = await lease(engine, feeder, name, wait=0.05)
                assert all(types[task.id] == name for task in got)
                assert len(got) <= 1
                order += ids(got)
                await engine.settle(got, worker=f"worker of {name}")

    for name in "ab":
        assert [task for task in order if types[task] == name] == [task for task in tasks if types[task] == name]
    # From its home to its type, to the key, and to the key and its type.
    assert counting.statements["park"] + counting.statements["sift"] <= 3 * len(tasks)
    assert await engine.database.fetch("SELECT FROM due") == []


async def test_what_waits_for_its_key_and_its_type_counts_under_the_keys_cap(engine: Engine, feeder: Feeder) -> None:
    await feeder.limit(keyed(engine, shop=Limits(max_running=1)))
    first, second, third = await submit(engine, "bbb", options=Options(concurrency_key="shop"))
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 3})

    running = await lease(engine, feeder, "b")
    assert ids(running) == [first]
    await until_at(engine, {encode_gate((("key", "shop", ""),)): 2})
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await engine.settle(running, worker="worker of b")
    assert await lease(engine, feeder, "a", wait=0.5) == []
    await until_at(engine, {encode_gate(with_type((("key", "shop", ""),), "b")): 2})

    [next_one] = await lease(engine, feeder)
    assert (next_one.id, next_one.number) == (second, 1)
    assert await lease(engine, feeder, "b", wait=0.05) == []
    await engine.settle([next_one], worker="worker of ")
    assert ids(await lease(engine, feeder, "b")) == [third]


async def test_a_limit_of_a_type_is_waited_for_in_one_lane_whoever_looked_first(engine: Engine, feeder: Feeder) -> None:
    limits = {"b": TypeLimits(max_running=1)}
    await feeder.limit(Book(type_limits=lambda tenant, name: limits.get(name), typed=frozenset({engine.tenant})))
    tasks = await submit(engine, "bb")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    late = await submit(engine, "b")
    running = await lease(engine, feeder, "b")
    order = ids(running)
    for _ in range(2):
        await engine.settle(running, worker="worker of b")
        running = await lease(engine, feeder, "b")
        order += ids(running)

    assert order == [*tasks, *late]
    assert await lease(engine, feeder, "a", wait=0.05) == []


async def test_a_retry_comes_back_to_who_handles_it(engine: Engine, feeder: Feeder) -> None:
    [task] = await submit(engine, "b")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    running = await lease(engine, feeder, "b")
    await engine.settle(running, Outcome.FAILED, worker="worker of b", retry_after=0.0)

    assert await lease(engine, feeder, "a", wait=0.1) == []
    assert [(each.id, each.number) for each in await lease(engine, feeder, "b")] == [(task, 2)]


# Many


async def test_many_rows_of_other_types_cost_a_bounded_number_of_statements(
    engine: Engine, feeder: Feeder, counting: CountingDatabase
) -> None:
    foreign = 12 * MAX_SIFTED
    for _ in range(12):
        await submit(engine, "b" * MAX_SIFTED)
    mine = await submit(engine, "a")
    counting.statements.clear()

    assert ids(await lease(engine, feeder, "a", room=5, wait=60.0)) == mine

    statements = counting.statements
    assert statements["sift"] <= foreign // MAX_SIFTED + 4
    assert statements["claim_due"] + statements["claim_around"] <= foreign // (MAX_SIFTED * MAX_SIFTS) + 4
    assert (await gates(engine))[OF_B] == foreign
    counting.statements.clear()
    assert len(await lease(engine, feeder, "b", room=1_000)) == 1_000
    assert counting.statements["claim_due"] == 1
    assert await check_invariants(counting, deep=True) == []


async def test_rows_that_a_waiting_worker_handles_are_left_where_they_are(engine: Engine, feeder: Feeder) -> None:
    """Whoever waits takes them from there; only those that nobody waits for are moved in bulk."""
    await submit(engine, "b" * 300)
    of_b = asyncio.ensure_future(lease(engine, feeder, "b", room=2, wait=60.0))
    of_a = asyncio.ensure_future(lease(engine, feeder, "a", room=2, wait=0.5))

    assert len(await of_b) == 2
    assert await of_a == []


async def test_without_a_lane_for_its_type_a_task_waits_at_home_for_its_own_worker(
    engine: Engine, feeder: Feeder, monkeypatch: pytest.MonkeyPatch, counting: CountingDatabase
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_GATES_PER_TENANT", 1)
    await submit(engine, "b")
    assert await lease(engine, feeder, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 1})
    tasks = await submit(engine, "c" * 2_000)
    counting.statements.clear()
    [mine] = await submit(engine, "a")

    assert ids(await lease(engine, feeder, "a", room=5, wait=30.0)) == [mine]
    assert await lease(engine, feeder, "a", room=5, wait=0.5) == []
    assert counting.statements["claim_due"] < 20, "what has no lane is not read in a loop"
    got = await lease(engine, feeder, "c", wait=30.0)
    assert set(ids(got)) < set(tasks)
    assert [task.number for task in got] == [1] * len(got)


# Later


async def test_a_feeder_that_starts_finds_what_waits_for_its_type(engine: Engine) -> None:
    before = await feed(engine)
    tasks = await submit(engine, "bb")
    assert await lease(engine, before, "a", wait=0.05) == []
    await until_at(engine, {OF_B: 2})
    await before.stop()
    again = Engine(engine.database)
    again.tenant = engine.tenant
    await again.lanes.load()

    after = await feed(again)
    assert await lease(again, after, "a", wait=0.05) == []
    assert ids(await lease(again, after, "b")) == tasks
    await after.stop()


async def test_a_task_that_waits_for_its_type_can_be_explained_paused_resumed_and_cancelled(
    engine: Engine, feeder: Feeder
) -> None:
    first, second = await submit(engine, "bb")
    assert await lease(engine, feeder, "a", "c", wait=0.05) == []
    await until_at(engine, {OF_B: 2})

    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, second)
    assert told is not None
    assert (told.state, told.position) == (TaskState.READY, 1)
    assert [reason.reason for reason in told.waiting_for] == ["no_handler", "position"]
    assert told.waiting_for[0].detail == (
        "the one worker that is there for queue 'default' does not handle type 'b'; it handles a, c"
    )
    assert told.what_would_free_it == "Start a worker for queue 'default' that has a handler for 'b'"

    # Where it waits is no reason to be due later.
    (row,) = await read_tasks(engine.database, [second], attempts=1)
    assert row["wake"] != second
    assert told.due_at == due_at_of(row) == row["run_at"]

    await engine.steering.pause([first])
    await engine.steering.resume([first])
    await engine.steering.cancel([second])
    assert ids(await lease(engine, feeder, "b")) == [first]


async def test_a_task_at_home_that_nobody_handles_is_explained_too(engine: Engine, feeder: Feeder) -> None:
    for name in "ac":
        assert await lease(engine, feeder, name, wait=0.01) == []
    [task] = await submit(engine, "b", delay=3600.0)

    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, task)

    assert told is not None
    assert [reason.reason for reason in told.waiting_for] == ["time", "no_handler"]
    assert told.waiting_for[1].detail == (
        "none of the 2 workers that are there for queue 'default' handles type 'b'; they handle a, c"
    )


async def test_one_worker_that_handles_everything_is_enough(engine: Engine, feeder: Feeder) -> None:
    await lease(engine, feeder, "a", wait=0.01)
    await lease(engine, feeder, wait=0.01)
    [task] = await submit(engine, "b", delay=3600.0)

    told = await explain(engine.database, engine.lanes, feeder, engine.tenant, task)

    assert told is not None
    assert [reason.reason for reason in told.waiting_for] == ["time"]
