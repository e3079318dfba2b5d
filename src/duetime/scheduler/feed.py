"""The feeder: carries out the core's plans and gives holders what was claimed.

It claims only for holders that wait with room.  A claim whose holder went away
before the answer left is given back at once (`polls`, `returns`).  What it was not
told it finds by looking (`looking`); what a limit keeps is parked (`gating`).
"""

import asyncio
import heapq
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from duetime import metrics
from duetime.budgets.contract import Budgets
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import SHARDS, just_after, lane_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.handover import Reservation
from duetime.lifecycle.tasks.claim import Claims, LaneOrder, claim_due
from duetime.lifecycle.tasks.onward import Onward
from duetime.model.attempt import Past
from duetime.model.task import LaneKey, LeasedTask
from duetime.scheduler.breakers import Breakers
from duetime.scheduler.core import Core
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.gating import Gatekeeper, GateVerdict, Rules
from duetime.scheduler.limits import Governor
from duetime.scheduler.looking import Looker
from duetime.scheduler.meter import DRAW_EVERY_MS
from duetime.scheduler.plan import Ask, LaneStatus, Plan, handled_by
from duetime.scheduler.polls import Polls
from duetime.scheduler.reserving import make_reservation
from duetime.scheduler.returns import Returns
from duetime.scheduler.tenant_breakers import TenantBreakers
from duetime.service import Loop
from duetime.turns import Turns

