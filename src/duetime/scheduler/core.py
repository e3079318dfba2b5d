"""The scheduler's decisions, without I/O: which lanes, how many, for whom.

Events come in (rows were put into due, a holder asks for work, rows were
claimed, time passes), plans come out.  The core knows only lanes with known
work, as a heap by next wake, and the holders that wait with room.  It picks
lanes first: rows of a lane that nobody can serve are never read.  What it
remembers of a lane is a hint; nothing is lost when a hint is wrong, because
the shell looks again (`feed`), and nothing is doubled, because a claim takes a
row that only one can take.
"""

import heapq
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from duetime.ids import EARLIEST, SHARDS, due_ms_of
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.limits import UNLIMITED, Governor
from duetime.scheduler.plan import Ask, LaneStatus, Order, Plan
from duetime.scheduler.shares import Served, deal, share_of, shares_by_turns, shares_by_weight

_NEVER = 1 << 62
MAX_ROWS_PER_CLAIM = 2_000
MAX_LANES_PER_CLAIM = 500
#: Up to this room, rows that all tenants compete for are dealt out one by one.
SMALL_ROOM = 32
#: With more lanes due than this nothing is reserved: looking through them would cost more than it saves.
MAX_LANES_PER_RESERVE = 64
#: A claim brings payloads along; keep what one statement carries within this.
MAX_BYTES_PER_CLAIM = 16 * 1024 * 1024


@dataclass
class _Work:
    """A lane that has, or will have, something to do."""

    lane: int
    key: LaneKey
    next_ms: int
    #: Claims read behind this wake; what lies before has been taken.
    hint: uuid.UUID = EARLIEST
    mean_bytes: float = 200.0
    #: Rows served, each divided by the lane's share: who has had least comes first.
    served: float = 0.0
    #: A limit is used up: until then nothing of the lane is read.
    closed_until_ms: int = 0
    #: A claim of this lane is under way.
    is_flying: bool = False
    #: The earliest wake that was reported while it was: the claim may not have seen it.
    woken: uuid.UUID | None = None
    #: Another node feeds it now; it is forgotten when the claim under way has landed.
    is_dropped: bool = False


@dataclass
class _Asked:
    ask: Ask
    is_flying: bool = False


