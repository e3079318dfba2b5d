"""HTTP on a connection: uvicorn's protocol, with one write for each answer and a short way for single submissions.

uvicorn writes the head and the body of an answer apart: two system calls, and
two packets that wake the client twice.  And it makes a scope, an event and a
task for each request, which costs more than storing a single task; so those
are read here as a whole and offered to the express (`express.py`) first.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from duetime.api import express
from duetime.api.bounds import BODY_SECONDS
from duetime.api.http import Answer

_INTERIM = b"HTTP/1.1 100 "
#: For a request to arrive, head and body; a little more than a body has, so that a slow one gets its answer.
REQUEST_SECONDS = BODY_SECONDS + 15.0


class Serving(Protocol):
    """The application, as far as the short way needs it."""

    @property
    def express(self) -> express.Express: ...

    async def judge(self, answering: Coroutine[None, None, Answer], method: str, path: str) -> Answer: ...

    def render(self, answer: Answer, *, keep_alive: bool) -> bytes: ...


class DuetimeProtocol(HttpToolsProtocol):
    """uvicorn's own, on a transport that keeps the head of an answer until its body comes."""

    #: The body so far of a request that may go the short way.
    _kept: list[bytes] | None = None
    _kept_size = 0
    _plain_transport: asyncio.Transport
    _is_coming = False
    #: Runs while a request is coming in pieces.
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._plain_transport = transport
        super().connection_made(_JoiningTransport(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_coming and self._patience is None:
            # Nobody holds a connection and its buffers by sending next to nothing.
            self._patience = self.loop.call_later(REQUEST_SECONDS, self._plain_transport.close)

    def on_message_begin(self) -> None:
        self._is_coming = True
        super().on_message_begin()

    def _stop_patience(self) -> None:
        self._is_coming = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_headers_complete(self) -> None:
        if self.url == express.PATH and self.parser.get_method() == express.METHOD and self._is_free():
            self._kept, self._kept_size = [], 0
        else:
            super().on_headers_complete()

    def _is_free(self) -> bool:
        """Nothing is being answered, nobody waits to be told to go on, and the client reads what it is sent."""
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and not self.expect_100_continue and not self.flow.write_paused and hasattr(self.app, "express")

    def on_body(self, body: bytes) -> None:
        if self._kept is None:
            super().on_body(body)
            return
        self._kept.append(body)
        self._kept_size += len(body)
        if self._kept_size > express.MAX_BODY:
            self._go_the_long_way()

    def on_message_complete(self) -> None:
        self._stop_patience()
        if self._kept is not None:
            cycle = _ShortCycle(self, self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())
            if self.app.express.take(self.headers, b"".join(self._kept), cycle.finish):
                self._kept = None
                self.cycle = cycle  # type: ignore[assignment]
                return
            self._go_the_long_way()
        super().on_message_complete()

    def _go_the_long_way(self) -> None:
        """As if the request had come just now."""
        assert self._kept is not None
        kept, self._kept = b"".join(self._kept), None
        super().on_headers_complete()
        super().on_body(kept)


class _ShortCycle:
    """A request on the short way, as uvicorn's protocol looks at it: what comes behind it waits for its end."""

    __slots__ = ("_answering", "_protocol", "disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, protocol: DuetimeProtocol, keep_alive: bool) -> None:
        self._protocol = protocol
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
        self._write(await app.judge(answering, express.METHOD.decode(), express.PATH.decode()))

    def _write(self, answer: Answer) -> None:
        self.response_complete = True
        protocol = self._protocol
        if self.disconnected or protocol._plain_transport.is_closing():
            return
        app: Serving = protocol.app
        protocol._plain_transport.write(app.render(answer, keep_alive=self.keep_alive))
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
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
