"""Route what concerns a shard to the node that feeds it, and answer what comes from others.

A row that was put into due is reported to the node that feeds its lane, again and again
until that node has received it.  None of this is needed for safety: the feeder's look
finds rows that were not reported to it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol
from uuid import UUID

from duetime.admin.breakers import ForcedBreakers
from duetime.errors import Unavailable
from duetime.ids import lane_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.onward import OnEnded
from duetime.lifecycle.tasks.onward import Wake as OnWake
from duetime.model.attempt import Past
from duetime.model.breaker_status import BreakerStatus
from duetime.model.tenant_breaker import Record
from duetime.scheduler.breakers import Breakers, strictest
from duetime.scheduler.feed import Feeder
from duetime.scheduler.membership import ANNOUNCE_SECONDS, Membership
from duetime.scheduler.messages import (
    BreakersDescribed,
    BreakersForced,
    CountOutcomes,
    DescribeBreakers,
    DescribeLane,
    Done,
    Ended,
    LaneDescribed,
    LaneMade,
    OutcomesCounted,
    Wake,
)
from duetime.scheduler.messenger import Messenger
from duetime.scheduler.plan import LaneStatus
from duetime.scheduler.tenant_shards import TenantShards
from duetime.scheduler.wakes import WakeRouter
from duetime.service import Errands

WAKE_SECONDS = 2.0
DESCRIBE_SECONDS = 1.0


class Records(Protocol):
    """What this node knows of the attempts of some tenants."""

    def __call__(self, tenants: Sequence[int], /) -> dict[int, Record]: ...


class OtherNodes:
    """What the other nodes know of the attempts of tenants; made before the parts that know it on this node."""

    def __init__(self, messenger: Messenger) -> None:
        self._messenger = messenger

    async def records(self, tenants: list[int]) -> list[dict[int, Record]]:
        """The records of the nodes that answer."""
        replies = await self._messenger.ask_all(CountOutcomes(tenants), OutcomesCounted, DESCRIBE_SECONDS)
        return [reply.records for reply in replies]


class Routing:
    def __init__(
        self,
        messenger: Messenger,
        membership: Membership,
        shards: TenantShards,
        feeder: Feeder,
        lanes: Lanes,
        breakers: Breakers,
        forced: ForcedBreakers,
        *,
        woken: OnWake,
        ended: OnEnded,
        records_of: Records,
    ) -> None:
        """`woken` and `ended` are called for lanes that are fed here."""
        self._messenger = messenger
        self._membership = membership
        self._shards = shards
        self._feeder = feeder
        self._lanes = lanes
        self._breakers = breakers
        self._forced = forced
        self._woken = woken
        self._ended_here = ended
        self._records_of = records_of
        self._errands = Errands("routing")
        self._wakes = WakeRouter(membership.name, membership.feeder_of, woken, self._tell_wakes, self._errands.begin)
        membership.changed.listen(self._wakes.route_again)
        lanes.made.listen(self._announce_lane)
        forced.changed_here.listen(self._announce_forced)
        messenger.serve(Wake, self._hear_wakes)
        messenger.serve(Ended, self._hear_ended)
        messenger.serve(LaneMade, self._hear_lane)
        messenger.serve(DescribeLane, self._describe_lane)
        messenger.serve(DescribeBreakers, self._describe_breakers)
        messenger.serve(CountOutcomes, self._count_outcomes)
        messenger.serve(BreakersForced, self._hear_forced)

    async def close(self) -> None:
        self._errands.cancel()

    # Rows in due

    def wake(self, wakes: Collection[UUID]) -> None:
        self._wakes.route(wakes)

    async def _tell_wakes(self, owner: str, wakes: list[UUID]) -> bool:
        return await self._messenger.ask(owner, Wake(wakes), Done, WAKE_SECONDS) is not None

    async def _hear_wakes(self, said: Wake) -> Done:
        for wake in said.wakes:
            # The sending node may have made the lane.
            await self._lanes.resolve(lane_of(wake))
        self._woken(said.wakes)
        return Done()

    # Ended attempts

    def ended(self, attempts: Sequence[Past]) -> None:
        """Report ended attempts to the nodes that feed their lanes and count running tasks, if there is a limit."""
        own: list[Past] = []
        others: dict[str, list[Past]] = {}
        if not self._feeder.has_limits:
            return
        for past in attempts:
            lane = lane_of(past.task)
            owner = self._membership.feeder_of(lane)
            if owner == self._membership.name:
                own.append(past)
            elif owner is not None and self._feeder.is_limited(lane):
                others.setdefault(owner, []).append(past)
        if own:
            self._ended_here(own)
        for owner, ended in others.items():
            # Not repeated: the other node looks for ended attempts once a second.
            self._errands.begin(self._tell_ended(owner, ended))

    async def _tell_ended(self, owner: str, attempts: list[Past]) -> None:
        await self._messenger.ask(owner, Ended(attempts), Done, WAKE_SECONDS)

    async def _hear_ended(self, said: Ended) -> Done:
        self._ended_here(said.attempts)
        return Done()

    # Lanes

    async def share(self, tenants: Iterable[int]) -> None:
        """Tell the feeder which of these tenants, all of them spread, other nodes feed as well."""
        wanted = frozenset(tenants)
        owners: dict[int, set[str]] = {}
        for lane, key in self._lanes.all().items() if wanted else ():
            if key.tenant in wanted and (owner := self._membership.feeder_of(lane)) is not None:
                owners.setdefault(key.tenant, set()).add(owner)
        await self._feeder.share({tenant: len(names) for tenant, names in owners.items() if len(names) > 1})

    async def _announce_lane(self, lane: int) -> None:
        """Tell all nodes, because a list of a tenant's tasks covers only known lanes."""
        self._forget_shards(lane)
        await self._messenger.ask_all(LaneMade(lane), Done, ANNOUNCE_SECONDS)

    async def _hear_lane(self, said: LaneMade) -> Done:
        await self._lanes.learn(said.lane)
        self._forget_shards(said.lane)
        return Done()

    def _forget_shards(self, lane: int) -> None:
        """Forget the shards of the lane's tenant, which may have one more now."""
        if (key := self._lanes.key_of(lane)) is not None:
            self._shards.forget(key.tenant)

    async def describe(self, lane: int) -> LaneStatus | None:
        owner = self._membership.feeder_of(lane)
        if owner is None:
            return None
        if owner == self._membership.name:
            return await self._feeder.describe(lane)
        reply = await self._messenger.ask(owner, DescribeLane(lane), LaneDescribed, DESCRIBE_SECONDS)
        return None if reply is None else reply.status

    async def _describe_lane(self, asked: DescribeLane) -> LaneDescribed:
        return LaneDescribed(await self._feeder.describe(asked.lane))

    # Breakers

    async def describe_breakers(self, tenant: int) -> list[BreakerStatus]:
        """The tenant's breakers on the nodes that feed it; if several call a host, the one that lets least through."""
        feeders = {self._membership.feeder_of(shard) for shard in await self._shards.of(tenant)}
        owners = [owner for owner in feeders if owner is not None]
        return strictest([each for owner in owners for each in await self._breakers_at(owner, tenant)])

    async def _breakers_at(self, owner: str, tenant: int) -> list[BreakerStatus]:
        if owner == self._membership.name:
            return self._breakers.states(tenant)
        reply = await self._messenger.ask(owner, DescribeBreakers(tenant), BreakersDescribed, DESCRIBE_SECONDS)
        if reply is None:
            raise Unavailable("the node that feeds this tenant does not answer at this moment")
        return reply.breakers

    async def _describe_breakers(self, asked: DescribeBreakers) -> BreakersDescribed:
        return BreakersDescribed(self._breakers.states(asked.tenant))

    async def _count_outcomes(self, asked: CountOutcomes) -> OutcomesCounted:
        return OutcomesCounted(self._records_of(asked.tenants))

    async def _announce_forced(self) -> None:
        """Tell all nodes; a node that is not reached finds the change by itself, unless it was undone by then."""
        await self._messenger.ask_all(BreakersForced(), Done, ANNOUNCE_SECONDS)

    async def _hear_forced(self, _: BreakersForced) -> Done:
        await self._forced.refresh()
        return Done()
