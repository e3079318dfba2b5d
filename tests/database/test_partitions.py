"""Partitions on a real database: the right cut for each moment, made by whoever comes first, never split."""

import asyncio
import itertools
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import given

from duetime.database.partitions import (
    DATA_PATH,
    Partitions,
    attaching,
    free_span,
    parse_bound,
    partition_name,
    read_partitions,
)
from duetime.database.pool import Database
from duetime.ids import LATEST_MS
from engine import Engine
from properties.life_world import SetClock, TimedDatabase

NOW = datetime(2027, 1, 20, 13, 30, 5, tzinfo=UTC)
MAKE_FROM_ANOTHER_PROCESS = """
import asyncio, sys
from duetime.database.partitions import Partitions
from duetime.database.pool import Database

async def main():
    database = await Database.open(sys.argv[1], size=1)
    await Partitions(database).ensure(int(word) for word in sys.argv[2:])
    await database.close()

asyncio.run(main())
"""


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def day(year: int, month: int, day: int = 1) -> int:
    return ms(datetime(year, month, day, tzinfo=UTC))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[TimedDatabase]:
    """No partition yet, and a clock that stands still."""
    database = await TimedDatabase.open(database_url, clock=SetClock())
    assert isinstance(database, TimedDatabase)
    set_clock(database, NOW)
    for table in (*DATA_PATH, "request_key"):
        for name, _ in await partitions_of(database, table):
            await database.execute(f"DROP TABLE {name}")
    yield database
    await database.close()


@pytest.fixture
def partitions(database: TimedDatabase) -> Partitions:
    return Partitions(database)


def set_clock(database: Database, at: datetime) -> None:
    assert isinstance(database.clock, SetClock)
    database.clock.set_ms = ms(at)


async def partitions_of(database: Database, table: str) -> list[tuple[str, tuple[int, int]]]:
    async with database.connection() as connection:
        return await read_partitions(connection, table)


async def spans_of(database: Database, table: str = "due") -> list[tuple[int, int]]:
    spans = [span for _, span in await partitions_of(database, table)]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "they overlap"
    return spans


async def test_days_for_two_weeks_months_for_a_year_years_beyond(database: Database, partitions: Partitions) -> None:
    moments = [NOW + timedelta(days=days) for days in (0, 13, 20, 100, 364, 400, 9 * 365)]

    await partitions.ensure(ms(moment) for moment in moments)

    for table in DATA_PATH:
        assert await spans_of(database, table) == [
            (0, day(2027, 1, 20)),
            (day(2027, 1, 20), day(2027, 1, 21)),
            (day(2027, 2, 2), day(2027, 2, 3)),
            # What is left of the month behind the day that was there first.
            (day(2027, 2, 3), day(2027, 3)),
            (day(2027, 4), day(2027, 5)),
            (day(2028, 1), day(2028, 2)),
            # And of the year behind the month.
            (day(2028, 2), day(2029, 1)),
            (day(2036, 1), day(2037, 1)),
        ]


async def test_a_partition_is_never_split(database: Database, partitions: Partitions) -> None:
    await partitions.ensure([ms(NOW), day(2027, 2, 10), day(2029, 6)])
    before = await spans_of(database)

    for days in range(0, 60, 3):
        set_clock(database, NOW + timedelta(days=days))
        await Partitions(database).make_ahead()
    after = await spans_of(database)

    assert set(before) <= set(after)
    assert (day(2027, 1, 31), day(2027, 2)) in after
    assert [span for span in after if day(2027, 2) <= span[0] < day(2027, 3)] == [(day(2027, 2), day(2027, 3))]
    assert (day(2027, 3), day(2027, 3, 2)) in after


async def test_a_moment_before_everything_lies_in_the_oldest(database: Database, partitions: Partitions) -> None:
    await partitions.ensure([ms(NOW) - 400 * 86_400_000, 1])

    assert await spans_of(database) == [(0, day(2027, 1, 20))]
    assert [name for name, _ in await partitions_of(database, "due")] == ["due_oldest"]
    await database.execute("INSERT INTO due (lane, wake, task, number) VALUES (1, $1, $1, 1)", uuid.UUID(int=1 << 80))


async def test_the_gap_of_days_without_a_node_is_filled_when_it_is_needed(
    database: Database, partitions: Partitions
) -> None:
    await partitions.ensure([ms(NOW)])
    set_clock(database, NOW + timedelta(days=10))
    await partitions.ensure([ms(NOW + timedelta(days=10))])

    await partitions.ensure([ms(NOW + timedelta(days=5))])

    assert (day(2027, 1, 25), day(2027, 1, 26)) in await spans_of(database)


async def test_requests_lie_in_hours(database: Database, partitions: Partitions) -> None:
    await partitions.ensure_requests([ms(NOW), ms(NOW) - 3_600_000])

    hour = ms(NOW.replace(minute=0, second=0))
    assert await spans_of(database, "request_key") == [(hour - 3_600_000, hour), (hour, hour + 3_600_000)]


