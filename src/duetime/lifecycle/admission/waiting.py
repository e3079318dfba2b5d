"""How many tasks of a tenant wait, and whether one more may.

There is no counter: it would be a row that every commit of a tenant fights for.
Nothing is counted either as long as fewer tasks can wait in the whole
installation than the tenant alone may have: the size of the tables bounds them
all, and is read every few seconds.  Else the tasks of the tenant are counted, up
to the quota, and again when so many came since, of all tenants together, that
the quota may be near.  Then what this node accepted since is added.  Counts grow older the longer they take, and
are made anew before anything is refused, but at most once a second.  What other
nodes accept between two counts is not seen: it is the tolerance of the quota.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import structlog

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable
from duetime.service import Loop

log = structlog.get_logger()
#: How long a count is used, at least: this long, or this many times as long as it took.
COUNT_EVERY_SECONDS, COUNT_EVERY_COSTS = 5.0, 50.0
#: The same with little room left, and before anything is refused.
NEAR_EVERY_SECONDS, NEAR_EVERY_COSTS = 1.0, 10.0
#: Below this share of the quota there is little room left.
NEAR_SHARE = 0.1
COUNT_TIMEOUT_SECONDS = 30.0
COUNTS_AT_ONCE = 2
#: A smaller quota is always counted, and one node alone keeps it exactly.
LARGE_ROOM = 100_000
#: More tasks a second than all nodes together accept. With room for many more, no count is needed before it can be
#: used up.
FASTEST = 1_000_000.0
#: How often the size of the tables is read.
BOUND_EVERY = timedelta(seconds=2)
#: The least bytes of a row, with its header and its pointer: of `due` 24 + 46 + 4, of `held` 24 + 56 + 4.
DUE_BYTES, HELD_BYTES = 74, 84

_SQL = load(__package__, "waiting.sql")


class Bound(NamedTuple):
    """What the tables say of all tenants together."""

    #: The most tasks that can wait: more do not fit into the tables.
    tasks: int
    #: By table, how many tasks came to wait so far. A crash of the database sets it back.
    inserted: Mapping[int, int]

    def inserted_since(self, before: "Bound") -> int:
        return sum(
            now - then if now >= (then := before.inserted.get(relation, 0)) else now
            for relation, now in self.inserted.items()
        )


async def bound_waiting(database: Database) -> Bound:
    rows = await database.run(_SQL["read_sizes"])
    tasks = sum(row["size"] // (HELD_BYTES if row["is_held"] else DUE_BYTES) for row in rows)
    return Bound(tasks, {row["relation"]: row["inserted"] for row in rows})


async def count_waiting(database: Database, tenant: int, most: int) -> int:
    """Those that are due or held back, counted up to a bound."""
    [row] = await database.run(_SQL["count_waiting"], timeout=COUNT_TIMEOUT_SECONDS, tenant=tenant, most=most)
    waiting: int = row["waiting"]
    return waiting


@dataclass
class _Count:
    base: int = 0
    #: By this node, since the count began.
    accepted: int = 0
    counted_at: float = float("-inf")
    #: How many tasks of all tenants had come to wait by then.
    inserted: int = 0
    cost: float = 0.0
    counting: "asyncio.Task[None] | None" = None

    def room(self, most: int) -> int:
        return max(0, most - self.base - self.accepted)


class WaitingRoom:
    def __init__(
        self,
        count: Callable[[int, int], Awaitable[int]],
        bound: Callable[[], Awaitable[Bound]],
        *,
        name_of: Callable[[int], str | int] = lambda tenant: tenant,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`count` gives how many tasks of a tenant wait, up to a bound; `bound` what is known of all tenants.

        `name_of` gives what log lines call the tenant.
        """
        self._count = count
        self._read_bound = bound
        #: What was known at that time, and how many tasks this node has accepted since.
        self._bound: Bound | None = None
        self._bound_at, self._accepted = 0.0, 0
        #: Tasks of all tenants that came to wait, from the first look to the last.
        self._inserted = 0
        self._name_of = name_of
        self._monotonic = monotonic
        self._counts: dict[int, _Count] = {}
        self._turns = asyncio.Semaphore(COUNTS_AT_ONCE)
        self.loop = Loop("waiting", self.look)

    async def look(self) -> timedelta:
        """Read how many tasks can wait at all, and how many came."""
        began_at, before = self._monotonic(), self._accepted
        bound = await self._read_bound()
        if self._bound is not None:
            self._inserted += bound.inserted_since(self._bound)
        self._bound, self._bound_at = bound, began_at
        self._accepted -= before
        return BOUND_EVERY

    def take_of_plenty(self, tenant: int, most: int, wanted: int) -> bool:
        """Accept these tasks if the quota is certainly far off, whatever the tenant has. Counts nothing."""
        if most < LARGE_ROOM or self._bound is None:
            return False
        new = self._accepted + wanted + FASTEST * (self._monotonic() - self._bound_at)
        count = self._counts.get(tenant)
        can_wait = self._bound.tasks
        if count is not None:
            # Even if all tasks that came since the count were this tenant's.
            can_wait = min(can_wait, count.base + self._inserted - count.inserted)
        if can_wait + new > (1 - NEAR_SHARE) * most:
            return False
        self._accepted += wanted
        if count is not None:
            count.accepted += wanted
        return True

    def take_now(self, tenant: int, most: int, wanted: int, *, is_whole: bool = False) -> int | None:
        """How many of these tasks may wait, or with `is_whole` all or none; None: `take` has to count."""
        if self.take_of_plenty(tenant, most, wanted):
            return wanted
        count = self._counts.get(tenant)
        if count is None:
            return None
        age = self._monotonic() - count.counted_at
        room = count.room(most)
        if room - wanted < NEAR_SHARE * most:
            if age >= max(NEAR_EVERY_SECONDS, NEAR_EVERY_COSTS * count.cost):
                return None
            return _accept(count, room, wanted, is_whole)
        every = max(COUNT_EVERY_SECONDS, COUNT_EVERY_COSTS * count.cost)
        if age >= every:
            if age >= 2 * every:
                return None
            # There is room for a while: new callers do not wait for the count.
            self._start_count(tenant, most, count)
        return _accept(count, room, wanted, is_whole)

    async def take(self, tenant: int, most: int, wanted: int, *, is_whole: bool = False) -> int:
        """The same, counting if need be. While the database does not answer, nothing is refused."""
        taken = self.take_now(tenant, most, wanted, is_whole=is_whole)
        if taken is not None:
            return taken
        count = self._counts.setdefault(tenant, _Count())
        try:
            await asyncio.shield(self._start_count(tenant, most, count))
        except Unavailable as error:
            name = self._name_of(tenant)
            log.warning("the waiting tasks of a tenant cannot be counted", tenant=name, error=str(error))
            count.accepted += wanted
            return wanted
        return _accept(count, count.room(most), wanted, is_whole)

    def give_back(self, tenant: int, taken: int) -> None:
        """Give back what was taken and then not submitted."""
        if tenant in self._counts:
            count = self._counts[tenant]
            count.accepted = max(0, count.accepted - taken)

    def keep_only(self, is_same: Callable[[int], bool]) -> None:
        """Forget tenants whose quota has changed or is gone."""
        self._counts = {tenant: count for tenant, count in self._counts.items() if is_same(tenant)}

    async def close(self) -> None:
        counting = [count.counting for count in self._counts.values() if count.counting is not None]
        for each in counting:
            each.cancel()
        if counting:
            await asyncio.wait(counting)

    def _start_count(self, tenant: int, most: int, count: _Count) -> "asyncio.Task[None]":
        if count.counting is None:
            count.counting = asyncio.create_task(self._recount(tenant, most, count))
            count.counting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return count.counting

    async def _recount(self, tenant: int, most: int, count: _Count) -> None:
        try:
            async with self._turns:
                began, before, inserted = self._monotonic(), count.accepted, self._inserted
                count.base = await self._count(tenant, most + 1)
                count.accepted = max(0, count.accepted - before)
                count.counted_at, count.cost = began, self._monotonic() - began
                count.inserted = inserted
        except Unavailable:
            # Count it as if it had taken its whole time, so that a slow database is not asked too often.
            count.counted_at, count.cost = self._monotonic(), COUNT_TIMEOUT_SECONDS / NEAR_EVERY_COSTS
            raise
        finally:
            count.counting = None


def _accept(count: _Count, room: int, wanted: int, is_whole: bool) -> int:
    taken = min(room, wanted)
    if is_whole and taken < wanted:
        return 0
    count.accepted += taken
    return taken
