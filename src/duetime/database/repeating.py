"""Repeat after a doubt: the only place that repeats a statement whose first copy may have been carried out.

Such a statement must say why a late copy does no harm (`Database.run` refuses the
others), or look for what the first copy left (`run_once` does so by itself).

An answer from a row that existed before waits for the synchronous standbys, if there are
any: the commit that made the row may have been cut off while it waited for them, and
then the row is visible although no standby has it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import FailingOver, Unavailable, Unknown

SQL = load(__package__, "repeating.sql")
_PAUSE_SECONDS = 0.1

Result = TypeVar("Result")


async def repeat(
    work: Callable[[bool], Awaitable[Result]], *, tries: int, lost: str, was_in_doubt: bool = False
) -> Result:
    """Repeat the work until its result is known; `work` is told whether an earlier try is in doubt.

    Raises `Unknown` with the text `lost`; `Unavailable` only as long as nothing is in doubt.
    """
    cause: Unavailable | None = None
    for turn in range(tries):
        if turn:
            await asyncio.sleep(_PAUSE_SECONDS * 2 ** (turn - 1))
        try:
            return await work(was_in_doubt)
        except Unavailable as error:
            # A try that did not begin is harmless, but an earlier try may still be in doubt.
            if not isinstance(error, Unknown) and not was_in_doubt:
                raise
            was_in_doubt, cause = True, error
            if isinstance(error, FailingOver):
                # This database runs no statement any more.
                break
    raise Unknown(lost) from cause


async def wait_for_standbys(database: Database) -> None:
    """Wait until what was committed so far is on the synchronous standbys: before an answer from an existing row."""
    await database.run(SQL["wait_for_standbys"])
