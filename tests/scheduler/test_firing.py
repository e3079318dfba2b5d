"""Firing on a real database: each time once, whoever fires, whatever is changed meanwhile."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from structlog.testing import capture_logs

from duetime.admin.invariants import check_invariants
from duetime.clock import DatabaseClock
from duetime.database.pool import Database
from duetime.ids import due_ms_of
from duetime.lifecycle.schedules.changes import OtherOrigin, Put, VersionConflict
from duetime.lifecycle.schedules.stored import StoredSchedule
from duetime.lifecycle.tasks.settle import Report
from duetime.lifecycle.tasks.state import read_states
from duetime.model.schedule import FireOutcome, Misfire, Overlap, ScheduleState
from duetime.model.task import Outcome, TaskState
from duetime.recurrence import ExclusionRule, NamedCalendar, Spec
from duetime.scheduler.firing import Firing
from engine import Engine
from scheduler.schedules import put, schedule_of

MINUTE = 60_000


class MovableClock(DatabaseClock):
    """The database's clock, moved on: what is decided by it happens then."""

    ahead_ms = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_ms * 1000


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


def firing_of(engine: Engine) -> Firing:
    firing = Firing(
        engine.database,
        engine.partitions,
        engine.schedules,
        engine.backfills,
        engine.recurrences,
        engine.steering,
        engine._wake,
    )
    engine.wake_also(lambda wakes: firing.wake(wake for wake in wakes if wake.int & 0xFFFFFFFF < 256))
    return firing


@pytest.fixture
def firing(engine: Engine) -> Firing:
    return firing_of(engine)


async def find(engine: Engine, name: str = "s") -> StoredSchedule:
    return await engine.schedules.find(engine.tenant, name)


async def runs(engine: Engine, name: str = "s") -> list[asyncpg.Record]:
    """What became of its times, the earliest first."""
    found = await engine.schedules.read_runs(await find(engine, name), uuid.UUID(int=(1 << 128) - 1), 10_000)
    return found[::-1]


async def fired_times(engine: Engine, name: str = "s") -> list[int]:
    return [row["moment"].int >> 80 for row in await runs(engine, name) if row["task"] is not None]


async def go_to(engine: Engine, clock: MovableClock, firing: Firing, moment_ms: int) -> None:
    """Let it be this time, if it is not later yet, and let everything have its turn that has one by then."""
    clock.ahead_ms += max(moment_ms - engine.database.clock.now_ms(), 0)
    await firing.look()
    for _ in range(20):
        pause = await firing.step()
        if pause is None or pause > 0:
            break


async def start_run(engine: Engine, firing: Firing, clock: MovableClock) -> uuid.UUID:
    """The first fire's task, running on a worker."""
    next_ms = (await find(engine)).next_ms
    assert next_ms is not None
    await go_to(engine, clock, firing, max(next_ms - 1_000, engine.database.clock.now_ms()))
    clock.ahead_ms += 1_000
    [row] = [row for row in await runs(engine) if row["task"] is not None]
    [leased] = await engine.claim()
    assert leased.id == row["task"]
    return leased.id


async def succeed(engine: Engine, task: uuid.UUID) -> None:
    report = Report(task, 1, Outcome.SUCCEEDED)
    settled = await engine.settler.settle(engine.tenant, "w", [report])
    assert settled.settled == [task]


async def test_a_time_becomes_one_task_that_waits_for_it(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, payload=b'{"at": "{{fire_time_unix_ms}}", "of": "{{schedule}}"}'))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None

    await go_to(engine, clock, firing, due_ms - 2_000)

    [run] = await runs(engine)
    assert due_ms_of(run["task"]) == due_ms
    [row] = await engine.database.fetch("SELECT payload, run_at FROM task WHERE id = $1", run["task"])
    assert row["payload"] == b'{"at":%d,"of":"s"}' % due_ms
    assert row["run_at"].timestamp() * 1000 == due_ms
    after = await find(engine)
    assert (after.next_ms, after.fired) == (due_ms + MINUTE, 1)


