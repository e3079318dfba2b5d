"""A small HTTP/1.1 client for one server in an event loop: a bounded number of kept connections, no redirects.

A request is sent once.  It is sent a second time, over a new connection, only if
the server closed a kept connection before it answered and the method may be
repeated. All other retries are up to the caller, who knows about idempotency keys.
"""

import asyncio
import functools
import ssl

from duetime.http1.connection import Connection
from duetime.http1.deadlines import Deadlines
from duetime.http1.kept import KeptConnections
from duetime.http1.messages import Bounds, ExchangeError, Reason, UnansweredError
from duetime.sdk.calls.call import Answer
from duetime.sdk.transport.dial import Dialler
from duetime.sdk.transport.route import CONNECT_SECONDS, IDLE_SECONDS, MAX_BYTES, Route, failure_of, may_be_repeated

MAX_CONNECTIONS = 100


class HttpClient:
    """Has to be created in the loop that uses it."""

    def __init__(
        self,
        route: Route,
        *,
        tls: ssl.SSLContext | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._route = route
        self._connect_seconds = connect_seconds
        self._dialler = Dialler(route, tls, Bounds(kept_bytes=max_bytes, read_bytes=max_bytes))
        #: A connection is opened only when none is kept, so this bounds the open ones too.
        self._places = asyncio.Semaphore(max_connections)
        self._kept: KeptConnections[None] = KeptConnections(self._loop, idle_seconds, max_connections)
        self._deadlines: Deadlines[Connection] = Deadlines(self._loop, Connection.time_out)
        self._is_closed = False

    async def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float, idempotency_key: str | None = None
    ) -> Answer:
        """Return the answer, whatever its status.

        Raises ServerUnreachable, or ApiError for an answer that is too large.
        """
        content = self._route.write(method, path, body, idempotency_key)
        try:
            return await self._exchange(method, content, self._loop.time() + timeout)
        except ExchangeError as error:
            raise failure_of(f"{self._route.name} does not answer", error) from error

    async def close(self) -> None:
        """Close every connection. Requests in progress fail."""
        self._is_closed = True
        self._kept.clear()
        await self._dialler.close()
        self._deadlines.close()

    async def close_idle(self) -> None:
        """Close idle connections. Those in use continue, and the next request opens a new one."""
        await self._dialler.close(self._kept.clear())

    async def _exchange(self, method: str, content: bytes, deadline: float) -> Answer:
        connect_by = min(deadline, self._loop.time() + self._connect_seconds)
        await self._take_place(connect_by)
        try:
            connection = self._kept.take(None) or await self._dial(connect_by)
            try:
                await self._ask(connection, content, deadline)
            except UnansweredError:
                if not may_be_repeated(method, connection.exchanges):
                    raise
                connection = await self._dial(min(deadline, self._loop.time() + self._connect_seconds))
                await self._ask(connection, content, deadline)
            try:
                return self._route.read(connection)
            finally:
                self._put_back(connection)
        finally:
            self._places.release()

    async def _ask(self, connection: Connection, content: bytes, deadline: float) -> None:
        """If a caller stops waiting, close the connection: the rest of its answer must not be read as another one's."""
        answered: asyncio.Future[None] = self._loop.create_future()
        self._deadlines.add(connection, deadline)
        connection.exchange(content, functools.partial(_settle, answered))
        try:
            await answered
        except BaseException:
            connection.leave()
            raise
        finally:
            self._deadlines.discard(connection)

    def _put_back(self, connection: Connection) -> None:
        if self._is_closed:
            connection.abort()
        else:
            self._kept.put_back(None, connection)

    async def _take_place(self, connect_by: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout_at(connect_by):
                await self._places.acquire()
        except TimeoutError as error:
            raise ExchangeError(Reason.TIMEOUT, "all connections are in use") from error

    async def _dial(self, connect_by: float) -> Connection:
        connection = await self._dialler.dial(connect_by)
        if self._is_closed:
            connection.abort()
            raise ExchangeError(Reason.CLOSED, "the client was closed")
        return connection


def _settle(answered: asyncio.Future[None], problem: ExchangeError | None) -> None:
    if answered.done():
        return
    if problem is None:
        answered.set_result(None)
    else:
        answered.set_exception(problem)