class Core:
    def __init__(self) -> None:
        self._work: dict[int, _Work] = {}
        self._heap: list[tuple[int, int]] = []
        self._due: dict[tuple[Kind, int], dict[int, _Work]] = {}
        self._asks: dict[int, _Asked] = {}
        #: Rows served, each divided by the tenant's weight.
        self._served: dict[tuple[Kind, int], float] = {}
        self._weights: Mapping[int, int] = {}
        self._suspended: frozenset[int] = frozenset()
        self.governor = Governor()
        #: When the first lane opens that a limit keeps closed.
        self._opens_ms = _NEVER

    # Tenants

    def rule(self, weights: Mapping[int, int], suspended: frozenset[int]) -> bool:
        """Weights of tenants (1 where none is given), and those of whom nothing runs; whether anything changed."""
        has_changed = (weights, suspended) != (self._weights, self._suspended)
        self._weights, self._suspended = weights, suspended
        return has_changed

    def open_lanes(self, lanes: Iterable[int] | None = None) -> None:
        """Limits have changed, or attempts have ended: these lanes, or all, may have room again."""
        for lane in self._work if lanes is None else lanes:
            if (work := self._work.get(lane)) is not None:
                work.closed_until_ms = 0

    # Lanes

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> None:
        """A row was put into due, or was seen there."""
        due_ms = due_ms_of(wake)
        work = self._work.get(lane)
        if work is not None and work.key != key and not work.is_flying:
            # The lane of a gate that is past was given to another.
            self._drained(work, None)
            work = None
        if work is None:
            work = self._work[lane] = _Work(lane, key, due_ms, _before(wake))
            self._await_time(work)
            return
        work.is_dropped = False
        if work.is_flying and (work.woken is None or wake < work.woken):
            work.woken = wake
        if wake <= work.hint:
            work.hint = _before(wake)
        if due_ms < work.next_ms:
            work.next_ms = due_ms
            self._await_time(work)

    def forget_hints(self) -> None:
        """The database's clock went back: rows may lie before any hint."""
        for work in self._work.values():
            work.hint = EARLIEST

    def drop(self, lane: int) -> None:
        """Another node feeds the lane from now on."""
        work = self._work.get(lane)
        if work is None:
            return
        if work.is_flying:
            work.is_dropped = True
        else:
            self._drained(work, None)

    def lanes(self) -> list[int]:
        return list(self._work)

    def next_ms(self) -> int | None:
        """When the next lane becomes due or is opened; None if no lane waits for a time."""
        due_ms = self._next_due_ms()
        if self._opens_ms == _NEVER:
            return due_ms
        return self._opens_ms if due_ms is None else min(due_ms, self._opens_ms)

    def _next_due_ms(self) -> int | None:
        while self._heap:
            due_ms, lane = self._heap[0]
            work = self._work.get(lane)
            if work is not None and work.next_ms == due_ms and not self._is_due(work):
                return due_ms
            heapq.heappop(self._heap)
        return None

    def is_waiting(self, lane: int) -> bool:
        """Whether something is known to wait there."""
        return lane in self._work

    def known_lanes(self) -> int:
        return len(self._work)

    def due_lanes(self) -> list[tuple[int, LaneKey, uuid.UUID]]:
        """Lanes that are due and may run, each with the wake behind which its rows lie."""
        works = (works for (_, tenant), works in self._due.items() if tenant not in self._suspended)
        return [(work.lane, work.key, work.hint) for each in works for work in each.values()]

    # Holders

    def ask(self, number: int, ask: Ask) -> None:
        self._asks[number] = _Asked(ask)

    def withdraw(self, number: int) -> None:
        """The holder does not wait any more; what a claim under way brings is the shell's to give back."""
        self._asks.pop(number, None)

    def is_flying(self, number: int) -> bool:
        asked = self._asks.get(number)
        return asked is not None and asked.is_flying

    def describe(self, lane: int, key: LaneKey) -> LaneStatus:
        fitting = [asked.ask.room for asked in self._asks.values() if asked.ask.fits(key)]
        return LaneStatus(
            bool(fitting),
            len(fitting),
            sum(fitting),
            lane in self._work,
            key.tenant in self._suspended,
            self.governor.is_closed(key),
        )

    # Decisions

    def plan(self, now_ms: int) -> Plan | None:
        """The next claim, if some holder with room can serve some lane that is due."""
        self._let_come_due(now_ms)
        if not self._due or not self._asks:
            return None
        by_lane = self._candidates(now_ms)
        if not by_lane:
            return None
        orders = self._share_out(by_lane, now_ms)
        if not orders:
            return None
        holders = {number: self._asks[number].ask.holder for order in orders for number, _ in order.asks}
        for order in orders:
            work = self._work[order.lane]
            work.is_flying = True
            work.woken = None
            self.governor.take(work.key, order.room, now_ms)
        for number in holders:
            self._asks[number].is_flying = True
        return Plan(tuple(orders), holders)

    def claimed(
        self,
        plan: Plan,
        taken: dict[int, Sequence[tuple[uuid.UUID, int]]],
        later: dict[int, uuid.UUID],
        parked: Mapping[int, Container[int]] = MappingProxyType({}),
        now_ms: int = 0,
    ) -> dict[int, list[tuple[int, int]]]:
        """A plan was carried out: per lane the wakes taken, in order, with their sizes, and its next wake.

        Returns what each ask got, as (lane, place in that lane's rows); asks that got something wait no more.
        Rows at the `parked` places of a lane are for nobody: a limit keeps them.
        """
        answers: dict[int, list[tuple[int, int]]] = {}
        for order in plan.orders:
            rows = taken.get(order.lane, ())
            aside = parked.get(order.lane, ())
            place = 0
            for number, count in order.asks:
                upto = min(place + count, len(rows))
                got = [(order.lane, each) for each in range(place, upto) if each not in aside]
                if got:
                    answers.setdefault(number, []).extend(got)
                place += count
            started = len(rows) - sum(each in aside for each in range(len(rows))) if aside else len(rows)
            self._landed(order, rows, started, later.get(order.lane), now_ms)
        for number in plan.holders:
            if number in answers:
                self._asks.pop(number, None)
            elif number in self._asks:
                self._asks[number].is_flying = False
        return answers

    def reserve(self, wanted: dict[int, tuple[LaneKey, int]], now_ms: int) -> dict[int, list[tuple[int, int]]]:
        """Asks for tasks that are about to be stored, as (ask, how many) by lane.

        Only where nothing else is due for them: whoever waits already comes first.  The asks fly until
        they are `seated`.
        """
        self._let_come_due(now_ms)
        left = {
            number: asked.ask.room
            for number, asked in self._asks.items()
            if not asked.is_flying and not self._has_due_for(asked.ask, now_ms)
        }
        seats: dict[int, list[tuple[int, int]]] = {}
        if not left:
            return seats
        for lane, (key, count) in wanted.items():
            work = self._work.get(lane)
            if key.tenant in self._suspended or (work is not None and (work.is_flying or self._is_due(work))):
                continue
            if self.governor.is_limited(key.tenant) or self.governor.is_closed(key):
                # What has to be counted, or may not start, goes the way of all others.
                continue
            dealt = deal(count, [number for number in left if self._asks[number].ask.fits(key)], left)
            if dealt:
                seats[lane] = dealt
        for dealt in seats.values():
            for number, _ in dealt:
                self._asks[number].is_flying = True
        return seats

    def seated(self, numbers: Iterable[int], served: Container[int]) -> None:
        """What was reserved is over: asks that got something wait no more."""
        for number in numbers:
            if number in served:
                self._asks.pop(number, None)
            elif number in self._asks:
                self._asks[number].is_flying = False

    def holder_of(self, number: int) -> int:
        return self._asks[number].ask.holder

    def _has_due_for(self, ask: Ask, now_ms: int) -> bool:
        places = [
            place
            for place in self._due
            if place[0] is ask.kind and ask.tenant in (None, place[1]) and place[1] not in self._suspended
        ]
        works = [work for place in places for work in self._due[place].values() if work.closed_until_ms <= now_ms]
        return len(works) > MAX_LANES_PER_RESERVE or any(ask.fits(work.key) for work in works)

    def put_back(self, plan: Plan, now_ms: int = 0) -> None:
        """A plan could not be carried out; its lanes and asks still wait."""
        for order in plan.orders:
            work = self._work[order.lane]
            work.is_flying = False
            self.governor.give_back(work.key, order.room, now_ms)
            if work.is_dropped:
                self._drained(work, None)
        for number in plan.holders:
            if number in self._asks:
                self._asks[number].is_flying = False

    def _landed(
        self,
        order: Order,
        rows: Sequence[tuple[uuid.UUID, int]],
        started: int,
        next_wake: uuid.UUID | None,
        now_ms: int,
    ) -> None:
        work = self._work[order.lane]
        work.is_flying = False
        self.governor.give_back(work.key, order.room - started, now_ms)
        if rows:
            work.served += started / share_of(work.key.priority, self._age_ms(work, now_ms))
            place = (work.key.kind, work.key.tenant)
            self._served[place] = self._served.get(place, 0.0) + started / self._weights.get(place[1], 1)
            work.hint = max(work.hint, rows[-1][0])
            mean = sum(size for _, size in rows) / len(rows)
            work.mean_bytes += (mean - work.mean_bytes) * 0.3
        if work.is_dropped:
            self._drained(work, None)
        elif work.woken is not None:
            # The claim may have missed it: come again, from before it.
            work.hint = min(work.hint, _before(work.woken))
        elif len(rows) < order.room:
            self._drained(work, next_wake)

    def _drained(self, work: _Work, next_wake: uuid.UUID | None) -> None:
        place = (work.key.kind, work.key.tenant)
        lanes = self._due.get(place, {})
        lanes.pop(work.lane, None)
        if not lanes:
            self._due.pop(place, None)
            self._served.pop(place, None)
        if next_wake is None:
            del self._work[work.lane]
        else:
            work.next_ms = due_ms_of(next_wake)
            self._await_time(work)

    def _await_time(self, work: _Work) -> None:
        heapq.heappush(self._heap, (work.next_ms, work.lane))
        # Entries that no longer count go when their time comes, which may be in a year: sweep them out.
        if len(self._heap) > 2 * len(self._work) + 1_000:
            self._heap = [(work.next_ms, work.lane) for work in self._work.values() if not self._is_due(work)]
            heapq.heapify(self._heap)

    def _is_due(self, work: _Work) -> bool:
        return work.lane in self._due.get((work.key.kind, work.key.tenant), ())

    def _let_come_due(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, lane = heapq.heappop(self._heap)
            work = self._work.get(lane)
            if work is not None and work.next_ms == due_ms and not self._is_due(work):
                place = (work.key.kind, work.key.tenant)
                if place not in self._due:
                    # Who comes back begins level with the least served: idling earns no credit.
                    others = [served for (kind, _), served in self._served.items() if kind is work.key.kind]
                    self._served[place] = min(others, default=0.0)
                beside = self._due.setdefault(place, {})
                work.served = max(work.served, min((other.served for other in beside.values()), default=work.served))
                beside[lane] = work

    def _candidates(self, now_ms: int) -> dict[int, list[int]]:
        """Due lanes that someone with room can serve, with the asks that fit; the least served first."""
        tenants: dict[tuple[Kind, int], list[int]] = {}
        everywhere: dict[Kind, list[int]] = {}
        for number, asked in self._asks.items():
            if asked.is_flying:
                continue
            if asked.ask.tenant is None:
                everywhere.setdefault(asked.ask.kind, []).append(number)
            else:
                tenants.setdefault((asked.ask.kind, asked.ask.tenant), []).append(number)
        by_lane: dict[int, list[int]] = {}
        self._opens_ms = _NEVER
        places = [
            place
            for place in self._due
            if (place in tenants or place[0] in everywhere) and place[1] not in self._suspended
        ]
        if not places:
            return {}
        for place in sorted(places, key=lambda place: self._served.get(place, 0.0)):
            numbers = tenants.get(place, []) + everywhere.get(place[0], [])
            for work in sorted(self._due[place].values(), key=lambda work: work.served):
                if work.is_flying:
                    continue
                if work.closed_until_ms > now_ms:
                    self._opens_ms = min(self._opens_ms, work.closed_until_ms)
                    continue
                fitting = [number for number in numbers if self._asks[number].ask.fits(work.key)]
                if fitting and self._is_open(work, now_ms):
                    by_lane[work.lane] = fitting
                    if len(by_lane) == MAX_LANES_PER_CLAIM:
                        return by_lane
        return by_lane

    def _is_open(self, work: _Work, now_ms: int) -> bool:
        """Whether its limits let anything of the lane start; if not, it is left alone until they may."""
        if self.governor.is_closed(work.key) or self._is_uncounted(work):
            work.closed_until_ms = _NEVER
        elif self.governor.room(work.key, now_ms) > 0:
            return True
        else:
            until = self.governor.wait_for(work.lane, work.key, now_ms)
            work.closed_until_ms = _NEVER if until is None else max(until, now_ms + 1)
        self._opens_ms = min(self._opens_ms, work.closed_until_ms)
        return False

    def _is_uncounted(self, work: _Work) -> bool:
        return work.lane % SHARDS in self.governor.uncounted and self.governor.is_limited(work.key.tenant)

    def _share_out(self, by_lane: dict[int, list[int]], now_ms: int) -> list[Order]:
        room = min(MAX_ROWS_PER_CLAIM, sum(self._asks[number].ask.room for number in set().union(*by_lane.values())))
        works = [self._work[lane] for lane in by_lane]
        most = {work.lane: self.governor.room(work.key, now_ms) for work in works}
        lanes = [
            Served(work.lane, work.key.tenant, share_of(work.key.priority, self._age_ms(work, now_ms)), work.served)
            for work in works
        ]
        if room <= SMALL_ROOM and all(asked.ask.tenant is None for asked in self._asks.values()):
            tenants = {work.key.tenant: self._served.get((work.key.kind, work.key.tenant), 0.0) for work in works}
            shares = shares_by_turns(lanes, tenants, room, self._weights, most)
        else:
            shares = shares_by_weight(lanes, room, self._weights, most)
        left = {number: asked.ask.room for number, asked in self._asks.items()}
        used = _Used(self.governor, now_ms)
        bytes_left = float(MAX_BYTES_PER_CLAIM)
        orders = []
        for lane, numbers in by_lane.items():
            work = self._work[lane]
            wanted = min(shares[lane], max(1, int(bytes_left / max(work.mean_bytes, 1.0))))
            if most[lane] < UNLIMITED:
                # Lanes with a limit in common share it within one claim, too.
                wanted = used.left(work.key, wanted)
            slots = deal(wanted, numbers, left)
            if slots:
                count = sum(rows for _, rows in slots)
                used.add(work.key, count)
                bytes_left = max(0.0, bytes_left - count * work.mean_bytes)
                orders.append(Order(lane, work.hint, count, tuple(slots)))
        return orders

    def _age_ms(self, work: _Work, now_ms: int) -> int:
        """How long the lane's first row has been due, as far as is known."""
        return 0 if work.hint == EARLIEST else max(0, now_ms - due_ms_of(work.hint))


class _Used:
    """What a claim in the making takes of limits that several of its lanes have in common."""

    def __init__(self, governor: Governor, now_ms: int) -> None:
        self._governor = governor
        self._now_ms = now_ms
        self._taken: dict[int, int] = {}

    def left(self, key: LaneKey, wanted: int) -> int:
        for meter in self._governor.meters(key, self._now_ms):
            wanted = min(wanted, meter.available(self._now_ms) - self._taken.get(id(meter), 0))
        return max(0, wanted)

    def add(self, key: LaneKey, count: int) -> None:
        for meter in self._governor.meters(key, self._now_ms):
            self._taken[id(meter)] = self._taken.get(id(meter), 0) + count


def _before(wake: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=max(wake.int - 1, 0))
