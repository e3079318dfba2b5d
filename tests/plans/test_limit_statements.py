"""What limits, gates and budgets do for each batch, or every second, reads by key, whatever lies in the tables."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from duetime.budgets.contract import Want
from duetime.budgets.postgres import PostgresBudgets
from duetime.database.pool import Database
from duetime.ids import EARLIEST, LATEST, just_after
from duetime.lifecycle.holders.holders import SQL as HOLDERS_SQL
from duetime.lifecycle.submission.flow import SQL as FLOW_SQL
from duetime.lifecycle.tasks.claim import SQL as CLAIM_SQL
from duetime.lifecycle.tasks.park import (
    Cap,
    Parked,
    StrictPlace,
    await_places,
    park,
    read_ended,
    read_running,
    take_places,
)
from duetime.lifecycle.tasks.sift import Move, sift
from engine import Engine
from plans.explain import BELIEVE_EMPTY, ExplainingDatabase, Plans
from services import Server

BATCH = 40
CROWD = 20_000
#: With so many rows in all tables, the planner was told of them and chose its ways; then they grew.
FEW = 100
STATEMENTS = {
    *("park", "read_running", "read_ended", "take_slots", "await_slots", "claim_around", "take"),
    *("sift", "read_beats", "read_left_behind", "end_silent", "take_rate", "read_known", "read_key", "advance_key"),
}
_CROWD = """
WITH silent AS (
    INSERT INTO holder (tenant, name, ended_at)
    SELECT $2, 'old ' || place, clock_timestamp() - interval '1 day' FROM generate_series(1, $1::int) AS place
),
busy AS (
    INSERT INTO claim (lane, task, number, failures, crashes, releases, holder)
    SELECT $3, mint_wake(1000000 + place, $3, place), 1, 0, 0, 0, $4 FROM generate_series(1, $1::int) AS place
),
waiting AS (
    INSERT INTO due (lane, wake, task, number)
    SELECT $3, mint_wake($5::bigint + place, $3, place), mint_wake($5::bigint + place, $3, place), 1
      FROM generate_series(1, $1::int) AS place
),
places AS (
    INSERT INTO limit_slot (tenant, name, slot, lane, task, number)
    SELECT $2, 'other ' || place / 10, place % 10, $3, mint_wake(1000000 + place, $3, place), 1
      FROM generate_series(1, $1::int) AS place
),
budgets AS (
    INSERT INTO budget (name, tokens, at, rate, burst, wanted, granted)
    SELECT 'other ' || place, 0, clock_timestamp(), 1, 1, 1, 1 FROM generate_series(1, $1::int) AS place
),
flows AS (
    INSERT INTO flow_key (tenant, kind, key, task, first_at, expires_at)
    SELECT $2, 1, int4send(place), mint_wake(1000000 + place, $3, place), clock_timestamp(), clock_timestamp()
      FROM generate_series(1, $1::int) AS place
),
named AS (
    INSERT INTO idempotency_key (tenant, key, task, fingerprint, expires_at)
    SELECT $2, 'other ' || place, mint_wake(1000000 + place, $3, place), '', clock_timestamp() + interval '1 day'
      FROM generate_series(1, $1::int) AS place
)
INSERT INTO submit_rate (tenant, key, even_at, granted)
SELECT $2, int4send(place), clock_timestamp(), 1 FROM generate_series(1, $1::int) AS place
"""


async def fill(url: str, count: int, *, belief: str | None) -> None:
    database = await Database.open(url, size=1)
    engine = await Engine.open(database)
    lane = await engine.lanes.ensure(engine.lane_key("crowded"))
    holder = await engine.holders.register(engine.tenant, "busy")
    now_ms = database.clock.now_ms()
    await engine.partitions.ensure([now_ms, now_ms + count])
    await database.execute(_CROWD, count, engine.tenant, lane, holder, now_ms, timeout=120.0)
    if belief is not None:
        await database.execute(belief, timeout=60.0)
    await database.close()


FILLINGS = {
    "empty": (0, None),
    "few": (FEW, "ANALYZE"),
    "crowded": (CROWD, None),
    "crowded and analysed": (CROWD, "ANALYZE"),
    "crowded and believed empty": (CROWD, BELIEVE_EMPTY),
    "crowded on postgres15": (CROWD, None),
    "believed empty on postgres15": (CROWD, BELIEVE_EMPTY),
}


@pytest.fixture(scope="module", params=FILLINGS)
def filling(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    server: Server = request.getfixturevalue(
        "postgres15_server" if request.param.endswith("postgres15") else "postgres_server"
    )
    name = server.make_database()
    count, belief = FILLINGS[request.param]
    asyncio.run(fill(server.url_of(name), count, belief=belief))
    yield request.param, server.url_of(name)
    server.drop_database(name)


@pytest.fixture
async def engine(filling: tuple[str, str]) -> AsyncIterator[Engine]:
    database = await ExplainingDatabase.open(filling[1], size=2)
    engine = Engine(database)
    await engine.lanes.load()
    await engine.partitions.make_ahead()
    engine.tenant = (await database.fetch("SELECT id FROM tenant"))[0]["id"]
    yield engine
    await database.close()


async def live(engine: Engine) -> Plans:
    """Every statement, with batches of the same size."""
    database, tenant = engine.database, engine.tenant
    assert isinstance(database, ExplainingDatabase)
    lane = await engine.lanes.ensure(engine.lane_key())
    holder = await engine.holders.register(tenant, "w")
    await engine.submit(3 * BATCH)
    tasks = await engine.claim(room=2 * BATCH)
    assert len(tasks) == 2 * BATCH
    running, over = tasks[:BATCH], tasks[BATCH:]
    await engine.settle(over[: BATCH // 2])
    plans = database.plans = Plans()

    assert len(await read_running(database, [lane])) == 2 * BATCH - BATCH // 2
    assert len(await read_ended(database, [(task.id, task.number) for task in tasks])) == BATCH // 2
    places = [StrictPlace(tenant, f"mine {number % 4}", BATCH // 4, task) for number, task in enumerate(running)]
    for _ in range(2):
        assert len(await take_places(database, places, 1)) == BATCH
    assert await take_places(database, [StrictPlace(tenant, "mine 0", 1, over[-1])], 2) == set()
    caps = [Cap(tenant, f"mine {number}", BATCH // 4) for number in range(4)]
    assert await await_places(database, caps, 2) == set()
    await park(database, [Parked(task, lane) for task in running])
    # Those that were submitted and not claimed, and those that were parked.
    sifted = await sift(database, lane, EARLIEST, LATEST, [Move("test.task", lane, lane, 60_000)], 5)
    assert sifted.moved == 2 * BATCH
    await PostgresBudgets(database).take({f"mine {number}": Want(10, 10, 1) for number in range(BATCH)})
    now_ms = database.clock.now_ms()
    wanted = {"lanes": [lane], "hints": [EARLIEST], "rooms": [BATCH], "slots": [0]}
    wanted |= {"until": just_after(now_ms), "now_ms": now_ms}
    await database.run_with(CLAIM_SQL["claim_around"], {**wanted, "holders": [holder] * BATCH, "now": None})
    beats = {row["id"]: row["beats"] for row in await database.run(HOLDERS_SQL["read_beats"])}
    await engine.end_silent([(holder, beats[holder])])
    await database.run(HOLDERS_SQL["read_left_behind"], lookback=timedelta(minutes=10), batch=1_000)

    key = hashlib.blake2b(b"mine").digest()
    rate = {"tenant": tenant, "key": key, "asked": 1, "limit": 10, "step": 0.1, "period": 1.0}
    await database.run_with(FLOW_SQL["take_rate"], rate)
    await database.run(FLOW_SQL["read_known"], tenant=tenant, keys=[f"mine {number}" for number in range(BATCH)])
    await database.run(FLOW_SQL["read_key"], tenant=tenant, kind=1, key=key)
    successor = {"task": tasks[0].id, "before": tasks[1].id, "first_at": database.clock.now(), "holds_over": False}
    await database.run_with(
        FLOW_SQL["advance_key"], {"tenant": tenant, "kind": 1, "key": key, "name": "mine 1", "keep": 9.0, **successor}
    )
    database.plans = None
    return plans


async def test_every_batch_reads_by_key_and_in_proportion_to_itself(engine: Engine) -> None:
    plans = await live(engine)

    assert {plan.statement for plan in plans.all} >= STATEMENTS
    for plan in plans.all:
        told = (plan.statement, plan.mode, plan.rows_read(), plan.rows_compared(), plan.wrong_ways())
        if plan.statement in STATEMENTS:
            assert plan.rows_read() <= 7 * BATCH, told
            # It reads all that live, by an index of those.
            assert plan.wrong_ways() == [] or plan.statement == "read_beats", told
            assert plan.rows_compared() <= 20 * BATCH, told