async def test_a_time_that_has_its_line_already_counts_for_nothing(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine, spec=Spec(every=1.0), overlap=Overlap.ALLOW, misfire=Misfire.SKIP))
    first_ms = (await find(engine)).next_ms
    assert first_ms is not None
    await go_to(engine, clock, firing, first_ms + 6_000)
    await go_to(engine, clock, firing, first_ms + 40_000)
    before = await find(engine)
    [missed] = [row for row in await runs(engine) if row["outcome"] == FireOutcome.MISSED]

    # As after the database's clock went back: its turn is for times that have their lines.
    for from_ms in (first_ms, due_ms_of(missed["moment"])):
        await engine.database.execute("UPDATE schedule_state SET next_ms = $1", from_ms)
        await go_to(engine, clock, firing, first_ms + 41_000)

    lines = [row["outcome"] for row in await runs(engine)]
    after = await find(engine)
    assert after.fired == lines.count(FireOutcome.FIRED) == len(await fired_times(engine)) >= before.fired
    assert (after.missed, lines.count(FireOutcome.MISSED)) == (before.missed, 1)
    rows = await engine.database.fetch("SELECT count(*) AS tasks FROM task")
    assert rows[0]["tasks"] == after.fired


async def test_two_nodes_fire_each_time_once(engine: Engine, clock: MovableClock) -> None:
    names = [f"s{number}" for number in range(60)]
    await put(engine, *[schedule_of(engine, name, spec=Spec(every=1.0), overlap=Overlap.ALLOW) for name in names])
    first_ms = (await find(engine, "s0")).next_ms
    assert first_ms is not None
    both = [firing_of(engine), firing_of(engine)]

    for second in range(8):
        clock.ahead_ms += first_ms + second * 1000 - engine.database.clock.now_ms()
        for firing in both:
            await firing.look()
        await asyncio.gather(*[firing.step() for firing in both for _ in range(2)])
    await go_to(engine, clock, both[0], first_ms + 8_000)

    for name in names:
        times = await fired_times(engine, name)
        assert times == [first_ms + second * 1000 for second in range(len(times))]
        assert len(times) >= 9
    rows = await engine.database.fetch("SELECT count(*) AS tasks, count(DISTINCT id) AS ids FROM task")
    counted = sum([(await find(engine, name)).fired for name in names])
    assert rows[0]["tasks"] == rows[0]["ids"] == counted


async def test_a_schedule_that_is_being_changed_is_fired_afterwards(
    engine: Engine, firing: Firing, clock: MovableClock, database_url: str
) -> None:
    await put(engine, schedule_of(engine))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "duetime"})
    change = connection.transaction()
    await change.start()
    await connection.fetch("SELECT FROM schedule_state FOR UPDATE")

    await go_to(engine, clock, firing, due_ms)
    assert await runs(engine) == []
    await change.rollback()
    await connection.close()

    await go_to(engine, clock, firing, due_ms + 200)
    assert await fired_times(engine) == [due_ms]


async def test_a_change_unmakes_what_was_planned_by_the_old_spec(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None
    await go_to(engine, clock, firing, due_ms - 1_500)
    [planned] = await runs(engine)

    [done] = await put(engine, schedule_of(engine, spec=Spec(every=3600.0)))

    assert done == Put("changed", 2)
    assert await runs(engine) == []
    assert await engine.database.fetch("SELECT FROM task WHERE id = $1", planned["task"]) == []
    changed = await find(engine)
    assert changed.fired == 0
    assert changed.next_ms is not None
    assert changed.next_ms % 3_600_000 == 0
    assert changed.next_ms > engine.database.clock.now_ms()


async def test_a_change_that_keeps_the_next_time_does_not_skip_it(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None
    await go_to(engine, clock, firing, due_ms - 1_500)

    await put(engine, schedule_of(engine, payload=b'{"new": true}'))
    await go_to(engine, clock, firing, due_ms)

    assert await fired_times(engine) == [due_ms]
    rows = await engine.database.fetch("SELECT payload FROM task")
    assert [row["payload"] for row in rows] == [b'{"new": true}']


async def test_the_same_again_changes_nothing(engine: Engine) -> None:
    await put(engine, schedule_of(engine))
    before = await find(engine)

    assert await put(engine, schedule_of(engine)) == [Put("unchanged", 1)]
    assert await find(engine) == before


async def test_versions_and_origins_guard_a_schedule(engine: Engine) -> None:
    await put(engine, schedule_of(engine, expected_version=0, origin="file", source="a"))

    [taken] = await engine.schedules.put(
        engine.tenant, [schedule_of(engine, expected_version=0, origin="file", source="a")]
    )
    [older] = await engine.schedules.put(
        engine.tenant, [schedule_of(engine, expected_version=7, origin="file", source="a")]
    )
    [other] = await engine.schedules.put(engine.tenant, [schedule_of(engine, origin="api")])
    assert isinstance(taken, VersionConflict)
    assert isinstance(older, VersionConflict)
    assert isinstance(other, OtherOrigin)

    assert await put(engine, schedule_of(engine, origin="api", is_forced=True)) == [Put("changed", 2)]


async def test_a_paused_schedule_fires_nothing_and_goes_on_with_the_next(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine, overlap=Overlap.ALLOW))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None
    await go_to(engine, clock, firing, due_ms - 1_500)
    paused = await engine.schedules.pause(engine.tenant, "s", "moving")
    assert (paused.state, paused.note) == (ScheduleState.PAUSED, "moving")

    await go_to(engine, clock, firing, due_ms + 5 * MINUTE + 10_000)
    assert await runs(engine) == []

    # By the database's own clock, which is not moved: the next time is the one it had.
    await engine.schedules.resume(engine.tenant, "s")
    assert (await find(engine)).next_ms == due_ms


async def test_skip_leaves_out_what_comes_while_a_run_is_with_a_worker(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine))
    task = await start_run(engine, firing, clock)
    first_ms = due_ms_of(task)

    await go_to(engine, clock, firing, first_ms + MINUTE)
    skipped = await find(engine)
    assert (skipped.fired, skipped.skipped, skipped.last_skip_ms) == (1, 1, first_ms + MINUTE)
    assert "running" in (skipped.last_skip or "")

    await succeed(engine, task)
    await go_to(engine, clock, firing, first_ms + 2 * MINUTE - 2_000)
    assert await fired_times(engine) == [first_ms, first_ms + 2 * MINUTE]


