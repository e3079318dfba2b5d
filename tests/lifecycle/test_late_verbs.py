"""A verb that was given up, repeated, confirmed and undone again does nothing more when its stalled copy arrives."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from duetime.database.pool import Database
from duetime.lifecycle.tasks.steer import SQL, SteerResult
from duetime.model.task import Options, Outcome
from engine import Engine
from holding import HoldingProxy, holding
from tables import read_tables

Ids = list[uuid.UUID]
Act = Callable[[Engine, Ids], Awaitable[dict[uuid.UUID, SteerResult]]]
Undo = Callable[[Engine, Ids], Awaitable[object]]


@pytest.fixture
async def stalling(database_url: str) -> AsyncIterator[tuple[HoldingProxy, Engine]]:
    """An engine behind a line that can hold a statement back."""
    async with holding(database_url) as (proxy, url):
        database = await Database.open(url, size=2)
        yield proxy, await Engine.open(database)
        await database.close()


async def waiting(engine: Engine) -> Ids:
    return await engine.submit(2, delay=3600)


async def paused(engine: Engine) -> Ids:
    ids = await waiting(engine)
    await engine.steering.pause(ids)
    return ids


async def die(engine: Engine) -> None:
    await engine.settle(await engine.claim(), Outcome.FAILED, is_permanent=True)


async def dead(engine: Engine) -> Ids:
    ids = await engine.submit(2, options=Options(delivery="at_most_once"))
    await die(engine)
    return ids


async def later(engine: Engine, ids: Ids, hours: int) -> dict[uuid.UUID, SteerResult]:
    return await engine.steering.reschedule(ids, engine.database.clock.now() + timedelta(hours=hours))


#: A verb, the tasks that it takes, and what is done and confirmed after it.
VERBS: dict[str, tuple[Callable[[Engine], Awaitable[Ids]], Act, Undo]] = {
    "pause": (waiting, lambda e, ids: e.steering.pause(ids), lambda e, ids: e.steering.resume(ids)),
    "resume": (paused, lambda e, ids: e.steering.resume(ids), lambda e, ids: e.steering.pause(ids)),
    "run_now": (waiting, lambda e, ids: e.steering.run_now(ids), lambda e, ids: later(e, ids, 2)),
    "reschedule": (waiting, lambda e, ids: later(e, ids, 2), lambda e, ids: later(e, ids, 3)),
    "redrive": (dead, lambda e, ids: e.steering.redrive(ids), lambda e, ids: die(e)),
    "cancel": (dead, lambda e, ids: e.steering.cancel(ids), lambda e, ids: e.steering.pause(ids)),
    "drop": (dead, lambda e, ids: e.steering.drop(ids), lambda e, ids: e.steering.redrive(ids)),
}


def text_of(verb: str) -> str:
    return SQL[verb].sql


@pytest.mark.parametrize("verb", VERBS)
async def test_a_late_copy_of_a_verb_changes_nothing(stalling: tuple[HoldingProxy, Engine], verb: str) -> None:
    proxy, engine = stalling
    prepare, act, undo = VERBS[verb]
    ids = await prepare(engine)
    proxy.hold(text_of(verb))

    verdicts = await act(engine, ids)
    assert [each.changed for each in verdicts.values()] == [True, True]
    await undo(engine, ids)
    before = await read_tables(engine.database)
    assert len(proxy.copies) == 1
    await proxy.deliver()

    assert await read_tables(engine.database) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_commit_is_late_is_done_once(stalling: tuple[HoldingProxy, Engine], verb: str) -> None:
    proxy, engine = stalling
    prepare, act, _ = VERBS[verb]
    ids = await prepare(engine)
    proxy.hold("COMMIT")

    acting = asyncio.create_task(act(engine, ids))
    while not proxy.copies:
        await asyncio.sleep(0.01)
    await proxy.deliver()
    verdicts = await acting

    assert [each.changed for each in verdicts.values()] == [True, True]
    assert proxy.seen.count(text_of(verb)) == 1
