"""Polls of workers that are forwarded to the nodes that feed their tenant.

A poll's room is divided between the nodes that feed the tenant's shards; when the shards
move the poll ends and is forwarded again.  It is never repeated.  Replies carry payloads
as they are stored.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from duetime.cluster.mesh import Ending
from duetime.errors import Unavailable
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.lanes import Lanes
from duetime.model.task import LeasedTask
from duetime.scheduler.feed import Feeder
from duetime.scheduler.membership import Membership
from duetime.scheduler.messages import Lease, Leased, Reply
from duetime.scheduler.messenger import Messenger
from duetime.scheduler.plan import Ask, LaneStatus
from duetime.scheduler.routing import Routing
from duetime.scheduler.tenant_shards import TenantShards
from duetime.scheduler.wakes import PAUSE_SECONDS
from duetime.service import Errands

log = structlog.get_logger()
#: How much longer than its wait a forwarded poll may take.
GRACE_SECONDS = 5.0


class Forwarding:
    """What the API needs from a feeder, on whichever node it is."""

    def __init__(
        self,
        messenger: Messenger,
        membership: Membership,
        routing: Routing,
        shards: TenantShards,
        feeder: Feeder,
        lanes: Lanes,
        holders: Holders,
    ) -> None:
        self._messenger = messenger
        self._membership = membership
        self._shards = shards
        self._feeder = feeder
        self._lanes = lanes
        self._holders = holders
        self._routing = routing
        self._passed: set[Ending] = set()
        self._errands = Errands("forwarding")
        membership.moved.listen(self._end_passed)
        messenger.came_late.listen(self._take_late)
        messenger.serve(Lease, self._lease_here)

    async def close(self) -> None:
        self._errands.cancel()

    @property
    def is_stopping(self) -> bool:
        return self._feeder.is_stopping

    async def describe(self, lane: int) -> LaneStatus | None:
        return await self._routing.describe(lane)

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """Wait for due tasks for this holder on the nodes that feed its tenant; none when the wait is over."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_seconds
        while True:
            assert ask.tenant is not None, "an executor leases from its own node's feeder"
            rooms = self.divide(await self._shards.of(ask.tenant), ask.room)
            asked_at = loop.time()
            left = max(ends_at - asked_at, 0.0)
            match list(rooms):
                case []:
                    tasks = []
                case [owner]:
                    tasks = await self._lease_from(owner, ask, left)
                case _:
                    tasks = await self._lease_from_many(rooms, ask, left)
            now = loop.time()
            left = ends_at - now
            if self._feeder.polls.has_ended(ask.holder):
                if tasks:
                    self._errands.begin(self._return(tasks))
                return []
            if tasks or self.is_stopping or left <= 0 or not self._holders.knows(ask.holder):
                return tasks
            if self._membership.name not in rooms or now - asked_at < PAUSE_SECONDS:
                # The node is unknown, stops, went away, or knows that the holder has ended: this node will learn it.
                await asyncio.sleep(min(left, PAUSE_SECONDS))

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        await self._feeder.give_back(tasks, delay_seconds)

    def divide(self, shards: Iterable[int], room: int) -> dict[str, int]:
        """Divide the room of a poll between the nodes that feed these shards; the parts never exceed it."""
        feeders = {self._membership.feeder_of(shard) for shard in shards}
        owners = sorted(owner for owner in feeders if owner is not None)
        rooms = {}
        for place, owner in enumerate(owners):
            rooms[owner] = room // len(owners) + (place < room % len(owners))
        return {owner: part for owner, part in rooms.items() if part}

    async def _lease_from(self, owner: str, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        if owner == self._membership.name:
            return await self._feeder.lease(ask, wait_seconds)
        timeout = wait_seconds + GRACE_SECONDS
        reply = await self._messenger.ask(owner, Lease(ask, wait_seconds), Leased, timeout, self._passed)
        tasks = [] if reply is None else reply.tasks
        try:
            for task in tasks:
                await self._lanes.resolve(task.lane)
        except BaseException:
            self._errands.begin(self._return(tasks))
            raise
        return tasks

    async def _lease_from_many(self, rooms: dict[str, int], ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """Wait until one part has something; what the other parts have got by then is returned as well."""
        parts = [
            asyncio.create_task(self._lease_from(owner, replace(ask, room=room), wait_seconds))
            for owner, room in rooms.items()
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            # A cancelled part releases what it got.
            ended = await asyncio.gather(*parts, return_exceptions=True)
        return [task for part in ended if isinstance(part, list) for task in part]

    async def _lease_here(self, poll: Lease) -> Leased:
        return Leased(await self._feeder.lease(poll.ask, poll.wait_seconds))

    def _end_passed(self) -> None:
        """End these polls, because their lanes may be elsewhere now."""
        for passed in self._passed:
            passed.end()

    def _take_late(self, reply: Reply) -> None:
        if isinstance(reply, Leased) and reply.tasks:
            self._errands.begin(self._return(reply.tasks))

    async def _return(self, tasks: list[LeasedTask]) -> None:
        try:
            await self._feeder.give_back(tasks)
        except Unavailable as error:
            # Their holder does not name them, so two beats release them.
            log.warning("claims could not be given back", error=str(error))
