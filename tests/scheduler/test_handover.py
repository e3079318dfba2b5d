"""A task that somebody waits for is stored with its claim, and never at the cost of what waits already."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from asks import NOW, ask_for, key_of, plan_of, take, wake_of
from duetime.database.pool import Database
from duetime.lifecycle.submission.batch import Submitted
from duetime.lifecycle.submission.submitter import Submitter
from duetime.model.task import Kind, LaneKey, NewTask, PriorityClass
from duetime.scheduler.core import Core
from duetime.scheduler.feed import Feeder
from duetime.scheduler.plan import Ask
from duetime.scheduler.reserving import MAX_LANES_PER_RESERVE
from duetime.sdk.uuid7 import make_uuid7
from engine import Engine
from proxy import proxied

# The core's part


def test_a_lane_without_work_is_served_by_whoever_waits() -> None:
    core = Core()
    core.ask(1, ask_for(room=3, holder=100))
    core.ask(2, ask_for(room=3, holder=200))

    reserved = core.reserve({7: (key_of(), 4)}, NOW)

    assert reserved == {7: [(1, 2), (2, 2)]}
    assert core.ask_of(2).holder == 200


def test_reserved_asks_are_in_no_claim_until_the_reservation_ends() -> None:
    core = Core()
    core.ask(1, ask_for(room=5))
    core.reserve({7: (key_of(), 1)}, NOW)
    core.woke(8, key_of(queue="other"), wake_of(8))

    assert core.plan(NOW) is None
    assert core.reserve({9: (key_of(), 1)}, NOW) == {}

    core.end_reservation([1], {})
    assert plan_of(core).holder_of_ask == {1: 100}


def test_an_ask_that_got_a_task_waits_no_more() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.reserve({7: (key_of(), 1)}, NOW)

    core.end_reservation([1], {1: "something"})

    assert core.reserve({7: (key_of(), 1)}, NOW) == {}


def test_what_is_due_already_comes_first() -> None:
    core = Core()
    core.woke(7, key_of(), wake_of(7))
    core.ask(1, ask_for())
    assert core.reserve({7: (key_of(), 1)}, NOW) == {}, "the lane itself has work"
    assert core.reserve({8: (key_of(queue="b"), 1)}, NOW) == {}, "the ask could serve another lane"

    core.ask(2, ask_for(queues=frozenset({"b"})))
    assert core.reserve({8: (key_of(queue="b"), 1)}, NOW) == {8: [(2, 1)]}, "this one could not"


def test_a_lane_that_is_being_claimed_is_not_overtaken() -> None:
    core = Core()
    core.woke(7, key_of(), wake_of(7))
    core.ask(1, ask_for())
    plan = plan_of(core)
    core.ask(2, ask_for())

    assert core.reserve({7: (key_of(), 1)}, NOW) == {}

    take(core, plan, {7: [wake_of(7)]})
    assert core.reserve({7: (key_of(), 1)}, NOW) == {7: [(2, 1)]}


def test_a_lane_that_waits_for_its_time_can_be_served_meanwhile() -> None:
    core = Core()
    core.woke(7, key_of(), wake_of(7, NOW + 60_000))
    core.ask(1, ask_for())

    assert core.reserve({7: (key_of(), 1)}, NOW) == {7: [(1, 1)]}
    core.end_reservation([1], {})
    assert core.reserve({7: (key_of(), 1)}, NOW + 60_000) == {}


def test_an_executor_serves_whoever_has_nothing_due() -> None:
    core = Core()
    core.ask(1, ask_for(tenant=None, kind=Kind.PUSH))
    push = key_of(tenant=2, kind=Kind.PUSH)

    assert core.reserve({7: (key_of(tenant=2), 1)}, NOW) == {}, "that is for workers"
    assert core.reserve({8: (push, 1)}, NOW) == {8: [(1, 1)]}
    core.end_reservation([1], {})
    core.woke(9, key_of(tenant=3, kind=Kind.PUSH), wake_of(9))
    assert core.reserve({8: (push, 1)}, NOW) == {}, "another tenant waits for it"


def test_with_many_lanes_due_nothing_is_reserved() -> None:
    core = Core()
    for lane in range(MAX_LANES_PER_RESERVE + 1):
        core.woke(lane, key_of(queue=f"unserved-{lane}"), wake_of(lane))
    core.ask(1, ask_for(queues=frozenset({"served"})))

    assert core.reserve({999: (key_of(queue="served"), 1)}, NOW) == {}


# On a real database


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
    engine.submitter = Submitter(engine.database, engine.lanes, engine.partitions, engine._wake, holders=feeder)
    yield feeder
    await feeder.stop()


async def ask_of(engine: Engine, worker: str = "w", room: int = 10) -> Ask:
    holder = await engine.holders.register(engine.tenant, worker)
    return Ask(holder, engine.tenant, Kind.PULL, None, frozenset(), room)


async def poll(feeder: Feeder, ask: Ask, wait: float = 30.0) -> "asyncio.Future[list[object]]":
    polling = asyncio.ensure_future(feeder.lease(ask, wait))
    await asyncio.sleep(0)
    return polling  # type: ignore[return-value]


async def rows(engine: Engine, table: str) -> list[uuid.UUID]:
    return [row["task"] for row in await engine.database.fetch(f"SELECT task FROM {table} ORDER BY task")]


async def test_a_task_goes_straight_to_who_waits_for_it(engine: Engine, feeder: Feeder) -> None:
    ask = await ask_of(engine)
    polling = await poll(feeder, ask)

    task = engine.new_task(b'{"n":1}', labels={"a": "b"})
    [submitted] = await engine.submitter.submit([task])

    assert isinstance(submitted, Submitted)
    [leased] = await polling
    assert (leased.id, leased.number, leased.holder) == (submitted.id, 1, ask.holder)  # type: ignore[attr-defined]
    assert (leased.payload, leased.labels) == (b'{"n":1}', b'{"a":"b"}')  # type: ignore[attr-defined]
    # It was never in due, so nobody was woken for it.
    assert engine.woken == []
    [claim] = await engine.database.fetch("SELECT task, number, holder, picked_at FROM claim")
    assert tuple(claim) == (submitted.id, 1, ask.holder, leased.picked_at)  # type: ignore[attr-defined]
    [stored] = await engine.database.fetch("SELECT run_at FROM task")
    assert stored["run_at"] == leased.run_at  # type: ignore[attr-defined]


async def test_what_finds_no_room_waits(engine: Engine, feeder: Feeder) -> None:
    polling = await poll(feeder, await ask_of(engine, room=3))

    submitted = await engine.submitter.submit([engine.new_task() for _ in range(5)])

    ids = [each.id for each in submitted if isinstance(each, Submitted)]
    assert [leased.id for leased in await polling] == ids[:3]  # type: ignore[attr-defined]
    assert await rows(engine, "due") == ids[3:]
    assert [leased.id for leased in await feeder.lease(await ask_of(engine), 30.0)] == ids[3:]


async def test_a_task_for_later_waits_for_its_time(engine: Engine, feeder: Feeder) -> None:
    polling = await poll(feeder, await ask_of(engine), 0.05)

    [submitted] = await engine.submitter.submit([engine.new_task(delay=3600.0)])

    assert isinstance(submitted, Submitted)
    assert await polling == []
    assert await rows(engine, "due") == [submitted.id]


async def test_a_repeated_request_hands_nothing_over_twice(engine: Engine, feeder: Feeder) -> None:
    request = make_uuid7()
    first = await poll(feeder, await ask_of(engine))
    [submitted] = await engine.submitter.submit([engine.new_task()], request, b"body")
    assert len(await first) == 1

    second = await poll(feeder, await ask_of(engine), 0.2)
    [again] = await engine.submitter.submit([engine.new_task()], request, b"body")

    assert isinstance(submitted, Submitted)
    assert isinstance(again, Submitted)
    assert again.id == submitted.id
    assert await second == []
    assert await rows(engine, "claim") == [submitted.id]
    assert await rows(engine, "due") == []


async def test_only_tasks_with_new_keys_are_handed_over(engine: Engine, feeder: Feeder) -> None:
    [known] = await engine.submitter.submit([engine.new_task(idempotency_key="known")])
    await feeder.lease(await ask_of(engine, "first"), 30.0)
    polling = await poll(feeder, await ask_of(engine))

    tasks = [engine.new_task(idempotency_key=key) for key in ("known", "new")]
    [same, new] = await engine.submitter.submit(tasks)

    assert same == Submitted(known.id, False, known.run_at_ms)  # type: ignore[union-attr]
    assert isinstance(new, Submitted)
    assert [leased.id for leased in await polling] == [new.id]  # type: ignore[attr-defined]
    assert len(await rows(engine, "claim")) == 2


async def test_what_was_stored_for_a_poll_that_left_waits_again(engine: Engine, feeder: Feeder) -> None:
    polling = await poll(feeder, await ask_of(engine))
    submitting = asyncio.ensure_future(engine.submitter.submit([engine.new_task()]))
    # The submission has its reservation, and is on its way to the database.
    while not feeder._core.is_being_served(1):
        await asyncio.sleep(0)
    polling.cancel()

    [submitted] = await submitting

    assert isinstance(submitted, Submitted)
    [leased] = await feeder.lease(await ask_of(engine), 30.0)
    assert (leased.id, leased.number) == (submitted.id, 2)


async def test_a_poll_whose_time_is_over_still_gets_what_is_being_stored_for_it(engine: Engine, feeder: Feeder) -> None:
    polling = await poll(feeder, await ask_of(engine), 0.001)
    submitting = asyncio.ensure_future(engine.submitter.submit([engine.new_task()]))
    await submitting

    assert len(await polling) + len(await rows(engine, "due")) == 1


async def test_a_commit_whose_answer_was_lost_leaves_the_task_to_be_released(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        # Not started: the next answer on the way must be that of the submission.
        feeder = Feeder(database, engine.lanes, engine.onward)
        engine.submitter = Submitter(database, engine.lanes, engine.partitions, engine._wake, holders=feeder)
        # By the same statement as a task that somebody waits for.
        await engine.submitter.submit([engine.new_task(queue="warm", labels={"a": "b"})])
        lane = LaneKey(engine.tenant, "default", PriorityClass.NORMAL, Kind.PULL)
        await engine.lanes.ensure(lane)
        ask = await ask_of(engine)
        polling = await poll(feeder, Ask(ask.holder, ask.tenant, ask.kind, frozenset({"default"}), ask.tags, 1), 1.0)
        proxy.swallow = 1

        [submitted] = await engine.submitter.submit([NewTask(lane, "t", b"{}")])

        # Stored once, for a holder that does not know of it: its beats will not name it.
        assert isinstance(submitted, Submitted)
        assert await polling == []
        assert await rows(engine, "claim") == [submitted.id]
        assert submitted.id not in await rows(engine, "due")
        await database.close()
