"""HTTP on a connection: uvicorn's protocol, with one write for each answer and a fast path for single submissions.

uvicorn writes the head and the body of an answer separately: two system calls, and
two packets that wake the client twice.  And it makes a scope, an event and a task
for each request, which costs more than storing a single task; so submissions are
read here as a whole and offered to the fast path (`express.py`) first.  A client
that keeps its connection sends the same head again and again: bytes that the
parser has read once are not parsed again.

A client has to send what it began: uvicorn limits neither the size of a head
nor the time that a request takes to arrive, so one tenant could hold memory
and connections for ever.  And it has to read what it asked for (`taking.py`).
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from duetime.api.problems import problem_of
from duetime.api.server import express, heads
from duetime.api.server.connections import Connections
from duetime.api.server.heads import MAX_HEAD_BYTES
from duetime.api.server.http import PROBLEM_JSON, TRANSPORT, Answer, encode
from duetime.api.server.lingering import close_slowly
from duetime.api.server.request_id import HEADER, mint, read_or_mint
from duetime.api.server.taking import TakingProtocol
from duetime.errors import DuetimeError, MalformedRequest, TooSlow
from duetime.model.task import MAX_REQUEST_BYTES

_INTERIM = b"HTTP/1.1 100 "
#: A request may go on for this many bytes after its answer, for a client that reads only when it has sent everything.
MAX_UNREAD_BYTES = 2 * MAX_REQUEST_BYTES
#: A request has this long to arrive, and one second more for this many bytes that have arrived.
ARRIVE_SECONDS = 20.0
BYTES_PER_SECOND = 16 * 1024


class Serving(Protocol):
    """The application, as far as the fast path needs it."""

    @property
    def express(self) -> express.Express: ...

    async def judge(
        self, answering: Coroutine[None, None, Answer], method: str, path: str, request_id: bytes
    ) -> Answer: ...

    def render(self, answer: Answer, *, keep_alive: bool, request_id: bytes) -> bytes: ...


class Repeat(NamedTuple):
    """A request that came in one piece and took the fast path: the next one may be like it."""

    head_bytes: bytes
    #: The size of the whole request.
    size: int
    head: express.Head


class DuetimeProtocol(TakingProtocol):
    """A strict protocol with time limits, on a transport that keeps the head of an answer until its body comes."""

    _joining: "_JoiningTransport"
    #: How many bytes of an incomplete request have come.
    _size = 0
    _since = 0.0
    _arriving: asyncio.TimerHandle | None = None
    _repeat: Repeat | None = None
    #: The head of the last request that was offered to the fast path.
    _last_head: express.Head | None = None
    #: The head and the size of the body of the request that the fast path has just taken.
    _taken: tuple[express.Head, int] | None = None
    #: When the last request of the fast path was answered, and the timer that closes the connection some time later.
    _resting_since = 0.0
    _resting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain_transport = cast(asyncio.Transport, transport)
        self._joining = _JoiningTransport(self._plain_transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self._joining))
        self._expect_rest()
        self._book: Connections | None = getattr(self.app, "connections", None)
        if self._book is not None:
            self._book.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_here()
        self._repeat = self._last_head = None
        if self._book is not None:
            self._book.discard(self)
        if self._resting is not None:
            self._resting.cancel()
        super().connection_lost(exc)

    def idle_since(self) -> float | None:
        """Since when it is idle, for `Connections`: a request that has not arrived completely counts as not begun."""
        is_served = self.cycle is not None and not self.cycle.response_complete
        if is_served or self.pipeline or self._plain_transport.get_write_buffer_size():
            return None
        if self._arriving is not None:
            return self._since
        if self.timeout_keep_alive_task is not None:
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive
        return self._resting_since

    def evict(self) -> None:
        self._plain_transport.close()

    def refuse(self, error: DuetimeError) -> None:
        self._joining.flush()
        self._plain_transport.write(self._render_problem(error))
        close_slowly(self._plain_transport, self.loop)
        # This protocol is done with the connection, and handles nothing that still comes.
        self.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        is_new = not self._is_begun
        if is_new and self._repeat is not None and self._take_repeat(self._repeat, data):
            return
        if self._is_over:
            return
        self._has_advanced = False
        self._packet_size = len(data)
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        try:
            try:
                self.parser.feed_data(data)
            except (HttpParserError, HttpParserUpgrade) as error:
                self._go_on(data, error)
            if self._has_advanced and not self._is_in_body:
                # Most requests come in one piece, so no timer was set for them.
                if self._arriving is not None:
                    self._is_here()
                if self._taken is not None:
                    if is_new:
                        self._remember(data, *self._taken)
                    self._taken = None
                return
            self._expect_more(len(data))
        except DuetimeError as error:
            self._refuse(error)

    def _expect_more(self, size: int) -> None:
        """Note that this many bytes came, and that the request is not complete."""
        if self._arriving is None:
            self._expect_rest()
        elif not self._size:
            self._since = self.loop.time()
        self._size += size
        if not self._is_in_body:
            self._head_size += size
            if self._head_size > MAX_HEAD_BYTES:
                raise heads.head_too_large()
            return
        self._head_size = 0
        if self._framing is not None and not self._has_advanced:
            self._framing.add_packet(size)
        if self._size > MAX_UNREAD_BYTES and self._kept is None and self.cycle.response_complete:
            raise MalformedRequest("the request goes on although it was answered")

    def _take_repeat(self, repeat: Repeat, data: bytes) -> bool:
        """Take a request that has the same head as the last one; False: it has not, or the fast path refuses it."""
        if len(data) != repeat.size or not data.startswith(repeat.head_bytes) or not self._is_free():
            return False
        cycle = _ShortCycle(self, True, repeat.head.request_id)
        if not self.app.express.take(repeat.head, data[len(repeat.head_bytes) :], cycle.finish):
            return False
        if self._arriving is not None:
            self._is_here()
        self._unset_keepalive_if_required()
        self.cycle = self._running = cast(RequestResponseCycle, cycle)
        return True

    def _remember(self, data: bytes, head: express.Head, body_size: int) -> None:
        """Remember the request that was taken, if the bytes hold nothing else."""
        head_bytes = data[: len(data) - body_size]
        is_alone = head_bytes.find(b"\r\n\r\n") == len(head_bytes) - 4
        self._repeat = Repeat(head_bytes, len(data), head) if is_alone else None

    def _rest(self) -> None:
        """Close the connection after some time without a request; called when all are answered."""
        # One timer for many requests; when it fires, it checks how long ago the last one was.
        self._resting_since = self.loop.time()
        if self._resting is None:
            self._resting = self.loop.call_later(self.timeout_keep_alive, self._look_whether_resting)

    def _look_whether_resting(self) -> None:
        self._resting = None
        is_idle = self.cycle is not None and self.cycle.response_complete and self._arriving is None
        if not is_idle or self.timeout_keep_alive_task is not None:
            # The answer to the request that is under way sets the timer again.
            return
        left = self._resting_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._resting = self.loop.call_later(left, self._look_whether_resting)
        else:
            self.timeout_keep_alive_handler()

    def _expect_rest(self) -> None:
        self._since = self.loop.time()
        self._arriving = self.loop.call_later(ARRIVE_SECONDS, self._look)

    def _is_here(self) -> None:
        self._size = self._head_size = 0
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _look(self) -> None:
        """Check whether the time for the rest of the request is over."""
        left = self._since + ARRIVE_SECONDS + self._size / BYTES_PER_SECOND - self.loop.time()
        # The time does not count while the node itself does not read.
        if left > 0 or self.flow.read_paused or self._is_behind():
            self._arriving = self.loop.call_later(max(left, ARRIVE_SECONDS / 4), self._look)
        else:
            self._arriving = None
            if not self._is_begun:
                self._plain_transport.close()
                return
            self._refuse(TooSlow(f"a request has {ARRIVE_SECONDS:.0f} s to arrive, and more the longer it is"))

    def _is_behind(self) -> bool:
        """Whether the request before it is still being answered."""
        return bool(self.pipeline) or (
            not self._is_in_body and self.cycle is not None and not self.cycle.response_complete
        )

    def _render_problem(self, error: DuetimeError) -> bytes:
        # Only those headers that have come.
        request_id = read_or_mint(dict(self.headers).get(HEADER) if self._is_begun else None)
        headers = () if error.retry_after is None else ((b"retry-after", b"%d" % math.ceil(error.retry_after)),)
        answer = Answer(error.status, encode(problem_of(error, request_id)), PROBLEM_JSON, headers)
        app: Serving = self.app
        return app.render(answer, keep_alive=False, request_id=request_id)

    def _is_free(self) -> bool:
        """Whether nothing is being answered, no client waits for `100 Continue`, and the client reads its answers."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and not self.expect_100_continue and not self.flow.write_paused and hasattr(self.app, "express")

    def on_headers_complete(self) -> None:
        method, length = self._check_head()
        if self.url == express.PATH and 0 < length <= express.MAX_BODY and method == express.METHOD and self._is_free():
            self._kept = b""
        else:
            self._start_cycle(method)
            cast(dict[str, object], self.scope)[TRANSPORT] = self._plain_transport
        self._is_in_body = self._has_advanced = True

    def on_body(self, body: bytes) -> None:
        if self._kept is None:
            if self._framing is not None:
                self._framing.add_body(len(body))
            super().on_body(body)
        elif not self._kept:
            self._kept = body
        else:
            # The body comes in many pieces: one buffer, because each small piece costs more than its bytes.
            if isinstance(self._kept, bytes):
                self._kept = bytearray(self._kept)
            self._kept += body

    def on_message_complete(self) -> None:
        self._is_begun, self._is_in_body, self._has_advanced = False, False, True
        self._is_over = not self._keep_alive
        if self._kept is not None:
            body, self._kept = bytes(self._kept), None
            self._last_head = head = express.Head(self.headers, self._named, self.client, self._last_head)
            cycle = _ShortCycle(self, self._keep_alive, head.request_id)
            if self.app.express.take(head, body, cycle.finish):
                self._taken = (head, len(body)) if cycle.keep_alive else None
                self.cycle = self._running = cast(RequestResponseCycle, cycle)
                return
            # The normal path, as if the request had come just now.
            self._start_cycle(express.METHOD)
            super().on_body(body)
        super().on_message_complete()


