"""procrastinate under the benchmark: psycopg 3, async tasks, jobs deferred by batches."""

import asyncio
import os
from collections.abc import Awaitable
from datetime import UTC, datetime

import psycopg
from procrastinate import App, PsycopgConnector
from psycopg_pool import AsyncConnectionPool

from .common import TWENTY, Tally, make_payload, pace, run, say_ready, send_all, split, until_terminated

BATCH = 500
CONCURRENCY = 10
CONNECTIONS = 9
POLL_SECONDS = 0.1

app = App(connector=PsycopgConnector())
tally: Tally


@app.task(name="benchmark")
async def handle(**payload: object) -> None:
    tally.note(payload)


async def leave_transactions(connection: psycopg.AsyncConnection) -> None:
    await connection.set_autocommit(True)


def make_pool(size: int) -> AsyncConnectionPool:
    """A pool that does not check each connection it lends, and needs no BEGIN and COMMIT around each statement."""
    return AsyncConnectionPool(
        os.environ["BENCH_DSN"], min_size=size, max_size=size, configure=leave_transactions, open=False
    )


async def setup() -> None:
    async with make_pool(1) as pool:
        async with pool.connection() as connection:
            await connection.execute("DROP SCHEMA public CASCADE")
            await connection.execute("CREATE SCHEMA public")
        await app.open_async(pool)
        await app.schema_manager.apply_schema_async()


async def analyze(pool: AsyncConnectionPool) -> None:
    """Update statistics, as autovacuum does within a minute: until then each fetch sorts all jobs."""
    async with pool.connection() as connection:
        await connection.execute("ANALYZE")


async def submit(mode: str, count: int) -> float:
    connections = {"one": 1, "twenty": 10, "bulk": 3}[mode]
    async with make_pool(connections) as pool:
        await pool.wait()
        await app.open_async(pool)
        if mode == "bulk":

            def send_batch(size: int) -> Awaitable[list[int]]:
                return handle.batch_defer_async(*[make_payload() for _ in range(size)])

            seconds = await send_all(split(count, BATCH), connections, send_batch)
        else:
            in_flight = TWENTY if mode == "twenty" else 1
            seconds = await send_all(range(count), in_flight, lambda _: handle.defer_async(**make_payload()))
        await analyze(pool)
        return seconds


async def lag(rate: float, seconds: float) -> int:
    async with make_pool(1) as pool:
        await app.open_async(pool)
        return await pace(rate, seconds, lambda at: handle.defer_async(**make_payload(at)))


async def burst(count: int, at: float) -> float:
    async with make_pool(1) as pool:
        await app.open_async(pool)
        due = handle.configure(schedule_at=datetime.fromtimestamp(at, UTC))
        seconds = await send_all(
            split(count, BATCH), 1, lambda size: due.batch_defer_async(*[make_payload(at) for _ in range(size)])
        )
        await analyze(pool)
        return seconds


async def work(file: str) -> None:
    global tally
    tally = Tally(file)
    writing = asyncio.create_task(tally.write_forever())
    async with make_pool(CONNECTIONS) as pool:
        await app.open_async(pool)
        running = asyncio.create_task(
            app.run_worker_async(
                concurrency=CONCURRENCY, fetch_job_polling_interval=POLL_SECONDS, install_signal_handlers=False
            )
        )
        # It does not say when it listens; this time is long enough.
        await asyncio.sleep(0.3)
        say_ready()
        await until_terminated()
        running.cancel()
        await asyncio.wait([running], timeout=5)
    writing.cancel()


if __name__ == "__main__":
    run(setup=setup, submit=submit, lag=lag, burst=burst, work=work)
