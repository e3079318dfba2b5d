"""A small HTTP/1.1 client for calls to targets.

It sends each request at most once, to a vetted address, directly (no proxies),
follows no redirect, and always ends by the deadline.  Connections are kept for
a few seconds, apart for each (scheme, host, port, address): a kept one is used
only while the guard still gives its address for the host.
"""

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from duetime.executor.connection import Connection, ExchangeError, Reason
from duetime.executor.egress import Address, Guard, RefusedError, UnresolvableError

CONNECT_TIMEOUT_SECONDS = 10.0
# Shorter than the 5 s after which Node.js, Apache and uvicorn close an idle connection:
# a request that crosses with such a close fails, and costs its task an attempt.
IDLE_SECONDS = 4.0
# A server's own figure counts from its last byte, not from when that reached us.
_IDLE_MARGIN_SECONDS = 1.0
_MAX_IDLE = 512
_MAX_DIALLED_ADDRESSES = 4
_TLS_CLOSE_SECONDS = 2.0


class Origin(NamedTuple):
    """Whom to speak to; `host` is in ASCII, without brackets."""

    scheme: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Request:
    origin: Origin
    #: Head and body, as they are sent.
    content: bytes
    is_head: bool = False


class Timings(msgspec.Struct, omit_defaults=True):
    """Milliseconds; what did not take place is absent."""

    total_ms: float
    reused: bool
    dns_ms: float | None = None
    connect_ms: float | None = None
    tls_ms: float | None = None
    first_byte_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    #: Names in lower case.
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_truncated: bool
    timings: Timings


@dataclass(frozen=True, slots=True)
class NoResponse:
    reason: Reason
    message: str
    timings: Timings


