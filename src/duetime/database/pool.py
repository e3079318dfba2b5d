"""How we speak to PostgreSQL: a few connections, a time limit on every call.

A call that could not begin raises `Unavailable`: nothing was done.  A call
whose connection broke or whose time ran out raises `Unknown`: it may have been
done, and the caller decides how to find out.  Errors about the data itself
pass through as asyncpg raises them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from duetime.clock import DatabaseClock
from duetime.database.settings import PLANNER_SETTINGS
from duetime.database.statements import Statement
from duetime.errors import Unavailable, Unknown

_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.exceptions.IdleInTransactionSessionTimeoutError,
    OSError,
    EOFError,
)
#: The server refused the statement for reasons of its own; it was rolled back.
_REFUSED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
)
DEFAULT_TIMEOUT_SECONDS = 10.0


class Database:
    """One PostgreSQL database: statements, its clock, and nothing else."""

    def __init__(self, pool: asyncpg.Pool, clock: DatabaseClock) -> None:
        self._pool = pool
        self.clock = clock

    @classmethod
    async def open(cls, dsn: str, *, size: int = 4, clock: DatabaseClock | None = None) -> "Database":
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=0,
                max_size=size,
                timeout=10.0,
                command_timeout=60.0,
                max_inactive_connection_lifetime=0,
                server_settings={**PLANNER_SETTINGS, "application_name": "duetime"},
                # Nothing of ours changes a session, so there is nothing to reset.
                reset=_keep_session,
            )
        except (TimeoutError, *_AWAY) as error:
            raise Unavailable(f"the database does not answer: {error or type(error).__name__}") from error
        database = cls(pool, clock or DatabaseClock())
        await database.read_clock()
        return database

    async def run(
        self, statement: Statement, *, timeout: float = DEFAULT_TIMEOUT_SECONDS, **parameters: object
    ) -> list[asyncpg.Record]:
        """Run one named statement, committed when it returns."""
        return await self.fetch(statement.sql, *statement.arguments(parameters), timeout=timeout)

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> list[asyncpg.Record]:
        """The same, with the parameters as a mapping."""
        return await self.fetch(statement.sql, *statement.arguments(parameters), timeout=timeout)

    async def fetch(
        self, sql: str, *arguments: object, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> list[asyncpg.Record]:
        async with self.connection(timeout) as connection:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *arguments, timeout=timeout)
            return rows

    async def execute(self, sql: str, *arguments: object, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> str:
        async with self.connection(timeout) as connection:
            status: str = await connection.execute(sql, *arguments, timeout=timeout)
            return status

    @asynccontextmanager
    async def connection(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> AsyncIterator[asyncpg.Connection]:
        """A connection of the pool; one that broke or stalled is thrown away."""
        try:
            connection = await self._pool.acquire(timeout=timeout)
        except (TimeoutError, asyncpg.PostgresError, *_AWAY) as error:
            raise Unavailable(f"the database does not answer: {error or type(error).__name__}") from error
        is_usable = False
        try:
            yield connection
            is_usable = True
        except (TimeoutError, *_AWAY) as error:
            raise Unknown(f"the connection to the database broke: {error or type(error).__name__}") from error
        except _REFUSED as error:
            is_usable = True
            raise Unavailable(f"the database refused: {error}") from error
        except asyncpg.PostgresError:
            is_usable = True
            raise
        finally:
            if not is_usable:
                _abandon(connection)
            try:
                await asyncio.shield(self._pool.release(connection, timeout=5.0))
            except (TimeoutError, *_AWAY):
                # The line broke just now, and the pool took its place back by itself.  What
                # was answered before that stands.
                pass

    async def read_clock(self, timeout: float = 5.0) -> int:
        """Ask the database for its time; returns by how many µs its clock jumped."""
        rows = await self.fetch(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us", timeout=timeout
        )
        return self.clock.observe(rows[0]["now_us"])

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), 5.0)
        except (TimeoutError, *_AWAY):
            self._pool.terminate()


def _abandon(connection: asyncpg.Connection) -> None:
    """Cancelled or stalled: asking the server politely could take for ever."""
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        # It broke by itself, and the pool has thrown it away already.
        return


async def _keep_session(connection: asyncpg.Connection) -> None:
    """Leave the session as it is."""
