"""The scheduler's decisions, without I/O: which lanes, how many, for whom.

Events come in (rows were put into due, a holder asks for work, rows were
claimed, time passes), plans come out.  The core knows only lanes with known
work, as a heap by next wake, and the holders that wait with room.  It picks
lanes first: rows of a lane that nobody can serve are never read.  What it
remembers of a lane is a hint; nothing is lost when a hint is wrong, because
the feeder looks again (`looking`), and nothing is doubled, because a row can be
claimed only once.
"""

import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from duetime.ids import EARLIEST, SHARDS, due_ms_of
from duetime.model.gates import type_at
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.accounts import Accounts
from duetime.scheduler.due_lanes import DueLanes, LaneGroup, Work, just_before_wake
from duetime.scheduler.limits import Governor, Used
from duetime.scheduler.meter import UNLIMITED
from duetime.scheduler.plan import Ask, LaneStatus, Order, Plan, handled_by
from duetime.scheduler.reserving import reserve
from duetime.scheduler.shares import Competitor, cut, deal_by_turns, deal_by_weight, share_of

_NEVER = 1 << 62
MAX_ROWS_PER_CLAIM = 2_000
MAX_LANES_PER_CLAIM = 500
#: Up to this room, rows that several lanes compete for are dealt out one by one.
SMALL_ROOM = 256
#: The most rows that a competitor may lead by, divided by its share.
TURN_ROWS = 8.0
#: A claim reads payloads as well; the most bytes that one statement carries.
MAX_BYTES_PER_CLAIM = 16 * 1024 * 1024


@dataclass
class _WaitingAsk:
    ask: Ask
    #: Whether a claim for it is under way, or a commit that may store tasks for it.
    is_being_served: bool = False


