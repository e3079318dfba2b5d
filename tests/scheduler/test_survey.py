"""What waits past its time, as the gauges and the alarm have it."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import structlog.testing
from prometheus_client.parser import text_string_to_metric_families

from duetime import metrics
from duetime.database.pool import Database
from duetime.ids import due_ms_of
from duetime.model.task import Kind, LaneKey, NewTask, PriorityClass
from duetime.scheduler.feed import Ask, Feeder
from duetime.scheduler.survey import LOOK_EVERY, WARN_EVERY_SECONDS, Survey, Wait, find_inversion
from engine import Engine

CRITICAL, HIGH, NORMAL, LOW = PriorityClass


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.open(database)


@pytest.fixture
async def feeder(engine: Engine) -> AsyncIterator[Feeder]:
    feeder = Feeder(engine.database, engine.lanes, engine.onward)
    engine.wake_also(feeder.wake)
    await feeder.start()
    yield feeder
    await feeder.stop()


@pytest.fixture
def survey(engine: Engine, feeder: Feeder) -> Survey:
    return Survey(engine.database, feeder, frozenset)


async def submit(
    engine: Engine,
    priority: PriorityClass = NORMAL,
    *,
    queue: str = "default",
    kind: Kind = Kind.PULL,
    requires: tuple[str, ...] = (),
    type: str = "test",
) -> None:
    key = LaneKey(engine.tenant, queue, priority, kind, requires)
    await engine.submitter.submit([NewTask(key, type, b"{}")])


async def come_to_work(
    engine: Engine,
    feeder: Feeder,
    tags: frozenset[str] = frozenset(),
    room: int = 0,
    types: frozenset[str] | None = None,
) -> None:
    """A worker that asks once, with so much room."""
    holder = await engine.holders.register(engine.tenant, f"w-{sorted(tags)}-{sorted(types or ())}")
    await feeder.lease(Ask(holder, engine.tenant, Kind.PULL, None, tags, room, types), 0.2 if room else 0.0)


def shown(name: str, **labels: str) -> list[float]:
    """The values of a gauge whose labels are these, as a reader of the text has them."""
    text = metrics.render("here", shows_tenants=True).decode()
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


async def test_lanes_that_nobody_can_serve_are_counted_by_tenant_and_tags(
    engine: Engine, feeder: Feeder, survey: Survey
) -> None:
    await submit(engine)
    await submit(engine, requires=("gpu", "linux"))
    await submit(engine, HIGH, requires=("gpu", "linux"))
    await survey.step()
    assert shown("duetime_lanes_without_worker") == [3]
    assert shown("duetime_waiting_without_worker", tenant="default", requires="gpu,linux") == [2]
    assert shown("duetime_waiting_without_worker", tenant="default", requires="") == [1]

    await come_to_work(engine, feeder)
    await survey.step()
    assert shown("duetime_lanes_without_worker") == [2]
    assert shown("duetime_waiting_without_worker", requires="") == []

    await come_to_work(engine, feeder, frozenset({"gpu", "linux", "more"}))
    await survey.step()
    assert shown("duetime_lanes_without_worker") == [0]
    assert shown("duetime_waiting_without_worker") == []


async def test_tasks_of_types_that_nobody_handles_are_counted_by_tenant_and_type(
    engine: Engine, feeder: Feeder, survey: Survey
) -> None:
    for name in ("a.only", "b.only", "b.only", "c.only"):
        await submit(engine, type=name)
    await survey.step()
    assert shown("duetime_tasks_without_handler") == [], "there is no worker at all"

    await come_to_work(engine, feeder, room=10, types=frozenset({"a.only"}))
    async with asyncio.timeout(10.0):
        while shown("duetime_tasks_without_handler", tenant="default", type="b.only") != [2]:
            await asyncio.sleep(0.01)
            await survey.step()
    assert shown("duetime_tasks_without_handler", type="c.only") == [1]
    assert shown("duetime_lanes_without_worker") == [2]

    await come_to_work(engine, feeder, types=frozenset({"b.only"}))
    await survey.step()
    assert shown("duetime_tasks_without_handler", type="b.only") == []
    assert shown("duetime_tasks_without_handler") == [1]


async def test_a_lane_that_was_drained_to_its_end_does_not_wait(engine: Engine, feeder: Feeder, survey: Survey) -> None:
    await submit(engine)
    await come_to_work(engine, feeder, room=1)
    # The claim took as many as there was room for, so the feeder cannot know that it was the last one.
    assert len(feeder.due_lanes(10)) == 1

    assert await survey.read_waits() == []


async def test_who_waits_on_purpose_is_left_out(engine: Engine, feeder: Feeder) -> None:
    paused: set[tuple[int, str]] = set()
    survey = Survey(engine.database, feeder, lambda: frozenset(paused))
    await submit(engine, queue="a")
    await submit(engine, queue="b")
    assert len(await survey.read_waits()) == 2

    paused.add((engine.tenant, "a"))
    assert [wait.key.queue for wait in await survey.read_waits()] == ["b"]
    feeder.rule({}, frozenset({engine.tenant}))
    assert await survey.read_waits() == []


async def test_the_oldest_of_each_class_is_shown_and_a_future_task_is_not_old(
    engine: Engine, feeder: Feeder, survey: Survey
) -> None:
    await submit(engine, LOW)
    await engine.submit(delay=3600)
    [waiting] = await survey.read_waits()
    assert waiting.key.priority is LOW
    assert waiting.tenant == "default"
    assert 0 <= waiting.seconds < 60
    # Ten seconds later.
    engine.database.clock.observe(engine.database.clock.now_us() + 10_000_000)

    assert await survey.step() == LOOK_EVERY

    assert shown("duetime_oldest_due_seconds", priority="low")[0] >= 9
    assert [shown("duetime_oldest_due_seconds", priority=word) for word in ("critical", "high", "normal")] == [[0]] * 3
    assert shown("duetime_priority_inversion") == [0]


# Inversion


def wait(priority: PriorityClass, seconds: float, *, queue: str = "default", has_holders: bool = True) -> Wait:
    return Wait(LaneKey(1, queue, priority, Kind.PULL), "team", seconds, has_holders)


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        ([wait(HIGH, 9.0), wait(LOW, 3.0)], (HIGH, LOW)),
        ([wait(HIGH, 9.0), wait(LOW, 4.5)], None),
        ([wait(HIGH, 3.0), wait(LOW, 90.0)], None),
        ([wait(HIGH, 90.0)], None),
        ([wait(HIGH, 90.0), wait(HIGH, 1.0)], None),
        ([wait(HIGH, 90.0), wait(LOW, 1.0, queue="other")], None),
        ([wait(HIGH, 90.0, has_holders=False), wait(LOW, 1.0)], None),
        ([wait(CRITICAL, 50.0), wait(NORMAL, 40.0), wait(LOW, 1.0)], (CRITICAL, LOW)),
    ],
)
def test_a_class_must_not_wait_much_longer_than_a_lower_one(
    waits: list[Wait], found: tuple[PriorityClass, PriorityClass] | None
) -> None:
    inversion = find_inversion(waits)
    assert (inversion and tuple(each.key.priority for each in inversion)) == found


async def test_an_inversion_is_told_once_a_minute_while_it_lasts(engine: Engine, feeder: Feeder) -> None:
    now = 1_000.0
    survey = Survey(engine.database, feeder, frozenset, monotonic=lambda: now)
    await come_to_work(engine, feeder)
    await submit(engine, CRITICAL)
    # Eight seconds ago.
    [row] = await engine.database.fetch("SELECT wake FROM due")
    wake = uuid.UUID(int=row["wake"].int - (8_000 << 80))
    await engine.partitions.ensure([due_ms_of(wake)])
    await engine.database.execute("UPDATE due SET wake = $1", wake)
    feeder.wake([wake])
    await submit(engine, LOW)

    with structlog.testing.capture_logs() as said:
        for later in (0.0, WARN_EVERY_SECONDS - 1, WARN_EVERY_SECONDS):
            now = 1_000.0 + later
            await survey.step()
            assert shown("duetime_priority_inversion") == [1]
    await come_to_work(engine, feeder, room=2)
    await survey.step()

    warnings = [each for each in said if each["log_level"] == "warning"]
    assert len(warnings) == 2
    assert (warnings[0]["higher"], warnings[0]["lower"]) == ("critical", "low")
    assert (warnings[0]["tenant"], warnings[0]["queue"]) == ("default", "default")
    assert shown("duetime_priority_inversion") == [0]