class _ShortCycle:
    """A request on the fast path, in the form that uvicorn's protocol expects; requests behind it wait for its end."""

    __slots__ = (
        "_answering",
        "_protocol",
        "_request_id",
        "disconnected",
        "keep_alive",
        "message_event",
        "response_complete",
    )

    def __init__(self, protocol: DuetimeProtocol, keep_alive: bool, request_id: bytes | None) -> None:
        self._protocol = protocol
        #: The client's id; None: an id is made only when it is needed.
        self._request_id = request_id
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NOBODY_WAITS
        self._answering: asyncio.Task[None] | None = None

    def finish(self, answer: Answer | Coroutine[None, None, Answer]) -> None:
        if isinstance(answer, Answer):
            self._write(answer)
        else:
            self._answering = asyncio.ensure_future(self._finish_at_leisure(answer))

    async def _finish_at_leisure(self, answering: Coroutine[None, None, Answer]) -> None:
        app: Serving = self._protocol.app
        self._request_id = request_id = self._request_id or mint()
        self._write(await app.judge(answering, express.METHOD.decode(), express.PATH.decode(), request_id))

    def _write(self, answer: Answer) -> None:
        self.response_complete = True
        protocol = self._protocol
        if self.disconnected or protocol._plain_transport.is_closing():
            return
        app: Serving = protocol.app
        request_id = self._request_id or mint()
        protocol.answer_bytes = len(answer.body)
        protocol._plain_transport.write(app.render(answer, keep_alive=self.keep_alive, request_id=request_id))
        if self.keep_alive and not protocol.pipeline and not protocol.flow.read_paused:
            protocol._rest()
        else:
            if not self.keep_alive:
                protocol._plain_transport.close()
            protocol.on_response_complete()


class _NobodyWaits:
    def set(self) -> None: ...


_NOBODY_WAITS = _NobodyWaits()


class _JoiningTransport:
    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(_INTERIM):
            self._head = data
            # The body follows in the same round of the loop, or there is none.
            self._loop.call_soon(self.flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        # Every answer reads this, so it does not go through `__getattr__`.
        return self._transport.is_closing()

    def flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
