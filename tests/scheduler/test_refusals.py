"""A database that refuses tasks for a while pauses no schedule; a schedule that is broken pauses, and no other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from structlog.testing import capture_logs

from duetime import metrics
from duetime.database.pool import Database
from duetime.errors import Unavailable, Unknown
from duetime.model.schedule import FireOutcome, Misfire, Overlap, ScheduleState
from duetime.recurrence import Spec
from duetime.scheduler import refusals
from duetime.scheduler.firing import Firing
from duetime.scheduler.refusals import MOST_FAILURES, TurnsRefused, is_about_data, try_apart
from engine import Engine
from scheduler.schedules import put, schedule_of
from scheduler.test_firing import MovableClock, find, firing_of, go_to, runs

NAMES = [f"s{number}" for number in range(5)]
RAISING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'not now' USING ERRCODE = '{code}';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON task FOR EACH ROW EXECUTE FUNCTION refuse();
"""
#: What makes the table refuse rows, what undoes it, and what is said of it.
TROUBLES = {
    "a right is missing": ("REVOKE INSERT ON task FROM {role}", "GRANT INSERT ON task TO {role}", "42501"),
    "a trigger raises": (RAISING.format(code="P0001"), "DROP TRIGGER refuse ON task", "P0001"),
    "the disk is full": (RAISING.format(code="53100"), "DROP TRIGGER refuse ON task", "53100"),
    "nothing fits a check": (
        "ALTER TABLE task ADD CONSTRAINT c CHECK (false) NOT VALID",
        "ALTER TABLE task DROP CONSTRAINT c",
        "23514",
    ),
}


