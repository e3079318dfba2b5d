"""How many bytes may frame a body: the sizes of chunks, their extensions, and trailers.

The limit of a body does not count them, so without a bound of its own a request
could go on for ever.  Each chunk may have some, so that a body in small chunks is
served; what goes beyond that is counted together.
"""

from duetime.errors import MalformedRequest

MAX_FRAMING_BYTES = 64 * 1024
#: The size of a chunk and the ends of its lines.
_BYTES_OF_A_CHUNK = 16


class Framing:
    """Of one connection; the packet in which a body begins or ends does not count."""

    __slots__ = ("_excess",)

    def __init__(self) -> None:
        self._excess = 0

    def begin(self) -> None:
        """A body begins."""
        self._excess = 0

    def add_chunk(self) -> None:
        self._excess -= _BYTES_OF_A_CHUNK

    def add_body(self, size: int) -> None:
        self._excess -= size

    def add_packet(self, size: int) -> None:
        """A packet in which nothing but this body came; what was of it is added before."""
        # What one packet leaves of its allowance is not for the next.
        self._excess = max(0, self._excess + size)
        if self._excess > MAX_FRAMING_BYTES:
            raise MalformedRequest(
                f"the request has more than {MAX_FRAMING_BYTES:,} bytes of chunk extensions and trailers"
            )
