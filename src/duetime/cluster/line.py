"""One line between two nodes: frames in both directions, and what may be in them.

A frame is four bytes of length and a MessagePack array.  The first frame that cannot
be read closes the line, because then the start of the next one is unknown.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import structlog

log = structlog.get_logger()

MAX_FRAME_BYTES = 64 * 1024 * 1024
#: If another node reads so slowly that more than this waits to be sent, its line is closed.
MAX_UNSENT_BYTES = 2 * MAX_FRAME_BYTES
#: The most bytes of a frame that are kept for a peer that has not proved itself.
_MAX_GREETING_BYTES = 1024


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=0):
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=1):
    #: The calling node, and the incarnation that it wants to reach: ports are reused.
    caller: str
    wanted: int
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    proof: bytes


class Call(msgspec.Struct, frozen=True, array_like=True, tag=3):
    number: int
    verb: str
    body: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The caller wants its answer now."""

    number: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=5):
    number: int
    #: None: the other node could not do it, or the call was ended before anything was done.
    body: bytes | None


#: What the decoder raises; for bad UTF-8 it is not a `DecodeError`.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Challenge | Proof | Welcome | Call | End | Answer).decode


class Line(asyncio.Protocol):
    """Sends and receives frames."""

    def __init__(
        self,
        on_frame: Callable[["Line", object], None],
        on_lost: Callable[["Line"], None],
        on_made: "Callable[[Line], None] | None" = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.limit = _MAX_GREETING_BYTES
        #: The nonce that this end received or chose in the greeting.
        self.nonce = b""
        self.is_trusted = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def trust(self) -> None:
        self.is_trusted = True
        self.limit = MAX_FRAME_BYTES

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message. Return whether it is on its way; a line that is stuck is closed."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.close()
            return False
        frame = _encode(message)
        self._transport.write(len(frame).to_bytes(4, "big") + frame)
        return True

    def break_off(self, reason: str) -> None:
        """Close the line because of what it received. Log it only for proved nodes: others could fill the log."""
        if self.is_trusted and self.is_open:
            log.warning("another node said what cannot be understood: its line is closed", error=reason)
        self.close()

    def close(self) -> None:
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._buffer += data
        while self.is_open and len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self.limit:
                self.break_off(f"a frame of {length:,} bytes; {self.limit:,} are the most")
                return
            if len(self._buffer) < 4 + length:
                return
            frame = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            try:
                message = _decode(frame)
            except UNREADABLE as error:
                self.break_off(f"a frame cannot be read: {error}")
                return
            self._on_frame(self, message)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost(self)