class HttpClient:
    def __init__(
        self,
        guard: Guard,
        *,
        ca_file: str | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._guard = guard
        self._ca_file = ca_file
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_seconds = idle_seconds
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[tuple[Origin, Address], deque[Connection]] = {}
        self._idle_count = 0
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Event | None = None

    async def send(self, request: Request, timeout_seconds: float) -> Response | NoResponse:
        """One call; it is over after `timeout_seconds` whatever happens."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        # The loop's own time is too coarse to measure by: uvloop's stands still within a turn.
        begun_at = time.perf_counter()
        timings = Timings(total_ms=0.0, reused=False)
        try:
            addresses = self._guard.known(request.origin.host)
            if addresses is None:
                addresses = await self._vet(request.origin.host, deadline)
                timings.dns_ms = _ms(time.perf_counter() - begun_at)
            connection, address = self._take_idle(request.origin, addresses, loop.time())
            if connection is None:
                connection, address = await self._dial(request.origin, addresses, deadline, timings)
            timings.reused = connection.exchanges > 0
            await connection.exchange(request.content, is_head=request.is_head, deadline=deadline)
        except RefusedError as error:
            return self._failed(Reason.REFUSED, str(error), timings, begun_at)
        except UnresolvableError as error:
            return self._failed(Reason.RESOLVE, str(error), timings, begun_at)
        except ExchangeError as error:
            message = f"{error} ({timeout_seconds:g} s)" if error.reason is Reason.TIMEOUT else str(error)
            return self._failed(error.reason, message, timings, begun_at)
        timings.first_byte_ms = _ms(connection.first_byte_at - begun_at)
        timings.total_ms = _ms(time.perf_counter() - begun_at)
        response = Response(connection.status, connection.headers, connection.body, connection.is_truncated, timings)
        self._put_back(request.origin, address, connection, loop.time())
        return response

    async def close(self) -> None:
        """Close every connection and the guard; calls under way fail."""
        self._guard.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        self._idle_count = 0
        if self._open:
            self._all_lost = asyncio.Event()
            for connection in list(self._open):
                connection.abort()
            await self._all_lost.wait()

    @staticmethod
    def _failed(reason: Reason, message: str, timings: Timings, begun_at: float) -> NoResponse:
        timings.total_ms = _ms(time.perf_counter() - begun_at)
        return NoResponse(reason, message, timings)

    async def _vet(self, host: str, deadline: float) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._guard.vet(host)
        except TimeoutError:
            raise ExchangeError(Reason.TIMEOUT, f"the name {host} was not resolved in time") from None

    # Kept connections.

    def _take_idle(
        self, origin: Origin, addresses: tuple[Address, ...], now: float
    ) -> tuple[Connection, Address] | tuple[None, Address]:
        for address in addresses:
            kept = self._idle.get((origin, address))
            while kept:
                # The last one in was used last, so it is the least likely to have been closed.
                connection = kept.pop()
                self._idle_count -= 1
                if connection.usable_until > now and connection.is_quiet():
                    return connection, address
                connection.close()
        return None, addresses[0]

    def _put_back(self, origin: Origin, address: Address, connection: Connection, now: float) -> None:
        idle_seconds = self._idle_seconds
        promised = connection.keep_alive_seconds()
        if promised is not None:
            idle_seconds = min(idle_seconds, promised - _IDLE_MARGIN_SECONDS)
        if idle_seconds <= 0 or self._idle_count >= _MAX_IDLE or not connection.can_be_kept():
            connection.abort()
            return
        connection.usable_until = now + idle_seconds
        kept = self._idle.get((origin, address))
        if kept is None:
            kept = self._idle[origin, address] = deque()
        kept.append(connection)
        self._idle_count += 1
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._idle_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for key, kept in list(self._idle.items()):
            while kept and kept[0].usable_until <= now:
                self._idle_count -= 1
                kept.popleft().close()
            if not kept:
                del self._idle[key]
        self._sweeper = loop.call_later(self._idle_seconds / 2, self._sweep) if self._idle else None

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._all_lost is not None and not self._open:
            self._all_lost.set()

    # New connections.

    async def _dial(
        self, origin: Origin, addresses: tuple[Address, ...], deadline: float, timings: Timings
    ) -> tuple[Connection, Address]:
        loop = asyncio.get_running_loop()
        begun_at = time.perf_counter()
        connect_by = min(deadline, loop.time() + self._connect_timeout_seconds)
        dialled = addresses[:_MAX_DIALLED_ADDRESSES]
        problem: ExchangeError | None = None
        for place, address in enumerate(dialled):
            # Each address gets its share, so that a dead first one leaves time for the next.
            share = (connect_by - loop.time()) / (len(dialled) - place)
            try:
                sock = await _connect(address, origin.port, loop.time() + share)
            except ExchangeError as error:
                problem = error
                continue
            connected_at = time.perf_counter()
            timings.connect_ms = _ms(connected_at - begun_at)
            connection = await self._wrap(sock, origin, connect_by)
            if origin.scheme == "https":
                timings.tls_ms = _ms(time.perf_counter() - connected_at)
            return connection, address
        assert problem is not None
        raise problem

    async def _wrap(self, sock: socket.socket, origin: Origin, connect_by: float) -> Connection:
        connection = Connection(self._lost)
        self._open.add(connection)
        try:
            async with asyncio.timeout_at(connect_by):
                await self._start(connection, sock, origin)
        except BaseException as error:
            sock.close()
            self._lost(connection)
            if not isinstance(error, OSError | ValueError):
                raise
            reason = Reason.TLS if origin.scheme == "https" else Reason.CONNECT
            raise ExchangeError(reason, _explain(error, origin.host)) from error
        connection.attach(sock)
        return connection

    async def _start(self, connection: Connection, sock: socket.socket, origin: Origin) -> None:
        loop = asyncio.get_running_loop()
        if origin.scheme == "https":
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._tls_context(),
                server_hostname=origin.host.rstrip("."),
                ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
            )
        else:
            await loop.create_connection(lambda: connection, sock=sock)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self._ca_file is not None:
                self._tls.load_verify_locations(cafile=self._ca_file)
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


async def _connect(address: Address, port: int, until: float) -> socket.socket:
    try:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
    except OSError as error:
        raise ExchangeError(Reason.CONNECT, f"no socket: {_words(error)}") from error
    try:
        sock.setblocking(False)
        async with asyncio.timeout_at(until):
            await asyncio.get_running_loop().sock_connect(sock, address.at(port))
    except BaseException as error:
        sock.close()
        if isinstance(error, TimeoutError):
            raise ExchangeError(Reason.CONNECT, f"no connection to port {port} in time") from None
        if isinstance(error, OSError):
            raise ExchangeError(Reason.CONNECT, f"no connection to port {port}: {_words(error)}") from error
        raise
    return sock


def _explain(error: OSError | ValueError, host: str) -> str:
    match error:
        case TimeoutError():
            return f"{host} did not complete the connection in time"
        case ssl.SSLCertVerificationError():
            return f"the certificate of {host} is not valid: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS with {host}: {error.reason or error}"
        case OSError():
            return f"no connection to {host}: {_words(error)}"
        case _:
            return f"no connection to {host}: {error}"


def _words(error: OSError) -> str:
    # The loop's own message names the address, which is not the tenant's to know.
    return os.strerror(error.errno) if error.errno is not None else type(error).__name__


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
