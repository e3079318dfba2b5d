"""The feeder: carries out the core's plans and gives holders what was claimed.

It claims only for holders that wait with room.  A claim whose holder went away
before the answer left is given back at once.  Once a second, or every third
second where looking is dear, it looks at its lanes from where they are drained
for certain, which finds rows whose commit became visible late; a look from the
very beginning takes at most 0.2 % of the time.
"""

import asyncio
import heapq
import time
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import structlog

from duetime import metrics
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import LATEST, SCHEDULE_LANES_END, SHARDS, just_after, just_before, lane_of
from duetime.lifecycle.claim import LaneOrder, claim_due, note, peek
from duetime.lifecycle.handover import Seats
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.onward import Claimed, End, Onward
from duetime.lifecycle.submit import MINT_TOLERANCE_MS
from duetime.model.attempt import Ended
from duetime.model.task import LaneKey, LeasedTask, Outcome, Waiting
from duetime.scheduler.core import Ask, Core, LaneStatus, Plan
from duetime.scheduler.hints import Hints
from duetime.scheduler.rounds import Rounds
from duetime.service import Loop

log = structlog.get_logger()
LOOK_EVERY = timedelta(seconds=1)
#: Looks take at most this share of the time, but are no further apart than this.
_LOOK_SHARE = 0.01
_LOOK_AT_LEAST_EVERY_SECONDS = 3.0
_NOTE_AHEAD_SECONDS = 0.1
KEEP_HINTS_EVERY_SECONDS = 15.0
#: At most so many lanes are looked at in one pass; more take turns.
LANES_PER_LOOK = 2_000
#: A worker whose hands are full does not ask; it is still there.
REMEMBER_ASKS_SECONDS = 90.0
_KEEP_HINTS = """
INSERT INTO lane_hint (lane, drained)
SELECT * FROM unnest($1::int[], $2::uuid[])
    ON CONFLICT (lane) DO UPDATE SET drained = excluded.drained
"""

__all__ = ["Ask", "Feeder", "LaneStatus"]


class ScheduleLanes(Protocol):
    """Whoever fires schedules: their lanes hold turns, not tasks."""

    def wake(self, wakes: Iterable[uuid.UUID]) -> None: ...

    def clock_jumped(self, jump_us: int) -> None: ...