@pytest.fixture
async def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Who may change the tables."""
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "duetime, public"})
    yield connection
    await connection.close()


@pytest.fixture
async def role(owner: asyncpg.Connection) -> AsyncIterator[str]:
    """A role that may do what a node does, and that does not own the tables."""
    name = "node_" + await owner.fetchval("SELECT current_database()")
    await owner.execute(f"""
        CREATE ROLE "{name}" LOGIN PASSWORD 'p';
        GRANT USAGE, CREATE ON SCHEMA duetime TO "{name}";
        GRANT ALL ON ALL TABLES IN SCHEMA duetime TO "{name}";
        GRANT ALL ON ALL SEQUENCES IN SCHEMA duetime TO "{name}";
    """)
    yield name
    await owner.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


@pytest.fixture
async def engine(database_url: str, role: str, owner: asyncpg.Connection, clock: MovableClock) -> AsyncIterator[Engine]:
    # Partitions are made by who owns the tables.
    first = await Database.open(database_url)
    await Engine.open(first, "other")
    await first.close()
    parts = urlsplit(database_url)
    url = urlunsplit(parts._replace(netloc=f"{role}:p@{parts.hostname or ''}:{parts.port}"))
    database = await Database.open(url, clock=clock)
    engine = await Engine.open(database)
    yield engine
    await database.close()


@pytest.fixture
def firing(engine: Engine) -> Firing:
    return firing_of(engine)


def refused_by(sqlstate: str) -> float:
    return float(metrics.TURNS_REFUSED.labels(sqlstate)._value.get())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("names", [NAMES, NAMES[:1]], ids=["five", "one"])
async def test_what_the_database_refuses_for_a_while_pauses_nobody(
    engine: Engine, firing: Firing, owner: asyncpg.Connection, role: str, trouble: str, names: list[str]
) -> None:
    begin, end, sqlstate = TROUBLES[trouble]
    every_second = {"spec": Spec(every=1.0), "overlap": Overlap.ALLOW, "misfire": Misfire.FIRE_ALL}
    await put(engine, *[schedule_of(engine, name, catchup_rate=100.0, **every_second) for name in names])
    before = refused_by(sqlstate)
    await owner.execute(begin.format(role=f'"{role}"'))

    async def was_refused() -> bool:
        return refused_by(sqlstate) >= before + 3 * len(names)

    async def has_gone_on() -> bool:
        return all([(await find(engine, name)).fired >= 5 for name in names])

    with capture_logs() as said:
        await firing.start()
        await until(was_refused)
        await owner.execute(end.format(role=f'"{role}"'))
        await until(has_gone_on)
        await firing.stop()

    for name in names:
        assert (await find(engine, name)).state is ScheduleState.ACTIVE
        # No time is left out, and none came twice.
        seconds = [row["moment"].int >> 80 for row in await runs(engine, name)]
        assert seconds == list(range(seconds[0], seconds[-1] + 1, 1000))
        assert {row["outcome"] for row in await runs(engine, name)} == {FireOutcome.FIRED}
    told = [line for line in said if line["log_level"] in ("warning", "error")]
    assert [line["event"] for line in told] == ["the database refuses the tasks of schedules; they are tried again"]
    assert (told[0]["sqlstate"], told[0]["left_out"]) == (sqlstate, 0)
    assert "the database takes the tasks of schedules again" in [line["event"] for line in said]


async def test_a_broken_schedule_is_paused_beside_healthy_ones(
    engine: Engine, firing: Firing, clock: MovableClock, owner: asyncpg.Connection
) -> None:
    await put(engine, *[schedule_of(engine, name) for name in ("a", "bad", "z")])
    await owner.execute("ALTER TABLE task ADD CONSTRAINT known CHECK (type <> 'bad')")
    await owner.execute("UPDATE schedule SET task_type = 'bad' WHERE name = 'bad'")
    due_ms = (await find(engine, "a")).next_ms
    assert due_ms is not None

    await go_to(engine, clock, firing, due_ms)

    states = [(await find(engine, name)).state for name in ("a", "bad", "z")]
    assert states == [ScheduleState.ACTIVE, ScheduleState.PAUSED, ScheduleState.ACTIVE]
    note = (await find(engine, "bad")).note
    assert note is not None
    assert note.startswith("paused: the database refuses its tasks: ")
    assert "known" in note
    assert "\n" not in note, "the row is not shown"


async def test_one_that_only_a_trigger_refuses_is_tried_again_beside_the_others(
    engine: Engine, firing: Firing, clock: MovableClock, owner: asyncpg.Connection
) -> None:
    await put(engine, *[schedule_of(engine, name) for name in ("a", "odd", "z")])
    await owner.execute(RAISING.format(code="P0001").replace("ROW EXECUTE", "ROW WHEN (NEW.type = 'odd') EXECUTE"))
    await owner.execute("UPDATE schedule SET task_type = 'odd' WHERE name = 'odd'")
    due_ms = (await find(engine, "a")).next_ms
    assert due_ms is not None

    await go_to(engine, clock, firing, due_ms)
    fired = [(await find(engine, name)).fired for name in ("a", "odd", "z")]
    await owner.execute("DROP TRIGGER refuse ON task")

    async def is_fired() -> bool:
        await go_to(engine, clock, firing, due_ms)
        return (await find(engine, "odd")).fired == 1

    await until(is_fired)
    assert fired == [1, 0, 1]


async def test_one_that_is_alone_is_paused_once_others_were_fired_or_a_minute_is_over() -> None:
    now = 0.0
    memory = refusals.Refusals(lambda: now)
    error = asyncpg.CheckViolationError("no")
    error.constraint_name = "known"

    assert memory.judge([(1, error)], now, are_all=True) == set()
    assert memory.judge([(2, error)], now, are_all=True) == set()
    assert memory.is_held(1)
    now = 10.0
    assert not memory.is_held(1)
    assert memory.judge([(1, error)], now, are_all=True) == set()
    memory.fired([3], has_tasks=False)
    assert memory.judge([(1, error)], now, are_all=True) == set(), "nothing was stored for the other"
    memory.fired([3], has_tasks=True)
    assert memory.judge([(1, error)], now, are_all=True) == {1}
    now = 30.0
    assert memory.judge([(4, error)], now, are_all=True) == set()
    assert memory.judge([(5, asyncpg.RaiseError("no"))], now, are_all=True) == set()
    now = 90.0
    assert memory.judge([(4, error)], now, are_all=True) == {4}
    assert memory.judge([(5, asyncpg.RaiseError("no"))], now, are_all=True) == set(), "a trigger is the database's"
    with pytest.raises(TurnsRefused):
        memory.judge([(6, error), (7, error)], now, are_all=True)


async def test_splitting_ends_where_nothing_is_taken_and_spares_who_is_taken() -> None:
    tries: list[list[int]] = []

    async def attempt(some: list[int]) -> None:
        tries.append(some)
        if any(each in bad for each in some):
            raise asyncpg.RaiseError("no")

    bad = set(range(500))
    assert {part for part, _ in await try_apart(range(500), attempt)} == bad
    assert len(tries) == MOST_FAILURES

    tries.clear()
    bad = {0, 77, 499}
    assert {part for part, _ in await try_apart(range(500), attempt)} == bad
    assert len(tries) < 80
    assert await try_apart([], attempt) == []


@pytest.mark.parametrize("error", [Unknown("lost"), Unavailable("away")])
async def test_a_database_that_is_away_is_not_asked_again_and_again(error: Exception) -> None:
    tries = 0

    async def attempt(some: list[int]) -> None:
        nonlocal tries
        tries += 1
        raise error

    with pytest.raises(type(error)):
        await try_apart(range(500), attempt)
    assert tries == 1


def test_a_missing_partition_is_not_the_rows_fault() -> None:
    with_name, without = asyncpg.CheckViolationError("no"), asyncpg.CheckViolationError("no partition of relation")
    with_name.constraint_name = "c"

    assert is_about_data(with_name)
    assert is_about_data(asyncpg.CharacterNotInRepertoireError("no"))
    assert not is_about_data(without)
    assert not is_about_data(asyncpg.UniqueViolationError("no"))
    assert not is_about_data(asyncpg.InsufficientPrivilegeError("no"))
