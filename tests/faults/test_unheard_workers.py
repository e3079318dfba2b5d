"""Polls of the only worker get through, and its beats do not."""

import asyncio
from typing import Any

import aiohttp
import pytest

from duetime import AsyncClient, Context, Worker
from nodes import NodeProcess
from sdk.conftest import client, node, queue, running
from sdk.gateway import gateway_to

__all__ = ["client", "node", "queue"]


@pytest.mark.parametrize("max_silence", [None, 60])
async def test_a_worker_that_does_not_beat_gets_no_more_work_and_kills_no_task(
    node: NodeProcess, client: AsyncClient, queue: str, max_silence: int | None
) -> None:
    """With a short silence it lapses in between, and polls on as a new holder."""
    headers = {"Authorization": f"Bearer {node.key}"}
    name = f"deaf-{queue}"
    asked: dict[str, Any] = {"worker": name, "queues": [queue], "max": 10, "wait": 1}
    if max_silence is not None:
        asked["max_silence"] = max_silence

    async with asyncio.timeout(60), aiohttp.ClientSession(node.url, headers=headers) as session:

        async def poll() -> list[dict[str, Any]]:
            async with session.post("/v1/workers/lease", json=asked) as answer:
                tasks: list[dict[str, Any]] = (await answer.json())["tasks"]
                return tasks

        async def metrics() -> str:
            async with session.get("/metrics") as answer:
                return await answer.text()

        first = await client.submit("a", queue=queue)
        assert [task["id"] for task in await poll()] == [first.id]
        while f'worker="{name}"' not in await metrics():
            assert await poll() == []

        second = await client.submit("a", queue=queue)
        assert await poll() == []
        told = await client.explain(second.id)
        async with session.post("/v1/workers/beat", json={"worker": name}) as answer:
            assert answer.status == 200
        leased: set[str] = set()
        while second.id not in leased:
            leased |= {task["id"] for task in await poll()}
        waiting = await client.get(first.id)

    assert [reason.reason for reason in told.waiting_for] == ["no_beats", "position"]
    assert name in told.waiting_for[0].detail
    assert "beat" in told.what_would_free_it
    # Ended once at the most: when its holder lapsed.
    assert [attempt.outcome for attempt in waiting.attempts] in ([None], ["released"], ["released", None])


async def test_the_sdk_asks_for_nothing_while_no_beat_of_it_is_acknowledged(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    async with gateway_to(node.url) as gateway:
        worker = Worker(gateway.url, node.key, queues=[queue], shutdown_timeout=10)
        attempts: list[int] = []
        failed = asyncio.Semaphore(0)

        async def count_polls(lease: Any) -> None:
            # Short polls, so that there are many.
            lease["wait"] = 0.2

        async def count_beats(beat: Any) -> None:
            if "beat" in gateway.away:
                failed.release()

        gateway.requests["lease"], gateway.requests["beat"] = count_polls, count_beats

        @worker.task("a")
        async def handle(payload: object, context: Context) -> None:
            attempts.append(context.attempt)

        async with asyncio.timeout(60), running(worker):
            task = await client.submit("a", queue=queue)
            await client.wait(task.id)
            gateway.away.add("beat")
            # For six seconds after the last beat it may begin things, and asks.
            before = -1
            while gateway.passed["lease"] != before:
                before = gateway.passed["lease"]
                for _ in range(3):
                    await failed.acquire()
            task = await client.submit("a", queue=queue)
            for _ in range(3):
                await failed.acquire()
            assert gateway.passed["lease"] == before
            gateway.away.clear()
            task = await client.wait(task.id, 60)

    assert attempts == [1, 1]
    assert [attempt.outcome for attempt in task.attempts] == ["succeeded"]
