"""Access to PostgreSQL: a few connections, and a time limit for every call.

A call that could not begin raises `Unavailable`: nothing was done.  A call
whose connection broke or whose time ran out raises `Unknown`: it may have been
done, and the caller decides how to find out.  Errors about the data itself
pass through as asyncpg raises them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import asyncpg

from duetime.clock import DatabaseClock
from duetime.database.connections import Connections
from duetime.database.driver import DroppedConnection, hasten_arrays
from duetime.database.lineage import READ_ONLY, Answer, Lineage, TimelinePosition, failing_over
from duetime.database.settings import PLANNER_SETTINGS
from duetime.database.statements import Statement
from duetime.errors import FailingOver, Unavailable, Unknown

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
#: The server refused the statement for a reason of its own; the statement was rolled back.
_REFUSED = (
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
)
DEFAULT_TIMEOUT_SECONDS = 10.0


class Database:
    """One PostgreSQL database, in one history of its writes: statements, its clock, and nothing else.

    When the history is over (`lineage`), no statement runs any more, not even on the server
    that continues: users of this object know things that may not exist there.
    """

    def __init__(self, url: str, connections: Connections, clock: DatabaseClock, lineage: Lineage) -> None:
        self.url = url
        self._connections = connections
        self._lineage = lineage
        self.clock = clock
        #: Set when the history is over.
        self.is_over = asyncio.Event()

    @classmethod
    async def open(
        cls, dsn: str, *, size: int = 4, clock: DatabaseClock | None = None, after: TimelinePosition | None = None
    ) -> "Database":
        """Connect. `after` is where an earlier history ended; servers on older timelines are not used."""
        hasten_arrays()

        async def connect(timeout: float) -> asyncpg.Connection:
            connection = await asyncpg.connect(
                dsn,
                timeout=timeout,
                command_timeout=60.0,
                connection_class=DroppedConnection,
                # Needed with a single address too: the server may have been demoted, or made read-only for a while.
                target_session_attrs="read-write",
                # The statements are always the same.
                max_cached_statement_lifetime=0,
                server_settings={**PLANNER_SETTINGS, "application_name": "duetime"},
            )
            try:
                await database._ask(connection, timeout)
            except BaseException:
                _abandon(connection)
                raise
            return connection

        database = cls(dsn, Connections(connect, size), clock or DatabaseClock(), Lineage(after))
        try:
            await database.read_clock()
        except ValueError as error:
            raise Unavailable("the database does not answer: its address cannot be read") from error
        return database

    async def follow(self) -> "Database":
        """Open the database in the history that continues."""
        return await Database.open(self.url, size=self._connections.size, after=self.place)

    def abandon(self) -> None:
        """Run no statement any more, and stop those that run."""
        self._connections.cut(failing_over)

    async def run(
        self, statement: Statement, *, timeout: float = DEFAULT_TIMEOUT_SECONDS, **parameters: object
    ) -> list[asyncpg.Record]:
        """Run one named statement; it is committed when this returns."""
        if not statement.commits_itself:
            raise _unsafe(statement)
        return await self.fetch(statement.sql, *statement.arguments(parameters), timeout=timeout)

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> list[asyncpg.Record]:
        """Like `run`, with the parameters as a mapping."""
        if not statement.commits_itself:
            raise _unsafe(statement)
        return await self.fetch(statement.sql, *statement.arguments(parameters), timeout=timeout)

    async def run_in(
        self,
        connection: asyncpg.Connection,
        statement: Statement,
        parameters: dict[str, object],
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> list[asyncpg.Record]:
        """Run one named statement in a transaction of the caller's."""
        rows: list[asyncpg.Record] = await connection.fetch(
            statement.sql, *statement.arguments(parameters), timeout=timeout
        )
        return rows

    async def fetch(
        self, sql: str, *arguments: object, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> list[asyncpg.Record]:
        connection = await self._take(timeout)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *arguments, timeout=timeout)
        except BaseException as error:
            if (judged := self._judge(connection, error)) is None:
                raise
            raise judged from error
        finally:
            self._connections.give_back(connection)
        return rows

    async def execute(self, sql: str, *arguments: object, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> str:
        async with self.connection(timeout) as connection:
            status: str = await connection.execute(sql, *arguments, timeout=timeout)
            return status

    @asynccontextmanager
    async def connection(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> AsyncIterator[asyncpg.Connection]:
        """A connection for more than one statement; if it broke or stalled, it is thrown away."""
        connection = await self._take(timeout)
        try:
            yield connection
        except BaseException as error:
            if (judged := self._judge(connection, error)) is None:
                raise
            raise judged from error
        finally:
            self._connections.give_back(connection)

    async def _take(self, timeout: float) -> asyncpg.Connection:
        try:
            return await self._connections.take(timeout)
        except (TimeoutError, asyncpg.PostgresError, *_AWAY) as error:
            raise _unavailable(error) from error

    async def warm_one(self, statements: Iterable[Statement], timeout: float = DEFAULT_TIMEOUT_SECONDS) -> bool:
        """Let one more connection run these statements without any effect. False: all connections have.

        On tables with many partitions, the first run of a statement on a connection takes
        PostgreSQL about 20 ms, and several times that under load.
        """

        async def warm(connection: asyncpg.Connection) -> None:
            try:
                for statement in statements:
                    await connection.fetch(statement.sql, *[None] * len(statement.parameters), timeout=timeout)
            except BaseException as error:
                if (judged := self._judge(connection, error)) is None:
                    raise
                raise judged from error

        try:
            return await self._connections.warm_one(warm, timeout)
        except (TimeoutError, asyncpg.PostgresError, *_AWAY) as error:
            raise _unavailable(error) from error

    async def read_clock(self, timeout: float = 5.0) -> int:
        """Ask the database for its time. Return by how many µs its clock jumped."""
        async with self.connection(timeout) as connection:
            asked = self.clock.ask()
            answer = await self._ask(connection, timeout)
            return self.clock.observe(answer.now_us, asked)

    @property
    def place(self) -> TimelinePosition | None:
        """The newest position in the history of writes that this process knows; None: servers do not tell."""
        return self._lineage.newest

    def hear(self, newest: TimelinePosition) -> None:
        """Note that another node knows a server at this position."""
        known = self._lineage.newest
        if known is not None and known.is_before(newest):
            self._end(newest)

    async def _ask(self, connection: asyncpg.Connection, timeout: float) -> Answer:
        """Ask the server for its time and position. End the history if the server belongs to another one."""
        try:
            return await self._lineage.ask(connection, timeout)
        except FailingOver:
            self._end(None)
            raise

    def _end(self, newest: TimelinePosition | None) -> None:
        if newest is not None:
            self._lineage.end(newest)
        self.abandon()
        self.is_over.set()

    async def close(self) -> None:
        await self._connections.close(timeout=5.0)

    def _judge(self, connection: asyncpg.Connection, error: BaseException) -> Unavailable | None:
        """What an error during a call means. A connection whose statement may still run is thrown away."""
        if isinstance(error, (TimeoutError, *_AWAY)):
            _abandon(connection)
            return Unknown(f"the connection to the database broke: {error or type(error).__name__}")
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            # Open sessions stay read-only even when the server no longer is.
            self._connections.discard_all()
            return Unavailable(READ_ONLY)
        if isinstance(error, _REFUSED):
            return Unavailable(f"the database refused: {error}")
        if not isinstance(error, asyncpg.PostgresError):
            _abandon(connection)
        return None


def _unsafe(statement: Statement) -> TypeError:
    return TypeError(
        f"{statement.name} may be carried out late, and does not say why that does no harm: see changing.py"
    )


def _unavailable(error: Exception) -> Unavailable:
    """Why there was no connection."""
    if isinstance(error, asyncpg.exceptions.TargetServerAttributeNotMatched):
        return Unavailable(READ_ONLY)
    return Unavailable(f"the database does not answer: {error or type(error).__name__}")


def _abandon(connection: asyncpg.Connection) -> None:
    """Close a connection that was cancelled or stalled, without asking the server: its answer might never come."""
    if not connection.is_closed():
        connection.terminate()
