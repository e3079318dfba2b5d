"""Retire what is past its retention, without losing what is still open.

Finished work goes partition by partition.  What an old partition holds of tasks
that are still open is moved into the oldest partition, whose span then reaches
over the one that is dropped.  The swap is one transaction under a short lock:
there is no instant at which an open task cannot be found.  A task that is over
never opens again, so the set of open tasks, read in one statement beforehand,
can only shrink.
"""

import uuid
from datetime import datetime, timedelta

import asyncpg
import structlog

from duetime.clock import from_ms
from duetime.database.partitions import DATA_PATH, attaching, read_partitions
from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.ids import just_before
from duetime.lifecycle.tasks.keys import retire_keys

SQL = load(__package__, "retire.sql")
log = structlog.get_logger()
#: A partition with more waiting rows than this is left alone: that is a backlog, not a remnant.
MAX_MOVED = 50_000
#: By table, the column with the task's id, where an old partition may hold rows of open tasks.
_KEY = {"task": "id", "attempt": "task"}
_SECONDS = 300.0


async def open_tasks_before(database: Database, bound: uuid.UUID) -> tuple[list[int], list[uuid.UUID]]:
    rows = await database.run(SQL["read_open"], before=bound, timeout=_SECONDS)
    return [row["lane"] for row in rows], [row["task"] for row in rows]


async def retire_partitions(database: Database, before_ms: int) -> list[str]:
    """Drop partitions whose time ended before. Return their names."""
    dropped = []
    for table in DATA_PATH:
        for name, (start, end) in await _partitions(database, table):
            if start == 0:
                continue
            # The oldest partition can only grow over its neighbour, so none is skipped.
            if end > before_ms or not await _retire(database, table, name, end):
                break
            dropped.append(name)
            log.info("partition retired", partition=name)
    return dropped


async def retire_requests(database: Database, before_ms: int) -> list[str]:
    """Drop partitions of request keys: keys have no use after their hour."""
    dropped = []
    for name, (_, end) in await _partitions(database, "request_key"):
        if end <= before_ms and await _drop(database, name):
            dropped.append(name)
    return dropped


async def _drop(database: Database, name: str) -> bool:
    """Drop a partition, unless somebody is using it: then next time."""
    try:
        async with database.connection() as connection, connection.transaction():
            await connection.execute(SQL["wait_shortly"].sql)
            await connection.execute(SQL["drop"].spelled(partition=name).sql)
    except asyncpg.LockNotAvailableError:
        return False
    return True


async def retire_fires(database: Database, before_ms: int) -> list[str]:
    """Retire the fires of schedules with the tasks that they made: whole partitions, and rows of the oldest one."""
    dropped = []
    for name, (start, end) in await _partitions(database, "fire"):
        if start == 0:
            trim = SQL["trim_fires"].spelled(oldest=name)
            await database.run(trim, before=from_ms(before_ms), timeout=_SECONDS)
        elif end <= before_ms and await _drop(database, name):
            dropped.append(name)
    return dropped


async def trim_oldest(database: Database, before: datetime) -> None:
    """Remove what was moved into the oldest partitions and has been over since before then."""
    spans = {table: dict(await _partitions(database, table)) for table in _KEY}
    for table, key in _KEY.items():
        name = f"{table}_oldest"
        if name not in spans[table]:
            continue
        end = just_before(spans[table][name][1])
        lanes, tasks = await open_tasks_before(database, end)
        trim = SQL["trim_oldest"].spelled(oldest=name, key=key)
        await database.run(trim, lanes=lanes, tasks=tasks, end=end, before=before, timeout=_SECONDS)


async def retire_listed(database: Database, before_ms: int) -> None:
    """Rows in `listed` go with their tasks."""
    await database.run(SQL["retire_listed"], before=just_before(before_ms), timeout=_SECONDS)


async def freeze_partitions(database: Database, before_ms: int) -> list[str]:
    """Freeze partitions whose time is over, once, so that no emergency vacuum has to."""
    frozen = []
    for table in DATA_PATH:
        for name, (start, end) in await _partitions(database, table):
            if start == 0 or end > before_ms:
                continue
            [row] = await database.run(SQL["is_frozen"], partition=name)
            if row["is_frozen"]:
                continue
            await database.run(SQL["freeze"].spelled(partition=name), timeout=3600.0)
            await database.run(SQL["note_frozen"].spelled(partition=name))
            frozen.append(name)
    return frozen


async def retire_rows(database: Database, now: datetime, holder_retention: timedelta) -> None:
    """Remove idempotency keys that have ended, and holders that ended long ago and hold nothing."""
    await retire_keys(database, now)
    await database.run(SQL["retire_holders"], before=now - holder_retention)


async def retire_rescheduled(database: Database, before_ms: int) -> int:
    """Remove new times of tasks that are gone with their partition. Return how many."""
    [row] = await database.run(SQL["retire_rescheduled"], before=just_before(before_ms), timeout=_SECONDS)
    count: int = row["count"]
    return count


async def read_old_dead(database: Database, before: datetime, batch: int) -> list[uuid.UUID]:
    rows = await database.run(SQL["read_old_dead"], before=before, batch=batch)
    return [row["task"] for row in rows]


async def _partitions(database: Database, table: str) -> list[tuple[str, tuple[int, int]]]:
    async with database.connection() as connection:
        return await read_partitions(connection, table)


async def _retire(database: Database, table: str, name: str, end: int) -> bool:
    oldest = f"{table}_oldest"
    lanes, tasks = await open_tasks_before(database, just_before(end))
    try:
        async with database.connection() as connection, connection.transaction():
            await connection.execute(SQL["wait_shortly"].sql)
            await connection.execute(SQL["detach"].spelled(table=table, partition=name, oldest=oldest).sql)
            if table == "due":
                status = await _execute(connection, SQL["move_all"].spelled(partition=name, oldest=oldest))
            else:
                move = SQL["move_open"].spelled(partition=name, oldest=oldest, key=_KEY[table])
                status = await _execute(connection, move, lanes=lanes, tasks=tasks)
            if int(status.split()[-1]) > MAX_MOVED:
                raise _TooMany
            await connection.execute(attaching(table, oldest, 0, end).sql)
            await connection.execute(SQL["drop"].spelled(partition=name).sql)
    except asyncpg.LockNotAvailableError:
        return False  # somebody is using it: next time
    except _TooMany:
        log.warning("partition kept: too much in it still waits", partition=name, ended=from_ms(end).isoformat())
        return False
    return True


async def _execute(connection: asyncpg.Connection, statement: Statement, **parameters: object) -> str:
    status: str = await connection.execute(statement.sql, *statement.arguments(parameters), timeout=_SECONDS)
    return status


class _TooMany(Exception):
    pass
