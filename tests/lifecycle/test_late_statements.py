"""Every statement that commits itself is carried out once more at every later time, and changes nothing.

A script makes everything happen that a node does by such statements, and notes
each with its values.  After each step all that were noted before are carried
out again, as copies that were given up and come late, and rolled back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import asyncpg
import pytest

from database.changes import read_changes
from duetime.admin.breaker_states import put_memories, remove_memories, retire_memories
from duetime.admin.key_uses import _SQL as KEY_USES_SQL
from duetime.budgets.contract import Want
from duetime.budgets.postgres import PostgresBudgets
from duetime.cluster.postgres import SQL as CLUSTER_SQL
from duetime.database.changing import SQL as CHANGING_SQL
from duetime.database.changing import retire_operations, run_once_with
from duetime.database.pool import Database
from duetime.database.repeating import wait_for_standbys
from duetime.database.statements import Statement
from duetime.ids import EARLIEST, just_after, lane_of, make_id
from duetime.lifecycle.holders.holders import Named
from duetime.lifecycle.schedules.fire import SQL as FIRE_SQL
from duetime.lifecycle.schedules.recurrences import SQL as SCHEDULES_SQL
from duetime.lifecycle.submission.batch import Load, batch_of
from duetime.lifecycle.submission.flow import SQL as FLOW_SQL
from duetime.lifecycle.submission.outbox import retire_refused
from duetime.lifecycle.tasks.keys import SQL as KEYS_SQL
from duetime.lifecycle.tasks.park import Cap, Parked, StrictPlace, await_places, park, retire_places, take_places
from duetime.lifecycle.tasks.retire import (
    freeze_partitions,
    retire_fires,
    retire_listed,
    retire_rescheduled,
    retire_rows,
    trim_oldest,
)
from duetime.lifecycle.tasks.sift import Move, sift
from duetime.lifecycle.tasks.steer import SQL as STEER_SQL
from duetime.model.breaker_memory import BreakerMemory
from duetime.model.task import Outcome
from duetime.recurrence import Spec
from duetime.scheduler.firing import Firing
from duetime.scheduler.readiness import SQL as READINESS_SQL
from duetime.sdk.uuid7 import make_uuid7
from engine import Engine
from scheduler.schedules import put, schedule_of
from tables import Rows, read_tables

#: What a late copy may leave all the same; the guarantees say why that does no harm.
MAY_CHANGE: dict[str, set[str]] = {
    # It is released by the beats of its holder, or by the sweep.
    "claim_due": {"due", "claim"},
    "claim_around": {"due", "claim"},
    "sift": {"due"},
    # It heals whatever is broken by then.
    "sweep": {"due"},
    "register": {"holder"},
    "take_rate": {"submit_rate"},
    "take": {"budget"},
    "await_slots": {"limit_slot"},
    "take_slots": {"limit_slot"},
    "prove_write": {"write_proof"},
    "beat": {"node"},
    "note_backfill_waits": {"backfill"},
    "advance_key": {"flow_key", "idempotency_key"},
    "keep_keys": {"flow_key"},
}


Noted = list[tuple[Statement, dict[str, object]]]


class NotingDatabase(Database):
    """Notes what commits itself."""

    noted: Noted

    async def run(self, statement: Statement, *, timeout: float = 10.0, **parameters: object) -> list[asyncpg.Record]:
        return await self.run_with(statement, parameters, timeout)

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = 10.0
    ) -> list[asyncpg.Record]:
        rows = await super().run_with(statement, parameters, timeout)
        if statement.is_change:
            self.noted.append((statement, parameters))
        return rows


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    database = await NotingDatabase.open(database_url)
    assert isinstance(database, NotingDatabase)
    database.noted = []
    yield await Engine.open(database)
    await database.close()


async def script(engine: Engine) -> AsyncIterator[str]:
    """What a node does by statements that commit themselves; gives the name of each step."""
    for steps in (submissions, ends, gates, keys, flow, schedules, rest, retention):
        async for step in steps(engine):
            yield step


async def submissions(engine: Engine) -> AsyncIterator[str]:
    submitter, lane = engine.submitter, await engine.lanes.ensure(engine.lane_key())
    await submitter.submit([engine.new_task() for _ in range(3)])
    yield "submitted together"
    await submitter.submit([engine.new_task(idempotency_key="a")])
    yield "submitted with a key"
    await submitter.submit([engine.new_task()])
    yield "submitted alone"
    await asyncio.gather(*[submitter.submit([engine.new_task()]) for _ in range(20)])
    yield "submitted one by one"
    done = asyncio.get_running_loop().create_future()
    request = make_uuid7()
    await engine.partitions.ensure_requests([engine.database.clock.now_ms()])
    submitter.submit_soon(engine.new_task(), lane, done.set_result, request, b"same")
    await done
    yield "submitted alone with a request"
    load = Load([batch_of([engine.new_task()], [lane], engine.tenant)])
    minted_ms = await submitter.prepare(load)
    await submitter._store.store_keyed(load, minted_ms, None, is_repeat=True)
    yield "submitted in doubt"


async def ends(engine: Engine) -> AsyncIterator[str]:
    leased = await engine.claim()
    yield "claimed"
    await engine.holders.beat(engine.tenant, "w", [Named(task.id, task.number) for task in leased])
    yield "beaten"
    await engine.settle(leased[:5])
    yield "succeeded"
    await engine.settle(leased[5:8], Outcome.FAILED, is_permanent=True)
    yield "dead"
    await engine.steering.redrive([task.id for task in leased[5:8]])
    yield "redriven"
    await engine.settle(leased[8:10], Outcome.SNOOZED, retry_after=3600.0)
    yield "snoozed"
    await engine.steering.pause([task.id for task in leased[8:10]])
    yield "paused"
    await engine.steering.resume([task.id for task in leased[8:10]])
    yield "resumed"
    await engine.lapse()
    yield "lapsed"
    [late] = await engine.submit(delay=7200, expires_at=engine.database.clock.now() + timedelta(seconds=3))
    until = engine.database.clock.now() + timedelta(seconds=10)
    await engine.database.run(
        STEER_SQL["expire"], after=until - timedelta(hours=1), after_task=EARLIEST, until=until, batch=9
    )
    assert await engine.outcomes(late) == ["expired"]
    yield "expired"


async def gates(engine: Engine) -> AsyncIterator[str]:
    gate = await engine.lanes.ensure(engine.lane_key("gate"))
    await engine.submit(4)
    async with engine.database.connection() as other, other.transaction():
        await other.fetch("SELECT 1 FROM due ORDER BY wake LIMIT 1 FOR UPDATE")
        around = await engine.claim("v")
    yield "claimed around another"
    assert await park(engine.database, [Parked(task, task.lane) for task in around])
    yield "parked"
    again = await engine.claim("v")
    assert {task.id for task in around} <= {task.id for task in again}
    yield "claimed again"
    places = [StrictPlace(engine.tenant, "strict", 1, task) for task in again[:2]]
    assert await take_places(engine.database, places[:1], 1) == {0}
    yield "a place taken"
    await await_places(engine.database, [Cap(engine.tenant, "strict", 1)], 2)
    yield "a place awaited"
    await engine.settle(again, worker="v")
    yield "the place's attempt ended"
    await retire_places(engine.database, engine.database.clock.now() + timedelta(days=2))
    yield "places retired"
    await engine.submit(2)
    home = await engine.lanes.ensure(engine.lane_key())
    await engine.database.read_clock()
    until = just_after(engine.database.clock.now_ms())
    sifted = await sift(engine.database, home, EARLIEST, until, [Move("test.task", home, gate)], 0)
    assert sifted.moved
    yield "sifted"


async def keys(engine: Engine) -> AsyncIterator[str]:
    later = engine.database.clock.now() + timedelta(days=2)
    named = {"tenants": [engine.tenant], "keys": ["a"], "now": later}
    await engine.submit(idempotency_key="open", delay=7200)
    yield "an open task with a key"
    await engine.database.run_with(KEYS_SQL["keep_keys"], {**named, "keys": ["open"], "look_again": 3600.0})
    yield "keys kept"
    await engine.database.run_with(KEYS_SQL["free_keys"], named)
    yield "keys freed"
    await engine.submit(idempotency_key="a", delay=7200)
    yield "a key taken again"


async def flow(engine: Engine) -> AsyncIterator[str]:
    database, key = engine.database, {"tenant": engine.tenant, "key": b"key"}
    first, second = await engine.submit(2, delay=7200)
    await database.run(FLOW_SQL["take_rate"], **key, asked=1, limit=9, step=1.0, period=9.0)
    yield "a rate taken"
    moved = {**key, "kind": 1, "first_at": database.clock.now(), "holds_over": False, "keep": 3600.0, "name": "link"}
    await database.run_with(FLOW_SQL["advance_key"], {**moved, "before": None, "task": first})
    yield "a key made"
    await database.run_with(FLOW_SQL["advance_key"], {**moved, "before": first, "task": second})
    yield "a key moved on"
    column = {"tenants": [engine.tenant], "kinds": [1], "keys": [b"key"], "tasks": [second]}
    await database.run_with(FLOW_SQL["keep_keys"], {**column, "now": database.clock.now()})
    yield "a key looked at later"
    await database.run_with(FLOW_SQL["drop_keys"], column)
    yield "a key dropped"
    await database.run(FLOW_SQL["drop_rates"], now=database.clock.now() + timedelta(minutes=1), batch=9)
    yield "rates dropped"


async def schedules(engine: Engine) -> AsyncIterator[str]:
    database = engine.database
    await put(engine, schedule_of(engine, spec=Spec(every=1.0)))
    yield "a schedule made"
    firing = Firing(
        database,
        engine.partitions,
        engine.schedules,
        engine.backfills,
        engine.recurrences,
        engine.steering,
        engine._wake,
    )
    await firing.start()
    async with asyncio.timeout(60):
        while not await database.fetch("SELECT 1 FROM fire"):
            await asyncio.sleep(0.05)
    await firing.stop()
    yield "fired"
    stored = await engine.schedules.find(engine.tenant, "s")
    now_ms = database.clock.now_ms()
    [backfill] = [await engine.backfills.start(stored, now_ms - 600_000, now_ms - 590_000, 100.0)]
    await database.run(SCHEDULES_SQL["note_backfill_waits"], id=backfill.id, why="there is no room")
    yield "a backfill waits"
    assert await engine.backfills.step([stored.lane], 1.0)
    yield "filled"
    await database.execute("DELETE FROM due WHERE lane < 256")
    yield "a turn lost"
    await database.run(FIRE_SQL["sweep"], after=0, batch=9)
    yield "swept"
    orphan = make_id(database.clock.now_ms() + 9_000, 7, stored.lane)
    await database.execute(
        f"INSERT INTO due (lane, wake, task, number) VALUES ({stored.lane}, '{orphan}', '{orphan}', 1)"
    )
    yield "an orphan"
    await database.run(FIRE_SQL["forget"], lanes=[lane_of(orphan)], wakes=[orphan])
    yield "forgotten"
    await engine.schedules.delete(engine.tenant, "s")
    yield "the schedule deleted"


async def rest(engine: Engine) -> AsyncIterator[str]:
    database = engine.database
    place = (engine.tenant, "target.example:443")
    stored = await put_memories(database, {place: BreakerMemory("open", 1)})
    yield "a breaker written down"
    await remove_memories(database, {place: stored[place].stored_at})
    yield "a breaker removed"
    await put_memories(database, {place: BreakerMemory("open", 2)})
    await retire_memories(database)
    yield "another one written down"
    await PostgresBudgets(database).take({"bucket": Want(1.0, 5.0, 1.0)})
    yield "tokens taken"
    for incarnation in (1, 2):
        node: dict[str, object] = {"cluster": "c", "name": "n", "incarnation": incarnation}
        await run_once_with(database, CLUSTER_SQL["join"], node | {"address": "127.0.0.1:1"})
        yield "joined"
        await database.run_with(CLUSTER_SQL["beat"], node)
        yield "beaten"
        await database.run_with(CLUSTER_SQL["leave"], node)
        yield "left"
    await database.run(CLUSTER_SQL["forget"])
    await retire_refused(database, database.clock.now() - timedelta(days=1))
    await database.run(READINESS_SQL["prove_write"], node="n", filler=b"x")
    yield "a write proved"
    used = {"keys": [1], "used_froms": ["127.0.0.1"]}
    for minutes in (0, 1):
        await database.run(KEY_USES_SQL["note"], **used, used_ats=[database.clock.now() + timedelta(minutes=minutes)])
        yield "the use of a key noted"
    await wait_for_standbys(database)
    operation = make_id(database.clock.now_ms(), 1, 0)
    await database.run(CHANGING_SQL["find_or_give_up"], id=operation)
    yield "an operation given up"
    await retire_operations(database)
    yield "operations retired"


async def retention(engine: Engine) -> AsyncIterator[str]:
    database = engine.database
    now = database.clock.now() + timedelta(seconds=1)
    over, moved, waiting = await engine.submit(3, delay=3600)
    await engine.steering.cancel([over])
    await engine.steering.reschedule([moved], now + timedelta(days=1))
    yield "a task cancelled, another one moved"
    later_ms = database.clock.now_ms() + 7_200_000
    await retire_listed(database, later_ms)
    yield "places in lists retired"
    await retire_rescheduled(database, later_ms)
    yield "new times retired"
    await retire_rows(database, now, timedelta(0))
    yield "holders retired"
    await retire_fires(database, database.clock.now_ms())
    yield "fires retired"
    await trim_oldest(database, now)
    yield "the oldest partitions trimmed"
    await freeze_partitions(database, later_ms + 100 * 86_400_000)
    yield "partitions frozen"
    assert await engine.state(waiting) is not None


async def test_no_statement_that_comes_late_changes_anything(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, NotingDatabase)
    async for step in script(engine):
        noted = list(database.noted)
        before, after, wrong = await carried_out_again(database, noted)
        if before != after:
            each = [await carried_out_again(database, [one]) for one in noted]
            wrong += [one[0].name for one, (was, is_now, _) in zip(noted, each, strict=True) if was != is_now]
        assert not wrong, f"after {step}: {wrong}"

    names = {statement.name for statement, _ in database.noted}
    own = {name: each for name, each in read_changes().items() if each.copies is not None}
    missing = {name for name, each in own.items() if each.name not in names}
    assert missing == {
        # It is sent as text, and opens a transaction that nobody commits.
        "database/changing.begin",
        # There is no such database yet.
        "database/embedded.create_database",
        # The session has the lock of migrations until it has ended.
        "database/migrate.make_ledger",
        "database/migrate.record",
        "database/migrate.strike_out",
    }


@asynccontextmanager
async def rolled_back(connection: asyncpg.Connection) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    yield
    await transaction.rollback()


async def try_again(connection: asyncpg.Connection, statement: Statement, parameters: dict[str, object]) -> None:
    """What fails leaves nothing."""
    with suppress(asyncpg.PostgresError):
        async with connection.transaction():
            await connection.fetch(statement.sql, *statement.arguments(parameters))


async def carried_out_again(database: Database, noted: Noted) -> tuple[Rows, Rows, list[str]]:
    """All tables before and after, and the statements that changed other tables than they may; rolled back."""
    wrong = []
    async with database.connection() as connection:
        async with rolled_back(connection):
            before = await read_tables(connection)
            for statement, parameters in noted:
                if statement.name not in MAY_CHANGE:
                    await try_again(connection, statement, parameters)
            after = await read_tables(connection)
        for statement, parameters in noted:
            if statement.name in MAY_CHANGE:
                async with rolled_back(connection):
                    await try_again(connection, statement, parameters)
                    is_now = await read_tables(connection)
                if {name for name in is_now if is_now[name] != before[name]} - MAY_CHANGE[statement.name]:
                    wrong.append(statement.name)
    return before, after, wrong
