"""One HTTP/1.1 connection to the server: one request at a time, one answer within bounds and time.

Whatever the server sends, an exchange ends with an answer or an `ExchangeError`.
A request is written once; who called decides whether it may be sent again.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import httptools

from duetime.sdk.wire import Answer

#: (name, value), as they came.
Fields = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 64 * 1024

_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


class ExchangeError(Exception):
    """There is no answer."""


class UnansweredError(ExchangeError):
    """The connection was closed before the first byte of an answer."""


class TooLargeError(ExchangeError):
    """There is an answer, but it is larger than anything that was asked for."""


class Headers(Mapping[str, str]):
    """An answer's headers, found by names of any case; read only when they are asked for."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1")
        for each, value in self._fields:
            if each.lower() == wanted:
                return value.decode("latin-1")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1").lower() for name, _ in self._fields))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Connection(asyncio.Protocol):
    def __init__(self, on_lost: "Callable[[Connection], None]", max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[None] | None = None
        self._is_broken = False
        #: Time of the loop until which it may be used again.
        self.usable_until = 0.0
        self.exchanges = 0
        self._clear()

    def _clear(self) -> None:
        self._status = 0
        self._fields: Fields = []
        self._pieces: list[bytes] = []
        self._received_bytes = 0
        self._has_head = False
        #: All of the answer is here.
        self._is_complete = False
        self._is_kept_alive = False

    # What the client does with it.

    def attach(self, sock: socket.socket) -> None:
        """The socket under the transport, to look whether it was closed by the other side."""
        self._socket = sock

    async def exchange(self, request: bytes, deadline: float) -> Answer:
        """Send a request and wait for all of its answer, until a time of the loop; raises ExchangeError.

        Whoever stops waiting breaks the connection: what still comes must not become somebody else's answer.
        """
        if self._transport is None or self._transport.is_closing():
            raise UnansweredError("the connection was closed before the request was sent")
        if self.exchanges:
            self._clear()
        self.exchanges += 1
        self._answered = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._time_out)
        self._transport.write(request)
        try:
            await self._answered
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._answered = None
            pieces, self._pieces = self._pieces, []
        return Answer(self._status, Headers(self._fields), pieces[0] if len(pieces) == 1 else b"".join(pieces))

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

    @property
    def is_lost(self) -> bool:
        return self._transport is None

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
        if self._is_over or self._parser is None:
            # Nothing was asked: whatever this is, the next answer could not be told from it.
            self.abort()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # What follows a whole answer does not make it less whole.
            self._is_broken = True
            if not self._is_complete:
                self._fail(ExchangeError(f"the answer is not HTTP/1.1: {error!r}"))
        if self._is_complete:
            # Not before the parser has seen all of this: the next request may be sent at once.
            self._finish()
        elif not self._has_head:
            if self._received_bytes > MAX_HEAD_BYTES:
                self._fail(ExchangeError(f"the answer's headers are larger than {MAX_HEAD_BYTES // 1024} KiB"))
        elif self._received_bytes > MAX_HEAD_BYTES + self._max_bytes:
            # Counted as received, so that framing without content is bounded too.
            self._fail(TooLargeError(f"the answer is larger than {self._max_bytes // 1024:,} KiB"))

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
        if self._is_complete:
            # A second answer to one request.
            self._is_broken = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after the head, and are not kept.
        if not self._has_head:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._is_complete or parser is None:
            return
        self._status = parser.get_status_code()
        if not _is_interim(self._status):
            self._has_head = True
            self._is_kept_alive = parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if not self._is_complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if _is_interim(self._status):
            self._fields = []
        else:
            self._is_complete = True

    # How an exchange ends.

    @property
    def _is_over(self) -> bool:
        return self._answered is None or self._answered.done()

    def _finish(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, problem: ExchangeError) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(problem)
        self.abort()

    def _time_out(self) -> None:
        self._fail(ExchangeError("the answer did not end in time" if self._has_head else "no answer in time"))

    def _end_by_close(self, error: Exception | None) -> None:
        if self._is_over:
            return
        if not self._received_bytes:
            self._fail(UnansweredError("the server closed the connection before it answered"))
        elif self._has_head and error is None and _ends_with_connection(self._fields):
            self._is_kept_alive = False
            self._finish()
        else:
            self._fail(ExchangeError("the connection was closed in the middle of the answer"))


def _is_interim(status: int) -> bool:
    return 100 <= status < 200 and status != 101


def _ends_with_connection(fields: Fields) -> bool:
    return not any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in fields)