async def test_a_run_on_a_worker_that_died_is_not_over(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine))
    task = await start_run(engine, firing, clock)
    await engine.lapse()
    assert await engine.state(task) is not TaskState.RUNNING

    await go_to(engine, clock, firing, due_ms_of(task) + MINUTE)

    assert await fired_times(engine) == [due_ms_of(task)]
    assert (await find(engine)).skipped == 1


async def test_what_is_buffered_starts_after_the_run(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, overlap=Overlap.BUFFER_ONE))
    task = await start_run(engine, firing, clock)
    first_ms = due_ms_of(task)
    await go_to(engine, clock, firing, first_ms + MINUTE)
    await go_to(engine, clock, firing, first_ms + 2 * MINUTE)
    waiting = await find(engine)
    assert (waiting.buffer, waiting.buffered, waiting.skipped) == ((first_ms + MINUTE,), 1, 1)

    await succeed(engine, task)
    await go_to(engine, clock, firing, first_ms + 2 * MINUTE + 1_000)

    assert await fired_times(engine) == [first_ms, first_ms + MINUTE]
    assert (await find(engine)).buffer == ()


@pytest.mark.parametrize("overlap", [Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER])
async def test_the_next_run_takes_the_place_of_the_last(
    engine: Engine, firing: Firing, clock: MovableClock, overlap: Overlap
) -> None:
    await put(engine, schedule_of(engine, overlap=overlap))
    task = await start_run(engine, firing, clock)

    await go_to(engine, clock, firing, due_ms_of(task) + MINUTE)

    states = await read_states(engine.database, [task])
    assert states[task] is TaskState.CANCELLED
    assert await fired_times(engine) == [due_ms_of(task), due_ms_of(task) + MINUTE]


@pytest.mark.parametrize(
    ("misfire", "minutes"),
    [(Misfire.SKIP, [10]), (Misfire.FIRE_LATEST, [9, 10]), (Misfire.FIRE_ALL, list(range(11)))],
)
async def test_after_ten_minutes_without_anybody_each_policy_does_what_it_says(
    engine: Engine, firing: Firing, clock: MovableClock, misfire: Misfire, minutes: list[int]
) -> None:
    await put(engine, schedule_of(engine, misfire=misfire, overlap=Overlap.ALLOW))
    first_ms = (await find(engine)).next_ms
    assert first_ms is not None

    await go_to(engine, clock, firing, first_ms + 10 * MINUTE + 3_000)
    for second in range(4, 8):
        await go_to(engine, clock, firing, first_ms + 10 * MINUTE + second * 1_000)

    assert await fired_times(engine) == [first_ms + minute * MINUTE for minute in minutes]
    after = await find(engine)
    assert (after.fired, after.missed) == (len(minutes), 11 - len(minutes))


async def test_a_schedule_without_its_turn_is_healed(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, "lost"), schedule_of(engine, "kept"))
    lost = await find(engine, "lost")
    await engine.database.execute("DELETE FROM due WHERE wake = $1", lost.wake)
    assert [each.rule for each in await check_invariants(engine.database, deep=True)] == ["no_turn"]

    await firing.sweep()
    await firing.sweep()

    assert firing.healed == 1
    assert lost.next_ms is not None
    await go_to(engine, clock, firing, lost.next_ms)
    assert await fired_times(engine, "lost") == [lost.next_ms]


