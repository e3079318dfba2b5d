"""Read one answer after the other from the bytes of one connection; no I/O.

Whatever the server sends, an answer ends, or fails, within `MAX_HEAD_BYTES` of
headers and the bounds of its body.
"""

import httptools

from duetime.http1.messages import (
    MAX_HEAD_BYTES,
    Bounds,
    ExchangeError,
    Fields,
    Headers,
    Reason,
    UnansweredError,
    body_length,
)


class AnswerReader:
    """Reads answers; the fields from `status` on describe the last answer."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        #: A request was sent, and its answer is neither complete nor given up.
        self.is_waiting = False
        #: Why there is no answer.
        self.problem: ExchangeError | None = None
        #: No other answer can be read from this connection.
        self.is_broken = False
        self._is_head = False
        #: How many requests were sent.
        self.exchanges = 0
        self._clear()

    def _clear(self) -> None:
        self.status = 0
        self.body = b""
        self.is_truncated = False
        #: The header fields, as they came.
        self.fields: Fields = []
        self._pieces: list[bytes] = []
        self._kept_bytes = 0
        self._received_bytes = 0
        self._has_head = False
        self._is_kept_alive = False

    def begin(self, *, is_head: bool) -> None:
        """Prepare for the answer to a request that is about to be sent."""
        if self.exchanges:
            self._clear()
        self.exchanges += 1
        self._is_head = is_head
        self.problem = None
        self.is_waiting = True

    @property
    def can_follow(self) -> bool:
        """Whether the last answer allows the next request on this connection."""
        return self._is_kept_alive and not self.is_broken

    @property
    def headers(self) -> Headers:
        """The header fields with their names in lower case."""
        return tuple([(name.lower(), value) for name, value in self.fields])

    def feed(self, data: bytes) -> None:
        """Read what has arrived; afterwards `is_waiting` says whether more is needed."""
        parser = self._parser
        if parser is None:
            return
        self._received_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_broken = True
        except httptools.HttpParserError as error:
            # What follows a complete answer does not make it incomplete.
            self.is_broken = True
            self._fail(Reason.PROTOCOL, f"the answer is not HTTP/1.1: {error}")
        if self.is_waiting:
            self._bound_answer()

    def _bound_answer(self) -> None:
        if not self._has_head:
            if self._received_bytes > MAX_HEAD_BYTES:
                self._fail(Reason.PROTOCOL, f"the answer's headers are larger than {MAX_HEAD_BYTES // 1024} KiB")
        elif self._received_bytes > MAX_HEAD_BYTES + self.bounds.read_bytes:
            # Counted as it is received, so that framing without content is bounded too.
            self.is_truncated = True
            self._finish(is_complete=False)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if not self.is_waiting:
            # A second answer to one request.
            self.is_broken = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after the head, and are dropped.
        if not self._has_head:
            self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if not self.is_waiting or parser is None:
            return
        self.status = parser.get_status_code()
        if _is_interim(self.status):
            return
        self._has_head = True
        self._is_kept_alive = parser.should_keep_alive()
        if self._is_head:
            # The parser waits for a body that does not come, and there is no way to tell it.
            self._finish(is_complete=False)

    def on_body(self, data: bytes) -> None:
        if not self.is_waiting:
            return
        room = self.bounds.kept_bytes - self._kept_bytes
        if room > 0:
            self._pieces.append(data[:room])
            self._kept_bytes += min(len(data), room)
        if len(data) > room:
            self.is_truncated = True
            if not self._is_kept_alive or (body_length(self.fields) or 0) > self.bounds.read_bytes:
                self._finish(is_complete=False)

    def on_message_complete(self) -> None:
        if not self.is_waiting:
            return
        if _is_interim(self.status):
            self.fields = []
            return
        self._finish(is_complete=True)

    # The end of an answer.

    def _finish(self, *, is_complete: bool) -> None:
        self.is_waiting = False
        pieces, self._pieces = self._pieces, []
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if not is_complete:
            self.is_broken = True

    def _fail(self, reason: Reason, message: str) -> None:
        self._end_with(ExchangeError(reason, message))

    def _end_with(self, problem: ExchangeError) -> None:
        self.is_broken = True
        if self.is_waiting:
            self.is_waiting = False
            self.problem = problem

    def end_by_close(self, error: Exception | None) -> None:
        """The connection has ended, which ends some answers."""
        if not self.is_waiting:
            return
        if self._has_head and error is None and body_length(self.fields) is None:
            self._finish(is_complete=False)
        elif self._received_bytes:
            self._fail(Reason.CLOSED, "the connection was closed in the middle of the answer")
        elif self.exchanges > 1:
            self._end_with(UnansweredError("the server closed a kept connection before it answered"))
        else:
            self._end_with(UnansweredError("the server closed the connection before it answered"))

    def end_by_time(self) -> None:
        message = "the answer did not end in time" if self._has_head else "no answer in time"
        self._fail(Reason.TIMEOUT, message)


def _is_interim(status: int) -> bool:
    return 100 <= status < 200 and status != 101
