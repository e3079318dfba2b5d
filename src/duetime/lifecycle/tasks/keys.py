"""When an idempotency key ends: its ttl has passed, and its task is over.

Submitting never looks for that: a key that is there wins.  Who loses to a key
whose ttl has passed asks here, and submits again if the key was freed.  Upkeep
deletes ended keys, and puts off those whose task is open: the ttl of a key is a
promise about repeats, and while the task waits a repeat would be a second task.

A task that is over never opens again, so a key that was judged free stays free.
"""

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime

import asyncpg

from duetime.database.pool import Database
from duetime.database.statements import Statement, load

SQL = load(__package__, "keys.sql")
Run = Callable[[Statement, dict[str, object]], Awaitable[list[asyncpg.Record]]]
#: A tenant's number and its key.
Key = tuple[int, str]
_BATCH = 5_000
#: When to look again at the key of an open task. A later look only keeps a row longer.
_LOOK_AGAIN_SECONDS = 6 * 3600.0


async def free_keys(run: Run, keys: Iterable[Key], now: datetime | None = None) -> set[Key]:
    """Delete those that have ended. Return those whose ttl has passed but whose task is open."""
    rows = await run(SQL["free_keys"], {**_columns(keys), "now": now})
    return {(row["tenant"], row["key"]) for row in rows}


async def retire_keys(database: Database, now: datetime) -> None:
    """Delete all keys that have ended. Keys of open tasks stay."""
    while True:
        rows = await database.run(SQL["read_ended"], now=now, batch=_BATCH)
        ended = {(row["tenant"], row["key"]) for row in rows}
        if kept := await free_keys(database.run_with, ended, now):
            await database.run_with(SQL["keep_keys"], {**_columns(kept), "now": now, "look_again": _LOOK_AGAIN_SECONDS})
        if len(rows) < _BATCH:
            return


def _columns(keys: Iterable[Key]) -> dict[str, object]:
    ordered = sorted(keys)
    return {"tenants": [tenant for tenant, _ in ordered], "keys": [key for _, key in ordered]}
