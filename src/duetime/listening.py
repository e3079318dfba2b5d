"""The port of a node: binding it, its address, and the HTTP server behind it."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import structlog
import uvicorn

from duetime.api.server.front import Front
from duetime.api.server.protocol import DuetimeProtocol
from duetime.errors import Unavailable, UsageError

log = structlog.get_logger()

BACKLOG = 2048
#: How many connections are accepted in one round of the loop, before open ones are served.
_AT_ONCE = 64
_REST_SECONDS = 0.1


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the node decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def make_protocol(self) -> DuetimeProtocol:
        """The HTTP protocol of one connection, as the server makes it for its own connections."""
        make = cast(Callable[..., DuetimeProtocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def make_server(front: Front) -> Server:
    return Server(
        uvicorn.Config(
            front,
            interface="asgi3",
            http=DuetimeProtocol,
            log_config=None,
            # uvicorn's warnings are about what clients send: clients get an answer, and anybody could fill the log
            # with them.
            log_level="error",
            access_log=False,
            # `api/server/peers.py` knows the trusted proxies.
            proxy_headers=False,
            lifespan="off",
            # The API sets the date of its answers from the database's clock.
            date_header=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        )
    )


class Adopter:
    """Lets a server serve connections that another process or loop has accepted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._adopting: set[asyncio.Task[None]] = set()
        self._is_refusing = False

    def refuse(self) -> None:
        """Tell every further connection that the node is stopping, and close it.

        The server waits until its connections are closed, and does not know of those that come meanwhile.
        """
        self._is_refusing = True

    def adopt(self, connection: socket.socket) -> None:
        adopting = asyncio.create_task(self._adopt(connection))
        self._adopting.add(adopting)
        adopting.add_done_callback(self._adopted)

    async def _adopt(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            make = self._make_refusal if self._is_refusing else self._server.make_protocol
            await loop.connect_accepted_socket(make, connection)
        except BaseException:
            connection.close()
            raise

    def _make_refusal(self) -> asyncio.Protocol:
        return _Refusal(self._server.make_protocol())

    def _adopted(self, adopting: "asyncio.Task[None]") -> None:
        self._adopting.discard(adopting)
        if not adopting.cancelled() and (error := adopting.exception()) is not None:
            # The connection broke before anything was sent.
            log.info("a connection could not be taken over", error=str(error))


class _Refusal(asyncio.Protocol):
    """Answers a connection before it has sent a request."""

    def __init__(self, protocol: DuetimeProtocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        self._protocol.connection_made(connection)
        # It may have been refused already because there are too many.
        if not connection.is_closing() and connection.get_protocol() is self:
            self._protocol.refuse(Unavailable("the node is stopping; ask another one, or this one later"))


class Acceptor:
    """Accepts connections at a listener.

    When a process has no file left for a connection, the loop's own way to accept takes it
    and drops it, or tries again and again.  Here it stays in the queue of the port, the
    loop pauses accepting, and a callback makes room.
    """

    def __init__(
        self,
        listener: socket.socket,
        adopt: Callable[[socket.socket], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._adopt = adopt
        self._on_error = on_error
        self._resting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._go_on()

    def stop(self) -> None:
        if self._resting is None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
        else:
            self._resting.cancel()

    def _go_on(self) -> None:
        self._resting = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(error)
                return
            self._adopt(connection)

    def _rest(self, error: OSError) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._resting = loop.call_later(_REST_SECONDS, self._go_on)
        self._on_error(os.strerror(error.errno or 0))


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything else is started: a port in use is found at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{host} is not an address of this machine: {error.strerror or error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {port} on {host} cannot be used ({error.strerror}): name another with --port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
