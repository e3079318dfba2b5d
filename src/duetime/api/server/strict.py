"""Requests of HTTP/1.1 and 1.0 on one connection, and nothing that only looks like one.

uvicorn's protocol takes trailers for headers, reads on after an upgrade, and
answers an error before the requests in front of it.  Here a wrong request is refused
after the answers that are still due, and then the connection is closed: after an
error it is unknown where the next request begins.  `heads.py` and `framing.py`
hold the rules.
"""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import structlog
from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from duetime.api.server import heads
from duetime.api.server.framing import Framing
from duetime.api.server.heads import MAX_HEAD_BYTES, MAX_HEADERS, check_head, read_length
from duetime.errors import DuetimeError, MalformedRequest, Overloaded

log = structlog.get_logger()

#: How many requests may wait for the answers before them; each costs far more than its bytes.
MAX_PIPELINED = 128
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class StrictProtocol(HttpToolsProtocol):
    """uvicorn's protocol with stricter reading and its own refusals."""

    _plain_transport: asyncio.Transport
    #: The body so far of a request that no handler has started on.
    _kept: bytes | bytearray | None = None
    #: The first byte of a request has come and its last has not; `_is_in_body` is true only after the head.
    _is_begun = False
    _is_in_body = False
    #: The last bytes completed a head or a request.
    _has_advanced = False
    #: Bytes of an incomplete head before the last packet, and the bytes of that packet.
    _head_size = 0
    _packet_size = 0
    #: The framing of a chunked body: what it has beside its content.
    _framing: Framing | None = None
    _version = ""
    #: The headers of the request as a mapping, and whether its connection goes on after its answer.
    _named: dict[bytes, bytes]
    _keep_alive = True
    #: No more requests are read; and the error that the client gets after its other answers.
    _is_over = False
    _refusal: DuetimeError | None = None
    #: The request that is being answered; `cycle` is the request that came last.
    _running: Any = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None and self._running is not self.cycle:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _is_here(self) -> None:
        """Note that nothing is arriving any more."""
        raise NotImplementedError

    def refuse(self, error: DuetimeError) -> None:
        """Answer with this error, and close."""
        raise NotImplementedError

    def _go_on(self, data: bytes, error: HttpParserError | HttpParserUpgrade) -> None:
        """Go on after the parser stopped within the data; raise what is wrong with it."""
        # An upgrade is answered as if it had not been asked for, as HTTP allows.
        while isinstance(error, HttpParserUpgrade):
            data = data[error.args[0] :]
            try:
                self.parser.feed_data(data)
                return
            except (HttpParserError, HttpParserUpgrade) as next_error:
                error = next_error
        if self._is_over:
            return
        cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
        if isinstance(cause, DuetimeError):
            raise cause from None
        if cause is not None:
            log.error("a request could not be read", exc_info=cause)
        raise MalformedRequest("what came is not an HTTP/1.1 request") from error

    def _refuse(self, error: DuetimeError) -> None:
        """Send the error after the answers that are due, and close; nothing more is read."""
        self._is_here()
        self._is_over = True
        if self._plain_transport.is_closing():
            return
        is_unanswered = self.cycle is not None and not self.cycle.response_complete
        if self._is_in_body and self._kept is None:
            if self.pipeline:
                # It is the last in the pipeline; no handler has started on it.
                self.pipeline.popleft()
            elif self.cycle.response_started:
                # This also sends the head of the answer, if it is still kept.
                self.transport.close()
                return
            else:
                is_unanswered = False
        if is_unanswered:
            self._refusal = error
            self.flow.pause_reading()
        elif hasattr(self.app, "render"):
            self.refuse(error)
        else:
            self.send_400_response(error.detail)

    def on_response_complete(self) -> None:
        if self._refusal is None or self.pipeline or self._plain_transport.is_closing():
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.refuse(self._refusal)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_message_begin(self) -> None:
        if self._is_over:
            raise MalformedRequest("nothing is read after the last request of a connection")
        if self.pipeline and len(self.pipeline) >= MAX_PIPELINED:
            raise Overloaded(f"{MAX_PIPELINED} requests of this connection wait already; send more after their answers")
        self._is_begun = True
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            # This is a trailer, not a header.
            if self._framing is not None:
                self._framing.add_trailer(name)
            return
        headers = self.headers
        headers.append((name.lower(), value))
        if len(headers) > MAX_HEADERS:
            raise heads.too_many_headers()

    def _check_head(self) -> tuple[bytes, int]:
        """The method of the request and the announced length of its body; raises what is wrong with its head."""
        headers, parser = self.headers, self.parser
        if self._head_size + self._packet_size > MAX_HEAD_BYTES:
            heads.check_size(self.url, headers)
        self._named = named = dict(headers)
        method: bytes = parser.get_method()
        self._version = version = parser.get_http_version()
        check_head(version, headers, named)
        if parser.should_upgrade():
            heads.check_upgrade(method, named)
        is_newest = version == "1.1"
        self._keep_alive = is_newest and parser.should_keep_alive()
        expected = named.get(b"expect")
        self.expect_100_continue = expected is not None and is_newest and expected.lower() == b"100-continue"
        length = named.get(b"content-length")
        return method, 0 if length is None else read_length(length)

    def _start_cycle(self, method: bytes) -> None:
        """Give the request to the application, or queue it behind those that are being answered."""
        path, query = self.url, b""
        # The usual target is a plain path.
        if b"?" in path or b"#" in path or not path.startswith(b"/"):
            path, query = heads.read_target(path)
        text = path.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self._version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method.decode("ascii"),
            "root_path": "",
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        self.scope = cast(HTTPScope, scope)
        before = self.cycle
        self._framing = Framing() if b"transfer-encoding" in self._named else None
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self._keep_alive,
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _should_upgrade(self) -> bool:
        return False

    def on_chunk_header(self) -> None:
        if self._framing is not None:
            self._framing.add_chunk()
