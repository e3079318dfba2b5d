"""The data that goes out to a target and comes back."""

import msgspec

from duetime.http1.messages import Headers, Reason
from duetime.model.origin import Origin


class Request(msgspec.Struct, frozen=True):
    origin: Origin
    #: Head and body, as they are sent.
    content: bytes
    is_head: bool = False
    #: The tenant whose look-ups it uses.
    tenant: int = 0


class Timings(msgspec.Struct, omit_defaults=True):
    """Milliseconds of each phase; a phase that did not take place is absent."""

    total_ms: float
    reused: bool
    dns_ms: float | None = None
    connect_ms: float | None = None
    tls_ms: float | None = None
    first_byte_ms: float | None = None


class Response(msgspec.Struct, frozen=True):
    status: int
    #: Names in lower case.
    headers: Headers
    body: bytes
    is_truncated: bool
    timings: Timings


class NoResponse(msgspec.Struct, frozen=True):
    reason: Reason
    message: str
    timings: Timings


def to_ms(seconds: float) -> float:
    return int(seconds * 1_000_000) / 1000
