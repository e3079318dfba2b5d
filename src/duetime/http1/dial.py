"""New connections: TCP to one address, TLS against a host's name."""

import asyncio
import socket
import ssl
from collections.abc import Iterable

from duetime.http1.connection import Connection
from duetime.http1.messages import Bounds

#: Addresses of IPv4 and IPv6.
SocketAddress = tuple[str, int] | tuple[str, int, int, int]

_TLS_CLOSE_SECONDS = 2.0


class OpenConnections:
    """Makes connections from connected sockets, and tracks all that are open."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._open: set[Connection] = set()
        self._one_lost = asyncio.Event()

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None, host: str) -> Connection:
        """Make a connection over the socket, with TLS if there is a context; on failure the socket is closed."""
        connection = Connection(self._lost, self._bounds)
        self._open.add(connection)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                sock=sock,
                ssl=tls,
                server_hostname=None if tls is None else host.rstrip("."),
                ssl_shutdown_timeout=None if tls is None else _TLS_CLOSE_SECONDS,
            )
        except BaseException:
            sock.close()
            self._lost(connection)
            raise
        connection.attach(sock)
        return connection

    async def close(self, some: Iterable[Connection] | None = None) -> None:
        """Close some or all connections, and wait until they are closed; exchanges under way on them fail."""
        closing = self._open.intersection(self._open if some is None else some)
        for connection in closing:
            connection.abort()
        while not self._open.isdisjoint(closing):
            self._one_lost.clear()
            await self._one_lost.wait()

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._one_lost.set()


async def connect(family: int, address: SocketAddress) -> socket.socket:
    """Connect a socket to an address."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """A context with the system's certificate authorities and those in a file; reading them takes a while."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
