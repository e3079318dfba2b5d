"""The end of a connection whose client is answered before it has said what it wants.

Bytes that nobody read when a connection is closed make the system reset it, and
a reset can take the answer away before the client has read it.  So what still
comes is read and dropped for a moment, for a bounded number of connections.
"""

import asyncio

LINGER_SECONDS = 1.0
#: Each is a file; whoever floods us learns nothing from answers.
_MOST = 32
_lingering: set["_Lingering"] = set()


def close_slowly(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Close it when the client has, or soon."""
    if len(_lingering) >= _MOST or transport.is_closing() or not transport.can_write_eof():
        transport.close()
        return
    lingering = _Lingering()
    _lingering.add(lingering)
    lingering.timer = loop.call_later(LINGER_SECONDS, transport.abort)
    transport.set_protocol(lingering)
    transport.write_eof()


class _Lingering(asyncio.Protocol):
    timer: asyncio.TimerHandle

    def eof_received(self) -> None:
        """The client is done as well: the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        _lingering.discard(self)
