"""Between a claim and its holders: park tasks that may not run yet, or not there, at their gate.

A task at home is claimed with its neighbours; only then is it known which limits
apply to it.  If its gate has room it runs, else it is parked once, in the lane of
the gate, and read again when the gate has room for it.

The same holds for a task whose type its holder does not handle (`foreign`): it is
parked in the lane of its type.  If it was found in the lane of a limit, it is parked
in the lane of that limit and its type, which only holders of the type read.  From
there it goes only to its holder while its limits stay the same, so two gates cannot
send it to each other.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import msgspec
import structlog

from duetime.database.pool import Database
from duetime.ids import SHARDS, draw_bits
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.claim import Claims
from duetime.lifecycle.tasks.park import (
    Cap,
    Parked,
    StrictPlace,
    await_places,
    park,
    read_ended,
    read_running,
    take_places,
)
from duetime.lifecycle.tasks.sift import Move
from duetime.model.gates import (
    Gate,
    GateRules,
    MeterName,
    encode_gate,
    gate_of,
    limits_at,
    type_at,
    with_type,
)
from duetime.model.limits import MAX_STRICT
from duetime.model.origin import host_of
from duetime.model.task import Kind, LaneKey, LeasedTask
from duetime.scheduler.due_lanes import source_of
from duetime.scheduler.foreign import Foreign, find_foreign, sift_behind
from duetime.scheduler.limits import Governor, Promised, Rulebook, Throttle, strict_of
from duetime.scheduler.meter import Meter
from duetime.scheduler.plan import Plan
from duetime.scheduler.rulebook import Book

log = structlog.get_logger()
#: How long a task waits if there is no lane at its gate.
NO_LANE_MS = 2_000
#: Tasks that wait without a lane are read again one after the other, 200 a second for each tenant.
TURN_MS = 5


class Rules(Rulebook, GateRules, Protocol):
    """All rules about limits."""


class Calls(Protocol):
    """Counts unrestricted calls to targets, and says when a target becomes restricted (`breakers`)."""

    def begin(self, tenant: int, host: str, now: int) -> Throttle | None: ...
    def begin_all(self, tenant: int, hosts: Mapping[str, int], now: int) -> bool: ...
    def began(self, tenant: int, host: str, count: int, now: int) -> None: ...


class _Row(msgspec.Struct, frozen=True):
    lane: int
    place: int
    key: LaneKey
    task: LeasedTask
    gate: Gate
    #: What was promised to this task alone; the lane of a gate has a promise for all its tasks together.
    admitted: Promised = ()
    #: Not every holder that reads its home handles its type, so it waits with its own type.
    is_apart: bool = False

    @property
    def gate_key(self) -> LaneKey:
        """The lane in which it has to wait, if it has to."""
        waits_at, apart = _waits_at(self.key, self.gate, self.task.type)
        return apart if self.is_apart else waits_at


@dataclass
class GateVerdict:
    """Which of the claimed rows, by lane and place, are held back."""

    aside: dict[int, set[int]] = field(default_factory=dict)
    #: How many rows are on their way to each gate.
    approached: Counter[LaneKey] = field(default_factory=Counter)
    parked: list[_Row] = field(default_factory=list)
    #: By lane, the claimed rows of types that their holders do not handle.
    foreign: dict[int, Foreign] = field(default_factory=dict)
    #: Lanes that are not planned until the rows that follow are moved as well, with their hints.
    held: dict[int, uuid.UUID] = field(default_factory=dict)
    #: Each is set when rows that were claimed earlier are at the same gates.
    behind: list[asyncio.Event] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gates(self) -> set[LaneKey]:
        return {row.gate_key for row in self.parked}

    def put_aside(self, row: _Row) -> None:
        self.aside.setdefault(row.lane, set()).add(row.place)
        self.parked.append(row)
        self.approached[row.gate_key] += 1


class Gatekeeper:
    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        governor: Governor,
        planned: Callable[[int], LaneKey | None],
        calls: Calls | None = None,
    ) -> None:
        self._database = database
        self._lanes = lanes
        self._governor = governor
        #: The key of a lane that is known to have waiting tasks.
        self._planned = planned
        self._rules: Rules = Book()
        self._turns_ms: dict[int, int] = {}
        self._calls = calls
        #: Gates to which rows are on their way: tasks that are claimed meanwhile may not overtake them.
        self._approached: Counter[LaneKey] = Counter()
        #: The verdicts with such rows, in the order of their claims.
        self._approaching: list[GateVerdict] = []
        #: The number of this node among those that compete for the same places.
        self._asker = draw_bits(31)

    def rule(self, rules: Rules) -> None:
        self._rules = rules
        self._governor.rule(rules)

    # Claimed tasks

    async def judge(self, claims: Claims, plan: Plan) -> GateVerdict:
        """Start the tasks that may run; the rest is to be parked, and `forget` must follow."""
        verdict = GateVerdict(approached=self._approached)
        try:
            if plan.types or self._approached:
                self._turn_away(claims, plan, verdict)
            await self._judge(claims, verdict)
        except BaseException:
            self.forget(verdict)
            raise
        if verdict.parked:
            gates = verdict.gates
            verdict.behind = [each.is_over for each in self._approaching if not gates.isdisjoint(each.gates)]
            self._approaching.append(verdict)
        return verdict

    def forget(self, verdict: GateVerdict) -> None:
        """Note that the rows of a verdict have been parked, as far as possible."""
        if not verdict.parked:
            return
        self._approached -= Counter(row.gate_key for row in verdict.parked)
        self._approaching = [each for each in self._approaching if each is not verdict]
        verdict.is_over.set()

    def is_parking(self, key: LaneKey) -> bool:
        """Whether rows of such a lane are on their way to a gate."""
        return bool(self._approached) and key in self._types_approached()

    def _types_approached(self) -> dict[LaneKey, set[str | None]]:
        """By lane, the types of which rows are on their way from there to the lane of their type."""
        types: dict[LaneKey, set[str | None]] = {}
        for key in self._approached:
            if (source := source_of(key)) is not None:
                types.setdefault(source, set()).add(type_at(key.gate))
        return types

    def _turn_away(self, claims: Claims, plan: Plan, verdict: GateVerdict) -> None:
        """Send foreign rows to the lanes of their types, and later rows of these types too, so that none overtakes."""
        approached = self._types_approached()
        if not plan.types and not approached:
            return
        for order in plan.orders:
            rows = claims.taken.get(order.lane, ())
            key = self._planned(order.lane)
            if key is None or not rows:
                continue
            places = find_foreign(order, rows, plan.types)
            if places:
                verdict.foreign[order.lane] = Foreign(places, len(rows))
            if late := approached.get(key):
                places |= {place for place, (_, task) in enumerate(rows) if task.type in late}
            for place in sorted(places):
                task = rows[place][1]
                home, is_alike = self._home_of(task, order.lane, key)
                limits = limits_at(key.gate) if is_alike else ()
                verdict.put_aside(_Row(order.lane, place, home, task, limits, is_apart=True))

    def _home_of(self, task: LeasedTask, lane: int, key: LaneKey) -> tuple[LaneKey, bool]:
        """The key of its home, and whether that matches the lane in which it waited.

        The lane of a gate may have belonged to another queue when the claim was planned, or when the task was parked.
        """
        if task.lane == lane:
            return key, True
        home = self._lanes.key_of(task.lane) or _at_gate(key, "")
        return home, _at_gate(home, key.gate) == key

    async def _judge(self, claims: Claims, verdict: GateVerdict) -> None:
        rules, now_ms = self._rules, self._database.clock.now_ms()
        kept: list[_Row] = []
        refused: dict[tuple[int, str], bool] = {}
        for lane, rows in claims.taken.items():
            key = self._planned(lane)
            if key is None:
                continue
            if not key.gate and not self._governor.is_limited(key.tenant) and self._begin_all(key, rows, now_ms):
                continue
            passed = frozenset(limits_at(key.gate))
            aside = frozenset(verdict.aside.get(lane, ()))
            # If it left the lane of a limit and its type, holders that do not handle the type would get it again.
            is_apart = bool(passed) and type_at(key.gate) is not None
            for place, (_, task) in enumerate(rows):
                if place in aside:
                    continue
                gate, begun = self._find_gate(rules, key, task, passed, refused, now_ms)
                home, is_alike = self._home_of(task, lane, key)
                admitted = self._admit(key, gate, passed, task.type, now_ms) if is_alike else None
                if admitted is None:
                    self._governor.withdraw(begun, now_ms)
                    verdict.put_aside(_Row(lane, place, home, task, gate, is_apart=is_apart))
                else:
                    kept.append(_Row(lane, place, key, task, gate, (*admitted, *begun), is_apart))
        try:
            kept = await self._with_places(kept, verdict, now_ms)
        except BaseException:
            for row in kept:
                self._governor.withdraw(row.admitted, self._database.clock.now_ms())
            raise
        # Read the clock again: to breakers, a time before the last one means that the clock went back.
        now_ms = self._database.clock.now_ms()
        counted = _Counted(self._governor, now_ms)
        for row in kept:
            attempt, meters = (row.task.id, row.task.number), counted.at(row)
            self._governor.start(attempt, row.key, row.gate, now_ms, row.admitted, meters)

    def _begin_all(self, key: LaneKey, rows: Sequence[tuple[uuid.UUID, LeasedTask]], now_ms: int) -> bool:
        """Count the calls of a lane without limits; False: each call has to ask its target's breaker."""
        room = self._governor.executor_room
        if key.kind is not Kind.PUSH or (self._calls is None and room is None):
            return True
        hosts: dict[str, int] = {}
        for _, task in rows:
            host = _host_of(task)
            hosts[host] = hosts.get(host, 0) + 1
        hosts.pop("", None)
        if room is not None and not room.take_all(key.tenant, hosts, now_ms):
            return False
        if self._calls is None or self._calls.begin_all(key.tenant, hosts, now_ms):
            return True
        if room is not None:
            room.give_back_all(key.tenant, hosts, now_ms)
        return False

    def _find_gate(
        self,
        rules: Rules,
        key: LaneKey,
        task: LeasedTask,
        passed: frozenset[MeterName],
        refused: dict[tuple[int, str], bool],
        now_ms: int,
    ) -> tuple[Gate, Promised]:
        """The gate that a task has to pass, and the counters of its call if it does not have to pass its target's gate.

        `refused` holds the targets whose gate the tasks of this claim have to pass, and whether they are full: the
        later tasks of the claim get no place there.
        """
        room, host = self._governor.executor_room, _host_of(task)
        begun: Promised = ()
        at_host: MeterName = ("host", host, "")
        is_full = False
        if host and at_host not in passed:
            known = refused.get((key.tenant, host))
            is_full = known if known is not None else room is not None and room.is_full(key.tenant, host, now_ms)
            if known is None and not is_full:
                begun = self._begin(key.tenant, host, now_ms)
            if not begun:
                refused[key.tenant, host] = is_full
        gate = gate_of(rules, key.tenant, task.type, task.payload, task.options)
        return ((*gate, at_host) if is_full and at_host not in gate else gate), begun

    def _begin(self, tenant: int, host: str, now_ms: int) -> Promised:
        """The counters of a call that is unrestricted; empty if it has to pass the gate."""
        begun: list[Throttle] = []
        if self._calls is not None:
            if (breaker := self._calls.begin(tenant, host, now_ms)) is None:
                return ()
            begun.append(breaker)
        if (room := self._governor.executor_room) is not None:
            place = room.of_host(tenant, host)
            place.took(1, now_ms)
            begun.append(place)
        return tuple(begun)

    def begun(self, tasks: Iterable[LeasedTask]) -> None:
        """Count the calls of tasks that were handed over as they were stored: these were not counted yet."""
        if self._calls is None:
            return
        begun: dict[tuple[int, str], int] = {}
        for task in tasks:
            host = _host_of(task)
            if host and (key := self._lanes.key_of(task.lane)) is not None:
                begun[key.tenant, host] = begun.get((key.tenant, host), 0) + 1
        now_ms = self._database.clock.now_ms() if begun else 0
        for (tenant, host), count in begun.items():
            self._calls.began(tenant, host, count, now_ms)

    def _admit(
        self, key: LaneKey, gate: Gate, passed: frozenset[MeterName], type_name: str, now_ms: int
    ) -> Promised | None:
        """What is promised to a task that may run, beside what its lane was promised; None: it may not run."""
        if passed:
            # Its lane's gate had room; if the limits have changed since it was parked, it may belong elsewhere.
            return () if passed.issuperset(gate) else None
        if not gate:
            return ()
        for gate_key in _waits_at(key, gate, type_name):
            lane = self._lanes.find(gate_key)
            if gate_key in self._approached or (lane is not None and self._planned(lane) is not None):
                # Other tasks wait at the gate already.
                return None
        return self._governor.admit(key.tenant, gate, now_ms)

    async def _with_places(self, rows: list[_Row], verdict: GateVerdict, now_ms: int) -> list[_Row]:
        """The rows that have a place under every strict cap; mostly there is no such cap."""
        counted = _Counted(self._governor, now_ms)
        places = [
            (row, meter, StrictPlace(row.key.tenant, encode_gate((meter.name,)), cap, row.task))
            for row in rows
            if (meters := counted.at(row))
            for meter, cap in strict_of(meters)
        ]
        if not places:
            return rows
        got = await take_places(self._database, [place for _, _, place in places], self._asker)
        now_ms = self._database.clock.now_ms()
        without: set[uuid.UUID] = set()
        for position, (row, meter, _) in enumerate(places):
            if position not in got:
                without.add(row.task.id)
                meter.is_refused = True
        for row in rows:
            if row.task.id in without:
                verdict.put_aside(row)
                self._governor.withdraw(row.admitted, now_ms)
        return [row for row in rows if row.task.id not in without]

    async def park(self, verdict: GateVerdict) -> list[uuid.UUID]:
        """Park the rows where they belong; returns their wakes."""
        # The line at a gate has the order in which rows are parked.
        for is_over in verdict.behind:
            await is_over.wait()
        parked = []
        for row in verdict.parked:
            wait_ms = 0
            lane = self._lanes.find(row.gate_key)
            if lane is None and not row.gate_key.gate:
                lane = row.task.lane
            elif lane is None:
                lane = await self._lanes.ensure_gate(row.gate_key)
            if lane is None:
                lane, wait_ms = row.task.lane, self._wait_at_home(row.key.tenant)
            foreign = verdict.foreign.get(row.lane)
            if foreign is not None and row.place in foreign.places:
                move = Move(row.task.type, row.task.lane, lane, wait_ms)
                foreign.moves[move.type, move.home] = (row.gate_key, move)
            parked.append(Parked(row.task, lane, wait_ms))
        return await park(self._database, parked)

    async def sift(self, lane: int, hint: uuid.UUID, until: uuid.UUID, moves: Sequence[Move]) -> list[uuid.UUID]:
        """Move the rows that follow foreign rows and are like them in the same way; returns wakes of them."""
        wakes: list[uuid.UUID] = []
        async for sifted in sift_behind(self._database, lane, hint, until, moves, TURN_MS):
            wakes += sifted.wakes
            for move in moves:
                if move.wait_ms and (key := self._lanes.key_of(move.home)) is not None:
                    self._wait_at_home(key.tenant, sifted.moved)
        return wakes

    def _wait_at_home(self, tenant: int, count: int = 1) -> int:
        """How long to wait: in turn, so that a tenant with more gates than lanes causes few reads a second."""
        now_ms = self._database.clock.now_ms()
        turn_ms = max(now_ms + NO_LANE_MS, self._turns_ms.get(tenant, 0) + TURN_MS)
        self._turns_ms[tenant] = turn_ms + (count - 1) * TURN_MS
        return turn_ms - now_ms

    def not_begun(self, tasks: Sequence[LeasedTask]) -> None:
        """Uncount the calls of tasks that were claimed and go to no holder: their targets are not called."""
        now_ms = self._database.clock.now_ms()
        for task in tasks:
            host = _host_of(task)
            if host and (key := self._lanes.key_of(task.lane)) is not None:
                self._governor.not_called(key.tenant, host, now_ms)

    # Running tasks

    async def recount(self, shards: frozenset[int] | None) -> None:
        """Count what runs already, of tenants with limits, in these shards or in all.

        A running task has a place under a strict cap from now on, even if it started before the cap was strict.
        """
        rules, now_ms, governor = self._rules, self._database.clock.now_ms(), self._governor
        lanes = [
            lane
            for lane, key in self._lanes.all().items()
            if not key.gate
            and governor.is_limited(key.tenant)
            and (shards is None or lane % SHARDS in shards or governor.is_shared_with(key.tenant))
        ]
        if not lanes:
            return
        places: list[StrictPlace] = []
        for running in await read_running(self._database, lanes):
            key = self._lanes.key_of(running.lane)
            if key is None:
                continue
            gate = gate_of(rules, key.tenant, running.type, running.payload, running.options)
            if shards is None or running.lane % SHARDS in shards:
                governor.found((running.id, running.number), key, gate, now_ms)
            for meter, cap in strict_of(governor.counted(key, gate, now_ms)):
                places.append(StrictPlace(key.tenant, encode_gate((meter.name,)), cap, running))
        if places:
            # More may run than the cap allows: each running task still has a place, above the cap.
            most = max(MAX_STRICT, len(places))
            held = [replace(place, cap=most) for place in sorted(places, key=lambda place: place.task.id)]
            await take_places(self._database, held, self._asker)

    async def look_for_places(self) -> bool:
        """Whether there are places again under a cap of which other nodes had all places."""
        refused = self._governor.refused()
        if not refused:
            return False
        caps = [Cap(tenant, encode_gate((meter.name,)), meter.limits.max_running or 0) for tenant, meter in refused]
        free = await await_places(self._database, caps, self._asker)
        for position in free:
            refused[position][1].is_refused = False
        return bool(free)

    async def notice_ended(self) -> set[int]:
        """Find ended attempts that were not reported here; returns the lanes that waited for them."""
        before = dict(self._governor.running)
        if not before:
            return set()
        ended = await read_ended(self._database, [(task, run.number) for task, run in before.items()])
        # A task that was started again meanwhile still runs.
        return self._governor.ended(
            [past for past in ended if self._governor.running.get(past.task) is before[past.task]]
        )


