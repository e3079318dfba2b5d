"""What a chunked body may have beside its own bytes: sizes of chunks, their extensions, and trailers.

The limit of a body does not count them, so without bounds of their own a request
could go on for ever.  And each chunk and each trailer costs far more than its
bytes: a single packet of tiny ones would hold up everybody else.
"""

from duetime.errors import MalformedRequest

MAX_FRAMING_BYTES = 64 * 1024
#: The size of a chunk and the ends of its lines, which are not counted.
_BYTES_OF_A_CHUNK = 16
#: As many chunks, and one more for so many bytes of the body; as many trailers.
MAX_CHUNKS = 8192
BODY_BYTES_PER_CHUNK = 64
MAX_TRAILERS = 100


class Framing:
    """Of one body; the packet in which it begins or ends is not counted in bytes."""

    __slots__ = ("_excess", "_more_chunks", "_trailers")

    def __init__(self) -> None:
        self._excess = 0
        #: In bytes of the body.
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
        """It is dropped, unless it would change how the parser reads on."""
        if name.lower() in (b"connection", b"proxy-connection"):
            # The parser would obey, and read nothing of the next request.
            raise MalformedRequest("the request has a Connection header behind its body")
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            raise MalformedRequest(f"the request has more than {MAX_TRAILERS} trailers")

    def add_packet(self, size: int) -> None:
        """A packet in which nothing but this body came; what was of it is added before."""
        # What one packet leaves of its allowance is not for the next.
        self._excess = max(0, self._excess + size)
        if self._excess > MAX_FRAMING_BYTES:
            raise MalformedRequest(
                f"the request has more than {MAX_FRAMING_BYTES:,} bytes of chunk extensions and trailers"
            )
