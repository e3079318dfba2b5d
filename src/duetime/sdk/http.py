"""A small HTTP/1.1 client for one server: a bounded number of kept connections, no proxies, no redirects.

A request is sent once.  Only where the server closed a kept connection before
it answered, and only with a method that may be repeated, it is sent a second
time by a new connection; all other repeating is up to whoever called, who
knows about idempotency keys.
"""

import asyncio
import ssl
from collections import deque
from urllib.parse import quote

from duetime.sdk.connection import Connection, ExchangeError, TooLargeError, UnansweredError
from duetime.sdk.dial import PATH_CHARACTERS, Dialler, Place
from duetime.sdk.errors import ApiError, ServerUnreachable
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
        self._idle_seconds = idle_seconds
        self._dialler = Dialler(place, tls, max_bytes)
        #: Connections are dialled only when none is kept, so this bounds those that are open too.
        self._places = asyncio.Semaphore(max_connections)
        #: The one that was used last is at the right.
        self._kept: deque[Connection] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
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
        except TooLargeError as error:
            raise ApiError(f"{self._url}: {error}", code="unreadable") from error
        except ExchangeError as error:
            raise ServerUnreachable(f"{self._url} does not answer: {error}") from error

    async def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._kept.clear()
        await self._dialler.close()

    async def close_idle(self) -> None:
        """Close what is kept; what is in use goes on, and the next request opens anew."""
        idle = list(self._kept)
        self._kept.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self._dialler.close(idle)

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
            connection = self._take_kept() or await self._dial(connect_by)
            try:
                answer = await connection.exchange(content, deadline)
            except UnansweredError:
                if connection.exchanges < 2 or method not in _REPEATABLE:
                    raise
                connection = await self._dial(min(deadline, self._loop.time() + self._connect_seconds))
                answer = await connection.exchange(content, deadline)
            self._put_back(connection)
            return answer
        finally:
            self._places.release()

    async def _take_place(self, connect_by: float) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout_at(connect_by):
                await self._places.acquire()
        except TimeoutError as error:
            raise ExchangeError("all connections are in use") from error

    async def _dial(self, connect_by: float) -> Connection:
        connection = await self._dialler.dial(connect_by)
        if self._is_closed:
            connection.abort()
            raise ExchangeError("the client was closed")
        return connection

    # Connections for the next request.

    def _take_kept(self) -> Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.usable_until > self._loop.time() and connection.is_quiet():
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: Connection) -> None:
        if self._is_closed or not connection.can_be_kept():
            connection.abort()
            return
        connection.usable_until = self._loop.time() + self._idle_seconds
        self._kept.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        now = self._loop.time()
        while self._kept and self._kept[0].usable_until <= now:
            self._kept.popleft().close()
        self._sweeper = self._loop.call_later(self._idle_seconds / 2, self._sweep) if self._kept else None
