"""Open new connections to the server: names with several addresses, proxies, TLS.

In an event loop the addresses of a name are tried with short delays, each while
the earlier attempts continue, so that a dead address costs a moment and not the
whole call (a small version of RFC 8305).
"""

import asyncio
import contextlib
import functools
import itertools
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from duetime.http1 import blocking
from duetime.http1.blocking import BlockingConnection
from duetime.http1.connection import Connection
from duetime.http1.dial import OpenConnections, connect, tls_context
from duetime.http1.messages import Bounds, ExchangeError, Reason
from duetime.sdk.transport.route import Route
from duetime.sdk.transport.tunnel import open_tunnel, open_tunnel_blocking

#: The delay before the next address is tried, while the earlier attempts continue.
_STAGGER_SECONDS = 0.25

_Address = tuple[socket.AddressFamily, Any]


class Dialler:
    """Opens the connections of an event loop, and knows all that are open."""

    def __init__(self, route: Route, tls: ssl.SSLContext | None, bounds: Bounds) -> None:
        self._route = route
        self._tls = (tls or _default_tls()) if route.address.is_tls else None
        self._open = OpenConnections(bounds)

    async def dial(self, connect_by: float) -> Connection:
        """Open a connection until a time of the loop. Raises ExchangeError."""
        server = self._route.address
        with _explaining(server.host, server.authority):
            async with asyncio.timeout_at(connect_by):
                return await self._open.start(await self._reach(), self._tls, server.host)

    async def _reach(self) -> socket.socket:
        """Return a socket on which the server, or the proxy in front of it, expects the first byte."""
        server, proxy = self._route.address, self._route.proxy
        if proxy is None:
            return await _reach(server.host, server.port)
        with _explaining(proxy.host, f"the proxy {proxy.name}"):
            sock = await _reach(proxy.host, proxy.port)
        if server.is_tls:
            try:
                await open_tunnel(sock, proxy, server.host, server.port)
            except BaseException:
                sock.close()
                raise
        return sock

    async def close(self, some: Iterable[Connection] | None = None) -> None:
        """Close some or all connections and wait until they are closed. Exchanges on them fail."""
        await self._open.close(some)


def dial(route: Route, connect_by: float, bounds: Bounds) -> BlockingConnection:
    """Open a connection for plain code until a monotonic time. Raises ExchangeError."""
    server = route.address
    with _explaining(server.host, server.authority):
        if route.proxy is None:
            sock = blocking.connect(server.host, server.port, connect_by)
        else:
            with _explaining(route.proxy.host, f"the proxy {route.proxy.name}"):
                sock = blocking.connect(route.proxy.host, route.proxy.port, connect_by)
        try:
            return BlockingConnection(_begin_tls(sock, route, connect_by) if server.is_tls else sock, bounds)
        except BaseException:
            sock.close()
            raise


def _begin_tls(sock: socket.socket, route: Route, connect_by: float) -> ssl.SSLSocket:
    server = route.address
    if route.proxy is not None:
        open_tunnel_blocking(sock, route.proxy, server.host, server.port, connect_by)
    sock.settimeout(blocking.seconds_until(connect_by))
    return _default_tls().wrap_socket(sock, server_hostname=server.host.rstrip("."))


@contextlib.contextmanager
def _explaining(host: str, where: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ExchangeError(Reason.CONNECT, f"no connection to {where} in time") from error
    except ssl.SSLCertVerificationError as error:
        raise ExchangeError(Reason.TLS, f"the certificate of {host} is not valid: {error.verify_message}") from error
    # A host name that is not valid raises a ValueError.
    except (OSError, ValueError) as error:
        raise ExchangeError(Reason.CONNECT, f"no connection to {where}: {error}") from error


@functools.cache
def _default_tls() -> ssl.SSLContext:
    return tls_context()


async def _reach(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to one of the host's addresses."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    waiting = _interleave([(info[0], info[4]) for info in found])
    trying: set[asyncio.Task[socket.socket]] = set()
    problems: list[BaseException] = []
    reached: socket.socket | None = None
    try:
        while reached is None:
            if waiting:
                trying.add(asyncio.create_task(connect(*waiting.pop(0))))
            elif not trying:
                raise problems[0] if problems else OSError("the name has no address")
            done, trying = await asyncio.wait(
                trying, timeout=_STAGGER_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                if (problem := each.exception()) is not None:
                    problems.append(problem)
                elif reached is None:
                    reached = each.result()
                else:
                    each.result().close()
    except BaseException:
        if reached is not None:
            reached.close()
        raise
    finally:
        for each in trying:
            each.cancel()
            each.add_done_callback(_close_late)
    return reached


def _close_late(connecting: "asyncio.Task[socket.socket]") -> None:
    """Close the socket of an attempt that was given up: it may have been connected already."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _interleave(addresses: Sequence[_Address]) -> list[_Address]:
    """Alternate the address families, beginning with the one that the system prefers."""
    first = [each for each in addresses if each[0] == addresses[0][0]]
    rest = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for pair in itertools.zip_longest(first, rest) for each in pair if each is not None]
