"""What a client sends after it was refused is dropped at a bounded rate, so that the answer can reach it."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from duetime.api.server.lingering import LINGER_SECONDS, MAX_BYTES_PER_SECOND, close_slowly

MEGABYTE = 1024 * 1024


class Timers(asyncio.SelectorEventLoop):
    """A loop that never runs: it keeps what is to be called later, for the test to call."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[float, Callable[[], object]]] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, **_: object
    ) -> asyncio.TimerHandle:
        self.waiting.append((delay, lambda: callback(*args)))
        return asyncio.TimerHandle(delay, callback, args, self)


@pytest.fixture
async def refused() -> object:
    """A client whose connection lingers, and the timers of that connection."""
    loop, timers = asyncio.get_running_loop(), Timers()
    theirs, ours = socket.socketpair()
    # The less the system keeps, the sooner a client notices that nobody reads.
    for end in (theirs, ours):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        end.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.write(b"the answer")
    close_slowly(transport, timers)
    yield theirs, timers
    transport.abort()
    theirs.close()
    await asyncio.sleep(0)
    timers.close()


async def test_what_a_refused_client_sends_is_dropped_at_a_bounded_rate(
    refused: tuple[socket.socket, Timers],
) -> None:
    client, timers = refused
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(client, 100) == b"the answer"
    (end, _), *_ = timers.waiting
    sending = asyncio.create_task(loop.sock_sendall(client, bytes(4 * MEGABYTE)))

    seconds, taken = 0.0, 1
    while not sending.done():
        if len(timers.waiting) > taken:
            delay, read_on = timers.waiting[taken]
            taken, seconds = taken + 1, seconds + delay
            read_on()
        await asyncio.sleep(0)

    assert end == LINGER_SECONDS
    # What the system keeps in its buffers costs the node nothing yet.
    assert seconds * MAX_BYTES_PER_SECOND > 3 * MEGABYTE


async def test_a_refused_client_that_sends_on_waits_until_it_is_read_again(
    refused: tuple[socket.socket, Timers],
) -> None:
    client, timers = refused
    sent = 0
    quiet_rounds = 0
    while quiet_rounds < 100:
        try:
            sent += client.send(bytes(65_536))
            quiet_rounds = 0
        except BlockingIOError:
            quiet_rounds += 1
        await asyncio.sleep(0)

    # One read, and the buffers of both ends; then the connection is not read before its pause is over.
    assert len(timers.waiting) == 2
    assert sent < 2 * MEGABYTE


async def test_when_the_time_is_over_the_connection_is_cut(refused: tuple[socket.socket, Timers]) -> None:
    client, timers = refused
    _, end = timers.waiting[0]

    end()

    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(client, 100) == b"the answer"
    assert await loop.sock_recv(client, 100) == b""
