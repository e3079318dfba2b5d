"""A feeder among others: this node feeds the lanes of its shards, and passes on what is about others.

A row that was put into due is told to the node that feeds its lane, again and
again until that has heard it.  A worker's poll goes to the nodes that feed its
tenant's shards, its room divided between them; when the shards move it ends and
is passed on anew.  A worker's beats all go to one node, which alone knows what
two beats in a row did not name.  Answers carry payloads as they are stored.

None of this is needed for safety: a claim takes a row that only one can take,
and the feeder's look finds what nobody told it.
"""

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace

import msgspec
import structlog

from duetime.admin.breakers import ForcedBreakers
from duetime.clock import Monotonic
from duetime.cluster.contract import Coordinator, Member, NodeView
from duetime.cluster.mesh import Ending, Mesh, PeerGone
from duetime.cluster.shards import assign, owner_of
from duetime.database.lineage import TimelinePosition
from duetime.database.pool import Database
from duetime.errors import Unavailable, WorkerNameTaken
from duetime.ids import SHARDS, lane_of
from duetime.lifecycle.holders.holders import BeatAnswer, Holders, Named
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.onward import OnEnded, Wake
from duetime.model.attempt import Past
from duetime.model.breaker_status import BreakerStatus
from duetime.model.task import LeasedTask
from duetime.model.tenant_breaker import Record
from duetime.scheduler import messages
from duetime.scheduler.breakers import Breakers, strictest
from duetime.scheduler.feed import Feeder
from duetime.scheduler.plan import Ask, LaneStatus
from duetime.scheduler.tenant_shards import TenantShards
from duetime.scheduler.wakes import PAUSE_SECONDS, WakeRouter

log = structlog.get_logger()
#: A poll that was passed on may take so much longer than it waits.
GRACE_SECONDS = 5.0
WAKE_SECONDS = 2.0
BEAT_SECONDS = 5.0
DESCRIBE_SECONDS = 1.0
ANNOUNCE_SECONDS = 1.0
TELL_PLACE_EVERY_SECONDS = 1.0
TELL_PLACE_TIMES = 4


