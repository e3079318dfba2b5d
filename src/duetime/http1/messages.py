"""The parts of an exchange: headers, bounds, and the reason why there is no answer."""

import enum
import re
from dataclasses import dataclass

#: (name, value): as they came, and with names in lower case.
Fields = list[tuple[bytes, bytes]]
Headers = tuple[tuple[bytes, bytes], ...]

MAX_HEAD_BYTES = 64 * 1024

_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,;\s])timeout=(\d{1,6})", re.IGNORECASE)
# A server counts its own timeout from its last byte, not from when that reached us.
_MARGIN_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    """How much of an answer's body is kept, and how much is read so that the connection can be kept."""

    kept_bytes: int
    read_bytes: int


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
    """There is no answer; the message is for the caller."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnansweredError(ExchangeError):
    """The connection was closed before the first byte of an answer."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.CLOSED, message)


def idle_seconds(fields: Fields, at_most: float) -> float:
    """How long a connection may be kept after this answer; the server may have said how long it keeps its side."""
    for name, value in fields:
        # The length is checked first: this runs for every answer.
        if len(name) == 10 and name.lower() == b"keep-alive" and (found := _KEEP_ALIVE_TIMEOUT.search(value)):
            return min(at_most, float(found[1]) - _MARGIN_SECONDS)
    return at_most


def body_length(fields: Fields) -> int | None:
    """The body's length, 0 if it is chunked; None if only the end of the connection ends it."""
    length: int | None = None
    for name, value in fields:
        match name.lower():
            case b"transfer-encoding" if value.lower().rstrip().endswith(b"chunked"):
                return 0
            case b"content-length" if value.strip().isdigit():
                length = int(value)
            case _:
                pass
    return length
