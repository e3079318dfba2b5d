"""A node of the simulation: the real core, hints and watch in a shell without I/O.

The shell follows `feed`, `holders`, `settle`, `lapse`, `liveness`, `submit`
and `steer` step by step; each of its processes is a generator that yields what
it waits for (`Call`, `Sleep`, `Answer`) and is thrown away when its node dies.
"""

import itertools
import uuid
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from duetime.clock import DatabaseClock, from_ms
from duetime.errors import Unavailable, Unknown
from duetime.ids import EARLIEST, due_ms_of, just_after, lane_of, make_id
from duetime.lifecycle.holders.holders import BEGIN_WITHIN_SECONDS, UNNAMED_SECONDS
from duetime.lifecycle.submission.storing import MINT_TOLERANCE_MS
from duetime.model.attempt import Ended, what_follows
from duetime.model.task import LaneKey, Options, Outcome
from duetime.scheduler.core import Core
from duetime.scheduler.hints import Hints
from duetime.scheduler.liveness import Watch
from duetime.scheduler.plan import Ask, Plan
from properties.store_double import Attempt, Broken, Claim, Move, Task

if TYPE_CHECKING:
    from properties.simulation import World

Value = TypeVar("Value")
#: What a process waits for, what it is sent, what it returns.
Process = Generator[Any, Any, Value]
_OWN_ENDS = {Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SNOOZED}
_FULL_LOOK_SHARE = 0.02
_KEEP_HINTS_EVERY = 60.0
_LOOKBACK_MS = 600_000
_FULL_SWEEP_EVERY = 60.0
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Call:
    """One statement, committed when it is answered."""

    name: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(eq=False, slots=True)
class Answer:
    """A poll that waits for what is claimed for it."""

    wait_seconds: float
    value: "list[Claim] | None" = None
    resume: Any = None


@dataclass(slots=True)
class Report:
    attempt: Attempt
    ended: Ended
    #: The process that reports, for the log only.
    by: int


@dataclass(slots=True)
class Settled:
    settled: list[Attempt] = field(default_factory=list)
    lost: list[Attempt] = field(default_factory=list)
    cancelled: list[Attempt] = field(default_factory=list)
    #: Of a beat: whose it was taken for.
    holder: int = 0


class Lease(list[Claim]):
    """The answer to a poll."""

    begin_within = 0.0


@dataclass(slots=True)
class NewTask:
    submission: int
    lane: int
    delay_ms: int
    key: str | None = None
    options: Options | None = None
    expires_after_ms: int | None = None


class _DeafCore(Core):
    """Forgets what is reported while a lane is being claimed."""

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> None:
        work = self._table.known.get(lane)
        if work is None or not work.is_flying:
            super().woke(lane, key, wake)


class _StubbornCore(Core):
    """Does not lower a hint for what is reported behind it."""

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> None:
        work = self._table.known.get(lane)
        hint = None if work is None else work.hint
        super().woke(lane, key, wake)
        if work is not None and hint is not None:
            work.hint = hint


class _HastyWatch(Watch):
    """Takes a database that was away, or its own standing still, for silence of the holders."""

    def look(self, beats: dict[int, int], at: float) -> list[tuple[int, int]]:
        self._looked_at = None
        return super().look(beats, at)

    def interrupted(self) -> None:
        pass