class SharedFeeder:
    """What the API asks of a feeder, whichever node it is that feeds."""

    def __init__(
        self,
        name: str,
        secret: bytes,
        coordinator: Coordinator,
        database: Database,
        feeder: Feeder,
        lanes: Lanes,
        holders: Holders,
        breakers: Breakers,
        forced: ForcedBreakers,
        *,
        woken: Wake | None = None,
        ended: OnEnded | None = None,
        records_of: Callable[[Sequence[int]], dict[int, Record]] = lambda tenants: {},
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`woken` and `ended` are told of lanes that are fed here; `records_of` says what is known here of attempts."""
        self.name = name
        self._coordinator = coordinator
        self._database = database
        #: Before it has joined it feeds nothing.
        feeder.feed_only(frozenset())
        self._feeder = feeder
        self._lanes = lanes
        self._holders = holders
        self._breakers = breakers
        self._forced = forced
        self._mesh = Mesh(name, secret, self._handle, self._undelivered, on_called=self._news, on_lost=self._lost)
        self._names: frozenset[str] = frozenset()
        self._owners: tuple[str | None, ...] = assign(frozenset())
        self._own: frozenset[int] = frozenset()
        self._passed: set[Ending] = set()
        self._woken = woken or feeder.wake
        self._ended_here = ended or feeder.ended
        self._wakes = WakeRouter(name, self._owner_of, self._woken, self._tell_wakes, self._later)
        self._shards = TenantShards(database, monotonic)
        self._background: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._records_of = records_of
        lanes.made.listen(self._announce)
        forced.changed_here.listen(self._announce_forced)

    # Membership

    async def join(self) -> None:
        """Become one of those that share the shards; the feeder then starts with its own."""
        member = Member(self.name, secrets.randbits(62), await self._mesh.listen())
        self._mesh.be(member.incarnation)
        self._coordinator.on_change(self._changed)
        await self._coordinator.join(member)
        if (place := self._database.place) is not None:
            self._later(self._tell_place(place))

    async def _tell_place(self, place: TimelinePosition) -> None:
        """Tell those whose rows were here already: the server that they work on may have been replaced by this one.

        Who is connected to it cannot tell.  They are there for as long as nobody knows that their counters stand still.
        """
        told: set[Member] = set()
        body = messages.encode(place)
        for _ in range(TELL_PLACE_TIMES):
            for member in {peer.member for peer in self._mesh.peers()} - told:
                if await self._call(member.name, "place", body, ANNOUNCE_SECONDS) is not None:
                    told.add(member)
            await asyncio.sleep(TELL_PLACE_EVERY_SECONDS)

    async def leave(self) -> None:
        """Leave the shards to the others, and let them know."""
        self._is_leaving = True
        await self._coordinator.leave()
        self._see(self._names - {self.name})
        told = [asyncio.create_task(self._call(peer.member.name, "news", b"", 1.0)) for peer in self._mesh.peers()]
        if told:
            await asyncio.wait(told)

    async def close(self) -> None:
        await self._mesh.close()
        for task in self._background:
            task.cancel()

    def nodes(self) -> list[NodeView]:
        return [NodeView(name, self._owners.count(name), name == self.name) for name in sorted(self._names)]

    def has_duty(self, duty: str) -> bool:
        """Whether this node is the one that sees to it."""
        return owner_of(f"duty {duty}", self._names) == self.name

    @property
    def owns_shards(self) -> bool:
        return bool(self._own)

    def _changed(self) -> None:
        if self._is_leaving:
            return
        members = self._coordinator.members()
        self._mesh.meet(members)
        self._see(frozenset(member.name for member in members))

    def _see(self, names: frozenset[str]) -> None:
        if names == self._names:
            # A node was started again: nothing moves, but what it was asked is lost.
            self._wakes.route_again()
            return
        log.info("nodes that share the shards", nodes=sorted(names))
        self._names, self._owners = names, assign(names)
        before = self._own
        self._own = frozenset(shard for shard, owner in enumerate(self._owners) if owner == self.name)
        self._feeder.feed_only(self._own)
        self._later(self._take_over(self._own - before))
        for passed in self._passed:
            passed.end()
        self._wakes.route_again()

    async def _take_over(self, gained: frozenset[int]) -> None:
        try:
            # Who is gone may have made lanes of which nobody here has heard.
            await self._lanes.load()
            await self._feeder.look_at(gained)
        except Unavailable as error:
            log.warning("new shards are looked at later", error=str(error))

    def _lost(self, member: Member) -> None:
        if self._is_leaving:
            # Nothing here hears of it when it comes back: calls to it fail at once instead of waiting for that.
            self._mesh.part(member)
        else:
            self._coordinator.doubt(member)

    def _news(self) -> None:
        if not self._is_leaving:
            self._later(self._look())

    async def _look(self) -> None:
        try:
            await self._coordinator.look()
        except Unavailable:
            # The next beat looks again.
            return

    async def _announce(self, lane: int) -> None:
        """Whoever lists a tenant's tasks goes by the lanes it knows."""
        self._forget_shards(lane)
        await self._tell_all("lane", messages.encode(lane))

    async def _announce_forced(self) -> None:
        """Who is not reached finds out by itself, unless it was undone by then."""
        await self._tell_all("forced", b"")

    async def _tell_all(self, verb: str, body: bytes) -> None:
        await asyncio.gather(
            *(self._call(peer.member.name, verb, body, ANNOUNCE_SECONDS) for peer in self._mesh.peers())
        )

    async def share(self, tenants: Iterable[int]) -> None:
        """Tell the feeder which of these tenants, all of them spread, other nodes feed as well."""
        wanted = frozenset(tenants)
        owners: dict[int, set[str]] = {}
        for lane, key in self._lanes.all().items() if wanted else ():
            if key.tenant in wanted and (owner := self._owner_of(lane)) is not None:
                owners.setdefault(key.tenant, set()).add(owner)
        await self._feeder.share({tenant: len(names) for tenant, names in owners.items() if len(names) > 1})

    def _forget_shards(self, lane: int) -> None:
        """Its tenant may have a shard more now."""
        if (key := self._lanes.key_of(lane)) is not None:
            self._shards.forget(key.tenant)

    # Rows in due

    def wake(self, wakes: Collection[uuid.UUID]) -> None:
        self._wakes.route(wakes)

    def _owner_of(self, lane: int) -> str | None:
        return self._owners[lane % SHARDS]

    async def _tell_wakes(self, owner: str, wakes: list[uuid.UUID]) -> bool:
        return await self._call(owner, "wake", messages.encode(wakes), WAKE_SECONDS) is not None

    def ended(self, attempts: Sequence[Past]) -> None:
        """Attempts have ended: the node that feeds their lane counts what runs, if there is a limit."""
        own: list[Past] = []
        others: dict[str, list[Past]] = {}
        if not self._feeder.has_limits:
            return
        for past in attempts:
            lane = lane_of(past.task)
            owner = self._owner_of(lane)
            if owner == self.name:
                own.append(past)
            elif owner is not None and self._feeder.is_limited(lane):
                others.setdefault(owner, []).append(past)
        if own:
            self._ended_here(own)
        for owner, ended in others.items():
            # Not repeated: the other looks once a second what has ended.
            self._later(self._tell_ended(owner, ended))

    async def _tell_ended(self, owner: str, attempts: list[Past]) -> None:
        await self._call(owner, "ended", messages.encode(attempts), WAKE_SECONDS)

    # For workers

    @property
    def is_stopping(self) -> bool:
        return self._feeder.is_stopping

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """What is due for this holder on whichever nodes feed its tenant, or nothing when the wait is over."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_seconds
        while True:
            assert ask.tenant is not None, "an executor leases from its own node's feeder"
            rooms = self._divide(await self._shards.of(ask.tenant), ask.room)
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
                    self._later(self._return(tasks))
                return []
            if tasks or self.is_stopping or left <= 0 or not self._holders.knows(ask.holder):
                return tasks
            if self.name not in rooms or now - asked_at < PAUSE_SECONDS:
                # Nobody to ask, or one that stops, went away, or knows that the holder has ended: this node will, too.
                await asyncio.sleep(min(left, PAUSE_SECONDS))

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        await self._feeder.give_back(tasks, delay_seconds)

    async def register(self, tenant: int, name: str, key: int | None = None) -> int:
        return await self._holders.register(tenant, name, key)

    async def beat(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> BeatAnswer:
        """One node hears all beats of a holder; without it, this one does."""
        owner = owner_of(f"holder {tenant} {name}", self._names)
        if owner is not None and owner != self.name:
            body = messages.encode(messages.Beat(tenant, name, list(attempts), key))
            answer = await self._call(owner, "beat", body, BEAT_SECONDS)
            if answer is not None:
                beaten = messages.decode_beaten(answer)
                if beaten.is_taken:
                    raise WorkerNameTaken(name)
                return beaten
        return await self._holders.beat(tenant, name, attempts, key)

    async def allow_silence(self, holder: int, seconds: float | None) -> None:
        await self._holders.allow_silence(holder, seconds)

    async def sign_off(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> int | None:
        """Who is not told of it finds out within a second, by itself."""
        holder = await self._holders.sign_off(tenant, name, attempts, key)
        if holder is not None:
            await self._tell_all("left", messages.encode(holder))
        return holder

    def tell_ended(self, holders: Iterable[int]) -> None:
        """These were ended here: their polls end on the other nodes, too."""
        for holder in holders:
            self._later(self._tell_all("left", messages.encode(holder)))

    async def describe(self, lane: int) -> LaneStatus | None:
        owner = self._owner_of(lane)
        if owner is None:
            return None
        if owner == self.name:
            return await self._feeder.describe(lane)
        answer = await self._call(owner, "describe", messages.encode(lane), DESCRIBE_SECONDS)
        return None if answer is None else messages.decode_status(answer)

    async def describe_breakers(self, tenant: int) -> list[BreakerStatus]:
        """The tenant's breakers, of the nodes that feed it; if several call a host, the one that lets less through."""
        owners = {owner for shard in await self._shards.of(tenant) if (owner := self._owners[shard]) is not None}
        return strictest([each for owner in owners for each in await self._breakers_at(owner, tenant)])

    async def records(self, tenants: list[int]) -> list[dict[int, Record]]:
        """What the other nodes know of the attempts of these tenants, those that answer."""
        calls = [
            self._call(peer.member.name, "outcomes", messages.encode(tenants), DESCRIBE_SECONDS)
            for peer in self._mesh.peers()
        ]
        return [messages.decode_records(answer) for answer in await asyncio.gather(*calls) if answer is not None]

    async def _breakers_at(self, owner: str, tenant: int) -> list[BreakerStatus]:
        if owner == self.name:
            return self._breakers.states(tenant)
        answer = await self._call(owner, "breakers", messages.encode(tenant), DESCRIBE_SECONDS)
        if answer is None:
            raise Unavailable("the node that feeds this tenant does not answer at this moment")
        return messages.decode_breakers(answer)

    def _divide(self, shards: Iterable[int], room: int) -> dict[str, int]:
        """The room of a poll between the nodes that feed these shards: together never more than it."""
        owners = sorted({owner for shard in shards if (owner := self._owners[shard]) is not None})
        rooms = {}
        for place, owner in enumerate(owners):
            rooms[owner] = room // len(owners) + (place < room % len(owners))
        return {owner: part for owner, part in rooms.items() if part}

    async def _lease_from(self, owner: str, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        if owner == self.name:
            return await self._feeder.lease(ask, wait_seconds)
        body = messages.encode(messages.Poll(ask, wait_seconds))
        answer = await self._call(owner, "lease", body, wait_seconds + GRACE_SECONDS, self._passed)
        tasks = [] if answer is None else messages.decode_tasks(answer)
        try:
            for task in tasks:
                await self._lanes.resolve(task.lane)
        except BaseException:
            self._later(self._return(tasks))
            raise
        return tasks

    async def _lease_from_many(self, rooms: dict[str, int], ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """The first that has something ends the wait; what the others have got by then comes along."""
        parts = [
            asyncio.create_task(self._lease_from(owner, replace(ask, room=room), wait_seconds))
            for owner, room in rooms.items()
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            # A part that is cancelled gives back what it had.
            ended = await asyncio.gather(*parts, return_exceptions=True)
        return [task for part in ended if isinstance(part, list) for task in part]

    # Between nodes

    async def _call(
        self, name: str, verb: str, body: bytes, timeout: float, calls: set[Ending] | None = None
    ) -> bytes | None:
        """The other node's answer; None if there is none to be had."""
        try:
            return await self._mesh.peer(name).call(verb, body, timeout, calls)
        except PeerGone:
            return None

    async def _handle(self, verb: str, body: bytes) -> bytes:
        match verb:
            case "wake":
                wakes = messages.decode_wakes(body)
                for wake in wakes:
                    # The lane may have been made by the node that tells us of it.
                    await self._lanes.resolve(lane_of(wake))
                self._woken(wakes)
                return b""
            case "lease":
                poll = messages.decode_poll(body)
                return messages.encode(await self._feeder.lease(poll.ask, poll.wait_seconds))
            case "ended":
                self._ended_here(messages.decode_ended(body))
                return b""
            case "lane":
                lane = msgspec.msgpack.decode(body, type=int)
                await self._lanes.learn(lane)
                self._forget_shards(lane)
                return b""
            case "beat":
                beat = messages.decode_beat(body)
                return messages.encode(await self._hear(beat))
            case "left":
                self._holders.forget({msgspec.msgpack.decode(body, type=int)})
                return b""
            case "describe":
                return messages.encode(await self._feeder.describe(msgspec.msgpack.decode(body, type=int)))
            case "breakers":
                return messages.encode(self._breakers.states(msgspec.msgpack.decode(body, type=int)))
            case "outcomes":
                return messages.encode(self._records_of(msgspec.msgpack.decode(body, type=list[int])))
            case "forced":
                await self._forced.refresh()
                return b""
            case "place":
                # Only a connection that is opened tells it, and the server that was replaced may live on.
                self._database.hear(messages.decode_place(body))
                return b""
            case "news":
                self._news()
                return b""
            case _:
                raise Unavailable(f"this node does not know {verb}")

    async def _hear(self, beat: messages.Beat) -> BeatAnswer:
        """A holder's beat that arrived at another node."""
        try:
            return await self._holders.beat(beat.tenant, beat.name, beat.attempts, beat.key)
        except WorkerNameTaken:
            return BeatAnswer([], [], is_taken=True)

    def _undelivered(self, verb: str, body: bytes) -> None:
        if verb == "lease" and (tasks := messages.decode_tasks(body)):
            self._later(self._return(tasks))

    async def _return(self, tasks: list[LeasedTask]) -> None:
        try:
            await self._feeder.give_back(tasks)
        except Unavailable as error:
            # Their holder does not name them, so two beats release them.
            log.warning("claims could not be given back", error=str(error))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