def _host_of(task: LeasedTask) -> str:
    """The host of its target; empty if it has none that can be called."""
    options = task.options
    return "" if options is None or options.target is None else host_of(options.target.url)


class _Counted:
    """The meters at which the tasks of one claim count, found once for all tasks that are alike."""

    def __init__(self, governor: Governor, now_ms: int) -> None:
        self._governor = governor
        self._now_ms = now_ms
        self._known: dict[tuple[LaneKey, Gate], Sequence[Meter]] = {}

    def at(self, row: _Row) -> Sequence[Meter]:
        alike = row.key, row.gate
        meters = self._known.get(alike)
        if meters is None:
            meters = self._known[alike] = self._governor.counted(row.key, row.gate, self._now_ms)
        return meters


# Every judged task needs these.
@lru_cache(maxsize=2_048)
def _at_gate(key: LaneKey, gate: str) -> LaneKey:
    """The lane of a gate for tasks whose home lane has that key."""
    return msgspec.structs.replace(key, gate=gate)


@lru_cache(maxsize=2_048)
def _waits_at(key: LaneKey, gate: Gate, type_name: str) -> tuple[LaneKey, LaneKey]:
    """The lanes in which tasks wait for a gate: the one for all types, and the one for this type alone."""
    return _at_gate(key, encode_gate(gate)), _at_gate(key, encode_gate(with_type(gate, type_name)))
