"""The coordinator on PostgreSQL: a row for each node, whose counter rises every second.

One statement a second raises this node's counter and reads the counters of all.  A
node is there while its counter is seen to move, by this process's own monotonic
time; the database's clock decides nothing.  If this process stood still, or the
database was away, the watch begins anew.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from duetime.clock import Monotonic
from duetime.cluster.contract import SILENCE_SECONDS, Member
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable
from duetime.service import Loop

log = structlog.get_logger()
SQL = load(__package__, "postgres.sql")
BEAT_EVERY = timedelta(seconds=1)
#: A longer gap between two looks means that this process or the database stood still.
LONGEST_GAP_SECONDS = 2.5


class Watch:
    """The counters, since when they are unchanged, and which nodes are there by that; no I/O."""

    def __init__(self) -> None:
        self._seen: dict[Member, tuple[int, float]] = {}
        self._doubted: dict[Member, int] = {}
        self._looked_at: float | None = None

    def look(self, beats: dict[Member, int], at: float) -> tuple[Member, ...]:
        """Take the counters read at this time. Return the nodes that are there."""
        if self._looked_at is not None and at - self._looked_at > LONGEST_GAP_SECONDS:
            self._seen.clear()
        self._looked_at = at
        self._seen = {
            member: known if (known := self._seen.get(member)) and known[0] == count else (count, at)
            for member, count in beats.items()
        }
        self._doubted = {member: count for member, count in self._doubted.items() if beats.get(member) == count}
        return self._there(at)

    def doubt(self, member: Member, at: float) -> tuple[Member, ...]:
        """See a node as gone until its counter moves. Return the nodes that are there."""
        if member in self._seen:
            self._doubted[member] = self._seen[member][0]
        return self._there(at)

    def _there(self, at: float) -> tuple[Member, ...]:
        return tuple(
            sorted(
                member
                for member, (_, since) in self._seen.items()
                if at - since < SILENCE_SECONDS and member not in self._doubted
            )
        )


class PostgresCoordinator:
    """The nodes of one cluster in one database."""

    def __init__(self, database: Database, cluster: str, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._cluster = cluster
        self._monotonic = monotonic
        self._watch = Watch()
        self._members: tuple[Member, ...] = ()
        self._calls: list[Callable[[], None]] = []
        self._self: Member | None = None
        self._looking = asyncio.Lock()
        self._loop = Loop("membership", self._step, jitter=0.0)

    def members(self) -> tuple[Member, ...]:
        return self._members

    def on_change(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    async def join(self, member: Member) -> None:
        self._self = member
        await self._enter(member)
        await self._database.run(SQL["forget"])
        await self.look()
        self._loop.start()

    async def leave(self) -> None:
        await self._loop.stop()
        member, self._self = self._self, None
        if member is None:
            return
        try:
            await self._database.run_with(SQL["leave"], _key(self._cluster, member), timeout=2.0)
        except Unavailable as error:
            # The other nodes see the counter stand still.
            log.warning("left without the database's word", error=str(error))

    def doubt(self, member: Member) -> None:
        self._see(self._watch.doubt(member, self._monotonic()))

    async def look(self) -> None:
        async with self._looking:
            member = self._self
            if member is None:
                return
            rows = await self._database.run_with(SQL["beat"], _key(self._cluster, member), timeout=2.0)
            found = {Member(row["name"], row["incarnation"], row["address"]): row["beats"] for row in rows}
            if member not in found and all(other.name != member.name for other in found):
                # The row was lost: the node was taken for dead, or the database is in an older state.
                await self._enter(member)
                found[member] = 0
            self._see(self._watch.look(found, self._monotonic()))

    async def _step(self) -> timedelta:
        await self.look()
        return BEAT_EVERY

    async def _enter(self, member: Member) -> None:
        key = _key(self._cluster, member)
        await run_once(self._database, SQL["join"], **key, address=member.address, timeout=5.0)

    def _see(self, members: tuple[Member, ...]) -> None:
        if members != self._members:
            self._members = members
            for call in self._calls:
                call()


def _key(cluster: str, member: Member) -> dict[str, object]:
    return {"cluster": cluster, "name": member.name, "incarnation": member.incarnation}
