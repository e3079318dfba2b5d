"""Limits on what a chunked body may have beside its content: sizes of chunks, extensions, and trailers.

The limit of a body does not count them, so without limits of their own a request
could go on for ever.  And each chunk and each trailer costs far more than its
bytes: a single packet of tiny ones would delay all other requests.
"""

from duetime.errors import MalformedRequest

MAX_FRAMING_BYTES = 64 * 1024
#: The bytes of a chunk's size and line ends, which are not counted.
_BYTES_OF_A_CHUNK = 16
#: The most chunks, with one more for this many bytes of the body; the most trailers.
MAX_CHUNKS = 8192
BODY_BYTES_PER_CHUNK = 64
MAX_TRAILERS = 100


class Framing:
    """The framing of one body; the bytes of the packets in which it begins and ends are not counted."""

    __slots__ = ("_excess", "_more_chunks", "_trailers")

    def __init__(self) -> None:
        self._excess = 0
        #: How many more chunks may come, in bytes of the body.
        self._more_chunks = MAX_CHUNKS * BODY_BYTES_PER_CHUNK
        self._trailers = 0

    def add_chunk(self) -> None:
        self._excess -= _BYTES_OF_A_CHUNK
        self._more_chunks -= BODY_BYTES_PER_CHUNK
        if self._more_chunks < 0:
            raise MalformedRequest(
                f"the body comes in too many chunks; beyond {MAX_CHUNKS:,} they need {BODY_BYTES_PER_CHUNK} bytes each"
            )

    def add_body(self, size: int) -> None:
        self._excess -= size
        self._more_chunks += size

    def add_trailer(self, name: bytes) -> None:
        """Drop a trailer; raise if it would change how the parser reads on."""
        if name.lower() in (b"connection", b"proxy-connection"):
            # The parser would obey it, and not read the next request.
            raise MalformedRequest("the request has a Connection header behind its body")
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            raise MalformedRequest(f"the request has more than {MAX_TRAILERS} trailers")

    def add_packet(self, size: int) -> None:
        """Count a packet that holds only this body; its chunks and content were added before."""
        # What one packet leaves of its allowance does not pass to the next.
        self._excess = max(0, self._excess + size)
        if self._excess > MAX_FRAMING_BYTES:
            raise MalformedRequest(
                f"the request has more than {MAX_FRAMING_BYTES:,} bytes of chunk extensions and trailers"
            )
