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
from duetime.ids import just_before
from duetime.lifecycle.tasks.keys import retire_keys

log = structlog.get_logger()
_LOCK_TIMEOUT = "200ms"
#: A partition with more waiting rows than this is left alone: that is a backlog, not a remnant.
MAX_MOVED = 50_000
_KEY = {"task": "id", "attempt": "task", "due": "wake"}
# Each of the six places is read in one snapshot; a first wake is the task's id.
_OPEN_BEFORE = """
SELECT lane, task FROM claim WHERE task < $1
 UNION ALL
SELECT lane, task FROM held WHERE task < $1
 UNION ALL
SELECT lane, task FROM dead WHERE task < $1
 UNION ALL
SELECT COALESCE(home, lane), task FROM due WHERE lane >= 256 AND wake <> task AND task < $1
 UNION ALL
SELECT lane, task FROM due WHERE wake = task AND wake < $1
"""


async def open_tasks_before(connection: asyncpg.Connection, bound: uuid.UUID) -> tuple[list[int], list[uuid.UUID]]:
    rows = await connection.fetch(_OPEN_BEFORE, bound, timeout=300.0)
    return [row["lane"] for row in rows], [row["task"] for row in rows]


async def retire_partitions(database: Database, before_ms: int) -> list[str]:
    """Drop partitions whose time ended before; returns their names."""
    dropped = []
    for table in DATA_PATH:
        for name, (start, end) in await _partitions(database, table):
            if start == 0:
                continue
            # The oldest partition can only grow over its neighbour: none is skipped.
            if end > before_ms or not await _retire(database, table, name, end):
                break
            dropped.append(name)
            log.info("partition retired", partition=name)
    return dropped


async def retire_requests(database: Database, before_ms: int) -> list[str]:
    """Request keys are worthless after their hour: their partitions go whole."""
    dropped = []
    for name, (_, end) in await _partitions(database, "request_key"):
        if end <= before_ms and await _drop(database, name):
            dropped.append(name)
    return dropped


async def _drop(database: Database, name: str) -> bool:
    """Drop a partition, unless somebody is using it: then next time."""
    try:
        async with database.connection() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            await connection.execute(f"DROP TABLE {name}")
    except asyncpg.LockNotAvailableError:
        return False
    return True


async def retire_fires(database: Database, before_ms: int) -> list[str]:
    """What became of schedules' times goes with the tasks they made: whole partitions, and the oldest by rows."""
    dropped = []
    for name, (start, end) in await _partitions(database, "fire"):
        if start == 0:
            await database.execute(f"DELETE FROM {name} WHERE at < $1", from_ms(before_ms), timeout=300.0)
        elif end <= before_ms and await _drop(database, name):
            dropped.append(name)
    return dropped


async def trim_oldest(database: Database, before: datetime) -> None:
    """What was moved into the oldest partitions, and has been over since before then."""
    async with database.connection() as connection:
        spans = {table: dict(await _partitions(database, table)) for table in ("task", "attempt")}
        for table, key in (("task", "id"), ("attempt", "task")):
            name = f"{table}_oldest"
            if name not in spans[table]:
                continue
            lanes, tasks = await open_tasks_before(connection, just_before(spans[table][name][1]))
            await connection.execute(
                f"DELETE FROM {name} AS old"
                f" WHERE (old.lane, old.{key}) NOT IN (SELECT * FROM unnest($1::int[], $2::uuid[]))"
                f" AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.lane = old.lane AND attempt.task = old.{key}"
                " AND attempt.completed_at >= $3)",
                lanes,
                tasks,
                before,
                timeout=300.0,
            )


async def retire_listed(database: Database, before_ms: int) -> None:
    """Places in lists go with their tasks."""
    await database.execute("DELETE FROM listed WHERE task < $1", just_before(before_ms), timeout=300.0)


async def freeze_partitions(database: Database, before_ms: int) -> list[str]:
    """Freeze partitions whose time is over, once, so that no emergency vacuum has to."""
    frozen = []
    for table in DATA_PATH:
        for name, (start, end) in await _partitions(database, table):
            if start == 0 or end > before_ms:
                continue
            rows = await database.fetch("SELECT obj_description(to_regclass($1), 'pg_class') AS note", name)
            if rows[0]["note"] == "frozen":
                continue
            await database.execute(f"VACUUM (FREEZE, ANALYZE) {name}", timeout=3600.0)
            await database.execute(f"COMMENT ON TABLE {name} IS 'frozen'")
            frozen.append(name)
    return frozen


async def retire_rows(database: Database, now: datetime, holder_retention: timedelta) -> None:
    """Idempotency keys that have ended, and holders that ended long ago and hold nothing."""
    await retire_keys(database, now)
    await database.execute(
        "DELETE FROM holder WHERE ended_at < $1 AND NOT EXISTS (SELECT 1 FROM claim WHERE claim.holder = holder.id)",
        now - holder_retention,
    )


async def retire_rescheduled(database: Database, before_ms: int) -> int:
    """New times of tasks that are gone with their partition; returns how many."""
    # A newer task cannot be gone: only what is old is looked up.
    rows = await database.fetch(
        "WITH gone AS (DELETE FROM rescheduled WHERE task < $1 AND NOT EXISTS ("
        " SELECT 1 FROM task WHERE task.lane = rescheduled.lane AND task.id = rescheduled.task) RETURNING 1)"
        " SELECT count(*) AS count FROM gone",
        just_before(before_ms),
        timeout=300.0,
    )
    count: int = rows[0]["count"]
    return count


async def read_old_dead(database: Database, before: datetime, batch: int) -> list[uuid.UUID]:
    rows = await database.fetch("SELECT task FROM dead WHERE died_at < $1 ORDER BY died_at LIMIT $2", before, batch)
    return [row["task"] for row in rows]


async def _partitions(database: Database, table: str) -> list[tuple[str, tuple[int, int]]]:
    async with database.connection() as connection:
        return await read_partitions(connection, table)


async def _retire(database: Database, table: str, name: str, end: int) -> bool:
    oldest = f"{table}_oldest"
    async with database.connection() as connection:
        lanes, tasks = await open_tasks_before(connection, just_before(end))
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {name}")
                await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {oldest}")
                if table == "due":
                    status = await connection.execute(f"INSERT INTO {oldest} SELECT * FROM {name}")
                else:
                    status = await connection.execute(
                        f"INSERT INTO {oldest} SELECT old.* FROM unnest($1::int[], $2::uuid[]) AS kept (lane, task)"
                        f" JOIN {name} AS old ON old.lane = kept.lane AND old.{_KEY[table]} = kept.task",
                        lanes,
                        tasks,
                    )
                if int(status.split()[-1]) > MAX_MOVED:
                    raise _TooMany
                await connection.execute(attaching(table, oldest, 0, end).sql)
                await connection.execute(f"DROP TABLE {name}")
        except asyncpg.LockNotAvailableError:
            return False  # somebody is using it; next time
        except _TooMany:
            log.warning("partition kept: too much in it still waits", partition=name, ended=from_ms(end).isoformat())
            return False
    return True


class _TooMany(Exception):
    pass
