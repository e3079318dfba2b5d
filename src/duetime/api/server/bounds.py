"""Limits on what the API holds for its clients at once: long polls, and bodies that arrive or are processed.

Beyond a limit the answer is a 429 `overloaded`, before anything has been done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from duetime.errors import Overloaded, TooLarge, UnsupportedMediaType
from duetime.long_work import LONG_BYTES

#: Limits of one node; the connections of a tenant's workers are spread over the nodes.
MAX_POLLS = 10_000
MAX_POLLS_PER_TENANT = 2_000
#: Limits on the bodies that arrive or are processed, for all tenants together and for one.
MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_BODY_BYTES_PER_TENANT = 64 * 1024 * 1024
#: Processing a batch takes much more memory than its body, so a tenant may have this many in work at once.
MAX_BATCHES_PER_TENANT = 8
POLL_RETRY_SECONDS = 5.0

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(ConnectionError):
    """The client closed the connection, so no answer can be sent."""


class OpenPolls:
    """Waiting long polls, by tenant."""

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


class TenantSlots:
    """A semaphore for each tenant, with the same number of slots."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: int) -> asyncio.Semaphore:
        return self._of.setdefault(tenant, asyncio.Semaphore(self._most))


class HeldBody:
    """The body of one request; it counts against the limits until the request is answered."""

    __slots__ = ("_bodies", "_bytes", "_is_vital", "_slot", "_tenant")

    def __init__(self, bodies: "Bodies", tenant: int, is_vital: bool) -> None:
        self._bodies = bodies
        self._is_vital = is_vital
        self._tenant = tenant
        self._bytes = 0
        self._slot: asyncio.Semaphore | None = None

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
            if len(body) > LONG_BYTES:
                self._add(len(body))
            return body
        return await self._read_on(message, receive, limit)

    async def begin_work(self) -> None:
        """Wait until the tenant may process one more batch."""
        slot = self._bodies.batch_slot(self._tenant)
        await slot.acquire()
        self._slot = slot

    def let_go(self) -> None:
        """Free what the request holds; called when it is answered."""
        if self._bytes:
            self._bodies.add(self._tenant, -self._bytes)
            self._bytes = 0
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    async def _read_on(self, message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
        # One buffer instead of a list of pieces: each small piece costs more than its bytes.
        body = bytearray()
        while True:
            part: bytes = message.get("body", b"")
            body += part
            self._add(len(part))
            if len(body) > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return bytes(body)
            if len(body) > LONG_BYTES:
                # Small bodies, such as beats, are always read.
                self._bodies.check(None if self._is_vital else self._tenant)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError

    def _add(self, size: int) -> None:
        self._bytes += size
        self._bodies.add(self._tenant, size)


class Bodies:
    """The bodies of a node, with a limit for each tenant and for all; the protocol limits how long one may take."""

    def __init__(self, most: int = MAX_BODY_BYTES, most_per_tenant: int = MAX_BODY_BYTES_PER_TENANT) -> None:
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._tenants: dict[int, int] = {}
        self._batches = TenantSlots(MAX_BATCHES_PER_TENANT)
        #: For explaining what is wrong with a long body.
        self._explanations = TenantSlots(1)
        #: The bytes of all bodies.
        self.bytes = 0

    def of(self, tenant: int, *, is_vital: bool = False) -> HeldBody:
        return HeldBody(self, tenant, is_vital)

    def add(self, tenant: int, size: int) -> None:
        self.bytes += size
        self._tenants[tenant] = now = self._tenants.get(tenant, 0) + size
        if not now:
            del self._tenants[tenant]

    def check(self, tenant: int | None) -> None:
        """Raise if no more of a body may be read now."""
        if self.bytes > self._most:
            raise Overloaded(f"bodies of {self.bytes // 2**20:,} MiB are with this node already")
        own = 0 if tenant is None else self._tenants.get(tenant, 0)
        if own > self._most_per_tenant:
            raise Overloaded(
                f"bodies of {own // 2**20:,} MiB of the tenant are with this node already; send less at once"
            )

    def batch_slot(self, tenant: int) -> asyncio.Semaphore:
        return self._batches.of(tenant)

    def explanation_slot(self, tenant: int) -> asyncio.Semaphore:
        """One slot for each tenant: without it other tenants would wait for a hundred turns of one tenant."""
        return self._explanations.of(tenant)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"this call takes at most {limit // (1024 * 1024)} MiB; send less at once")
