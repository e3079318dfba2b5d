"""New connections to targets: TCP to a vetted address, TLS against the host's name."""

import asyncio
import os
import socket
import ssl
import time

from duetime.executor.connection import Connection, ExchangeError, Reason
from duetime.executor.messages import Timings, to_ms
from duetime.executor.resolver import Address
from duetime.model.origin import Origin

CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_DIALLED_ADDRESSES = 4
_TLS_CLOSE_SECONDS = 2.0


class Dialler:
    """Makes connections, and knows all that are open."""

    def __init__(self, *, ca_file: str | None, connect_timeout_seconds: float) -> None:
        self._ca_file = ca_file
        self._connect_timeout_seconds = connect_timeout_seconds
        self._tls: ssl.SSLContext | None = None
        self._open: set[Connection] = set()
        self._all_lost: asyncio.Event | None = None

    async def close(self) -> None:
        """Close every connection; exchanges under way fail."""
        if self._open:
            self._all_lost = asyncio.Event()
            for connection in list(self._open):
                connection.abort()
            await self._all_lost.wait()

    async def dial(
        self, origin: Origin, addresses: tuple[Address, ...], deadline: float, timings: Timings
    ) -> tuple[Connection, Address]:
        """A new connection to one of the addresses until a time of the loop; raises ExchangeError."""
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
            timings.connect_ms = to_ms(connected_at - begun_at)
            connection = await self._wrap(sock, origin, connect_by)
            if origin.scheme == "https":
                timings.tls_ms = to_ms(time.perf_counter() - connected_at)
            return connection, address
        assert problem is not None
        raise problem

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._all_lost is not None and not self._open:
            self._all_lost.set()

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
