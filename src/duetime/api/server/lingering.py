"""The end of a connection whose client is answered before it has sent its whole request.

When a connection is closed with unread bytes, the system resets it, and a reset can
discard the answer before the client has read it.  So the node reads and drops what
still comes, for a short time, for a limited number of connections, and at a limited
rate: otherwise a single client could keep the node busy with bytes that it drops.
"""

import asyncio

LINGER_SECONDS = 1.0
#: The rate of all lingering connections together; a client that sends faster waits in the buffers of the system.
MAX_BYTES_PER_SECOND = 32 * 1024 * 1024
#: Each holds a file open; a client that floods the node does not read answers.
_MOST = 32
_lingering: set["Lingering"] = set()


def close_slowly(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close the connection when the client has closed it, or after a short time."""
    if len(_lingering) >= _MOST or transport.is_closing() or not transport.can_write_eof():
        transport.close()
        return
    lingering = Lingering(transport, loop)
    _lingering.add(lingering)
    transport.set_protocol(lingering)
    transport.write_eof()


class Lingering(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._end = loop.call_later(LINGER_SECONDS, transport.abort)
        self._pause: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Drop the bytes, and read on when the share of this connection allows it."""
        self._transport.pause_reading()
        seconds = len(data) * max(1, len(_lingering)) / MAX_BYTES_PER_SECOND
        self._pause = self._loop.call_later(seconds, self._read_on)

    def eof_received(self) -> None:
        """The client has closed as well, so the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        if self._pause is not None:
            self._pause.cancel()
        _lingering.discard(self)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
