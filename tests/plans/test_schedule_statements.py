"""Firing reads in proportion to what is due, however many schedules there are and whatever the planner believes."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from duetime.clock import from_ms
from duetime.ids import EARLIEST, just_after
from duetime.lifecycle.schedules.fire import fire, read_due, read_situations
from duetime.lifecycle.tasks.claim import peek
from duetime.model.firing import take_turn
from duetime.model.schedule import Overlap
from duetime.recurrence import Spec
from engine import Engine
from plans.explain import BELIEVE_EMPTY, ExplainingDatabase, Plans
from scheduler.schedules import put, schedule_of

BATCH = 40
MANY = 5_000


BELIEFS = {"never-analysed": None, "analysed": "ANALYZE", "believed-empty": BELIEVE_EMPTY}


@pytest.fixture(params=BELIEFS)
async def engine(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    database = await ExplainingDatabase.open(database_url, size=2)
    engine = await Engine.open(database)
    later = datetime.fromtimestamp(database.clock.now_ms() / 1000 + 86_400).strftime("%Y-%m-%dT%H:%MZ")
    for start in range(0, MANY, 1_000):
        await put(
            engine, *[schedule_of(engine, f"later-{n}", spec=Spec(dates=(later,))) for n in range(start, start + 1_000)]
        )
    await put(
        engine,
        *[schedule_of(engine, f"now-{n}", spec=Spec(every=1.0), overlap=Overlap.SKIP) for n in range(BATCH)],
    )
    if belief := BELIEFS[request.param]:
        await database.execute(belief, timeout=60.0)
    yield engine
    await database.close()


async def test_a_turn_reads_its_own_rows_and_no_others(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    [row] = await database.fetch("SELECT shard FROM tenant")
    made = 0
    for turn_number in range(3):
        database.plans = Plans() if turn_number else None
        await database.read_clock()
        # The next time is two seconds ahead at most.
        now_ms = database.clock.now_ms() + turn_number * 2_500
        due = await read_due(database, {row["shard"]: EARLIEST}, just_after(now_ms), BATCH)
        situations = await read_situations(database, due.schedules, now=from_ms(now_ms))
        turns = []
        for schedule in due.schedules:
            body, recurrence = await engine.recurrences.of(
                engine.tenant, (schedule.id, schedule.version), schedule.name, schedule.definition, []
            )
            situation = situations[schedule.id]
            turns.append((schedule, situation, take_turn(body, recurrence, situation, now_ms)))
        fired = await fire(database, engine.partitions, turns)
        if not fired.schedules:
            # Explaining took so long that the ids were too old; it has been explained now.
            explained, database.plans = database.plans, None
            fired = await fire(database, engine.partitions, turns)
            database.plans = explained
        made += len(fired.tasks)
        assert len(fired.schedules) == BATCH
    page, has_more = await engine.schedules.page(engine.tenant, after="later-1", limit=BATCH)
    assert (len(page), has_more) == (BATCH, True)
    await peek(database, {row["shard"]: EARLIEST})

    assert made >= BATCH
    assert database.plans is not None
    assert {plan.statement for plan in database.plans.all} >= {
        "read_due",
        "fire",
        "read_states",
        "read_runs",
        "list",
        "peek",
    }
    for plan in database.plans.all:
        told = (plan.statement, plan.mode, plan.rows_read(), plan.pages())
        assert plan.wrong_ways() == [], told
        assert plan.rows_read() <= 10 * BATCH, told
        assert plan.rows_compared() <= 20 * BATCH, told
        assert plan.pages() <= 100 * BATCH, told
