"""Whose name a worker has: only the key that spoke under it first may go on."""

import asyncio

import pytest

from duetime.errors import WorkerNameTaken
from duetime.lifecycle.holders.holders import Holders, Named
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.model.task import Outcome, TaskState
from engine import Engine

MINE, ANOTHERS = 1, 2


def another_node(engine: Engine) -> tuple[Holders, Settler]:
    """One that knows nothing but what is stored, as after a restart."""
    onward = Onward(engine.database, engine.partitions, lambda _: None)
    holders = Holders(engine.database, onward)
    return holders, Settler(engine.database, holders, onward)


async def _hold_one(engine: Engine) -> Named:
    """A task that the worker `w` of my key holds."""
    [task] = await engine.submit()
    await engine.holders.register(engine.tenant, "w", MINE)
    [leased] = await engine.claim()
    return Named(task, leased.number)


async def test_another_key_neither_settles_nor_beats_nor_signs_off_nor_leases(engine: Engine) -> None:
    mine = await _hold_one(engine)
    report = Report(mine.id, mine.number, Outcome.SUCCEEDED)
    before = await engine.database.fetch("SELECT * FROM holder")

    for holders, settler in [(engine.holders, engine.settler), another_node(engine)]:
        for _ in range(3):
            with pytest.raises(WorkerNameTaken):
                await holders.beat(engine.tenant, "w", [], ANOTHERS)
        with pytest.raises(WorkerNameTaken):
            await settler.settle(engine.tenant, "w", [report], ANOTHERS)
        with pytest.raises(WorkerNameTaken):
            await holders.sign_off(engine.tenant, "w", [], ANOTHERS)
        with pytest.raises(WorkerNameTaken):
            await holders.register(engine.tenant, "w", ANOTHERS)

    assert await engine.database.fetch("SELECT * FROM holder") == before
    assert await engine.state(mine.id) is TaskState.RUNNING
    assert (await engine.holders.beat(engine.tenant, "w", [mine], MINE)).lost == []
    assert (await engine.settler.settle(engine.tenant, "w", [report], MINE)).settled == [mine.id]


async def test_any_key_may_take_the_name_of_a_worker_that_has_ended(engine: Engine) -> None:
    holders, _ = another_node(engine)
    first = await holders.register(engine.tenant, "w", MINE)
    with pytest.raises(WorkerNameTaken):
        await engine.holders.register(engine.tenant, "w", ANOTHERS)

    await holders.sign_off(engine.tenant, "w", [], MINE)
    second = await engine.holders.register(engine.tenant, "w", ANOTHERS)

    assert first != second
    with pytest.raises(WorkerNameTaken):
        await holders.beat(engine.tenant, "w", [], MINE)
    await engine.lapse()
    assert (await holders.beat(engine.tenant, "w", [], MINE)).lost == []


async def test_a_stale_name_settles_nothing_of_the_worker_that_has_it_now(engine: Engine) -> None:
    holders, settler = another_node(engine)
    await holders.register(engine.tenant, "w", ANOTHERS)
    # The node does not hear that its holder has ended and the name has another owner by now.
    await engine.holders.sign_off(engine.tenant, "w", [], ANOTHERS)
    mine = await _hold_one(engine)

    answer = await settler.settle(engine.tenant, "w", [Report(mine.id, mine.number, Outcome.SUCCEEDED)], ANOTHERS)
    await holders.beat(engine.tenant, "w", [], ANOTHERS)
    with pytest.raises(WorkerNameTaken):
        await holders.beat(engine.tenant, "w", [], ANOTHERS)

    assert answer.lost == [mine.id]
    assert await engine.state(mine.id) is TaskState.RUNNING


async def test_one_refused_beat_does_not_spoil_those_that_share_its_statement(engine: Engine) -> None:
    holders, _ = another_node(engine)
    for name in ("w", "v"):
        await holders.register(engine.tenant, name, ANOTHERS)
    await engine.holders.sign_off(engine.tenant, "w", [], ANOTHERS)
    await engine.holders.register(engine.tenant, "w", MINE)

    stale, fine = await asyncio.gather(
        holders.beat(engine.tenant, "w", [], ANOTHERS), holders.beat(engine.tenant, "v", [], ANOTHERS)
    )

    assert (stale.lost, fine.lost) == ([], [])


async def test_a_name_without_an_owner_belongs_to_the_first_key_that_speaks(engine: Engine) -> None:
    await engine.holders.register(engine.tenant, "w")

    assert (await engine.settler.settle(engine.tenant, "w", [], MINE)).lost == []

    for holders, _ in [(engine.holders, engine.settler), another_node(engine)]:
        with pytest.raises(WorkerNameTaken):
            await holders.register(engine.tenant, "w", ANOTHERS)


async def test_who_speaks_again_is_known_without_a_look(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.holders.register(engine.tenant, "w", MINE)
    asked: list[object] = []

    async def run(*_: object, **__: object) -> list[object]:
        asked.append(None)
        return []

    monkeypatch.setattr(engine.database, "run", run)

    for _ in range(5):
        await engine.holders.register(engine.tenant, "w", MINE)
        await engine.holders.find(engine.tenant, "w", MINE)

    assert asked == []
