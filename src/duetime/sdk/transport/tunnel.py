"""A tunnel through a proxy to a server with TLS: CONNECT, and then TLS on the same socket."""

import asyncio
import socket

from duetime.http1.answers import AnswerReader
from duetime.http1.blocking import BlockingConnection
from duetime.http1.messages import Bounds, ExchangeError, Reason
from duetime.sdk.transport.proxies import Proxy, ProxyRefusedError

_BOUNDS = Bounds(kept_bytes=0, read_bytes=0)
_PIECE_BYTES = 1 << 14


async def open_tunnel(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Open a tunnel in an event loop. Raises ExchangeError or OSError."""
    loop = asyncio.get_running_loop()
    reader = AnswerReader(_BOUNDS)
    # As with HEAD, there is no body.
    reader.begin(is_head=True)
    await loop.sock_sendall(sock, _request(proxy, host, port))
    while reader.is_waiting:
        data = await loop.sock_recv(sock, _PIECE_BYTES)
        if data:
            reader.feed(data)
        else:
            reader.end_by_close(None)
    if reader.problem is not None:
        raise _no_tunnel(proxy, reader.problem) from reader.problem
    _check(reader, proxy)


def open_tunnel_blocking(sock: socket.socket, proxy: Proxy, host: str, port: int, until: float) -> None:
    """Open a tunnel in plain code, until a monotonic time. Raises ExchangeError."""
    connection = BlockingConnection(sock, _BOUNDS)
    try:
        connection.exchange(_request(proxy, host, port), until, is_head=True)
    except ExchangeError as problem:
        raise _no_tunnel(proxy, problem) from problem
    _check(connection, proxy)


def _request(proxy: Proxy, host: str, port: int) -> bytes:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: duetime\r\n{proxy.authorization}\r\n"
    return head.encode("ascii")


def _check(answered: AnswerReader, proxy: Proxy) -> None:
    if not 200 <= answered.status < 300:
        raise ProxyRefusedError(proxy, answered.status)


def _no_tunnel(proxy: Proxy, problem: ExchangeError) -> ExchangeError:
    return ExchangeError(Reason.CONNECT, f"no tunnel through the proxy {proxy.name}: {problem}")