log = structlog.get_logger()
NOTICE_EVERY = timedelta(seconds=1)
_DRAW_EVERY = timedelta(milliseconds=DRAW_EVERY_MS)
_LOOK_FOR_PLACES_EVERY = timedelta(milliseconds=50)
_LOOK_FOR_SHARED_EVERY = timedelta(seconds=1)

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
        flights: int = 2,
        turns: Turns | None = None,
        make_core: Callable[[Governor], Core] = Core,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """Targets are called as `breakers` let them; tenants that are stopped get what `tenant_breakers` let through.

        `prepare` learns what has to be known of shards before they are fed here.
        """
        self._monotonic = monotonic
        self._turns = turns or Turns()
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
        self.polls = Polls(self._core, self._changed.set, lambda tasks: self._later(self.give_back(tasks)), monotonic)
        self._free_flights = flights
        self._flying: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._feeding: asyncio.Task[None] | None = None
        self._notice_loop = Loop("limits", self._notice_ended, jitter=0.0)
        self._draw_loop = Loop("budgets", self._draw, jitter=0.0)
        self._budgets = budgets
        self._prepare = prepare
        #: None: all of them, because no other node shares them.
        self._shards: frozenset[int] | None = None
        self.has_looked = False
        if breakers is not None:
            breakers.changed.listen(self._host_changed)
        if tenant_breakers is not None:
            tenant_breakers.gates_changed.listen(self._tenants_changed)
        database.clock.jumped.listen(self._clock_jumped)
        # Claims go on.
        database.clock.settled.listen(self._changed.set)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    # For holders

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """What is due for this holder, as soon as there is something, or nothing when the wait is over."""
        if self._is_stopping:
            return []
        if ask.slots is not None:
            self._core.governor.serve(ask.slots)
        return await self.polls.wait(ask, wait_seconds)

    def taken(self) -> None:
        """The executor has counted in what its last ask brought."""
        if (room := self._core.governor.executor_room) is not None:
            room.landed()

    @property
    def waits_for_room(self) -> bool:
        """Whether a lane waits for room at the executor: then `room_came` has to follow when there is some."""
        room = self._core.governor.executor_room
        return room is not None and room.is_wanted

    def room_came(self) -> None:
        """Calls have ended: whoever waited for their slots may have them."""
        if (room := self._core.governor.executor_room) is not None and (lanes := room.take_opened()):
            self._core.open_lanes(lanes)
            self._changed.set()

    def turned_away(self, tenant: int, host: str) -> None:
        """The executor had no place for a task that it was given."""
        if (room := self._core.governor.executor_room) is not None:
            room.note_full(tenant, host, self._database.clock.now_ms())

    def weight_of(self, tenant: int) -> int:
        return self._core.weight_of(tenant)

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        """These were claimed and never handed out: they wait again, and it costs them nothing."""
        await self._returns.give_back(tasks, delay_seconds)

    def reserve(self, wanted: Mapping[int, int]) -> Reservation | None:
        """Room at waiting polls for tasks that are about to be stored (`lifecycle/submission/handover.py`)."""
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
        """Answer the polls that were reserved; what was stored for one that has gone is given back."""
        self._core.seated(reservation.numbers, tasks)
        unwanted = []
        for number, given in tasks.items():
            if self.polls.is_open(number):
                self._gates.begun(given)
                self.polls.answer(number, given)
            else:
                unwanted += given
        if unwanted:
            self._later(self._returns.take_back(unwanted))
        self.polls.end_overdue(reservation.numbers)
        self._changed.set()

    def wake(self, wakes: Iterable[uuid.UUID]) -> None:
        """Rows were put into due."""
        first: dict[int, uuid.UUID] = {}
        for wake in wakes:
            lane = lane_of(wake)
            # Behind the first of a lane the others are found by themselves.
            if lane not in first or wake < first[lane]:
                first[lane] = wake
        for lane, wake in first.items():
            # Schedule lanes hold turns, not tasks: they have no key.
            key = self._lanes.key_of(lane)
            if key is not None and self.feeds(lane) and self._core.woke(lane, key, wake):
                self._changed.set()

    def rule(self, weights: Mapping[int, int], suspended: frozenset[int]) -> None:
        """What tenants may have from now on."""
        if self._core.rule(weights, suspended):
            self._changed.set()

    async def limit(self, rules: Rules) -> None:
        """These are the limits from now on."""
        self._gates.rule(rules)
        # A limit that is new knows nothing of what runs.
        await self._count_anew()
        self._core.open_lanes()
        self._changed.set()

    async def share(self, nodes: Mapping[int, int]) -> None:
        """Tenants that other nodes feed as well, and how many nodes do."""
        if self._core.governor.share(nodes):
            # What runs has no places yet under caps that are strict from now on.
            await self._count_anew()
            self._changed.set()

    async def _count_anew(self) -> None:
        """Until what runs is counted, nothing limited starts."""
        if self._feeding is not None:
            own = frozenset(range(SHARDS)) if self._shards is None else self._shards
            self._core.governor.count_anew(own)
            await self._count(own)

    def ended(self, attempts: Iterable[Past]) -> None:
        """These have ended; whoever waited for their place may have it."""
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
        """Who serves a lane: holders that wait now, or that asked for such work lately."""
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
        self._core.governor.begin(self._database.clock.now_ms())
        await self._meet(self._shards)
        await self._looker.start()
        self.has_looked = True
        self._feeding = asyncio.create_task(self._feed(), name="feed")
        self._looker.loop.start()
        self._notice_loop.start()
        self._draw_loop.start()

    async def stop(self) -> None:
        """Stop claiming; polls that wait are answered with nothing."""
        self._is_stopping = True
        self._changed.set()
        await self._looker.loop.stop()
        await self._notice_loop.stop()
        await self._draw_loop.stop()
        if self._feeding is not None:
            await asyncio.wait([self._feeding], timeout=15.0)
            await self._looker.keep_hints_or_not()
        while self._flying:
            await asyncio.wait(self._flying)
        self.polls.close()

    def feed_only(self, shards: frozenset[int]) -> None:
        """Feed these shards from now on; polls that wait end, because their lanes may be elsewhere."""
        gained = shards if self._shards is None else shards - self._shards
        self._core.governor.feed_only(gained, shards)
        self._shards = shards
        for lane in self._core.lanes():
            if not self.feeds(lane):
                self._core.drop(lane)
        self.polls.end_all()
        self._changed.set()

    async def look_at(self, shards: frozenset[int]) -> None:
        """Look at shards that are new here, at once; without it the next look in turn finds the same."""
        if self._feeding is not None:
            await self._meet(shards)
            await self._looker.look_at([lane for lane in self._own_lanes() if lane % SHARDS in shards])

    async def _meet(self, shards: frozenset[int] | None) -> None:
        """Learn what has to be known of shards that are new here; until then no call of theirs starts."""
        if self._prepare is not None:
            await self._prepare(shards)
        await self._count(shards)

    async def _count(self, shards: frozenset[int] | None) -> None:
        """Learn what runs in shards that are new here; until then nothing that is limited starts there."""
        await self._gates.recount(shards)
        self._core.governor.know(shards)
        self._core.open_lanes()

    def feeds(self, lane: int) -> bool:
        return self._shards is None or lane % SHARDS in self._shards

    def _own_lanes(self) -> list[int]:
        lanes = self._lanes.all()
        return list(lanes) if self._shards is None else [lane for lane in lanes if lane % SHARDS in self._shards]

    def _clock_jumped(self, jump_us: int) -> None:
        """The database's clock is not where it should be; back means that hints are worth nothing."""
        if jump_us < 0:
            self._core.forget_hints()
            self._looker.hints.forget()
        # What is due, and when the next is, has changed either way.
        self._changed.set()

    async def _feed(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            try:
                plan = self._core.plan(self._database.clock.now_ms()) if self._may_claim() else None
            except Exception:
                # Whatever it is, a feeder that ends would leave everything waiting.
                log.exception("planning failed")
                await asyncio.sleep(1.0)
                continue
            if plan is not None:
                self._free_flights -= 1
                self._later(self._fly(plan))
                continue
            await self._pause()

    def _may_claim(self) -> bool:
        return self._free_flights > 0 and not self._database.clock.is_held

    async def _pause(self) -> None:
        """Until something changes or the next lane becomes due."""
        next_ms = self._core.next_ms()
        seconds = None
        if next_ms is not None and self._may_claim():
            seconds = max((next_ms * 1000 - self._database.clock.now_us()) / 1e6, 0.0005)
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _fly(self, plan: Plan) -> None:
        try:
            until = just_after(self._database.clock.now_ms())
            orders = [
                LaneOrder(order.lane, order.hint, [(plan.holders[number], count) for number, count in order.asks])
                for order in plan.orders
            ]
            try:
                claims = await claim_due(self._database, orders, until, turns=self._turns)
            except Unavailable as error:
                # Rows that were claimed all the same are not named by their holders, and so released.
                log.warning("claim failed", error=str(error))
                self._core.put_back(plan, self._database.clock.now_ms())
                await asyncio.sleep(0.2)
                return
            except Exception:
                log.exception("claim failed")
                self._core.put_back(plan, self._database.clock.now_ms())
                await asyncio.sleep(1.0)
                return
            verdict = await self._judge(claims, plan)
            try:
                try:
                    await self._land(plan, claims, verdict)
                finally:
                    self._gates.forget(verdict)
                await self._sift(verdict, until)
            finally:
                for lane in verdict.held:
                    self._core.let_go(lane)
        finally:
            self.polls.end_overdue(plan.holders)
            self._free_flights += 1
            self._changed.set()

    async def _land(self, plan: Plan, claims: Claims, verdict: GateVerdict) -> None:
        """Give out what may run, and park the rest."""
        metrics.CLAIMED.inc(sum(len(rows) for rows in claims.taken.values()) - len(verdict.parked))
        answers = self._core.claimed(
            plan,
            {lane: [(wake, len(task.payload)) for wake, task in rows] for lane, rows in claims.taken.items()},
            claims.later,
            verdict.aside,
            self._database.clock.now_ms(),
        )
        for lane, foreign in verdict.foreign.items():
            # More of what nobody here handles is likely to follow: it is moved before anybody looks there again.
            if foreign.is_most and (hint := self._core.hold(lane)) is not None:
                verdict.held[lane] = hint
        await self._hand_out(
            {number: [claims.taken[lane][place][1] for lane, place in got] for number, got in answers.items()}
        )
        if verdict.parked:
            await self._park(verdict)

    async def _judge(self, claims: Claims, plan: Plan) -> GateVerdict:
        try:
            return await self._gates.judge(claims, plan)
        except Unavailable as error:
            log.warning("limits could not be checked", error=str(error))
        except Exception:
            log.exception("limits could not be checked")
        # Whether they may run cannot be told: nobody gets them, and two beats release them.
        return GateVerdict({lane: set(range(len(rows))) for lane, rows in claims.taken.items()})

    async def _park(self, verdict: GateVerdict) -> None:
        # As above.
        self._changed.set()
        try:
            self.wake(await self._gates.park(verdict))
        except Unavailable as error:
            # Their holders do not name them, so two beats release them.
            log.warning("claims could not be parked", error=str(error))

    async def _sift(self, verdict: GateVerdict, until: uuid.UUID) -> None:
        """Move more of what was foreign out of the way, unless somebody waits for it."""
        for lane, hint in verdict.held.items():
            moves = [move for key, move in verdict.foreign[lane].moves.values() if not self._core.is_wanted(key)]
            if not moves:
                continue
            try:
                self.wake(await self._gates.sift(lane, hint, until, moves))
            except Unavailable as error:
                # They are claimed and parked instead.
                log.warning("tasks of other types could not be moved", error=str(error))

    async def _hand_out(self, answers: dict[int, list[LeasedTask]]) -> None:
        late: list[LeasedTask] = []
        unwanted: list[LeasedTask] = []
        now = self._database.clock.now()
        for number, tasks in answers.items():
            live = [task for task in tasks if task.expires_at is None or task.expires_at > now]
            if len(live) < len(tasks):
                late += [task for task in tasks if task.expires_at is not None and task.expires_at <= now]
            if self.polls.is_open(number):
                self.polls.answer(number, live)
            else:
                unwanted += live
        self._gates.not_begun([*late, *unwanted])
        if late or unwanted:
            # The lanes and the asks that have landed need not wait for the database to take these back.
            self._changed.set()
        await self._returns.take_back(unwanted, late)

    async def _draw(self) -> timedelta:
        """Tokens for the rates of tenants that several nodes feed, and places under their caps."""
        governor = self._core.governor
        has_places = await self._gates.look_for_places()
        wanted = governor.wants() if self._budgets is not None else {}
        if self._budgets is not None and wanted:
            governor.grant(await self._budgets.take(wanted))
        if has_places or wanted:
            self._core.open_lanes()
            self._changed.set()
        if governor.refused():
            return _LOOK_FOR_PLACES_EVERY
        return _DRAW_EVERY if governor.is_shared else _LOOK_FOR_SHARED_EVERY

    async def _notice_ended(self) -> timedelta:
        """Ends of attempts of which nobody told this node, and meters that are at rest."""
        self.polls.recent_asks()
        governor = self._core.governor
        governor.forget_idle(self._database.clock.now_ms())
        if governor.uncounted:
            # The database was away when they came here.
            await self._lanes.load()
            await self._meet(governor.uncounted)
            self._changed.set()
        opened = await self._gates.notice_ended()
        opened |= governor.take_opened(self._database.clock.now_ms())
        if opened:
            self._core.open_lanes(opened)
            self._changed.set()
        return NOTICE_EVERY

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    # For the survey

    def unheard(self) -> list[tuple[str, str, float]]:
        """Workers that get nothing because no beat of them is heard: tenant, name, and for how many seconds."""
        now = self._monotonic()
        return [
            (str(self._lanes.tenant_name(ask.tenant)), ask.worker, now - since)
            for ask, since in self.polls.hearing.unheard.values()
            if ask.tenant is not None
        ]

    def due_lanes(self, most: int) -> list[tuple[int, LaneKey, uuid.UUID, bool]]:
        """Lanes that are due and may run: key, where to read on, and whether anybody asks for such work; the oldest."""
        recent = self.polls.recent_asks()
        asks = {(ask.tenant, ask.kind, ask.queues, ask.tags, ask.types): ask for ask in recent}.values()
        oldest = heapq.nsmallest(most, self._core.due_lanes(), key=lambda each: each[2].int)
        return [(lane, key, hint, any(ask.fits(key) for ask in asks)) for lane, key, hint in oldest]
