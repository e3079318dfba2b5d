"""Which nodes share the shards, and which of them feeds which shard.

Views may differ for a second, so this is advice: two feeders of one shard cannot claim
one row, and the feeder's look finds rows that were not reported to it.
"""

import asyncio
import secrets

import structlog

from duetime.cluster.contract import Coordinator, Member, NodeView
from duetime.cluster.shards import assign, owner_of
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SHARDS
from duetime.lifecycle.lanes import Lanes
from duetime.scheduler.feed import Feeder
from duetime.scheduler.messages import DatabaseAt, Done, NodesChanged
from duetime.scheduler.messenger import Messenger
from duetime.service import Errands
from duetime.signals import Signal

log = structlog.get_logger()
ANNOUNCE_SECONDS = 1.0
TELL_PLACE_EVERY_SECONDS = 1.0
TELL_PLACE_TIMES = 4


class Membership:
    def __init__(
        self, messenger: Messenger, coordinator: Coordinator, database: Database, feeder: Feeder, lanes: Lanes
    ) -> None:
        self.name = messenger.name
        self._messenger = messenger
        self._coordinator = coordinator
        self._database = database
        self._feeder = feeder
        self._lanes = lanes
        #: Sent when shards have moved between the nodes.
        self.moved = Signal[[]]()
        #: Sent when shards have moved, or a node was restarted: requests to it are lost.
        self.changed = Signal[[]]()
        self._names: frozenset[str] = frozenset()
        self._owners: tuple[str | None, ...] = assign(frozenset())
        self._own: frozenset[int] = frozenset()
        self._errands = Errands("membership")
        self._is_leaving = False
        # A node that has not joined feeds nothing.
        feeder.feed_only(frozenset())
        messenger.called.listen(self._look_soon)
        messenger.lost.listen(self._lost)
        messenger.serve(NodesChanged, self._hear_news)
        messenger.serve(DatabaseAt, self._hear_place)

    async def join(self) -> None:
        """Join the nodes that share the shards; the feeder then starts with its own."""
        member = await self._messenger.listen(secrets.randbits(62))
        self._coordinator.on_change(self._see_members)
        await self._coordinator.join(member)
        if (place := self._database.place) is not None:
            self._errands.begin(self._tell_place(DatabaseAt(place)))

    async def leave(self) -> None:
        """Leave the shards to the other nodes, and tell them."""
        self._is_leaving = True
        await self._coordinator.leave()
        self._see(self._names - {self.name})
        await self._messenger.ask_all(NodesChanged(), Done, ANNOUNCE_SECONDS)

    async def close(self) -> None:
        await self._messenger.close()
        self._errands.cancel()

    def nodes(self) -> list[NodeView]:
        return [NodeView(name, self._owners.count(name), name == self.name) for name in sorted(self._names)]

    def has_duty(self, duty: str) -> bool:
        """Whether this node has this duty."""
        return self.owner_of(f"duty {duty}") == self.name

    @property
    def owns_shards(self) -> bool:
        return bool(self._own)

    def owner_of(self, name: str) -> str | None:
        """The node that is responsible for this name."""
        return owner_of(name, self._names)

    def feeder_of(self, lane: int) -> str | None:
        """The node that feeds a lane, or any other number of its shard."""
        return self._owners[lane % SHARDS]

    def _see_members(self) -> None:
        if self._is_leaving:
            return
        members = self._coordinator.members()
        self._messenger.meet(members)
        self._see(frozenset(member.name for member in members))

    def _see(self, names: frozenset[str]) -> None:
        if names != self._names:
            log.info("nodes that share the shards", nodes=sorted(names))
            self._names, self._owners = names, assign(names)
            before = self._own
            self._own = frozenset(shard for shard, owner in enumerate(self._owners) if owner == self.name)
            self._feeder.feed_only(self._own)
            self._errands.begin(self._take_over(self._own - before))
            self.moved()
        self.changed()

    async def _take_over(self, gained: frozenset[int]) -> None:
        try:
            # A node that is gone may have made lanes that this node does not know.
            await self._lanes.load()
            await self._feeder.look_at(gained)
        except Unavailable as error:
            log.warning("new shards are looked at later", error=str(error))

    def _lost(self, member: Member) -> None:
        if self._is_leaving:
            # This node does not notice when that node comes back: calls to it fail at once instead of waiting.
            self._messenger.part(member)
        else:
            self._coordinator.doubt(member)

    def _look_soon(self) -> None:
        if not self._is_leaving:
            self._errands.begin(self._look())

    async def _look(self) -> None:
        try:
            await self._coordinator.look()
        except Unavailable:
            # The next beat looks again.
            return

    async def _hear_news(self, _: NodesChanged) -> Done:
        self._look_soon()
        return Done()

    # The database's history

    async def _tell_place(self, said: DatabaseAt) -> None:
        """Tell the nodes whose rows were here already: the server that they use may have been replaced by this one.

        A node cannot tell that its server was replaced.  Its row stays until its counter is known to stand still.
        """
        told: set[Member] = set()
        for _ in range(TELL_PLACE_TIMES):
            for member in set(self._messenger.others()) - told:
                if await self._messenger.ask(member.name, said, Done, ANNOUNCE_SECONDS) is not None:
                    told.add(member)
            await asyncio.sleep(TELL_PLACE_EVERY_SECONDS)

    async def _hear_place(self, said: DatabaseAt) -> Done:
        # Only a new connection shows it, and the replaced server may still be running.
        self._database.hear(said.place)
        return Done()
