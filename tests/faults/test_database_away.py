"""The database is away while tasks run: nothing lapses, callers are told to come again, work goes on after."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import pytest

from duetime import AsyncClient
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.model.task import TaskState
from duetime.scheduler.liveness import SILENCE_SECONDS, Liveness
from engine import Engine
from faults.cast import Cast, begun
from faults.processes import status_of
from proxy import CuttingProxy, proxied

#: More than a holder may be silent.
AWAY_SECONDS = SILENCE_SECONDS + 3.0


class Watcher:
    """Liveness, with seconds that pass when the test says so."""

    def __init__(self, engine: Engine) -> None:
        self.now = 1000.0
        self._liveness = Liveness(engine.database, engine.holders, engine.onward, monotonic=lambda: self.now)

    async def look(self, seconds: int) -> int:
        """Look once a second; returns how many looks the database did not answer."""
        failed = 0
        for _ in range(seconds):
            self.now += 1.0
            try:
                await self._liveness.step()
            except Unavailable:
                failed += 1
        return failed


@pytest.fixture
async def away(database_url: str) -> AsyncIterator[tuple[CuttingProxy, Engine]]:
    """The data path behind a line that can be cut."""
    async with proxied(database_url) as (proxy, url):
        database = await Database.open(url)
        yield proxy, await Engine.open(database)
        await database.close()


async def test_a_silent_holder_lapses_after_nine_seconds(away: tuple[CuttingProxy, Engine]) -> None:
    _, engine = away
    watcher = Watcher(engine)
    [task] = await engine.submit()
    await engine.claim()

    await watcher.look(9)
    assert await engine.state(task) is TaskState.RUNNING
    await watcher.look(1)

    assert await engine.state(task) is TaskState.READY


async def test_a_database_that_is_away_for_60_s_lapses_nobody(away: tuple[CuttingProxy, Engine]) -> None:
    proxy, engine = away
    watcher = Watcher(engine)
    [task] = await engine.submit()
    leased = await engine.claim()
    assert await watcher.look(8) == 0

    proxy.is_away = True
    proxy.cut()
    assert await watcher.look(60) == 60
    proxy.is_away = False
    # The holder has the time of a silence, from when it could be heard again.
    assert await watcher.look(9) == 0

    assert await engine.state(task) is TaskState.RUNNING
    assert (await engine.settle(leased)).settled == [task]
    assert await engine.outcomes(task) == ["succeeded"]


async def test_a_look_that_fails_now_and_then_starts_the_watch_anew(away: tuple[CuttingProxy, Engine]) -> None:
    proxy, engine = away
    watcher = Watcher(engine)
    [task] = await engine.submit()
    await engine.claim()

    for _ in range(8):
        assert await watcher.look(7) == 0
        proxy.is_away = True
        proxy.cut()
        assert await watcher.look(1) == 1
        proxy.is_away = False

    assert await engine.state(task) is TaskState.RUNNING


async def test_a_node_that_stood_still_for_60_s_lapses_nobody(away: tuple[CuttingProxy, Engine]) -> None:
    _, engine = away
    watcher = Watcher(engine)
    [task] = await engine.submit()
    await engine.claim()
    await watcher.look(5)

    watcher.now += 60.0
    await watcher.look(9)

    assert await engine.state(task) is TaskState.RUNNING


async def test_a_node_works_on_after_the_database_was_away(cast: Cast) -> None:
    during, after = cast.gate(), cast.gate()
    async with proxied(cast.database_url) as (proxy, url), aiohttp.ClientSession() as session:
        node = await cast.serve(url=url)
        worker = cast.worker(node)
        target = await cast.target()
        async with AsyncClient(node.url, cast.key) as client:
            pulled = [await client.submit("fault.async", {"until": str(gate)}) for gate in (during, after)]
            pushed = [
                await client.submit("fault.call", {"until": str(gate)}, target=target.url) for gate in (during, after)
            ]
            for task in pulled:
                await begun(worker.journal, task.id)
            for task in pushed:
                await begun(target.journal, task.id)

            proxy.is_away = True
            proxy.cut()
            back_at = time.monotonic() + AWAY_SECONDS
            refused = await submit(session, node.url, cast.key)
            # These end while nobody can write it down.
            during.touch()
            await asyncio.to_thread(until_not_ready, node.url)
            while time.monotonic() < back_at:
                assert (await submit(session, node.url, cast.key))[0] == 503
                await asyncio.sleep(0.25)
            assert node.is_running
            proxy.is_away = False

            await asyncio.to_thread(until_ready, node.url)
            after.touch()
            done = [await client.wait(task.id, timeout=120) for task in (*pulled, *pushed)]
            fresh = await client.submit("fault.async", {})
            done.append(await client.wait(fresh.id, timeout=120))

        status, headers, problem = refused
        assert (status, problem["code"]) == (503, "unavailable")
        assert int(headers["Retry-After"]) >= 1
        assert [[(each.number, each.outcome) for each in task.attempts] for task in done] == [[(1, "succeeded")]] * 5
        assert await cast.count("holder", "ended_at IS NOT NULL") == 0
        assert await cast.count("task") == 5
        assert await asyncio.to_thread(node.stop) == 0


async def test_a_node_writes_again_as_soon_as_the_database_is_not_read_only_any_more(cast: Cast) -> None:
    name = urlsplit(cast.database_url).path[1:]
    node = await cast.serve()
    operator = await asyncpg.connect(cast.database_url)
    async with aiohttp.ClientSession() as session:
        assert (await submit(session, node.url, cast.key))[0] == 202
        await asyncio.to_thread(until_ready, node.url)

        await operator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        await operator.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'duetime'"
        )
        await asyncio.to_thread(until_not_ready, node.url)
        refused = await submit(session, node.url, cast.key)
        async with session.get(f"{node.url}/readyz") as answer:
            unready = await answer.json(content_type=None)
        await operator.execute("SET default_transaction_read_only = off")
        await operator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        accepted = await submit(session, node.url, cast.key)
        await asyncio.to_thread(until_ready, node.url)
    await operator.close()

    assert (refused[0], refused[2]["code"]) == (503, "unavailable")
    assert "the database is read-only" in refused[2]["detail"]
    assert "the database is read-only" in unready["detail"]
    assert accepted[0] == 202
    assert await asyncio.to_thread(node.stop) == 0


async def submit(session: aiohttp.ClientSession, url: str, key: str) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """One submission by hand, without the SDK's retries."""
    body = json.dumps({"type": "fault.async", "payload": {}})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with session.post(f"{url}/v1/tasks", data=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.json(content_type=None)


def until_not_ready(url: str) -> None:
    wait_for_status(f"{url}/readyz", 503)


def until_ready(url: str) -> None:
    wait_for_status(f"{url}/readyz", 200)


def wait_for_status(url: str, status: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while status_of(url) != status:
        assert time.monotonic() < deadline, f"{url} does not answer {status}"
        time.sleep(0.05)