async def test_enough_is_made_ahead_for_the_coming_days_and_hours(database: Database, partitions: Partitions) -> None:
    await partitions.make_ahead()

    for table in DATA_PATH:
        assert partitions.covers(table, ms(NOW), ms(NOW + timedelta(days=3)))
    assert partitions.covers("request_key", ms(NOW - timedelta(hours=1)), ms(NOW + timedelta(hours=3)))


@pytest.mark.parametrize("days", [0, 15, 100, 3 * 365, 9 * 365])
async def test_a_task_for_a_time_without_a_partition_is_stored_on_first_use(database: Database, days: float) -> None:
    engine = await Engine.open(database)

    [task] = await engine.submit(delay=days * 86_400.0)
    set_clock(database, NOW + timedelta(days=days))

    assert [leased.id for leased in await engine.claim()] == [task]


async def test_what_is_known_is_not_asked_for_again(database: Database, partitions: Partitions) -> None:
    moments = [ms(NOW), ms(NOW + timedelta(days=1))]
    await partitions.ensure(moments)
    await database.close()

    await partitions.ensure(moments)


async def test_many_at_once_make_each_partition_once(database: Database, database_url: str) -> None:
    moments = [ms(NOW + timedelta(days=days)) for days in (0, 1, 2, 30, 500)]
    others = [await TimedDatabase.open(database_url, size=1, clock=SetClock()) for _ in range(4)]
    for other in others:
        set_clock(other, NOW)

    await asyncio.gather(*(Partitions(other).ensure(moments[::step]) for other in others for step in (1, -1)))

    assert len(await spans_of(database)) == 1 + len(moments)
    for other in others:
        await other.close()


async def test_processes_that_start_together_make_each_partition_once(database: Database, database_url: str) -> None:
    now_ms = ms(datetime.now(UTC))
    moments = [str(now_ms + days * 86_400_000) for days in (0, 1, 40, 800)]
    command = [sys.executable, "-c", MAKE_FROM_ANOTHER_PROCESS, database_url, *moments]

    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(3)]
    codes = [await process.wait() for process in processes]

    assert codes == [0, 0, 0]
    for table in DATA_PATH:
        assert len(await spans_of(database, table)) == 1 + len(moments)


async def test_a_partition_is_made_while_its_table_is_written_to(database: Database, database_url: str) -> None:
    partitions = Partitions(database)
    await partitions.ensure([ms(NOW)])
    writer = await asyncpg.connect(database_url, server_settings={"search_path": "duetime"})

    async with writer.transaction():
        wake = uuid.UUID(int=ms(NOW) << 80)
        await writer.execute("INSERT INTO due (lane, wake, task, number) VALUES (1, $1, $1, 1)", wake)
        await partitions.ensure([ms(NOW + timedelta(days=1))])

    assert len(await spans_of(database)) == 3
    await writer.close()


async def test_a_partition_is_made_as_soon_as_its_table_is_free(database: Database, database_url: str) -> None:
    blocker = await asyncpg.connect(database_url, server_settings={"search_path": "duetime"})
    waits = "SELECT 1 FROM pg_locks WHERE relation = 'due'::regclass AND NOT granted"

    async with blocker.transaction():
        await blocker.execute("LOCK TABLE due IN ACCESS EXCLUSIVE MODE")
        making = asyncio.create_task(Partitions(database).ensure([ms(NOW)]))
        while not await blocker.fetch(waits):
            assert not making.done()
    await making

    assert len(await spans_of(database)) == 2
    await blocker.close()


def test_covers_needs_an_unbroken_run_of_partitions() -> None:
    partitions = Partitions.__new__(Partitions)
    partitions._known = {"due": [(0, 100), (100, 200), (300, 400)]}

    assert partitions.covers("due", 0, 199)
    assert partitions.covers("due", 100, 100)
    assert partitions.covers("due", 300, 399)
    assert not partitions.covers("due", 0, 200)
    assert not partitions.covers("due", 250, 250)
    assert not partitions.covers("due", 150, 350)
    assert not partitions.covers("due", 400, 400)
    assert not partitions.covers("task", 1, 1)


days_ahead = st.integers(-400, 4_000)


@given(now=st.datetimes(datetime(2026, 1, 1), datetime(2040, 1, 1)), steps=st.lists(days_ahead, max_size=12))
def test_free_spans_hold_their_moment_and_never_overlap(now: datetime, steps: list[int]) -> None:
    now_ms = ms(now.replace(tzinfo=UTC))
    spans: list[tuple[int, int]] = []
    for ahead in steps:
        moment = now_ms + ahead * 86_400_000
        if any(start <= moment < end for start, end in spans):
            continue
        start, end = free_span("due", moment, now_ms, sorted(spans))
        assert start <= moment < end
        assert all(end <= other_start or other_end <= start for other_start, other_end in spans)
        spans.append((start, end))
    assert len({partition_name("due", start) for start, _ in spans}) == len(spans)


@given(start=st.integers(0, LATEST_MS - 1), length=st.integers(1, 1 << 40))
def test_a_bound_is_read_as_it_was_written(start: int, length: int) -> None:
    end = min(start + length, LATEST_MS)

    statement = attaching("due", "due_part", start, end).sql
    assert parse_bound(statement[statement.index("FOR VALUES") :]) == (start, end)
