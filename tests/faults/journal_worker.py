"""A worker for the fault tests: it notes each start, makes its effect once, and fails as the payload says.

Run by `duetime worker journal_worker` in this folder, with the addresses in the environment.
"""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from journal import Journal

from duetime import Context, Worker

journal = Journal(Path(os.environ["JOURNAL"]))
effects_url = os.environ.get("EFFECTS_URL", "")
worker = Worker(
    queues=os.environ.get("QUEUES", "default").split(","),
    concurrency=int(os.environ.get("CONCURRENCY", "40")),
    threads=4,
    name=os.environ.get("NAME"),
)
INSERT_ASYNCPG = "INSERT INTO effect (task, worker) VALUES ($1, $2)"
INSERT_PSYCOPG = "INSERT INTO effect (task, worker) VALUES (%s, %s)"
pool: list[asyncpg.Pool] = []
opening = asyncio.Lock()
of_thread = threading.local()


async def effects() -> asyncpg.Pool:
    async with opening:
        if not pool:
            pool.append(await asyncpg.create_pool(effects_url, min_size=1, max_size=3))
    return pool[0]


def fail(payload: dict[str, Any], context: Context, when: str) -> None:
    if payload.get("fails") == when and context.attempt == 1:
        raise ValueError(f"fails {when} at its first attempt")


@worker.task("fault.async")
async def run_async(payload: dict[str, Any], context: Context) -> int:
    journal.note(context.task_id, context.attempt, context.worker)
    fail(payload, context, "early")
    if effects_url:
        async with (await effects()).acquire() as connection, connection.transaction():
            if await context.once(connection):
                await connection.execute(INSERT_ASYNCPG, context.task_id, context.worker)
    await asyncio.sleep(payload.get("seconds", 0))
    while "until" in payload and not Path(payload["until"]).exists():
        await asyncio.sleep(0.02)
    fail(payload, context, "late")
    return context.attempt


@worker.task("fault.plain")
def run_plain(payload: dict[str, Any], context: Context) -> int:
    journal.note(context.task_id, context.attempt, context.worker)
    fail(payload, context, "early")
    if effects_url:
        if not hasattr(of_thread, "connection"):
            of_thread.connection = psycopg.connect(effects_url)
        with of_thread.connection.transaction():
            if context.once(of_thread.connection):
                of_thread.connection.execute(INSERT_PSYCOPG, (context.task_id, context.worker))
    time.sleep(payload.get("seconds", 0))
    fail(payload, context, "late")
    return context.attempt
