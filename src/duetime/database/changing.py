"""Changes that are never carried out late: the statement and its COMMIT are two messages.

A statement that commits itself may be carried out after its caller gave it up: its
bytes are still in a buffer, or the server's process stands still.  If the statement was
repeated in the meantime, and others worked with the result, the late copy undoes what
they did.

Here the node sends COMMIT only after it has received the statement's answer.  If the
node gives up before that, it drops the line, and the server rolls back, however late
it reads the statement.  If the node gives up after that, it looks for the id that the
transaction stored (`find_or_give_up`): this waits until the transaction has ended, says
whether it was committed, and makes sure that no copy is committed afterwards.  So a
change is repeated only when it is certain that it was not made.  While a COMMIT is
late, its transaction holds the locks of the rows that it changed, so no caller sees a
newer state of them.

Each change by a statement that commits itself declares why a late copy of it does no
harm (`Statement.copies`).
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg

from duetime.database.pool import DEFAULT_TIMEOUT_SECONDS, Database
from duetime.database.statements import Statement, load
from duetime.errors import DuetimeError, FailingOver, Unavailable, Unknown
from duetime.ids import draw_bits, just_before, make_id

SQL = load(__package__, "changing.sql")
#: How often a change is tried if its line breaks before its COMMIT.
_TRIES = 4
_PAUSE_SECONDS = 0.1
_NOT_MADE = "the connection to the database broke; nothing was done"
_IN_DOUBT = "the connection to the database broke; it may have been done: look before asking again"
#: Ids are looked for within seconds.
_KEEP_MS = 3_600_000

Result = TypeVar("Result")
Work = Callable[[asyncpg.Connection], Awaitable[Result]]


async def run_once(
    database: Database, statement: Statement, *, timeout: float = DEFAULT_TIMEOUT_SECONDS, **parameters: object
) -> list[asyncpg.Record]:
    """Run one statement in a transaction of its own, once or not at all; see `transact`."""
    return await run_once_with(database, statement, parameters, timeout)


async def run_once_with(
    database: Database, statement: Statement, parameters: dict[str, object], timeout: float = DEFAULT_TIMEOUT_SECONDS
) -> list[asyncpg.Record]:
    """Like `run_once`, with the parameters as a mapping."""
    return await transact(
        database, lambda connection: database.run_in(connection, statement, parameters, timeout), timeout=timeout
    )


async def transact(database: Database, work: Work[Result], *, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Result:
    """Do the work in `changing`; repeat it after a transaction that was rolled back."""
    for turn in range(_TRIES):
        try:
            async with changing(database, timeout=timeout) as connection:
                result = await work(connection)
        except _NotMadeError:
            if turn == _TRIES - 1:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return result
    raise AssertionError("unreachable")


@asynccontextmanager
async def changing(
    database: Database, *, timeout: float = DEFAULT_TIMEOUT_SECONDS
) -> AsyncIterator[asyncpg.Connection]:
    """A transaction in several messages.

    `Unavailable` means that nothing was done and nothing will be; `Unknown` that the
    database did not say in time whether it was committed.
    """
    operation = make_id(database.clock.now_ms(), draw_bits(42), 0)
    commits = False
    try:
        async with database.connection(timeout) as connection:
            try:
                await connection.execute(SQL["begin"].spelled(id=str(operation)).sql, timeout=timeout)
                yield connection
            except (asyncpg.PostgresError, DuetimeError):
                if not connection.is_closed():
                    await connection.execute(SQL["rollback"].sql, timeout=timeout)
                raise
            commits = True
            await connection.execute(SQL["commit"].sql, timeout=timeout)
    except Unknown as error:
        if not commits or not await _was_made(database, operation, timeout):
            raise _NotMadeError(_NOT_MADE) from error


class _NotMadeError(Unavailable):
    """The line broke, and nothing was done."""


async def retire_operations(database: Database) -> None:
    """Delete the ids that nobody looks for any more."""
    await database.run(SQL["retire_operations"], before=just_before(database.clock.now_ms() - _KEEP_MS))


async def _was_made(database: Database, operation: uuid.UUID, timeout: float) -> bool:
    """Whether its transaction was committed. False: it was not, and never will be. Raises Unknown."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    while True:
        try:
            [row] = await database.run(
                SQL["find_or_give_up"], id=operation, timeout=max(until - loop.time(), _PAUSE_SECONDS)
            )
        except Unavailable as error:
            # When the history is over, this database runs no statement any more.
            if isinstance(error, FailingOver) or loop.time() + _PAUSE_SECONDS >= until:
                raise Unknown(_IN_DOUBT) from error
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return not row["is_given_up"]
