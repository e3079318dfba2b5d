"""A small HTTP/1.1 client for one server: a bounded number of kept connections, no proxies, no redirects.

A request is sent once.  Only where the server closed a kept connection before
it answered, and only with a method that may be repeated, it is sent a second
time by a new connection; all other repeating is up to whoever called, who
knows about idempotency keys.
"""

import asyncio
import functools
import ssl
from urllib.parse import quote

from duetime.http1.connection import Connection
from duetime.http1.deadlines import Deadlines
from duetime.http1.kept import KeptConnections
from duetime.http1.messages import ExchangeError, Reason, UnansweredError
from duetime.sdk.dial import PATH_CHARACTERS, Dialler, Place
from duetime.sdk.errors import ApiError, ServerUnreachable
from duetime.sdk.headers import Headers
from duetime.sdk.wire import TENANT_HEADER, Answer

#: For a place among the connections, the name, TCP and TLS together.
CONNECT_SECONDS = 5.0
MAX_CONNECTIONS = 100
#: Well below what servers and what stands before them allow an idle connection.
IDLE_SECONDS = 15.0
#: Four times what a lease of 1,000 tasks with the largest payloads has.
MAX_BYTES = 256 * 1024 * 1024

_REPEATABLE = frozenset(("GET", "PUT", "DELETE"))


class HttpClient:
    """For one base URL and one key; made within the loop that it is used in."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        tenant: str | None = None,
        tls: ssl.SSLContext | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._url = url
        place = Place.read(url)
        self._prefix = place.prefix
        self._fixed = (
            f" HTTP/1.1\r\nHost: {place.authority}\r\nUser-Agent: duetime\r\nAccept: application/json\r\n"
            f"Accept-Encoding: identity\r\nAuthorization: Bearer {key}\r\n"
        )
        if tenant is not None:
            self._fixed += f"{TENANT_HEADER}: {tenant}\r\n"
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._dialler = Dialler(place, tls, max_bytes)
        #: Connections are dialled only when none is kept, so this bounds those that are open too.
        self._places = asyncio.Semaphore(max_connections)
        self._kept: KeptConnections[None] = KeptConnections(self._loop, idle_seconds, max_connections)
        self._deadlines: Deadlines[Connection] = Deadlines(self._loop, Connection.time_out)
        self._is_closed = False

    async def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float, idempotency_key: str | None = None
    ) -> Answer:
        """The answer, whatever its status.

        Raises ServerUnreachable, or ApiError for an answer that is too large.
        """
        content = self._write(method, path, body, idempotency_key)
        try:
            return await self._exchange(method, content, self._loop.time() + timeout)
        except ExchangeError as error:
            raise ServerUnreachable(f"{self._url} does not answer: {error}") from error

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._is_closed = True
        self._kept.clear()
        await self._dialler.close()
        self._deadlines.close()

    async def close_idle(self) -> None:
        """Close what is kept; what is in use goes on, and the next request opens anew."""
        await self._dialler.close(self._kept.clear())

    def _write(self, method: str, path: str, body: bytes | None, idempotency_key: str | None) -> bytes:
        if not path.isascii() or not path.isprintable() or " " in path:
            path = quote(path, safe=PATH_CHARACTERS)
        head = f"{method} {self._prefix}{path}{self._fixed}"
        if idempotency_key is not None:
            if not idempotency_key.isascii() or not idempotency_key.isprintable():
                raise ValueError("an idempotency key for a request has printable ASCII characters only")
            head += f"Idempotency-Key: {idempotency_key}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            return head.encode("ascii") + body
        return (head + ("\r\n" if method == "GET" else "Content-Length: 0\r\n\r\n")).encode("ascii")

    async def _exchange(self, method: str, content: bytes, deadline: float) -> Answer:
        connect_by = min(deadline, self._loop.time() + self._connect_seconds)
        await self._take_place(connect_by)
        try:
            connection = self._kept.take(None) or await self._dial(connect_by)
            try:
                answer = await self._ask(connection, content, deadline)
            except UnansweredError:
                if connection.exchanges < 2 or method not in _REPEATABLE:
                    raise
                connection = await self._dial(min(deadline, self._loop.time() + self._connect_seconds))
                answer = await self._ask(connection, content, deadline)
            if self._is_closed:
                connection.abort()
            else:
                self._kept.put_back(None, connection)
            return answer
        finally:
            self._places.release()

    async def _ask(self, connection: Connection, content: bytes, deadline: float) -> Answer:
        """Whoever stops waiting breaks the connection: what still comes must not become somebody else's answer."""
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
        if connection.is_truncated:
            connection.abort()
            raise ApiError(f"{self._url}: the answer is larger than {self._max_bytes // 1024:,} KiB", code="unreadable")
        return Answer(connection.status, Headers(connection.headers), connection.body)

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
