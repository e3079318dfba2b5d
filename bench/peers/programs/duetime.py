"""duetime under the benchmark: the SDK's client and worker against one node, over HTTP.

Besides the modes of every peer there is `bulk-bare`: the same batches posted
without the idempotency key that the SDK gives to each of its calls.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from duetime import AsyncClient, Worker

from .common import PAYLOAD, TWENTY, Tally, make_payload, pace, run, say_ready, send_all, split, until_terminated

TYPE = "bench"
BATCH = 1_000
CONNECTIONS = 6
CONCURRENCY = 1_000


def connect() -> AsyncClient:
    return AsyncClient(os.environ["BENCH_URL"], os.environ["BENCH_KEY"])


async def setup() -> None:
    """Do nothing: the node has made its schema already."""


async def submit(mode: str, count: int) -> float:
    if mode == "bulk-bare":
        return await submit_bare(count)
    async with connect() as client:
        # Opens the connections that are used afterwards.
        await asyncio.gather(*[client.list_page(limit=1) for _ in range(TWENTY if mode == "twenty" else CONNECTIONS)])
        if mode == "bulk":
            return await send_all(split(count, BATCH), CONNECTIONS, lambda size: submit_batch(client, size))
        return await send_all(
            range(count), TWENTY if mode == "twenty" else 1, lambda _: client.submit(TYPE, make_payload())
        )


async def submit_batch(client: AsyncClient, size: int, **options: object) -> None:
    result = await client.submit_many([{"type": TYPE, "payload": PAYLOAD, **options}] * size)
    assert result.accepted == size


async def submit_bare(count: int) -> float:
    """Submit batches without any key; everything else as the SDK does it."""
    headers = {"Authorization": f"Bearer {os.environ['BENCH_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['BENCH_URL']}/v1/tasks/batch"
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    async with aiohttp.ClientSession(headers=headers) as session:

        async def send(size: int) -> None:
            body = encode([{"type": TYPE, "payload": PAYLOAD}] * size)
            async with session.post(url, data=body) as answer:
                answer.raise_for_status()
                assert len(decode(await answer.read())["results"]) == size

        return await send_all(split(count, BATCH), CONNECTIONS, send)


async def lag(rate: float, seconds: float) -> int:
    async with connect() as client:
        return await pace(rate, seconds, lambda at: client.submit(TYPE, make_payload(at)))


async def burst(count: int, at: float) -> float:
    options = {"payload": make_payload(at), "run_at": datetime.fromtimestamp(at, UTC)}
    async with connect() as client:
        return await send_all(split(count, BATCH), CONNECTIONS, lambda size: submit_batch(client, size, **options))


class Readiness(logging.Handler):
    """Wait until the worker asks for tasks, as its log says."""

    def emit(self, record: logging.LogRecord) -> None:
        if " takes tasks of " in record.getMessage():
            # A log line for each task would affect the figures; docs/sdk.md says what it costs.
            logging.getLogger(record.name).setLevel(logging.WARNING)
            say_ready()


async def work(file: str) -> None:
    tally = Tally(file)
    worker = Worker(os.environ["BENCH_URL"], os.environ["BENCH_KEY"], concurrency=CONCURRENCY)

    @worker.task(TYPE)
    async def nothing(payload: Mapping[str, Any]) -> None:
        tally.note(payload)

    log = logging.getLogger("duetime.worker")
    log.setLevel(logging.INFO)
    log.addHandler(Readiness())
    writing = asyncio.create_task(tally.write_forever())
    working = asyncio.create_task(worker.run_async())
    terminated = asyncio.create_task(until_terminated())
    await asyncio.wait({working, terminated}, return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await working
    writing.cancel()


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
