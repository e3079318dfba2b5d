"""The port of a node: binding it, its address, and the HTTP server behind it."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn

from duetime.api.app import App
from duetime.api.protocol import DuetimeProtocol
from duetime.errors import UsageError


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: stopping is the node's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def make_protocol(self) -> asyncio.Protocol:
        """What speaks HTTP on one connection, as the server makes it for its own."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def make_server(app: App) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=DuetimeProtocol,
            log_config=None,
            # Its warnings are about what clients send: they get an answer, and anybody could fill the log with them.
            log_level="error",
            access_log=False,
            # `api/peers.py` knows which proxies are believed.
            proxy_headers=False,
            lifespan="off",
            # The API dates its answers by the database's clock.
            date_header=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
            backlog=2048,
        )
    )


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
