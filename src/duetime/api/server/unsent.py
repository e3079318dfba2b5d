"""Answers that clients have not read: by tenant, with limits on their bytes and on how long they may stay.

A client that asks and does not read makes the node hold its answers.  What the
system takes at once costs nothing here: a connection is entered when part of an
answer is unsent, and leaves when all of it is taken.  Until then the whole answer
counts, because it stays in memory as a whole.

If the clients of a tenant leave too much unread, its reads are refused until they
read; at the limit of the node, the tenant with the most loses the connection that
has not moved for the longest.  A client that reads nothing for some time, or reads
too slowly, is cut off.  Requests have the same rule in the other direction
(`protocol`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from duetime import metrics
from duetime.api.server.bounds import TenantSlots
from duetime.api.server.connections import Connections
from duetime.api.server.peers import Client
from duetime.errors import Overloaded

#: An answer may stay this long without moving, and this long in all, plus a second for this many bytes that were
#: taken.
TAKE_SECONDS = 30.0
BYTES_PER_SECOND = 16 * 1024
#: Limits for all connections of a node, and for those of one tenant.
MAX_UNSENT_BYTES = 256 * 1024 * 1024
MAX_UNSENT_BYTES_PER_TENANT = 64 * 1024 * 1024
RETRY_SECONDS = 5.0
#: How many answers that may be large are made for one tenant at once.
MAX_READS_PER_TENANT = 4
#: How often to check which clients have read something.
LOOK_SECONDS = 5.0
#: The tenant of answers to requests without a key.
NOBODY = 0


class Line(Protocol):
    """A connection, seen from its sending side."""

    client: Client
    #: The tenant whose request is being answered, or was the last.
    tenant: int

    #: The size of the answer that was written last.
    answer_bytes: int

    def unsent(self) -> int:
        """How many bytes the system has not taken."""

    def cut_off(self) -> None:
        """Close it at once, and drop what is unsent."""


@dataclass(slots=True)
class _Left:
    """The unsent part of an answer.  The next answer waits until all of it is taken."""

    tenant: int
    #: Its size in memory.
    bytes: int
    began_with: int
    unsent: int
    since: float
    moved_at: float

    def measure(self, line: Line, now: float) -> None:
        unsent = line.unsent()
        if unsent != self.unsent:
            self.unsent, self.moved_at = unsent, now

    def is_late(self, now: float) -> bool:
        taken = self.began_with - self.unsent
        return now > self.moved_at + TAKE_SECONDS or now > self.since + TAKE_SECONDS + taken / BYTES_PER_SECOND


@dataclass(slots=True)
class _Account:
    """The partly unsent answers of a tenant."""

    bytes: int = 0
    lines: set[Line] = field(default_factory=set)


class Unsent:
    """The partly unsent answers of a process."""

    def __init__(
        self,
        connections: Connections,
        most: int = MAX_UNSENT_BYTES,
        most_per_tenant: int = MAX_UNSENT_BYTES_PER_TENANT,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._connections = connections
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._left: dict[Line, _Left] = {}
        self._accounts: dict[int, _Account] = {}
        self._reads = TenantSlots(MAX_READS_PER_TENANT)
        self._looking: asyncio.TimerHandle | None = None
        #: The bytes of all connections.
        self.bytes = 0

    def add(self, line: Line, tenant: int) -> None:
        """Enter a connection: the system did not take all of an answer."""
        now, unsent = self._now(), line.unsent()
        size = max(unsent, line.answer_bytes)
        self._left[line] = _Left(tenant, size, unsent, unsent, now, now)
        account = self._accounts.setdefault(tenant, _Account())
        account.lines.add(line)
        account.bytes += size
        self.bytes += size
        if self.bytes > self._most:
            self._make_room(now)
        if self._looking is None:
            self._look_later()
        metrics.UNSENT_BYTES.set(self.bytes)

    def discard(self, line: Line) -> None:
        """Remove a connection: all of the answer was taken, or the connection ends."""
        left = self._left.pop(line, None)
        if left is None:
            return
        account = self._accounts[left.tenant]
        account.lines.discard(line)
        account.bytes -= left.bytes
        self.bytes -= left.bytes
        if not account.lines:
            del self._accounts[left.tenant]
        metrics.UNSENT_BYTES.set(self.bytes)

    def check(self, tenant: int) -> None:
        """Raise if the tenant's clients have to read their answers first."""
        account = self._accounts.get(tenant)
        if account is None or account.bytes < self._most_per_tenant:
            return
        raise Overloaded(
            f"clients of the tenant have not read answers of {account.bytes // 2**20:,} MiB of this node; "
            "let them read, or ask for less at once",
            RETRY_SECONDS,
        )

    @asynccontextmanager
    async def reading(self, tenant: int) -> AsyncIterator[None]:
        """Hold a slot while a large answer is made: a tenant has a few in memory, however many it asks for."""
        async with self._reads.of(tenant):
            # The answers before it may still be unread.
            self.check(tenant)
            yield

    def look(self) -> None:
        """Cut off the clients that are too slow."""
        now = self._now()
        for line, left in [*self._left.items()]:
            left.measure(line, now)
            if left.is_late(now):
                self._cut_off(line, left)

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_on)

    def _look_on(self) -> None:
        self._looking = None
        self.look()
        if self._left:
            self._look_later()

    def _make_room(self, now: float) -> None:
        for line, left in self._left.items():
            left.measure(line, now)
        while self.bytes > self._most:
            largest = max(self._accounts.values(), key=lambda account: account.bytes)
            line = min(largest.lines, key=lambda each: (self._left[each].moved_at, self._left[each].since))
            self._cut_off(line, self._left[line])

    def _cut_off(self, line: Line, left: _Left) -> None:
        self.discard(line)
        self._connections.note_unread(line.client, left.unsent)
        line.cut_off()