class Node:
    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.is_up = False
        self.paused_until = 0.0
        self.has_looked = False
        #: Callers that wait for an answer.
        self.requests: dict[Any, None] = {}

    def boot(self) -> None:
        world = self.world
        self.is_up = True
        self.disturbed_at = world.now
        faults = world.faults
        self.core = (
            _DeafCore() if faults.forgets_wakes_in_flight else _StubbornCore() if faults.keeps_hint_on_wake else Core()
        )
        self.hints = Hints(MINT_TOLERANCE_MS)
        self.watch = _HastyWatch() if faults.lapses_while_away else Watch()
        self.clock = DatabaseClock(lambda: world.now)
        self.clock.jumped.listen(self._jumped)
        self._is_reading = False
        self.ids: dict[str, int] = {}
        self.unnamed: dict[int, dict[Attempt, float]] = {}
        self.polls: dict[int, Answer] = {}
        self.asks: dict[int, Ask] = {}
        self.asked_at: dict[int, float] = {}
        self.reported: set[uuid.UUID] = set()
        self._numbers = itertools.count(1)
        self._free_flights = 2
        self._in_air: set[int] = set()
        self._feed_at: float | None = None
        self._full_look_at = 0.0
        self._keep_hints_at = 0.0
        self._full_sweep_at = 0.0
        self.has_looked = False
        world.spawn(self, self._start())

    def __str__(self) -> str:
        return self.name

    def crash(self) -> None:
        self.is_up = self.has_looked = False
        self.incarnation += 1

    def neglects(self, lane: int) -> bool:
        """Somebody has waited here for this lane, and nothing is on its way."""
        return (
            self.is_up
            and self.world.now - self.disturbed_at > 6.0
            and self._free_flights > 0
            and lane not in self._in_air
            and any(
                ask.fits(self.world.lanes[lane]) and self.world.now - self.asked_at[number] > 3.0
                for number, ask in self.asks.items()
                if not self.core.is_flying(number)
            )
        )

    # Running

    def _start(self) -> Process[None]:
        while True:
            try:
                yield from self._read_clock()
                lows = yield Call("read_hints", ())
                self.hints.restore(lows, self.clock.now_ms())
                yield from self._look({lane: self.hints.low(lane) for lane in self.world.lanes})
                break
            except Unavailable:
                yield Sleep(0.5)
        self.has_looked = True
        self._keep_hints_at = self.world.now + _KEEP_HINTS_EVERY
        for step in (self._clock_step, self._look_step, self._liveness_step):
            self.world.spawn(self, self._loop(step))
        self.feed()

    def _loop(self, step: Any) -> Process[None]:
        failures = 0
        while True:
            try:
                yield from step()
                failures = 0
                delay = 1.0
            except Unavailable:
                failures += 1
                delay = min(0.1 * 2**failures, 5.0)
            yield Sleep(delay)

    def _read_clock(self) -> Process[int]:
        asked = self.clock.ask()
        answered_us = yield Call("read_clock", ())
        return self.clock.observe(answered_us, asked)

    def _clock_step(self) -> Process[None]:
        yield from self._read_clock()

    def _jumped(self, jump_us: int) -> None:
        if jump_us < 0:
            self.core.forget_hints()
            self.hints.forget()
        if self.clock.is_held and not self._is_reading:
            self._is_reading = True
            self.world.spawn(self, self._read_anew())
        self.feed()

    def _read_anew(self) -> Process[None]:
        while self.clock.is_held:
            try:
                yield from self._read_clock()
            except Unavailable:
                yield Sleep(0.1)
        self._is_reading = False
        self.feed()

    # Feeding

    def wake(self, wakes: Iterable[uuid.UUID]) -> None:
        for wake in wakes:
            lane = lane_of(wake)
            self.core.woke(lane, self.world.lanes[lane], wake)
            if wake in self.world.store.due and ("due", wake) not in self.world.store.locks:
                self.reported.add(wake)
        self.feed()

    def feed(self) -> None:
        if not self.has_looked:
            return
        while self._free_flights and not self.clock.is_held:
            plan = self.core.plan(self.clock.now_ms())
            if plan is None:
                self._check_nothing_overlooked()
                break
            self._check_plan(plan)
            self._free_flights -= 1
            self._in_air |= {order.lane for order in plan.orders}
            self.world.spawn(self, self._fly(plan))
        next_ms = self.core.next_ms()
        if next_ms is not None and self._free_flights and not self.clock.is_held:
            at = self.world.now + max(next_ms / 1000 - self.clock.now_us() / 1e6, 0.0005)
            if self._feed_at is None or at < self._feed_at or self._feed_at < self.world.now:
                self._feed_at = at
                self.world.after(at - self.world.now, self._feed_again, at, self.incarnation)

    def _feed_again(self, at: float, incarnation: int) -> None:
        if self.paused_until > self.world.now:
            self.world.after(self.paused_until - self.world.now, self._feed_again, at, incarnation)
        elif incarnation == self.incarnation and at == self._feed_at:
            self._feed_at = None
            self.feed()

    def _check_plan(self, plan: Plan) -> None:
        room: dict[int, int] = {}
        for order in plan.orders:
            if order.room != sum(rows for _, rows in order.asks):
                raise Broken(f"{order} promises what it does not ask for")
            for number, rows in order.asks:
                room[number] = room.get(number, 0) + rows
                if not self.asks[number].fits(self.world.lanes[order.lane]):
                    raise Broken(f"{order} is for a holder that cannot serve it")
        for number, rows in room.items():
            if rows > self.asks[number].room:
                raise Broken(f"ask {number} gets {rows}, and has room for {self.asks[number].room}")

    def _check_nothing_overlooked(self) -> None:
        """No lost wake: what was reported here is planned as long as somebody waits for it."""
        if not self.reported:
            return
        waiting = [ask for number, ask in self.asks.items() if not self.core.is_flying(number)]
        now_ms = self.clock.now_ms()
        for wake in self.reported if waiting else ():
            lane = lane_of(wake)
            is_due = due_ms_of(wake) <= now_ms and lane not in self._in_air
            if is_due and any(ask.fits(self.world.lanes[lane]) for ask in waiting):
                raise Broken(f"{self.name} was told of {wake}, has somebody for it, and does not claim it")

    def _fly(self, plan: Plan) -> Process[None]:
        lanes = {order.lane for order in plan.orders}
        incarnation = self.incarnation
        try:
            ahead_ms = 2_000 if self.world.faults.claims_early else 0
            until = just_after(self.clock.now_ms() + ahead_ms)
            orders = [
                (order.lane, order.hint, [plan.holders[number] for number, rows in order.asks for _ in range(rows)])
                for order in sorted(plan.orders, key=lambda order: order.lane)
            ]
            asked = self.clock.ask()
            try:
                taken, later, at_ms = yield Call("claim_due", (orders, until))
            except Unavailable:
                self._in_air -= lanes
                self.core.put_back(plan)
                yield Sleep(0.2)
                return
            self._in_air -= lanes
            self.clock.hear(asked, from_ms(at_ms))
            answers = self.core.claimed(
                plan, {lane: [(claim.wake, 100) for claim in claims] for lane, claims in taken.items()}, later
            )
            yield from self._hand_out(
                {number: [taken[lane][place] for lane, place in got] for number, got in answers.items()}
            )
        finally:
            if incarnation == self.incarnation:
                self._free_flights += 1
                self.feed()

    def _hand_out(self, answers: dict[int, list[Claim]]) -> Process[None]:
        late: list[Claim] = []
        unwanted: list[Claim] = []
        now_ms = self.clock.now_ms()
        for number, claims in answers.items():
            self.asks.pop(number, None)
            live = []
            for claim in claims:
                expires_ms = self.world.store.task[claim.task].expires_ms
                (live if expires_ms is None or expires_ms > now_ms else late).append(claim)
            poll = self.polls.get(number)
            if poll is None or poll.value is not None:
                unwanted += live
            else:
                poll.value = live
                poll.resume()
        try:
            if late:
                yield from self._move([(claim, Ended(Outcome.EXPIRED), None) for claim in late])
            if unwanted:
                yield from self.give_back(unwanted)
        except Unavailable:
            pass

    def give_back(self, claims: Sequence[Claim]) -> Process[None]:
        ended = Ended(Outcome.RELEASED, retry_after=0.0, is_certain=True)
        yield from self._move([(claim, ended, None) for claim in claims])

    def lease(self, name: str, make_ask: Any, wait_seconds: float) -> Process[list[Claim]]:
        """A poll: what is due for this holder, as soon as there is something, and by when it must begin."""
        arrived_at = self.world.now
        holder = yield from self._register(name)
        number = next(self._numbers)
        incarnation = self.incarnation
        poll = Answer(wait_seconds)
        self.polls[number] = poll
        self.asks[number] = make_ask(holder)
        self.asked_at[number] = self.world.now
        self.core.ask(number, self.asks[number])
        self.feed()
        try:
            yield poll
            # A claim for this holder is under way: its rows are its own.
            while poll.value is None and self.core.is_flying(number):
                poll.wait_seconds = 0.05
                yield poll
            lease = Lease(poll.value or [])
            claimed_at = min([claim.visible_at for claim in lease], default=self.world.now)
            lease.begin_within = claimed_at - arrived_at + BEGIN_WITHIN_SECONDS
            return lease
        finally:
            if incarnation == self.incarnation:
                self.polls.pop(number, None)
                self.asks.pop(number, None)
                self.asked_at.pop(number, None)
                self.core.withdraw(number)

    # Looking

    def _look_step(self) -> Process[None]:
        lanes = self.world.lanes
        yield from self._look({lane: self.hints.low(lane) for lane in lanes})
        began = self.world.now
        if began >= self._full_look_at:
            yield from self._look(dict.fromkeys(lanes, EARLIEST))
            # How long it takes to read the dead entries of a big table, now and then.
            took = self.world.now - began + self.world.chance.choice((0.0, 0.1, 1.0))
            self._full_look_at = began + max(took / _FULL_LOOK_SHARE, 1.0)
        if began >= self._keep_hints_at:
            self._keep_hints_at = began + _KEEP_HINTS_EVERY
            lows = self.hints.take_changed()
            if lows:
                yield Call("keep_hints", (lows,))

    def _look(self, hints: dict[int, uuid.UUID]) -> Process[None]:
        look = yield Call("peek", (hints,))
        self.hints.note(look.now_ms, look.oldest_open, look.next_new)
        for lane, first in look.first.items():
            if hints[lane] >= self.hints.low(lane):
                self.hints.seen(lane, first)
        self.world.check_lows(self)
        self.wake([first for first in look.first.values() if first is not None])

    # Liveness

    def _liveness_step(self) -> Process[None]:
        try:
            beats = yield Call("read_beats", ())
            silent = self.watch.look(beats, self.world.now)
            if silent:
                ended = yield Call("end_silent", (silent,))
                self._forget(ended)
        except Unavailable:
            self.watch.interrupted()
            raise
        is_full = self.world.now >= self._full_sweep_at
        left = yield Call("read_left_behind", (None if is_full else _LOOKBACK_MS,))
        yield from self._move([(claim, _end_of(*said), None) for claim, *said in left])
        if is_full:
            every = float("inf") if self.world.faults.sweeps_lately_ended else _FULL_SWEEP_EVERY
            self._full_sweep_at = self.world.now + every

    # Holders

    def _register(self, name: str) -> Process[int]:
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = yield Call("register", (name,))
        return found

    def _forget(self, holders: set[int]) -> None:
        self.ids = {name: holder for name, holder in self.ids.items() if holder not in holders}
        for holder in holders:
            self.unnamed.pop(holder, None)

    def leave(self, name: str, named: dict[Attempt, bool]) -> Process[None]:
        running = frozenset(attempt for attempt, is_started in named.items() if is_started)
        holder = yield Call("sign_off", (name, running))
        if holder is not None:
            self._forget({holder})
            left = yield Call("read_signed_off", (holder,))
            yield from self._move([(claim, _end_of(was_started, True), None) for claim, was_started in left])

    def beat(self, name: str, named: dict[Attempt, bool]) -> Process[Settled]:
        for repeat in range(3):
            try:
                return (yield from self._beat(name, named))
            except Unknown:
                if repeat == 2:
                    raise
                yield Sleep(0.1)
        raise AssertionError("unreachable")

    def _beat(self, name: str, named: dict[Attempt, bool]) -> Process[Settled]:
        holder = yield from self._register(name)
        running = frozenset(attempt for attempt, is_started in named.items() if is_started)
        if not (yield Call("beat", (holder, running))):
            self._forget({holder})
            holder = yield from self._register(name)
        held: set[Attempt] = yield Call("read_held", (holder,))
        before = self.unnamed.get(holder, {})
        unnamed = {attempt: before.get(attempt, self.world.now) for attempt in held - named.keys()}
        suspects = [attempt for attempt, since in unnamed.items() if self.world.now - since >= UNNAMED_SECONDS]
        self.unnamed[holder] = unnamed
        if suspects:
            claims = yield Call("read_claims", (suspects,))
            yield from self._move(
                [(claim, Ended(Outcome.RELEASED), None) for claim in claims if claim.holder == holder]
            )
        answer = Settled(holder=holder)
        missing = [attempt for attempt in named if attempt not in held]
        ends = (yield Call("read_ends", (missing,))) if missing else {}
        for attempt in missing:
            outcome, by = ends.get(attempt, (None, None))
            if by != name:
                outcome = None
            if outcome is Outcome.CANCELLED:
                answer.cancelled.append(attempt)
            elif outcome not in _OWN_ENDS:
                answer.lost.append(attempt)
        return answer

    # Settling

    def settle(self, name: str, reports: Sequence[Report]) -> Process[Settled]:
        for repeat in range(4):
            try:
                return (yield from self._settle(name, reports))
            except Unknown:
                if repeat == 3:
                    raise
                yield Sleep(0.1 * 2**repeat)
        raise AssertionError("unreachable")

    def _settle(self, name: str, reports: Sequence[Report]) -> Process[Settled]:
        holder = self.ids.get(name)
        if holder is None:
            holder = yield Call("find", (name,))
            if holder is not None:
                self.ids[name] = holder
        taken: set[Attempt] = set()
        if holder is not None:
            claims = yield Call("read_claims", ([report.attempt for report in reports],))
            by_attempt = {(claim.task, claim.number): claim for claim in claims}
            moves = {}
            for report in reports:
                claim = by_attempt.get(report.attempt)
                if claim is not None and (claim.holder == holder or self.world.faults.settles_for_anybody):
                    moves.setdefault(report.attempt, (claim, report.ended, report.by))
            taken = yield from self._move(list(moves.values()))
        missing = [report.attempt for report in reports if report.attempt not in taken]
        ends = (yield Call("read_ends", (missing,))) if missing else {}
        answer = Settled()
        for report in reports:
            outcome, by = ends.get(report.attempt, (None, None))
            if by != name:
                outcome = None
            if report.attempt in taken or outcome is report.ended.outcome:
                answer.settled.append(report.attempt)
            elif outcome is Outcome.CANCELLED:
                answer.cancelled.append(report.attempt)
            else:
                answer.lost.append(report.attempt)
        return answer

    def _move(self, ends: Sequence[tuple[Claim, Ended, int | None]]) -> Process[set[Attempt]]:
        if not ends:
            return set()
        now = from_ms(self.clock.now_ms())
        moves = []
        for claim, ended, by in ends:
            options = self.world.store.task[claim.task].options
            outcome, following = what_follows(
                ended, claim.waiting, options, first_picked_at=now, now=now, chance=self.world.chance
            )
            moves.append(Move(claim, outcome, following, by))
        moved = yield Call("move_onward", (moves,))
        self.wake([wake for wake in moved.values() if wake is not None])
        return set(moved)

    # Submitting and steering

    def submit(self, asked: Sequence[NewTask]) -> Process[list[uuid.UUID]]:
        """The id of each task, when it is stored."""
        for _ in range(_TRIES):
            minted_ms = self.clock.now_ms()
            unique = self.world.chance.getrandbits(41)
            tasks = [
                Task(
                    make_id(minted_ms + each.delay_ms, unique + place, each.lane),
                    each.submission,
                    each.key,
                    each.options,
                    None if each.expires_after_ms is None else minted_ms + each.expires_after_ms,
                )
                for place, each in enumerate(asked)
            ]
            answer = yield from self._store(tasks, minted_ms)
            if answer is not None:
                self.wake([mine.id for mine, stored in zip(tasks, answer, strict=True) if mine.id == stored])
                return answer
            yield from self._read_clock()
        raise Unavailable("the database is too slow or its clock jumps")

    def _store(self, tasks: list[Task], minted_ms: int) -> Process[list[uuid.UUID] | None]:
        was_in_doubt = False
        for attempt in range(_TRIES):
            try:
                is_fresh, stored = yield Call("submit", (tasks, minted_ms, was_in_doubt))
            except Unavailable as error:
                if not isinstance(error, Unknown) and not was_in_doubt:
                    raise
                was_in_doubt = True
                yield Sleep(0.1 * 2**attempt)
                continue
            break
        else:
            raise Unknown("the connection broke while the task was stored")
        if not is_fresh:
            return (yield from self._look_after_doubt(tasks)) if was_in_doubt else None
        winners = yield from self._read_winners([task for task in tasks if task.id not in stored])
        return [winners.get(task.key or "", task.id) for task in tasks]

    def _look_after_doubt(self, tasks: list[Task]) -> Process[list[uuid.UUID] | None]:
        """Too old to be stored again: nothing new of this age can begin, and what had begun is waited for."""
        mints_anew = self.world.faults.mints_anew_in_doubt
        try:
            if not (yield Call("read_tasks" if mints_anew else "probe", ([task.id for task in tasks],))):
                if mints_anew or all(task.key is not None for task in tasks):
                    return None
                # If the clock goes back, a copy that comes late is fresh again.
                raise Unknown("the connection broke while the task was stored")
        except Unavailable as error:
            raise Unknown("the connection broke while the task was stored") from error
        winners = yield from self._read_winners(tasks)
        return [winners.get(task.key or "", task.id) for task in tasks]

    def _read_winners(self, losers: list[Task]) -> Process[dict[str, uuid.UUID]]:
        keys = [task.key for task in losers if task.key is not None]
        return (yield Call("read_keys", (keys,))) if keys else {}

    def steer(self, verb: str, arguments: tuple[object, ...]) -> Process[object]:
        store = self.world.store
        asked = self.world.take_number()
        for _ in range(4):
            operation = self.world.take_number()
            try:
                moved = yield Call("change", (asked, operation, verb, arguments))
            except Unknown:
                if not self.world.faults.repeats_verbs_in_doubt and (yield from self._was_made(operation)):
                    store.answered.add(asked)
                    return True
                continue
            store.answered.add(asked)
            if isinstance(moved, uuid.UUID):
                self.wake([moved])
            return moved
        if not self.world.faults.repeats_verbs_in_doubt:
            # Unavailable: nothing was done, and nothing will be.
            store.answered.add(asked)
        raise Unavailable("the connection broke again and again")

    def _was_made(self, operation: int) -> Process[bool]:
        for _ in range(3):
            try:
                return (yield Call("find_or_give_up", (operation,)))
            except Unavailable:
                yield Sleep(1.0)
        raise Unknown("look at the task's state and ask again")


def _end_of(was_started: bool, signed_off: bool) -> Ended:
    """How an attempt of an ended holder ends."""
    if signed_off:
        return Ended(Outcome.RELEASED, is_certain=True, has_begun=was_started)
    return Ended(Outcome.LAPSED if was_started else Outcome.RELEASED)
