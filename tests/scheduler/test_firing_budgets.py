"""Schedules that take long to evaluate: each has its budget, and the others of the shard are fired beside it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from duetime.admin.invariants import check_invariants
from duetime.clock import from_ms
from duetime.database.pool import Database
from duetime.model.schedule import Overlap, ScheduleBody, ScheduleState, encode_body
from duetime.recurrence import PIECE_STEPS, ExclusionRule, NamedCalendar, Spec
from duetime.scheduler.firing import BATCH, TENANT_STEPS, TIME_STEPS, Firing
from engine import Engine
from scheduler.schedules import put, schedule_of
from scheduler.test_firing import MINUTE, MovableClock, find, fired_times, firing_of, go_to


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
def firing(engine: Engine) -> Firing:
    return firing_of(engine)


#: All minutes are left out, each by many lines.
NOTHING_LEFT = Spec(cron=("* * * * *",), exclude=tuple(ExclusionRule(cron=f"{n % 60} * * * *") for n in range(1_000)))


async def make_hostile(engine: Engine, *names: str, tenant: int | None = None) -> None:
    """Schedules that were stored before definitions had budgets."""
    await engine.database.execute(
        "UPDATE schedule SET definition = $2, version = version + 1 WHERE name = ANY ($1) AND tenant = $3",
        list(names),
        encode_body(ScheduleBody(spec=NOTHING_LEFT, task=Raw(b"{}"))),
        engine.tenant if tenant is None else tenant,
    )


async def test_schedules_that_take_too_long_are_paused_with_the_reason_and_hold_up_no_other(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    hostile = [f"a{number:02}" for number in range(12)]
    await put(engine, *[schedule_of(engine, name) for name in hostile])
    due_ms = (await find(engine, "a00")).next_ms
    assert due_ms is not None
    await make_hostile(engine, *hostile)
    # Of another tenant, and after them in the same lane or another one.
    neighbour = await Engine.open(engine.database, "neighbour")
    await put(neighbour, schedule_of(neighbour, "z"))
    neighbour.wake_also(lambda wakes: None)
    read_before = engine.recurrences.evaluations.pieces

    clock.ahead_ms += due_ms - 1_000 - engine.database.clock.now_ms()
    await firing.look()
    await firing.step()

    # In the first pass the neighbour has its task, and some of the others wait for the next one.
    assert len(await fired_times(neighbour, "z")) == 1
    states = [(await find(engine, name)).state for name in hostile]
    assert 3 <= states.count(ScheduleState.PAUSED) < len(hostile)
    for _ in range(5):
        await go_to(engine, clock, firing, engine.database.clock.now_ms() + 1_000)
    after = [await find(engine, name) for name in hostile]
    assert {each.state for each in after} == {ScheduleState.PAUSED}
    assert all("takes more than 20,000 steps" in (each.note or "") for each in after)
    assert await fired_times(engine, "a00") == []
    # Firing waits for nobody's turn.
    assert engine.recurrences.evaluations.pieces == read_before


async def test_a_tenant_with_very_many_schedules_holds_up_no_other(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, *[schedule_of(engine, f"c{number:03}") for number in range(2 * BATCH + 1)])
    first_ms = (await find(engine, "c000")).next_ms
    assert first_ms is not None
    clock.ahead_ms += first_ms - engine.database.clock.now_ms()
    # Due behind all of those, in a lane of its own.
    neighbour = await Engine.open(engine.database, "neighbour")
    neighbour.wake_also(lambda wakes: None)
    await put(neighbour, schedule_of(neighbour, "z"))
    due_ms = (await find(neighbour, "z")).next_ms
    assert due_ms is not None
    clock.ahead_ms += due_ms - engine.database.clock.now_ms()
    await firing.look()

    await firing.step()
    # The second one waits until the first batch is stored.
    await firing.step()

    assert len(await fired_times(neighbour, "z")) == 1
    await go_to(engine, clock, firing, due_ms)
    for name in ("c000", f"c{2 * BATCH}"):
        assert await fired_times(engine, name)


async def test_many_times_at_once_of_a_tenant_are_stored_in_several_batches(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    names = [f"c{number:03}" for number in range(300)]
    secondly = Spec(every=1.0)
    await put(engine, *[schedule_of(engine, name, spec=secondly, overlap=Overlap.ALLOW) for name in names])
    # Not so late that they count as missed.
    clock.ahead_ms += 9_000
    await firing.look()

    await firing.step()
    await firing.step()

    made = await engine.database.fetch("SELECT count(*) FROM fire")
    assert 0 < made[0]["count"] <= 2 * TENANT_STEPS // TIME_STEPS + 20
    for _ in range(6):
        await go_to(engine, clock, firing, engine.database.clock.now_ms() + 500)
    assert min([len(await fired_times(engine, name)) for name in names]) >= 9


async def test_years_that_were_missed_are_counted_in_pieces_beside_others(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    late = [f"a{number}" for number in range(8)]
    # Jitter doubles what finding a time takes.
    await put(engine, *[schedule_of(engine, name, spec=Spec(cron=("* * * * *",)), jitter=5.0) for name in late])
    neighbour = await Engine.open(engine.database, "neighbour")
    far_ms = engine.database.clock.now_ms() + 20 * 86_400_000
    start = from_ms(far_ms // MINUTE * MINUTE)
    await put(neighbour, schedule_of(neighbour, "z", start_at=start))
    ticks: list[int] = []
    rounds = 0

    async def look() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            ticks.append(firing._evaluating.steps)
            await asyncio.sleep(0)

    clock.ahead_ms += far_ms + MINUTE - engine.database.clock.now_ms()
    await firing.look()
    looking = asyncio.create_task(look())
    await firing.step()
    looking.cancel()

    assert await fired_times(neighbour, "z") != []
    missed = [(await find(engine, name)).missed for name in late]
    assert 0 < sum(each > 0 for each in missed) < len(late), "the others were put off"
    assert max(missed) >= 5_000
    # The loop had a round for every piece.
    pieces = firing._evaluating.steps // PIECE_STEPS
    assert pieces >= 50
    assert {number * PIECE_STEPS for number in range(1, pieces)} <= set(ticks)

    for _ in range(60):
        await go_to(engine, clock, firing, engine.database.clock.now_ms() + 600)
        if all([(await find(engine, name)).fired for name in late]):
            break
    total = [(await find(engine, name)).missed for name in late]
    assert min(total) >= 20 * 1_440 - 2
    assert max(total) - min(total) <= 2


async def test_a_calendar_that_makes_a_schedule_too_long_to_evaluate_pauses_it(engine: Engine, firing: Firing) -> None:
    await engine.recurrences.calendars.put(engine.tenant, "closed", NamedCalendar())
    spec = Spec(cron=("* * * * *",), exclude=(ExclusionRule(calendar="closed"),))
    await put(engine, *[schedule_of(engine, name, spec=spec) for name in ("a", "b")])

    await engine.recurrences.calendars.put(engine.tenant, "closed", NamedCalendar(exclude=NOTHING_LEFT.exclude))
    await engine.schedules.replan_users_of(engine.tenant, "closed")

    for name in ("a", "b"):
        found = await find(engine, name)
        assert found.state is ScheduleState.PAUSED
        assert "steps" in (found.note or "")


async def test_a_backfill_that_takes_too_long_is_cancelled_and_says_why(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine))
    await make_hostile(engine, "s")
    now_ms = engine.database.clock.now_ms()
    backfill = await engine.backfills.start(await find(engine), now_ms - 86_400_000, now_ms, 10.0)

    await firing.backfill()

    found = await engine.backfills.find(await find(engine), backfill.id)
    assert (found.state, found.created_count) == ("cancelled", 0)
    assert "takes more than 20,000 steps" in (found.waits_for or "")


async def test_a_backfill_of_few_times_in_a_long_range_goes_on_in_steps(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    # One in sixty is left; an hour of them is some 800 steps.
    spec = Spec(cron=("* * * * *",), exclude=(ExclusionRule(cron="1-59 * * * *"),))
    await put(engine, schedule_of(engine, spec=spec, overlap=Overlap.ALLOW))
    now_ms = engine.database.clock.now_ms() // 3_600_000 * 3_600_000
    backfill = await engine.backfills.start(await find(engine), now_ms - 200 * 3_600_000, now_ms, 1000.0)

    created = []
    for _ in range(10):
        await firing.backfill()
        found = await engine.backfills.find(await find(engine), backfill.id)
        created.append(found.created_count)
        if found.state == "done":
            break

    assert created[0] < 100
    assert created[-1] == 200


async def test_many_backfills_of_a_tenant_keep_no_other_waiting(engine: Engine) -> None:
    neighbour = await Engine.open(engine.database, "neighbour")
    now_ms = engine.database.clock.now_ms()
    lanes = []
    for each, count, rate in ((engine, 100, 0.01), (engine, 4, 1_000.0), (neighbour, 1, 10.0)):
        await put(each, schedule_of(each, "s", spec=Spec(every=1.0), is_forced=True))
        schedule = await find(each, "s")
        lanes.append(schedule.lane)
        for _ in range(count):
            last = await each.backfills.start(schedule, now_ms - 3_600_000, now_ms - 60_000, rate)

    made = await engine.backfills.step(lanes, 1.0)

    assert (await neighbour.backfills.find(schedule, last.id)).created_count == 10
    # A second's worth of two or three backfills, not of all.
    assert len(made) <= 3_200
