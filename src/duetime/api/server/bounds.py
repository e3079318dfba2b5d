"""How much the API keeps for its clients at once: long polls, and bodies that are still coming.

Beyond a bound the answer is a 429 `overloaded`, before anything has been done.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from duetime.errors import Overloaded, TooLarge, UnsupportedMediaType

#: Of one node; a tenant's workers are spread over the nodes by their connections.
MAX_POLLS = 10_000
MAX_POLLS_PER_TENANT = 2_000
#: Of bodies that have not arrived as a whole.
MAX_COMING_BYTES = 256 * 1024 * 1024
POLL_RETRY_SECONDS = 5.0

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(ConnectionError):
    """The client closed the connection: there is nobody to answer."""


class OpenPolls:
    """Long polls that wait, by tenant."""

    def __init__(self, most: int = MAX_POLLS, most_per_tenant: int = MAX_POLLS_PER_TENANT) -> None:
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._waiting: dict[int, int] = {}
        self._count = 0

    @contextmanager
    def wait(self, tenant: int) -> Iterator[None]:
        waiting = self._waiting.get(tenant, 0)
        if waiting >= self._most_per_tenant:
            raise Overloaded(
                f"{waiting:,} workers of the tenant wait at this node already; have fewer, each asking for more tasks",
                POLL_RETRY_SECONDS,
            )
        if self._count >= self._most:
            raise Overloaded(f"{self._count:,} workers wait at this node already", POLL_RETRY_SECONDS)
        self._waiting[tenant] = waiting + 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]


class Bodies:
    """Reads bodies, each up to its limit and all together up to theirs; how long one may take is the protocol's."""

    def __init__(self, most_bytes: int = MAX_COMING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._coming = 0

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedMediaType("send the body without a content encoding")
        length = headers.get(b"content-length", b"").strip()
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False) and len(body) <= limit:
            return body
        return await self._read_on(message, receive, limit)

    async def _read_on(self, message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
        # Not a list of pieces, each of which costs more than its bytes when they are small.
        body = bytearray()
        try:
            while True:
                part: bytes = message.get("body", b"")
                body += part
                self._coming += len(part)
                if len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return bytes(body)
                if self._coming > self._most_bytes:
                    raise Overloaded(f"bodies of {self._coming // 2**20:,} MiB are on their way to this node already")
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
        finally:
            self._coming -= len(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"this call takes at most {limit // (1024 * 1024)} MiB; send less at once")
