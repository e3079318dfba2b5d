"""What quotas read is bounded by the quota and by what changed, not by what lies in the tables."""

from collections.abc import AsyncIterator

import pytest

from duetime.admin.keys import create_key
from duetime.admin.rules import TenantRules
from duetime.admin.tenants import TenantChange, change_tenant, create_tenant
from duetime.database.statements import load
from duetime.lifecycle.admission.waiting import count_waiting
from engine import Engine
from plans.explain import BELIEVE_EMPTY, ExplainingDatabase, Plans

CROWD = 20_000
_FILL = """
INSERT INTO due (lane, wake, task, number)
SELECT $1, mint_wake($2::bigint + place, $1, place), mint_wake($2::bigint + place, $1, place), 1
  FROM generate_series(1, $3::int) AS place
"""
_TENANTS = """
INSERT INTO tenant (name, shard, signing_secret)
SELECT 'n' || place, 0, '' FROM generate_series(1, $1) AS place
"""

_KEYS = """
INSERT INTO api_key (tenant, hash, hint, role)
SELECT $1, decode(md5(place::text), 'hex'), '', 'viewer' FROM generate_series(1, $2) AS place
"""
KEYS_SQL = load("duetime.admin", "keys.sql")


@pytest.fixture(params=[None, "ANALYZE", BELIEVE_EMPTY], ids=["never analysed", "analysed", "believed empty"])
async def engine(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """A tenant with a crowd of waiting tasks, one with few, and very many with nothing."""
    database = await ExplainingDatabase.open(database_url, size=2)
    engine = await Engine.open(database)
    few = await create_tenant(database, "few")
    now_ms = database.clock.now_ms()
    await engine.partitions.ensure([now_ms, now_ms + CROWD])
    crowded = await engine.lanes.ensure(engine.lane_key("crowded"))
    await database.execute(_FILL, crowded, now_ms, CROWD)
    for queue in ("a", "b"):
        key = engine.lane_key(queue)
        lane = await engine.lanes.ensure(type(key)(few.id, queue, key.priority, key.kind))
        await database.execute(_FILL, lane, now_ms, 10)
    await database.execute(_TENANTS, CROWD)
    if request.param is not None:
        await database.execute(request.param)
    database.plans = Plans()
    yield engine
    await database.close()


async def test_a_count_reads_no_more_than_its_bound_and_nothing_of_others(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    assert database.plans is not None

    assert await count_waiting(database, engine.tenant, 101) == 101
    assert await count_waiting(database, engine.tenant + 1, 1_000_000) == 20

    plans = database.plans.of("count_waiting")
    assert len(plans) == 4
    for plan, most in zip(plans, (101, 101, 20, 20), strict=True):
        assert plan.rows_read() <= most + 2, plan.root


async def test_keys_are_counted_by_tenant(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    assert database.plans is not None
    await database.execute(_KEYS, engine.tenant + 2, CROWD)
    await create_key(database, engine.tenant)

    [row] = await database.run(KEYS_SQL["count_of_tenant"], tenant=engine.tenant)

    assert row["keys"] == 1
    for plan in database.plans.of("count_of_tenant"):
        assert any(node.get("Index Name") == "api_key_tenant" for node in plan.nodes()), plan.root


async def test_a_node_reads_the_tenants_that_changed_and_no_others(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    assert database.plans is not None
    rules = TenantRules(database)
    await rules.refresh()
    await change_tenant(database, "few", TenantChange(spread=3))
    database.plans.all.clear()

    changed = await rules.refresh()

    assert changed.spread == {engine.tenant + 1: 3}
    plans = database.plans.of("read_changed")
    assert len(plans) == 2
    for plan in plans:
        assert any(node.get("Index Name") == "tenant_change" for node in plan.nodes()), plan.root