class Feeder:
    def __init__(self, database: Database, lanes: Lanes, onward: Onward, *, flights: int = 2) -> None:
        self._database = database
        self._lanes = lanes
        self._onward = onward
        self._core = Core()
        self._hints = Hints(MINT_TOLERANCE_MS)
        self._waiting: dict[int, asyncio.Future[list[LeasedTask]]] = {}
        self._overdue: set[int] = set()
        self._numbers = 0
        self._asked: dict[int, tuple[Ask, float]] = {}
        self._changed = asyncio.Event()
        self._free_flights = flights
        self._flying: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._feeding: asyncio.Task[None] | None = None
        self._look_turn = 0
        self._rounds = Rounds()
        self._round_turn = 0
        self._keep_hints_at = 0.0
        self._look_loop = Loop("look", self._look_step, jitter=0.0)
        #: None: all of them, because no other node shares them.
        self._shards: frozenset[int] | None = None
        self.has_looked = False
        self.schedules: ScheduleLanes | None = None

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    # For holders

    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]:
        """What is due for this holder, as soon as there is something, or nothing when the wait is over."""
        if self._is_stopping:
            return []
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[list[LeasedTask]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._asked[ask.holder] = (ask, time.monotonic())
        self._core.ask(number, ask)
        self._changed.set()
        try:
            try:
                async with asyncio.timeout(wait_seconds):
                    return await asyncio.shield(answer)
            except TimeoutError:
                if self._core.is_flying(number):
                    # A claim for this holder is under way: its rows are its own.
                    self._overdue.add(number)
                    return await asyncio.shield(answer)
                return []
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self._later(self.give_back(answer.result()))
            raise
        finally:
            self._waiting.pop(number, None)
            self._overdue.discard(number)
            self._core.withdraw(number)
            answer.cancel()

    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None:
        """These were claimed and never handed out: they wait again, and it costs them nothing."""
        ended = Ended(Outcome.RELEASED, retry_after=delay_seconds, is_certain=True)
        await self._onward.move([(_claimed(task), End(task.id, task.number, ended)) for task in tasks])

    def reserve(self, wanted: Mapping[int, int]) -> Seats | None:
        """Seats at waiting polls for tasks that are about to be stored (`lifecycle.handover`)."""
        if self._is_stopping or not self._waiting:
            return None
        keyed = {
            lane: (key, count)
            for lane, count in wanted.items()
            if (key := self._lanes.key_of(lane)) is not None and self.feeds(lane)
        }
        dealt = self._core.reserve(keyed, self._database.clock.now_ms())
        if not dealt:
            return None
        by_lane: dict[int, list[tuple[int, int]]] = {}
        for lane, asks in dealt.items():
            for number, count in reversed(asks):
                by_lane.setdefault(lane, []).extend([(number, self._core.holder_of(number))] * count)
        return Seats(by_lane, frozenset(number for asks in dealt.values() for number, _ in asks))

    def hand_over(self, seats: Seats, tasks: Mapping[int, list[LeasedTask]]) -> None:
        """Answer the polls that were reserved; what was stored for one that has gone is given back."""
        self._core.seated(seats.numbers, tasks)
        unwanted = []
        for number, given in tasks.items():
            answer = self._waiting.get(number)
            if answer is None or answer.done():
                unwanted += given
            else:
                answer.set_result(given)
        if unwanted:
            self._later(self._give_back_or_say(unwanted))
        self._end_overdue(seats.numbers)
        self._changed.set()

    async def _give_back_or_say(self, tasks: Sequence[LeasedTask]) -> None:
        try:
            await self.give_back(tasks)
        except Unavailable as error:
            # Their holders do not name them, so two beats release them.
            log.warning("claims could not be given back", error=str(error))

    def _end_overdue(self, numbers: Iterable[int]) -> None:
        """Polls whose time was over while a claim for them was under way: it brought nothing."""
        for number in self._overdue.intersection(numbers):
            answer = self._waiting.get(number)
            if answer is not None and not answer.done():
                answer.set_result([])

    def wake(self, wakes: Iterable[uuid.UUID]) -> None:
        """Rows were put into due."""
        first: dict[int, uuid.UUID] = {}
        for wake in wakes:
            lane = lane_of(wake)
            # Behind the first of a lane the others are found by themselves.
            if lane not in first or wake < first[lane]:
                first[lane] = wake
        for lane, wake in first.items():
            if lane < SCHEDULE_LANES_END:
                if self.schedules is not None:
                    self.schedules.wake([wake])
                continue
            key = self._lanes.key_of(lane)
            if key is not None and self.feeds(lane):
                self._core.woke(lane, key, wake)
                self._changed.set()

    def rule(self, weights: Mapping[int, int], suspended: frozenset[int]) -> None:
        """What tenants may have from now on."""
        if self._core.rule(weights, suspended):
            self._changed.set()

    async def describe(self, lane: int) -> LaneStatus:
        """Who serves a lane: holders that wait now, or that asked for such work lately."""
        key = self._lanes.key_of(lane)
        if key is None:
            return LaneStatus(False, 0, 0, False)
        status = self._core.describe(lane, key)
        return replace(status, has_holders=any(ask.fits(key) for ask in self._recent_asks()))

    def _recent_asks(self) -> list[Ask]:
        lately = time.monotonic() - REMEMBER_ASKS_SECONDS
        self._asked = {holder: asked for holder, asked in self._asked.items() if asked[1] >= lately}
        return [ask for ask, _ in self._asked.values()]

    # Running

    async def start(self) -> None:
        """Find out what waits in every lane, then feed."""
        now_ms = self._database.clock.now_ms()
        rows = await self._database.fetch("SELECT lane, drained FROM lane_hint")
        self._hints.restore({row["lane"]: row["drained"] for row in rows}, now_ms)
        await self._look_at_all(self._own_lanes())
        self.has_looked = True
        self._keep_hints_at = time.monotonic() + KEEP_HINTS_EVERY_SECONDS
        self._feeding = asyncio.create_task(self._feed(), name="feed")
        self._look_loop.start()

    async def stop(self) -> None:
        """Stop claiming; polls that wait are answered with nothing."""
        self._is_stopping = True
        self._changed.set()
        await self._look_loop.stop()
        if self._feeding is not None:
            await asyncio.wait([self._feeding], timeout=15.0)
            await self._keep_hints_or_not()
        while self._flying:
            await asyncio.wait(self._flying)
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_result([])

    def feed_only(self, shards: frozenset[int]) -> None:
        """Feed these shards from now on; polls that wait end, because their lanes may be elsewhere."""
        self._shards = shards
        for lane in self._core.lanes():
            if not self.feeds(lane):
                self._core.drop(lane)
        self._end_polls()
        self._changed.set()

    async def look_at(self, shards: frozenset[int]) -> None:
        """Look at shards that are new here, at once; without it the next look in turn finds the same."""
        if self._feeding is not None:
            await self._look_at_all([lane for lane in self._own_lanes() if lane % SHARDS in shards])

    def feeds(self, lane: int) -> bool:
        return self._shards is None or lane % SHARDS in self._shards

    def _own_lanes(self) -> list[int]:
        lanes = self._lanes.all()
        return list(lanes) if self._shards is None else [lane for lane in lanes if lane % SHARDS in self._shards]

    def _end_polls(self) -> None:
        """Answer those that wait with nothing; one for which a claim is under way gets what that brings."""
        for number, answer in list(self._waiting.items()):
            if self._core.is_flying(number):
                self._overdue.add(number)
            elif not answer.done():
                self._core.withdraw(number)
                answer.set_result([])

    def clock_jumped(self, jump_us: int) -> None:
        """The database's clock is not where it should be; back means that hints are worth nothing."""
        if self.schedules is not None:
            self.schedules.clock_jumped(jump_us)
        if jump_us < 0:
            self._core.forget_hints()
            self._hints.forget()
            self._changed.set()

    async def _feed(self) -> None:
        while not self._is_stopping:
            self._changed.clear()
            try:
                plan = self._core.plan(self._database.clock.now_ms()) if self._free_flights else None
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

    async def _pause(self) -> None:
        """Until something changes or the next lane becomes due."""
        next_ms = self._core.next_ms()
        seconds = None
        if next_ms is not None and self._free_flights:
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
                claims = await claim_due(self._database, orders, until)
            except Unavailable as error:
                # Rows that were claimed all the same are not named by their holders, and so released.
                log.warning("claim failed", error=str(error))
                self._core.put_back(plan)
                await asyncio.sleep(0.2)
                return
            except Exception:
                log.exception("claim failed")
                self._core.put_back(plan)
                await asyncio.sleep(1.0)
                return
            metrics.CLAIMED.inc(sum(len(rows) for rows in claims.taken.values()))
            answers = self._core.claimed(
                plan,
                {lane: [(wake, len(task.payload)) for wake, task in rows] for lane, rows in claims.taken.items()},
                claims.later,
            )
            await self._hand_out(
                {number: [claims.taken[lane][place][1] for lane, place in got] for number, got in answers.items()}
            )
        finally:
            self._end_overdue(plan.holders)
            self._free_flights += 1
            self._changed.set()

    async def _hand_out(self, answers: dict[int, list[LeasedTask]]) -> None:
        late: list[LeasedTask] = []
        unwanted: list[LeasedTask] = []
        now = self._database.clock.now()
        for number, tasks in answers.items():
            live = [task for task in tasks if task.expires_at is None or task.expires_at > now]
            if len(live) < len(tasks):
                late += [task for task in tasks if task.expires_at is not None and task.expires_at <= now]
            answer = self._waiting.get(number)
            if answer is None or answer.done():
                unwanted += live
            else:
                answer.set_result(live)
        try:
            if late:
                ended = Ended(Outcome.EXPIRED)
                await self._onward.move([(_claimed(task), End(task.id, task.number, ended)) for task in late])
            if unwanted:
                await self.give_back(unwanted)
        except Unavailable as error:
            # Their holders do not name them, so two beats release them.
            log.warning("claims could not be given back", error=str(error))

    # Looking

    async def _look_step(self) -> timedelta:
        lanes = self._own_lanes()
        if not lanes:
            return LOOK_EVERY
        chosen, self._look_turn = _take_turns(lanes, self._look_turn)
        around = await note(self._database)
        self._hints.note(around.now_us // 1000, around.oldest_open, around.next_new)
        # The statements of that moment have ended by then, so that the look can tell what is drained up to it.
        await asyncio.sleep(_NOTE_AHEAD_SECONDS)
        looked_at = time.monotonic()
        await self._look({lane: self._hints.low(lane) for lane in chosen})
        began = time.monotonic()
        pause = min((began - looked_at) / _LOOK_SHARE, _LOOK_AT_LEAST_EVERY_SECONDS)
        await self._go_round(lanes)
        self._recent_asks()
        if began >= self._keep_hints_at:
            self._keep_hints_at = began + KEEP_HINTS_EVERY_SECONDS
            await self._keep_hints()
        return max(LOOK_EVERY, timedelta(seconds=pause))

    async def _go_round(self, lanes: list[int]) -> None:
        """From the very beginning, whatever the hints say, as far as the time for it goes."""
        while stretch := self._rounds.next(self._database.clock.now_ms(), began := time.monotonic()):
            from_ms, until_ms = stretch
            chosen, turn = _take_turns(lanes, self._round_turn)
            if until_ms is None:
                self._round_turn = turn
            until = LATEST if until_ms is None else just_before(until_ms)
            await self._look(dict.fromkeys(chosen, just_before(from_ms)), until)
            self._rounds.looked(until_ms, began, time.monotonic())

    async def _look_at_all(self, lanes: list[int]) -> None:
        for place in range(0, len(lanes), LANES_PER_LOOK):
            await self._look({lane: self._hints.low(lane) for lane in lanes[place : place + LANES_PER_LOOK]})

    async def _look(self, hints: dict[int, uuid.UUID], until: uuid.UUID = LATEST) -> None:
        look = await peek(self._database, hints, until)
        self._hints.note(look.now_us // 1000, look.oldest_open, look.next_new)
        found = []
        for lane, first in look.first.items():
            if until == LATEST and hints[lane] <= self._hints.low(lane):
                self._hints.seen(lane, first)
            if first is not None:
                found.append((lane, first))
        for lane, first in found:
            key = self._lanes.key_of(lane)
            # It may have gone to another node meanwhile.
            if key is not None and self.feeds(lane):
                self._core.woke(lane, key, first)
        if found:
            self._changed.set()

    async def _keep_hints_or_not(self) -> None:
        """For whoever feeds next; without them it begins further back."""
        try:
            await self._keep_hints()
        except Unavailable as error:
            log.warning("hints could not be kept", error=str(error))

    async def _keep_hints(self) -> None:
        lows = self._hints.take_changed()
        if lows:
            await self._database.fetch(_KEEP_HINTS, list(lows), list(lows.values()))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    # For the survey

    def due_lanes(self, most: int) -> list[tuple[int, LaneKey, uuid.UUID, bool]]:
        """Lanes that are due and may run: key, where to read on, and whether anybody asks for such work; the oldest."""
        asks = {(ask.tenant, ask.kind, ask.queues, ask.tags): ask for ask in self._recent_asks()}.values()
        oldest = heapq.nsmallest(most, self._core.due_lanes(), key=lambda each: each[2].int)
        return [(lane, key, hint, any(ask.fits(key) for ask in asks)) for lane, key, hint in oldest]


def _take_turns(lanes: list[int], turn: int) -> tuple[list[int], int]:
    if len(lanes) <= LANES_PER_LOOK:
        return lanes, 0
    turn %= len(lanes)
    return (lanes[turn:] + lanes[:turn])[:LANES_PER_LOOK], turn + LANES_PER_LOOK


def _claimed(task: LeasedTask) -> Claimed:
    waiting = Waiting(task.number, task.failures, task.crashes, task.releases)
    return Claimed(task.lane, task.id, task.number, task.holder, waiting, task.options, task.picked_at)
