"""New connections to targets: TCP to a vetted address, TLS against the host's name."""

import asyncio
import os
import socket
import ssl
import time

from duetime.executor.messages import Timings, to_ms
from duetime.executor.resolver import Address
from duetime.http1.connection import Connection
from duetime.http1.dial import OpenConnections, connect, tls_context
from duetime.http1.messages import Bounds, ExchangeError, Reason
from duetime.model.origin import Origin
from duetime.model.task import MAX_RESPONSE_BYTES

CONNECT_TIMEOUT_SECONDS = 10.0
MAX_DRAIN_BYTES = 256 * 1024

_MAX_DIALLED_ADDRESSES = 4
_BOUNDS = Bounds(kept_bytes=MAX_RESPONSE_BYTES, read_bytes=MAX_DRAIN_BYTES)


class Dialler:
    """Makes connections, and tracks all that are open."""

    def __init__(self, *, ca_file: str | None, connect_timeout_seconds: float) -> None:
        self._ca_file = ca_file
        self._connect_timeout_seconds = connect_timeout_seconds
        self._tls: ssl.SSLContext | None = None
        self._open = OpenConnections(_BOUNDS)

    async def close(self) -> None:
        """Close every connection; exchanges under way fail."""
        await self._open.close()

    async def dial(
        self, origin: Origin, addresses: tuple[Address, ...], deadline: float, timings: Timings
    ) -> tuple[Connection, Address]:
        """Open a connection to one of the addresses until a time of the loop; raises ExchangeError."""
        loop = asyncio.get_running_loop()
        begun_at = time.perf_counter()
        connect_by = min(deadline, loop.time() + self._connect_timeout_seconds)
        dialled = addresses[:_MAX_DIALLED_ADDRESSES]
        problem: ExchangeError | None = None
        for place, address in enumerate(dialled):
            # Each address gets a share of the time, so that a dead first one leaves time for the next.
            share = (connect_by - loop.time()) / (len(dialled) - place)
            try:
                sock = await _connect(address, origin.port, loop.time() + share)
            except ExchangeError as error:
                problem = error
                continue
            connected_at = time.perf_counter()
            timings.connect_ms = to_ms(connected_at - begun_at)
            connection = await self._start(sock, origin, connect_by)
            if origin.scheme == "https":
                timings.tls_ms = to_ms(time.perf_counter() - connected_at)
            return connection, address
        assert problem is not None
        raise problem

    async def _start(self, sock: socket.socket, origin: Origin, connect_by: float) -> Connection:
        is_tls = origin.scheme == "https"
        try:
            async with asyncio.timeout_at(connect_by):
                return await self._open.start(sock, self._tls_context() if is_tls else None, origin.host)
        except (OSError, ValueError) as error:
            # This also happens when the certificate authorities could not be read.
            sock.close()
            raise ExchangeError(Reason.TLS if is_tls else Reason.CONNECT, _explain(error, origin.host)) from error

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = tls_context(self._ca_file)
        return self._tls


async def _connect(address: Address, port: int, until: float) -> socket.socket:
    try:
        async with asyncio.timeout_at(until):
            return await connect(address.family, address.at(port))
    except TimeoutError:
        raise ExchangeError(Reason.CONNECT, f"no connection to port {port} in time") from None
    except OSError as error:
        raise ExchangeError(Reason.CONNECT, f"no connection to port {port}: {_words(error)}") from error


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
    # The loop's own message names the address, which the tenant may not learn.
    return os.strerror(error.errno) if error.errno is not None else type(error).__name__
