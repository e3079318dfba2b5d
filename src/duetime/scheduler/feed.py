"""The feeder: carries out the core's plans and hands claimed tasks to holders.

It claims only for waiting holders with room.  If a holder goes away before its answer
is sent, what was claimed for it is released at once (`polls`, `returns`).  The feeder
also looks for rows that were not reported to it (`looking`), and parks tasks that a
limit holds back (`gating`).
"""

import asyncio
import heapq
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from duetime.budgets.contract import Budgets
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.ids import SHARDS, lane_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.handover import Reservation
from duetime.lifecycle.tasks.onward import Onward
from duetime.long_work import LongWork
from duetime.model.attempt import Past
from duetime.model.task import LaneKey, LeasedTask
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.claiming import Claimer
from duetime.scheduler.core import Core
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.gating import Gatekeeper, Rules
from duetime.scheduler.limit_watch import LimitWatch
from duetime.scheduler.limits import Governor
from duetime.scheduler.looking import Looker
from duetime.scheduler.plan import Ask, LaneStatus, Plan, handled_by
from duetime.scheduler.polls import Polls
from duetime.scheduler.reserving import make_reservation
from duetime.scheduler.returns import Returns
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.service import Background, Errands, Service, Services

log = structlog.get_logger()

__all__ = ["Ask", "Feeder", "LaneStatus"]


