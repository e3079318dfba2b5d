"""One HTTP/1.1 connection of an event loop: one request at a time, one bounded answer.

Whatever the server sends, an exchange ends with an answer or a failure, within
the bounds of `AnswerReader`.  A request is written once and never again; the
caller decides what a failure means, and how long to wait.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

from duetime.http1.answers import AnswerReader
from duetime.http1.messages import Bounds, ExchangeError, UnansweredError


class Connection(AnswerReader, asyncio.Protocol):
    def __init__(self, on_lost: "Callable[[Connection], None]", bounds: Bounds) -> None:
        super().__init__(bounds)
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._on_end: Callable[[ExchangeError | None], None] | None = None
        #: Monotonic time until which it may be used again.
        self.usable_until = 0.0
        #: The time of the last answer, by `time.perf_counter`.
        self.first_byte_at = 0.0

    # Called by the client.

    def attach(self, sock: socket.socket) -> None:
        """Set the socket under the transport, used to check whether the other side has closed it."""
        self._socket = sock

    def exchange(
        self, request: bytes, on_end: Callable[[ExchangeError | None], None], *, is_head: bool = False
    ) -> None:
        """Send a request; `on_end` is called once, never from within this method, with None or the failure."""
        assert self._on_end is None
        self._on_end = on_end
        if self._transport is None or self._transport.is_closing():
            self.problem = UnansweredError("the connection was closed before the request was sent")
            self._loop.call_soon(self._tell)
            return
        self.begin(is_head=is_head)
        self._transport.write(request)

    def time_out(self) -> None:
        """End the exchange: its time is over."""
        self.end_by_time()
        self.abort()
        self._tell()

    def leave(self) -> None:
        """Stop calling the client; the pending answer must not be taken for the answer to another request."""
        self._on_end = None
        self.is_waiting = False
        self.abort()

    def can_be_kept(self) -> bool:
        """Whether the next request may follow on this connection."""
        return (
            self.can_follow
            and self._transport is not None
            and not self._transport.is_closing()
            # An early answer: the server did not read the rest of the request.
            and self._transport.get_write_buffer_size() == 0
        )

    def is_quiet(self) -> bool:
        """Whether a kept connection is still open and silent, as far as this machine knows.

        The loop may not have noticed yet that the other side has closed; the socket has.
        """
        if self.is_broken or self._transport is None or self._transport.is_closing() or self._socket is None:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.is_broken = True
        if self._transport is not None:
            self._transport.abort()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.is_waiting:
            # No request was sent: these bytes could not be told from the next answer.
            self.abort()
            return
        if not self._received_bytes:
            self.first_byte_at = time.perf_counter()
        self.feed(data)
        if not self.is_waiting:
            # Only when the parser has seen all of this: the callback may send the next request at once.
            if self.problem is not None:
                self.abort()
            self._tell()

    def eof_received(self) -> None:
        self._end_exchange(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_exchange(error)
        self.is_broken = True
        # The parser holds our methods: without this the two keep each other alive.
        self._parser = None
        self._transport = self._socket = None
        self._on_lost(self)

    def _end_exchange(self, error: Exception | None) -> None:
        if self.is_waiting:
            self.end_by_close(error)
            if self.problem is not None:
                self.abort()
            self._tell()

    def _tell(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.problem)