async def test_a_turn_that_no_schedule_knows_of_is_thrown_away(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, schedule_of(engine))
    stored = await find(engine)
    assert stored.wake is not None
    second = uuid.UUID(int=stored.wake.int + (1 << 32))
    await engine.database.execute(
        "INSERT INTO due (lane, wake, task, number) SELECT lane, $1, task, 1 FROM due WHERE wake = $2",
        second,
        stored.wake,
    )
    assert stored.next_ms is not None

    await go_to(engine, clock, firing, stored.next_ms)

    assert await fired_times(engine) == [stored.next_ms]


async def test_a_zone_that_is_gone_pauses_the_schedule(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, timezone="Europe/Berlin"))
    stored = await find(engine)
    gone = stored.definition.replace(b"Europe/Berlin", b"Europe/Nowhere")
    await engine.database.execute("UPDATE schedule SET definition = $1", gone)
    assert stored.next_ms is not None

    await go_to(engine, clock, firing, stored.next_ms)

    paused = await find(engine)
    assert paused.state is ScheduleState.PAUSED
    assert "Europe/Nowhere" in (paused.note or "")
    assert await runs(engine) == []


async def test_a_calendar_that_changes_moves_the_next_time(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await engine.recurrences.calendars.put(engine.tenant, "closed", NamedCalendar())
    spec = Spec(every=60.0, exclude=(ExclusionRule(calendar="closed"),))
    await put(engine, schedule_of(engine, spec=spec))
    before = (await find(engine)).next_ms
    assert before is not None

    day = f"{engine.database.clock.now():%Y-%m-%d}"
    await engine.recurrences.calendars.put(engine.tenant, "closed", NamedCalendar(exclude=(day,)))
    assert await engine.schedules.replan_users_of(engine.tenant, "closed") == 1

    after = (await find(engine)).next_ms
    assert after is not None
    assert after % 86_400_000 == 0
    assert after > before


async def test_after_begins_again_so_long_after_the_end(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, spec=Spec(after=30.0)))
    task = await start_run(engine, firing, clock)
    await go_to(engine, clock, firing, due_ms_of(task) + 20_000)
    assert len(await fired_times(engine)) == 1

    await succeed(engine, task)
    rows = await engine.database.fetch("SELECT completed_at FROM attempt WHERE task = $1", task)
    ended_ms = int(rows[0]["completed_at"].timestamp() * 1000)
    await go_to(engine, clock, firing, due_ms_of(task) + 40_000)

    [_, second] = await fired_times(engine)
    assert second == ended_ms + 30_000


async def test_deleting_takes_what_was_planned_with_it(engine: Engine, firing: Firing, clock: MovableClock) -> None:
    await put(engine, schedule_of(engine, overlap=Overlap.ALLOW))
    due_ms = (await find(engine)).next_ms
    assert due_ms is not None
    task, _ = await engine.schedules.trigger(engine.tenant, "s", None)
    await go_to(engine, clock, firing, due_ms - 1_000)
    assert len(await runs(engine)) == 2

    cancelled = await engine.schedules.delete(engine.tenant, "s", cancels=True)

    assert cancelled == 1
    assert await engine.database.fetch("SELECT FROM due") == []
    rows = await engine.database.fetch("SELECT id FROM task")
    assert [row["id"] for row in rows] == [task]


async def test_one_that_cannot_be_fired_does_not_keep_the_others_from_it(
    engine: Engine, firing: Firing, clock: MovableClock
) -> None:
    await put(engine, *[schedule_of(engine, name) for name in ("a", "bad", "broken", "z")])
    # No task can have such a type, and no body such an interval.
    await engine.database.execute("ALTER TABLE task ADD CHECK (type <> 'bad')")
    await engine.database.execute("UPDATE schedule SET task_type = 'bad' WHERE name = 'bad'")
    await engine.database.execute("UPDATE schedule SET definition = '{}' WHERE name = 'broken'")
    due_ms = (await find(engine, "a")).next_ms
    assert due_ms is not None

    with capture_logs() as said:
        await go_to(engine, clock, firing, due_ms)

    assert await fired_times(engine, "a") == await fired_times(engine, "z") == [due_ms]
    told = sorted((line["event"], line["tenant"], line["schedule"]) for line in said if "schedule" in line)
    assert told == [
        ("a schedule cannot be fired", "default", "broken"),
        ("a schedule was paused", "default", "bad"),
        ("a schedule was paused", "default", "broken"),
    ]
    for name in ("bad", "broken"):
        stopped = await find(engine, name)
        assert stopped.state is ScheduleState.PAUSED
        assert (stopped.note or "").startswith("paused: ")