class Feeder:
    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        onward: Onward,
        *,
        breakers: Breakers | None = None,
        tenant_breakers: TenantBreakers | None = None,
        nodes: FeedingNodes | None = None,
        budgets: Budgets | None = None,
        prepare: Callable[[frozenset[int] | None], Awaitable[None]] | None = None,
        claims: int = 2,
        turns: LongWork | None = None,
        make_core: Callable[[Governor], Core] = Core,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """`breakers` decide which targets are called, `tenant_breakers` what stopped tenants may start.

        `prepare` reads what has to be known of shards before they are fed here.
        """
        self._monotonic = monotonic
        self._database = database
        self._lanes = lanes
        self._core = make_core(
            Governor(
                throttle_of=None if breakers is None else breakers.find,
                tenant_gate_of=None if tenant_breakers is None else tenant_breakers.find,
                nodes=nodes,
            )
        )
        self._returns = Returns(onward)
        self._gates = Gatekeeper(database, lanes, self._core.governor, self._core.planned, breakers)
        self._looker = Looker(database, self._own_lanes, self.wake, monotonic)
        self._changed = asyncio.Event()
        self._errands = Errands("claims")
        self.polls = Polls(
            self._core, self._changed.set, lambda tasks: self._errands.begin(self.give_back(tasks)), monotonic
        )
        long_work = turns or LongWork()
        self._claimer = Claimer(
            database, self._core, self._gates, self.polls, self._returns, self.wake, self._changed.set, long_work
        )
        self._free_claims = claims
        self._is_stopping = False
        self._has_started = False
        self._feeding = Background("feed", self._feed)
        limit_watch = LimitWatch(
            database, lanes, self._core, self._gates, self.polls, budgets, self._meet, self._changed.set
        )
        self._services = Services(
            [
                Service("what runs", start=self._find_out),
                Service("claims", stop=self._end_claims),
                Service("feed", start=self._start_feeding, stop=self._stop_feeding),
                self._looker.loop,
                *limit_watch.loops,
            ]
        )
        self._prepare = prepare
        #: None: all shards, because no other node shares them.
        self._shards: frozenset[int] | None = None
        self.has_looked = False
        if breakers is not None:
            breakers.changed.listen(self._host_changed)
        if tenant_breakers is not None:
            tenant_breakers.gates_changed.listen(self._tenants_changed)
        database.clock.jumped.listen(self._clock_jumped)
        # Claiming continues.
        database.clock.settled.listen(self._changed.set)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    # For holders

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """Wait for due tasks for this holder, and return them; none when the wait is over."""
        if self._is_stopping:
            return []
        if ask.slots is not None:
            self._core.governor.serve(ask.slots)
        return await self.polls.wait(ask, wait_seconds)

    def taken(self) -> None:
        """Note that the executor has counted the tasks that its last ask brought."""
        if (room := self._core.governor.executor_room) is not None:
            room.taken()

    @property
    def waits_for_room(self) -> bool:
        """Whether a lane waits for room at the executor: then call `room_came` when there is room."""
        room = self._core.governor.executor_room
        return room is not None and room.is_wanted

    def room_came(self) -> None:
        """Open the lanes that waited for the slots of calls which have ended."""
        if (room := self._core.governor.executor_room) is not None and (lanes := room.take_opened()):
            self._core.open_lanes(lanes)
            self._changed.set()

    def turned_away(self, tenant: int, host: str) -> None:
        """Note that the executor had no place for a task that it was given."""
        if (room := self._core.governor.executor_room) is not None:
            room.note_full(tenant, host, self._database.clock.now_ms())

    def weight_of(self, tenant: int) -> int:
        return self._core.weight_of(tenant)

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        """Release tasks that were claimed and never handed out: they wait again, and it uses up no attempt."""
        await self._returns.give_back(tasks, delay_seconds)

    def reserve(self, wanted: Mapping[int, int]) -> Reservation | None:
        """Reserve room at waiting polls for tasks that are about to be stored (`lifecycle/submission/handover.py`)."""
        if self._is_stopping or not self.polls or self._database.clock.is_held:
            return None
        keyed = {
            lane: (key, count)
            for lane, count in wanted.items()
            if (key := self._lanes.key_of(lane)) is not None and self.feeds(lane) and not self._gates.is_parking(key)
        }
        dealt = self._core.reserve(keyed, self._database.clock.now_ms())
        return make_reservation(dealt, self._core.ask_of) if dealt else None

    def hand_over(self, reservation: Reservation, tasks: Mapping[int, list[LeasedTask]]) -> None:
        """Answer the polls that were reserved; tasks for a poll that has gone are released."""
        self._core.end_reservation(reservation.numbers, tasks)
        unwanted = []
        for number, given in tasks.items():
            if self.polls.is_open(number):
                self._gates.begun(given)
                self.polls.answer(number, given)
            else:
                unwanted += given
        if unwanted:
            self._errands.begin(self._returns.take_back(unwanted))
        self.polls.end_overdue(reservation.numbers)
        self._changed.set()

    def wake(self, wakes: Iterable[uuid.UUID]) -> None:
        """Note that rows were put into due."""
        first: dict[int, uuid.UUID] = {}
        for wake in wakes:
            lane = lane_of(wake)
            # Reading from the first wake of a lane also finds those after it.
            if lane not in first or wake < first[lane]:
                first[lane] = wake
        for lane, wake in first.items():
            # Schedule lanes hold turns, not tasks: they have no key.
            key = self._lanes.key_of(lane)
            if key is not None and self.feeds(lane) and self._core.woke(lane, key, wake):
                self._changed.set()

    def rule(self, weights: Mapping[int, int], suspended: frozenset[int]) -> None:
        """Set the weights of tenants and which of them are suspended."""
        if self._core.rule(weights, suspended):
            self._changed.set()

    async def limit(self, rules: Rules) -> None:
        """Set the limits that hold from now on."""
        self._gates.rule(rules)
        # A new limit has not counted what runs already.
        await self._count_anew()
        self._core.open_lanes()
        self._changed.set()

    async def share(self, nodes: Mapping[int, int]) -> None:
        """Set which tenants other nodes feed as well, and how many nodes feed each."""
        if self._core.governor.share(nodes):
            # Running tasks have no places yet under caps that are strict from now on.
            await self._count_anew()
            self._changed.set()

    async def _count_anew(self) -> None:
        """Count running tasks again; until then no task with limits starts."""
        if self._has_started:
            own = frozenset(range(SHARDS)) if self._shards is None else self._shards
            self._core.governor.count_anew(own)
            await self._count(own)

    def ended(self, attempts: Iterable[Past]) -> None:
        """Note ended attempts, and open the lanes that waited for their places."""
        if self._core.governor.running and (lanes := self._core.governor.ended(attempts)):
            self._core.open_lanes(lanes)
            self._changed.set()

    def _tenants_changed(self) -> None:
        self._core.governor.tenants_changed()
        self._core.open_lanes()
        self._changed.set()

    def _host_changed(self, tenant: int, host: str) -> None:
        if lanes := self._core.governor.host_changed(tenant, host):
            self._core.open_lanes(lanes)
            self._changed.set()

    @property
    def has_limits(self) -> bool:
        return self._core.governor.has_limits

    def is_limited(self, lane: int) -> bool:
        key = self._lanes.key_of(lane)
        return key is not None and self._core.governor.is_limited(key.tenant)

    async def describe(self, lane: int) -> LaneStatus:
        """The holders that serve a lane: those that wait now, or asked for such work lately."""
        key = self._lanes.key_of(lane)
        if key is None:
            return LaneStatus(False, 0, 0, False)
        status = self._core.describe(lane, key)
        limited_by = self._core.governor.describe(key, self._database.clock.now_ms())
        asks = [ask for ask in self.polls.recent_asks() if ask.serves(key)]
        return replace(
            status,
            has_holders=any(ask.fits(key) for ask in asks),
            limited_by=limited_by,
            workers=len(asks),
            handled=handled_by(asks),
            unheard=tuple(
                sorted({ask.worker for ask, _ in self.polls.hearing.unheard.values() if ask.worker and ask.fits(key)})
            ),
        )

    # Running

    async def start(self) -> None:
        """Find out what waits in every lane, then feed."""
        await self._services.start()

    async def stop(self) -> None:
        """Stop claiming; waiting polls are answered with nothing."""
        self._is_stopping = True
        self._changed.set()
        await self._services.stop()
        self.polls.close()

    @property
    def trouble(self) -> str | None:
        """Why feeding is disturbed; None if it is not."""
        return self._feeding.trouble

    async def _find_out(self) -> None:
        self._core.governor.begin(self._database.clock.now_ms())
        await self._meet(self._shards)
        await self._looker.start()
        self.has_looked = True

    async def _start_feeding(self) -> None:
        self._has_started = True
        self._feeding.start()

    async def _stop_feeding(self) -> None:
        await self._feeding.stop(15.0)
        await self._looker.keep_hints_or_not()

    async def _end_claims(self) -> None:
        await self._errands.finish()

    def feed_only(self, shards: frozenset[int]) -> None:
        """Feed these shards from now on; waiting polls end, because their lanes may be elsewhere."""
        gained = shards if self._shards is None else shards - self._shards
        self._core.governor.feed_only(gained, shards)
        self._shards = shards
        for lane in self._core.lanes():
            if not self.feeds(lane):
                self._core.drop(lane)
        self.polls.end_all()
        self._changed.set()

    async def look_at(self, shards: frozenset[int]) -> None:
        """Look at newly gained shards at once; without this the next regular look finds the same."""
        if self._has_started:
            await self._meet(shards)
            await self._looker.look_at([lane for lane in self._own_lanes() if lane % SHARDS in shards])

    async def _meet(self, shards: frozenset[int] | None) -> None:
        """Read what has to be known of newly gained shards; until then none of their calls starts."""
        if self._prepare is not None:
            await self._prepare(shards)
        await self._count(shards)

    async def _count(self, shards: frozenset[int] | None) -> None:
        """Count what runs in newly gained shards; until then no task with limits starts there."""
        await self._gates.recount(shards)
        self._core.governor.know(shards)
        self._core.open_lanes()

    def feeds(self, lane: int) -> bool:
        return self._shards is None or lane % SHARDS in self._shards

    def _own_lanes(self) -> list[int]:
        lanes = self._lanes.all()
        return list(lanes) if self._shards is None else [lane for lane in lanes if lane % SHARDS in self._shards]

    def _clock_jumped(self, jump_us: int) -> None:
        """Plan again after a jump of the database's clock; after a jump back all hints are forgotten."""
        if jump_us < 0:
            self._core.forget_hints()
            self._looker.hints.forget()
        # Either way, other rows may be due now, and the next one at another time.
        self._changed.set()

    async def _feed(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            plan = self._core.plan(self._database.clock.now_ms()) if self._may_claim() else None
            if plan is None:
                await self._pause()
            else:
                self._free_claims -= 1
                self._errands.begin(self._claim(plan))

    async def _claim(self, plan: Plan) -> None:
        try:
            await self._claimer.carry_out(plan)
        finally:
            self._free_claims += 1
            self._changed.set()

    def _may_claim(self) -> bool:
        return self._free_claims > 0 and not self._database.clock.is_held

    async def _pause(self) -> None:
        """Wait until something changes or the next lane becomes due."""
        next_ms = self._core.next_ms()
        seconds = None
        if next_ms is not None and self._may_claim():
            seconds = max((next_ms * 1000 - self._database.clock.now_us()) / 1e6, 0.0005)
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    # For the survey

    def unheard(self) -> list[tuple[str, str, float]]:
        """Workers that get nothing because none of their beats is heard: tenant, name, and for how many seconds."""
        now = self._monotonic()
        return [
            (str(self._lanes.tenant_name(ask.tenant)), ask.worker, now - since)
            for ask, since in self.polls.hearing.unheard.values()
            if ask.tenant is not None
        ]

    def due_lanes(self, most: int) -> list[tuple[int, LaneKey, uuid.UUID, bool]]:
        """The oldest lanes that are due and may run: key, where to read on, and whether a holder asks for such work."""
        recent = self.polls.recent_asks()
        asks = {(ask.tenant, ask.kind, ask.queues, ask.tags, ask.types): ask for ask in recent}.values()
        oldest = heapq.nsmallest(most, self._core.due_lanes(), key=lambda each: each[2].int)
        return [(lane, key, hint, any(ask.fits(key) for ask in asks)) for lane, key, hint in oldest]
