"""A tenant's lanes are bounded: homes and gates of all its parts together, whoever makes them."""

import asyncio
from collections import Counter

import msgspec
import pytest

from duetime.database.pool import Database
from duetime.errors import InvalidInput
from duetime.ids import SHARDS, make_id
from duetime.lifecycle import lanes as lanes_module
from duetime.lifecycle.lanes import (
    MAX_GATES_PER_TENANT,
    MAX_HOMES_PER_TENANT,
    MAX_HOMES_TO_SPREAD,
    MAX_LANES_PER_TENANT,
    Lanes,
    shard_of_part,
)
from duetime.model.gates import encode_gate
from duetime.model.quotas import MAX_SPREAD
from duetime.model.task import LaneKey
from engine import Engine, submitted


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.open(database)


def gate_key(engine: Engine, name: str, part: int = 0) -> LaneKey:
    return msgspec.structs.replace(engine.lane_key(), gate=encode_gate((("key", name, ""),)), part=part)


async def spread(engine: Engine, parts: int) -> None:
    await engine.database.execute("UPDATE tenant SET spread = $2 WHERE id = $1", engine.tenant, parts)
    engine.submitter.rule({engine.tenant: parts})


async def count(engine: Engine) -> int:
    [row] = await engine.database.fetch("SELECT count(*) AS lanes FROM lane WHERE tenant = $1", engine.tenant)
    lanes: int = row["lanes"]
    return lanes


async def fill(engine: Engine, lane: int) -> None:
    """Something waits in the lane."""
    now_ms = engine.database.clock.now_ms()
    wake, task = make_id(now_ms, 1, lane), make_id(now_ms, 2, lane)
    await engine.database.execute("INSERT INTO due (lane, wake, task, number) VALUES ($1, $2, $3, 1)", lane, wake, task)


def test_the_shares_make_no_more_than_the_whole() -> None:
    assert MAX_HOMES_PER_TENANT + MAX_GATES_PER_TENANT == MAX_LANES_PER_TENANT == 1_000
    assert MAX_HOMES_TO_SPREAD < MAX_HOMES_PER_TENANT
    assert MAX_GATES_PER_TENANT >= MAX_SPREAD


async def test_with_all_homes_in_use_a_new_queue_is_refused_and_known_ones_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_HOMES_PER_TENANT", 2)
    await engine.submit(1, queue="a")
    await engine.submit(1, queue="b")

    with pytest.raises(InvalidInput, match=r"at most 2 lanes for its tasks .*use fewer queues"):
        await engine.submit(1, queue="c")

    assert len(await engine.submit(3, queue="b")) == 3
    assert await count(engine) == 2
    # A gate is not a home.
    assert await engine.lanes.ensure_gate(gate_key(engine, "k")) is not None


async def test_nodes_that_make_lanes_together_do_not_make_too_many(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_HOMES_PER_TENANT", 5)
    monkeypatch.setattr(lanes_module, "MAX_GATES_PER_TENANT", 3)
    nodes = [Lanes(engine.database) for _ in range(3)]

    made = await asyncio.gather(
        *(nodes[place % 3].ensure(engine.lane_key(f"q{place}")) for place in range(12)),
        *(nodes[place % 3].ensure_gate(gate_key(engine, f"k{place}")) for place in range(12)),
        return_exceptions=True,
    )

    assert sum(isinstance(each, int) for each in made[:12]) == 5
    assert all(isinstance(each, int | InvalidInput) for each in made[:12])
    assert await count(engine) == 8


async def test_homes_and_gates_together_are_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the spread was raised after the first part had all gates.
    monkeypatch.setattr(lanes_module, "MAX_LANES_PER_TENANT", 4)
    await engine.lanes.ensure(engine.lane_key("a"))
    for name in ("one", "two", "three"):
        lane = await engine.lanes.ensure_gate(gate_key(engine, name))
        assert lane is not None
        await fill(engine, lane)

    assert await engine.lanes.ensure_gate(gate_key(engine, "four")) is None
    with pytest.raises(InvalidInput):
        await engine.lanes.ensure(engine.lane_key("b"))
    with pytest.raises(InvalidInput):
        await Lanes(engine.database).ensure(engine.lane_key("b"))
    assert await count(engine) == 4


async def test_beyond_its_share_a_spread_tenant_uses_the_lanes_it_has(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_HOMES_TO_SPREAD", 3)
    await spread(engine, 8)
    home = engine.lane_key()

    lanes = [await engine.lanes.ensure(msgspec.structs.replace(home, part=part)) for part in range(8)]

    assert await count(engine) == 3
    assert sorted(Counter(lanes).values()) == [2, 3, 3]
    ids = await engine.submit(16)
    waiting = [row["lane"] for row in await engine.database.fetch("SELECT lane FROM due")]
    assert len(ids) == len(waiting) == 16
    assert set(waiting) == set(lanes)

    # A new queue has a home all the same: one, wherever its tasks would have gone.
    others = [submitted(each) for each in await engine.submitter.submit([engine.new_task(queue="new")] * 8)]
    assert len(others) == 8
    assert await count(engine) == 4


async def test_every_part_of_a_spread_tenant_has_its_share_of_gates(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "MAX_GATES_PER_TENANT", 4)
    await spread(engine, 2)
    first = [await engine.lanes.ensure_gate(gate_key(engine, name)) for name in ("one", "two")]
    for lane in first:
        assert lane is not None
        await fill(engine, lane)

    # The first part has its share, and all is in use.
    assert await engine.lanes.ensure_gate(gate_key(engine, "three")) is None

    second = [await engine.lanes.ensure_gate(gate_key(engine, name, part=1)) for name in ("one", "two")]
    assert [lane is not None and lane % SHARDS for lane in second] == [shard_of_part("default", 1)] * 2
    assert await count(engine) == 4

    # One that is empty is given to another gate of its own part; that the first part has none empty is no matter.
    assert await engine.lanes.ensure_gate(gate_key(engine, "three", part=1)) in second
    assert await engine.lanes.ensure_gate(gate_key(engine, "three")) is None
    assert await count(engine) == 4
