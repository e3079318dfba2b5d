"""pgqueuer under the benchmark: asyncpg, jobs enqueued by lists, one connection for the consumer."""

import asyncio
import json
import os
import time
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, Job, PgQueuer, Queries
from pgqueuer.errors import FailingListenerError

from .common import TWENTY, Tally, make_payload, pace, run, say_ready, send_all, split, until_terminated

ENTRYPOINT = "benchmark"
BATCH = 1000
DEQUEUE_BATCH = 500
CONNECTIONS = {"twenty": 10, "bulk": 2}


def encode(at: float | None = None) -> bytes:
    return json.dumps(make_payload(at)).encode()


async def setup() -> None:
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    queries = Queries(AsyncpgDriver(connection))
    if await queries.schema_is_installed():
        await queries.uninstall()
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def enqueue_batch(queries: Queries, count: int, at: float | None = None) -> None:
    # It takes a delay from the database's now, so the delay is computed for each batch.
    delay = None if at is None else [timedelta(seconds=max(0.0, at - time.time()))] * count
    await queries.enqueue([ENTRYPOINT] * count, [encode(at) for _ in range(count)], [0] * count, delay)


async def submit(mode: str, count: int) -> float:
    if mode == "one":
        connection = await asyncpg.connect(os.environ["BENCH_DSN"])
        queries = Queries(AsyncpgDriver(connection))
        seconds = await send_all(range(count), 1, lambda _: queries.enqueue(ENTRYPOINT, encode()))
        await connection.close()
        return seconds
    width = CONNECTIONS[mode]
    async with asyncpg.create_pool(os.environ["BENCH_DSN"], min_size=width, max_size=width) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        if mode == "bulk":
            seconds = await send_all(split(count, BATCH), width, lambda size: enqueue_batch(queries, size))
            # Autovacuum does so within a minute; a backlog without statistics is drained slowly.
            await pool.execute("ANALYZE")
            return seconds
        return await send_all(range(count), TWENTY, lambda _: queries.enqueue(ENTRYPOINT, encode()))


async def lag(rate: float, seconds: float) -> int:
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    queries = Queries(AsyncpgDriver(connection))
    count = await pace(rate, seconds, lambda at: queries.enqueue(ENTRYPOINT, encode(at)))
    await connection.close()
    return count


async def burst(count: int, at: float) -> float:
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    queries = Queries(AsyncpgDriver(connection))
    seconds = await send_all(split(count, BATCH), 1, lambda size: enqueue_batch(queries, size, at))
    await connection.close()
    return seconds


async def work(file: str) -> None:
    tally = Tally(file)
    connection = await asyncpg.connect(os.environ["BENCH_DSN"])
    consumer = PgQueuer(AsyncpgDriver(connection))

    @consumer.entrypoint(ENTRYPOINT)
    async def handle(job: Job) -> None:
        tally.note(json.loads(job.payload or b"{}"))

    writing = asyncio.create_task(tally.write_forever())
    running = asyncio.create_task(consumer.run(batch_size=DEQUEUE_BATCH))
    for _ in range(100):
        try:
            await consumer.qm.listener_healthy(timedelta(seconds=0.1))
            break
        except FailingListenerError:
            pass
    say_ready()
    await until_terminated()
    consumer.shutdown.set()
    await running
    writing.cancel()
    await connection.close()


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