class Core:
    def __init__(self, governor: Governor | None = None) -> None:
        self._table = DueLanes(self._emptied)
        self._asks: dict[int, _WaitingAsk] = {}
        #: How much tenants have had from each kind of holder, and how much lanes have had of their tenant's part.
        self._tenants = Accounts(TURN_ROWS)
        self._lanes = Accounts(TURN_ROWS)
        self._weights: Mapping[int, int] = {}
        self._suspended: frozenset[int] = frozenset()
        self.governor = governor or Governor()
        #: When the first of the lanes that a limit keeps closed opens.
        self._opens_ms = _NEVER

    # Tenants

    def rule(self, weights: Mapping[int, int], suspended: frozenset[int]) -> bool:
        """Set the weights of tenants (default 1) and which are suspended; returns whether anything changed."""
        has_changed = (weights, suspended) != (self._weights, self._suspended)
        self._weights, self._suspended = weights, suspended
        return has_changed

    def weight_of(self, tenant: int) -> int:
        return self._weights.get(tenant, 1)

    def open_lanes(self, lanes: Iterable[int] | None = None) -> None:
        """Plan these lanes, or all, again: limits have changed, or attempts have ended, so they may have room."""
        for lane in self._table.known if lanes is None else lanes:
            if (work := self._table.known.get(lane)) is not None:
                work.closed_until_ms = 0

    # Lanes

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        """Note that a row was put into due, or was seen there; returns whether there may be something new to plan."""
        return self._table.woke(lane, key, wake)

    def forget_hints(self) -> None:
        """Forget all hints, because the database's clock went back: rows may lie before them."""
        self._table.forget_hints()

    def drop(self, lane: int) -> None:
        """Drop a lane that another node feeds from now on."""
        work = self._table.known.get(lane)
        if work is None:
            return
        if work.is_being_claimed:
            work.is_dropped = True
        else:
            self._table.drained(work, None)

    def lanes(self) -> list[int]:
        return list(self._table.known)

    def next_ms(self) -> int | None:
        """When the next lane becomes due or is opened; None if no lane waits for a time."""
        due_ms = self._table.next_ms()
        if self._opens_ms == _NEVER:
            return due_ms
        return self._opens_ms if due_ms is None else min(due_ms, self._opens_ms)

    def planned(self, lane: int) -> LaneKey | None:
        """The key of a lane that is known to have waiting tasks; None for other lanes."""
        work = self._table.known.get(lane)
        return None if work is None else work.key

    def known_lanes(self) -> int:
        return len(self._table.known)

    def due_lanes(self) -> list[tuple[int, LaneKey, uuid.UUID]]:
        """Lanes that are due and may run, each with the wake after which its rows lie."""
        works = (works for (_, tenant), works in self._table.due.items() if tenant not in self._suspended)
        return [(work.lane, work.key, work.hint) for each in works for work in each.values()]

    # Holders

    def ask(self, number: int, ask: Ask) -> None:
        self._asks[number] = _WaitingAsk(ask)

    def withdraw(self, number: int) -> None:
        """Remove an ask whose holder no longer waits; the feeder releases what a claim under way brings for it."""
        self._asks.pop(number, None)

    def asks_of(self, holders: Container[int]) -> list[int]:
        """The asks of those of these holders that wait."""
        return [number for number, asked in self._asks.items() if asked.ask.holder in holders]

    def is_being_served(self, number: int) -> bool:
        asked = self._asks.get(number)
        return asked is not None and asked.is_being_served

    def describe(self, lane: int, key: LaneKey) -> LaneStatus:
        fitting = [asked.ask.room for asked in self._asks.values() if asked.ask.fits(key)]
        return LaneStatus(bool(fitting), len(fitting), sum(fitting), lane in self._table.known)

    # Decisions

    def plan(self, now_ms: int) -> Plan | None:
        """The next claim, if some holder with room can serve some lane that is due."""
        self._table.let_come_due(now_ms)
        self._opens_ms = _NEVER
        if not self._table.due or not self._asks:
            return None
        competing = self._candidates(now_ms)
        orders = self._share_out(competing, now_ms) if competing else []
        if not orders:
            return None
        holders = {number: self._asks[number].ask.holder for order in orders for number, _ in order.asks}
        for order in orders:
            work = self._table.known[order.lane]
            work.is_being_claimed = True
            work.woken = None
            work.promised = self.governor.take(work.key, order.room, now_ms)
            self._charge(work, order.room, order.share)
        for number in holders:
            self._asks[number].is_being_served = True
        types = {number: types for number in holders if (types := self._asks[number].ask.types) is not None}
        return Plan(tuple(orders), holders, types)

    def claimed(
        self,
        plan: Plan,
        taken: dict[int, Sequence[tuple[uuid.UUID, int]]],
        later: dict[int, uuid.UUID],
        parked: Mapping[int, Container[int]] = MappingProxyType({}),
        now_ms: int = 0,
    ) -> dict[int, list[tuple[int, int]]]:
        """Note that a plan was carried out: the taken wakes of each lane in order, with sizes, and its next wake.

        Returns what each ask got, as (lane, place in that lane's rows); asks that got something wait no more.
        Rows at the `parked` places of a lane go to no ask: a limit holds them back.
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
            self._claim_ended(order, rows, started, later.get(order.lane), now_ms)
        for number in plan.holder_of_ask:
            if number in answers:
                self._asks.pop(number, None)
            elif number in self._asks:
                self._asks[number].is_being_served = False
        return answers

    def reserve(self, wanted: dict[int, tuple[LaneKey, int]], now_ms: int) -> dict[int, list[tuple[int, int]]]:
        """Reserve asks for tasks that are about to be stored, as (ask, how many) by lane.

        Only asks for which nothing else is due: tasks that wait already come first.  No claim is planned
        for these asks until `end_reservation`.
        """
        asks = {number: asked.ask for number, asked in self._asks.items() if not asked.is_being_served}
        reserved = reserve(wanted, asks, self._table, self._suspended, self.governor, now_ms)
        for dealt in reserved.values():
            for number, _ in dealt:
                self._asks[number].is_being_served = True
        return reserved

    def end_reservation(self, numbers: Iterable[int], served: Container[int]) -> None:
        """End a reservation: asks that got something wait no more."""
        for number in numbers:
            if number in served:
                self._asks.pop(number, None)
            elif number in self._asks:
                self._asks[number].is_being_served = False

    def ask_of(self, number: int) -> Ask:
        return self._asks[number].ask

    def is_wanted(self, key: LaneKey) -> bool:
        """Whether a waiting holder with room would take from such a lane."""
        return any(asked.ask.room > 0 and asked.ask.fits(key) for asked in self._asks.values())

    def hold(self, lane: int) -> uuid.UUID | None:
        """Plan nothing of a lane until `let_go`; returns the wake after which its due rows lie, None without any."""
        work = self._table.known.get(lane)
        if work is None or work.is_being_claimed or not self._table.is_due(work):
            return None
        work.is_being_claimed, work.woken = True, None
        return work.hint

    def let_go(self, lane: int) -> None:
        work = self._table.known[lane]
        work.is_being_claimed = False
        if work.is_dropped:
            self._table.drained(work, None)
        elif work.woken is not None:
            work.hint = min(work.hint, just_before_wake(work.woken))

    def put_back(self, plan: Plan, now_ms: int = 0) -> None:
        """Undo a plan that could not be carried out; its lanes and asks still wait."""
        for order in plan.orders:
            work = self._table.known[order.lane]
            work.is_being_claimed = False
            self._end_promise(work, order.room, 0, now_ms)
            self._charge(work, -order.room, order.share)
            if work.is_dropped:
                self._table.drained(work, None)
        for number in plan.holder_of_ask:
            if number in self._asks:
                self._asks[number].is_being_served = False

    def _claim_ended(
        self,
        order: Order,
        rows: Sequence[tuple[uuid.UUID, int]],
        started: int,
        next_wake: uuid.UUID | None,
        now_ms: int,
    ) -> None:
        work = self._table.known[order.lane]
        work.is_being_claimed = False
        self._end_promise(work, order.room, started, now_ms)
        if started < order.room:
            self._charge(work, started - order.room, order.share)
        if rows:
            work.hint = max(work.hint, rows[-1][0])
            mean = sum(size for _, size in rows) / len(rows)
            work.mean_bytes += (mean - work.mean_bytes) * 0.3
        if work.is_dropped:
            self._table.drained(work, None)
        elif work.woken is not None:
            # The claim may have missed this wake: read again, from before it.
            work.hint = min(work.hint, just_before_wake(work.woken))
        elif len(rows) < order.room:
            self._table.drained(work, next_wake)

    def _end_promise(self, work: Work, count: int, started: int, now_ms: int) -> None:
        self.open_lanes(self.governor.end_promise(work.key, work.promised, count, started, now_ms))
        work.promised = ()

    def _emptied(self, group: LaneGroup) -> None:
        """Forget a group in which nobody competes any more."""
        self._lanes.forget([group])
        self._tenants.tidy(group[0], 2 * len(self._table.due) + 1_000)

    def _charge(self, work: Work, rows: int, share: float) -> None:
        key = work.key
        self._tenants.charge(key.kind, key.tenant, rows / self._weights.get(key.tenant, 1))
        self._lanes.charge((key.kind, key.tenant), work.lane, rows / share)

    def _candidates(self, now_ms: int) -> dict[tuple[Kind, int | None], list[Competitor]]:
        """Due lanes that an ask with room can serve, the least served first, in lists of those that compete."""
        tenants: dict[tuple[Kind, int], list[int]] = {}
        everywhere: dict[Kind, list[int]] = {}
        for number, asked in self._asks.items():
            if asked.is_being_served:
                continue
            if asked.ask.tenant is None:
                everywhere.setdefault(asked.ask.kind, []).append(number)
            else:
                tenants.setdefault((asked.ask.kind, asked.ask.tenant), []).append(number)
        groups = [
            group
            for group in self._table.due
            if (group in tenants or group[0] in everywhere)
            and group[1] not in self._suspended
            and self._may_be_open(group, now_ms)
        ]
        competing: dict[tuple[Kind, int | None], list[Competitor]] = {}
        count = 0
        for kind, tenant in sorted(groups, key=lambda group: self._tenants.of(*group)):
            numbers = tenants.get((kind, tenant), []) + everywhere.get(kind, [])
            lanes = self._competitors((kind, tenant), numbers, now_ms)
            if lanes:
                # If an executor serves all tenants, they compete; else each tenant has its own workers.
                competing.setdefault((kind, None if kind in everywhere else tenant), []).extend(lanes)
                count += len(lanes)
                if count >= MAX_LANES_PER_CLAIM:
                    break
        return competing

    def _may_be_open(self, group: LaneGroup, now_ms: int) -> bool:
        """Whether a lane there may be open; quick to check, because thousands of tenants may wait for their limits."""
        opens_ms = min([work.closed_until_ms for work in self._table.due[group].values()])
        if opens_ms > now_ms:
            self._opens_ms = min(self._opens_ms, opens_ms)
        return opens_ms <= now_ms

    def _competitors(self, group: LaneGroup, numbers: list[int], now_ms: int) -> list[Competitor]:
        """The lanes of one tenant that can be served now."""
        fitting: dict[int, tuple[int, ...]] = {}
        #: Asks that take nothing from a lane (the key) while the lane of a type that they handle has tasks: those
        #: tasks were parked there from this lane, so they come first.
        later: dict[LaneKey, set[int]] = {}
        for work in self._in_turn(group, numbers):
            if work.is_being_claimed:
                continue
            if work.closed_until_ms > now_ms:
                self._opens_ms = min(self._opens_ms, work.closed_until_ms)
                continue
            behind = later.get(work.key, ()) if later else ()
            asks = tuple(number for number in numbers if number not in behind and self._asks[number].ask.fits(work.key))
            if asks and self._is_open(work, now_ms):
                fitting[work.lane] = asks
                if len(fitting) == MAX_LANES_PER_CLAIM:
                    break
                if work.source is not None:
                    later.setdefault(work.source, set()).update(asks)
        if not fitting:
            return []
        works = {lane: self._table.known[lane] for lane in fitting}
        shares = {lane: float(self._share(work, now_ms)) for lane, work in works.items()}
        stand = self._lanes.stand(group, shares)
        return [
            Competitor(lane, group[1], shares[lane], stand[lane], self.governor.room(works[lane].key, now_ms), asks)
            for lane, asks in fitting.items()
        ]

    def _in_turn(self, group: LaneGroup, numbers: Iterable[int]) -> list[Work]:
        """The due lanes of that group, the least served first; lanes of types come before all others."""
        works = sorted(self._table.due[group].values(), key=lambda work: self._lanes.of(group, work.lane))
        if any(work.source is not None for work in works):
            handled = handled_by([self._asks[number].ask for number in numbers])
            if handled is not None:
                # A tenant may have hundreds of types that no waiting holder handles.
                wanted = frozenset(handled)
                works = [work for work in works if work.source is None or type_at(work.key.gate) in wanted]
            works.sort(key=lambda work: work.source is None)
        return works

    def _is_open(self, work: Work, now_ms: int) -> bool:
        """Whether its limits let a task of the lane start; if not, the lane is skipped until they may."""
        if self.governor.is_closed(work.key) or self._is_uncounted(work.lane, work.key):
            work.closed_until_ms = _NEVER
        elif self.governor.room(work.key, now_ms) > 0:
            return True
        else:
            until = self.governor.wait_for(work.lane, work.key, now_ms)
            work.closed_until_ms = _NEVER if until is None else max(until, now_ms + 1)
        self._opens_ms = min(self._opens_ms, work.closed_until_ms)
        return False

    def _is_uncounted(self, lane: int, key: LaneKey) -> bool:
        """Whether it is unknown yet what may start: running tasks of a limited tenant, targets with fewer calls."""
        if lane % SHARDS not in self.governor.uncounted:
            return False
        return key.kind is Kind.PUSH or self.governor.is_limited(key.tenant)

    def _share_out(self, competing: dict[tuple[Kind, int | None], list[Competitor]], now_ms: int) -> list[Order]:
        orders: list[Order] = []
        used = Used(self.governor, now_ms)
        rows_left, bytes_left = MAX_ROWS_PER_CLAIM, float(MAX_BYTES_PER_CLAIM)
        for (kind, _), lanes in competing.items():
            rooms = {number: self._asks[number].ask.room for lane in lanes for number in lane.asks}
            room = min(rows_left, sum(rooms.values()))
            weights = {lane.tenant: float(self._weights.get(lane.tenant, 1)) for lane in lanes}
            stand = self._tenants.stand(kind, weights)
            if room <= SMALL_ROOM and len(lanes) > 1:
                dealt = deal_by_turns(lanes, rooms, stand, self._weights)
            else:
                dealt = deal_by_weight(lanes, rooms, room, self._weights)
            for lane in lanes:
                if lane.lane not in dealt:
                    continue
                work = self._table.known[lane.lane]
                most = min(rows_left, max(1, int(bytes_left / max(work.mean_bytes, 1.0))))
                if lane.most < UNLIMITED:
                    # Lanes that share a limit share it within one claim as well.
                    most = used.left(work.key, most)
                counts = cut(dealt[lane.lane], most)
                if counts:
                    count = sum(rows for _, rows in counts)
                    used.add(work.key, count)
                    rows_left -= count
                    bytes_left = max(0.0, bytes_left - count * work.mean_bytes)
                    orders.append(Order(lane.lane, work.hint, count, tuple(counts), lane.share))
        return orders

    def _share(self, work: Work, now_ms: int) -> int:
        return share_of(work.key.priority, self._age_ms(work, now_ms))

    def _age_ms(self, work: Work, now_ms: int) -> int:
        """How long the lane's first row has been due, as far as is known."""
        return 0 if work.hint == EARLIEST else max(0, now_ms - due_ms_of(work.hint))
