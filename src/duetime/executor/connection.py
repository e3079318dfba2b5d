"""One HTTP/1.1 connection to a target: one request at a time, one bounded answer.

Whatever the server sends, an exchange ends with an answer or a failure, holds
at most `MAX_HEAD_BYTES` of headers and `MAX_RESPONSE_BYTES` of body, and reads
at most `MAX_DRAIN_BYTES` more to be able to keep the connection.  A request is
written once and never again; who called decides what a failure means, and how
long it waits.
"""

import asyncio
import enum
import functools
import re
import socket
import time
from collections.abc import Callable
from typing import cast

import httptools

from duetime.model.task import MAX_RESPONSE_BYTES

Headers = tuple[tuple[bytes, bytes], ...]

MAX_HEAD_BYTES = 64 * 1024
MAX_DRAIN_BYTES = 256 * 1024

_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,;\s])timeout=(\d{1,6})", re.IGNORECASE)


class Reason(enum.StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    RESOLVE = "resolve"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    PROTOCOL = "protocol"
    INTERNAL = "internal"


class ExchangeError(Exception):
    """There is no answer; the message is for the tenant."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Connection(asyncio.Protocol):
    """Its fields from `status` on tell of the last exchange; names of headers are in lower case."""

    def __init__(self, on_lost: "Callable[[Connection], None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._on_end: Callable[[ExchangeError | None], None] | None = None
        #: An exchange is under way; when it is over, `_on_end` is yet to be told.
        self._is_waiting = False
        self._problem: ExchangeError | None = None
        #: Monotonic time until which it may be used again.
        self.usable_until = 0.0
        self.exchanges = 0
        self._is_broken = False
        self._is_head = False
        self._clear()

    def _clear(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.body = b""
        self.is_truncated = False
        self.first_byte_at = 0.0
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._kept_bytes = 0
        self._received_bytes = 0
        self._has_head = False
        self._ends_with_connection = False
        self._is_kept_alive = False

    # What the client does with it.

    def attach(self, sock: socket.socket) -> None:
        """The socket under the transport, to look whether it was closed by the other side."""
        self._socket = sock

    def exchange(self, request: bytes, on_end: Callable[[ExchangeError | None], None], *, is_head: bool) -> None:
        """Send a request; `on_end` hears once, and never from in here, that there is an answer or why not."""
        assert self._on_end is None
        self._on_end = on_end
        self._problem = None
        if self._transport is None or self._transport.is_closing():
            self._problem = ExchangeError(Reason.CLOSED, "the connection was closed before the request was sent")
            self._loop.call_soon(self._tell)
            return
        if self.exchanges:
            self._clear()
        self.exchanges += 1
        self._is_head = is_head
        self._is_waiting = True
        self._transport.write(request)

    def time_out(self) -> None:
        """The time for the exchange is over."""
        self._fail(Reason.TIMEOUT, "no answer in time" if not self._has_head else "the answer did not end in time")
        self._tell()

    def leave(self) -> None:
        """The caller goes away and hears no more; what is under way must not become somebody else's answer."""
        self._on_end = None
        self._is_waiting = False
        self.abort()

    def can_be_kept(self) -> bool:
        """Whether the next request may follow on this connection."""
        return (
            self._is_kept_alive
            and not self._is_broken
            and self._transport is not None
            and not self._transport.is_closing()
            # An early answer: the server never read the rest of what is still to be written.
            and self._transport.get_write_buffer_size() == 0
        )

    def is_quiet(self) -> bool:
        """Whether a kept connection is still open and silent, as far as this machine knows.

        The loop may not have seen yet that the other side has closed; the socket has.
        """
        if self._is_broken or self._transport is None or self._transport.is_closing() or self._socket is None:
            return False
        try:
            self._socket.recv(1, _PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def keep_alive_seconds(self) -> float | None:
        """How long the server said that it keeps an idle connection."""
        return _keep_alive_seconds(self.headers)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._is_broken = True
        if self._transport is not None:
            self._transport.abort()

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, only alike.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting or self._parser is None:
            # Nothing was asked: whatever this is, the next answer could not be told from it.
            self.abort()
            return
        if not self._received_bytes:
            self.first_byte_at = time.perf_counter()
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_broken = True
        except httptools.HttpParserError as error:
            self._is_broken = True
            self._fail(Reason.PROTOCOL, f"the answer is not HTTP/1.1: {error}")
        if self._is_waiting:
            self._bound_answer()
        if not self._is_waiting:
            # Not before the parser has seen all of this: who hears it may send the next request at once.
            self._tell()

    def _bound_answer(self) -> None:
        if not self._has_head:
            if self._received_bytes > MAX_HEAD_BYTES:
                self._fail(Reason.PROTOCOL, f"the answer's headers are larger than {MAX_HEAD_BYTES // 1024} KiB")
        elif self._received_bytes > MAX_HEAD_BYTES + MAX_DRAIN_BYTES:
            # Counted as received, so that framing without content is bounded too.
            self.is_truncated = True
            self._finish(is_complete=False)

    def eof_received(self) -> None:
        self._end_by_close(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_by_close(error)
        self._is_broken = True
        # The parser holds our methods: without this the two keep each other alive.
        self._parser = None
        self._transport = self._socket = None
        self._on_lost(self)

    # What the parser tells.

    def on_message_begin(self) -> None:
        if not self._is_waiting:
            # A second answer to one request.
            self._is_broken = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after the head, and are not kept.
        if not self._has_head and self._is_waiting:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if not self._is_waiting or parser is None:
            return
        self.status = parser.get_status_code()
        if _is_interim(self.status):
            return
        self._has_head = True
        self._is_kept_alive = parser.should_keep_alive()
        self.headers = tuple(self._fields)
        length = _body_length(self.headers)
        self._ends_with_connection = length is None
        if self._is_head:
            # The parser waits for a body that does not come, and cannot be told so.
            self._finish(is_complete=False)
        elif length is not None and length > MAX_DRAIN_BYTES:
            self._is_kept_alive = False

    def on_body(self, data: bytes) -> None:
        if not self._is_waiting:
            return
        room = MAX_RESPONSE_BYTES - self._kept_bytes
        if room > 0:
            self._chunks.append(data[:room])
            self._kept_bytes += min(len(data), room)
        if len(data) > room:
            self.is_truncated = True
            if not self._is_kept_alive:
                self._finish(is_complete=False)

    def on_message_complete(self) -> None:
        if not self._is_waiting:
            return
        if _is_interim(self.status):
            self._fields = []
            return
        self._finish(is_complete=True)

    # How an exchange ends.

    def _finish(self, *, is_complete: bool) -> None:
        self._is_waiting = False
        self.body = b"".join(self._chunks)
        self._chunks = []
        if not is_complete:
            self._is_broken = True

    def _fail(self, reason: Reason, message: str) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._problem = ExchangeError(reason, message)
        self.abort()

    def _tell(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self._problem)

    def _end_by_close(self, error: Exception | None) -> None:
        if not self._is_waiting:
            return
        if self._has_head and self._ends_with_connection and error is None:
            self._finish(is_complete=False)
        elif self._received_bytes:
            self._fail(Reason.CLOSED, "the connection was closed in the middle of the answer")
        elif self.exchanges > 1:
            self._fail(Reason.CLOSED, "the server closed a kept connection before it answered")
        else:
            self._fail(Reason.CLOSED, "the server closed the connection before it answered")
        self._tell()


def _is_interim(status: int) -> bool:
    return 100 <= status < 200 and status != 101


# A server's headers are mostly those of its answer before.


@functools.lru_cache(maxsize=128)
def _keep_alive_seconds(headers: Headers) -> float | None:
    for name, value in headers:
        if name == b"keep-alive" and (found := _KEEP_ALIVE_TIMEOUT.search(value)):
            return float(found[1])
    return None


@functools.lru_cache(maxsize=128)
def _body_length(headers: Headers) -> int | None:
    """The body's length, 0 where it is chunked; None where only the connection's end ends it."""
    length: int | None = None
    for name, value in headers:
        match name:
            case b"transfer-encoding" if value.lower().rstrip().endswith(b"chunked"):
                return 0
            case b"content-length" if value.strip().isdigit():
                length = int(value)
            case _:
                pass
    return length
