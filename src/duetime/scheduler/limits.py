"""How many tasks may start now: caps on running tasks, and rates, in the memory of the node that feeds a tenant.

A meter is one limit in force.  A lane has the meters of its tenant and queue,
and, if it is the lane of a gate, those of the gate: then none of its rows is
read while one of them is used up.  What a claim may take is promised to it
beforehand; what it brought is started, task by task, and the promise ends at the
meters where it was made, whatever the limits are by then.

Nothing here does I/O: time comes in as milliseconds of the database's clock.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from duetime.budgets.contract import Want
from duetime.clock import from_ms
from duetime.model.attempt import Attempt, Past
from duetime.model.gates import Gate, MeterName, decode_gate, encode_gate, is_for_type_alone
from duetime.model.limits import Limits
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.feeding_nodes import FeedingNodes
from duetime.scheduler.meter import UNLIMITED, Limitation, Meter, in_words
from duetime.scheduler.rooms import Room, RoomMeter, Slots
from duetime.scheduler.tenant_gate import TenantGate

#: The most meters of keys in memory; a task that needs another one waits until some are at rest.
MAX_METERS_PER_TENANT = 20_000

_TENANT: MeterName = ("tenant", "", "")


class Rulebook(Protocol):
    """The stored limits; false if there are none."""

    def __bool__(self) -> bool: ...

    def limits_of(self, tenant: int, name: MeterName) -> Limits | None: ...

    def is_limited(self, tenant: int) -> bool:
        """Whether the tenant has any limit."""
        ...

    def is_paused(self, tenant: int, queue: str) -> bool: ...


class Throttle(Protocol):
    """A meter with rules of its own: the breaker of a target, the room of the executor."""

    def available(self, now_ms: int) -> int: ...
    def took(self, count: int, now_ms: int) -> None: ...
    def gave_back(self, count: int, now_ms: int) -> None: ...
    def next_ms(self, now_ms: int) -> int | None: ...

    @property
    def reason(self) -> str: ...


#: The meters at which a promise was made.
Promised = tuple[Meter | Throttle, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """An attempt that counts against limits, and its meters."""

    number: int
    meters: tuple[Meter, ...]


class Governor:
    """The meters of all lanes that are fed here; it says how many tasks of a lane may start now."""

    def __init__(
        self,
        since_ms: int = 0,
        *,
        throttle_of: "ThrottleOf | None" = None,
        tenant_gate_of: "TenantGateOf | None" = None,
        nodes: FeedingNodes | None = None,
    ) -> None:
        """`throttle_of` finds the breaker of a target, `tenant_gate_of` the gate for all lanes of a stopped tenant."""
        #: This node did not count before this time: buckets were empty then.
        self.since_ms = since_ms
        self._book: Rulebook | None = None
        self._meters: dict[int, dict[MeterName, Meter]] = {}
        self._of_lane: dict[LaneKey, tuple[Meter | Throttle, ...]] = {}
        self._running: dict[uuid.UUID, Run] = {}
        self._throttle_of = throttle_of or _no_throttle
        self._tenant_gate_of = tenant_gate_of or _no_gate
        self._at_hosts: dict[tuple[int, str], set[int]] = {}
        #: The room of the executor on this node; None: there is none.
        self.executor_room: Room | None = None
        self._nodes = nodes or FeedingNodes()
        #: Newly gained shards: their running tasks have not been counted yet, nor is it known which targets fail.
        self.uncounted: frozenset[int] = frozenset()

    def begin(self, now_ms: int) -> None:
        """Begin to count: this node has counted nothing before this time."""
        self.since_ms = now_ms

    def feed_only(self, gained: frozenset[int], shards: frozenset[int]) -> None:
        """Set the shards that are fed from now on; those gained are not counted yet."""
        self.uncounted = (self.uncounted | gained) & shards

    def count_anew(self, shards: frozenset[int]) -> None:
        self.uncounted |= shards

    def know(self, shards: frozenset[int] | None) -> None:
        """Note that running tasks of these shards, or of all, are counted now."""
        self.uncounted = frozenset() if shards is None else self.uncounted - shards

    def rule(self, book: Rulebook) -> None:
        """Set the limits that hold from now on."""
        self._book = book
        self._of_lane.clear()
        for tenant, meters in self._meters.items():
            for name, meter in meters.items():
                meter.rule(book.limits_of(tenant, name) or Limits())
                meter.is_refused = False

    def share(self, nodes: Mapping[int, int]) -> bool:
        """Set which tenants several nodes feed from now on; returns whether anything changed."""
        if not self._nodes.become(nodes):
            return False
        for tenant, meters in self._meters.items():
            for meter in meters.values():
                meter.nodes = self._nodes.of(tenant)
                meter.is_refused = False
        return True

    def is_shared_with(self, tenant: int) -> bool:
        """Whether other nodes feed the tenant as well."""
        return tenant in self._nodes.spread

    def wants(self) -> dict[str, Want]:
        """The tokens that the meters of shared tenants want from the common budgets."""
        wanted = {}
        for tenant in self._nodes.spread:
            for meter in self._meters.get(tenant, {}).values():
                if meter.limits.rate is not None and (tokens := meter.wanted) >= 1.0:
                    wanted[_budget_of(tenant, meter)] = Want(meter.limits.rate, meter.limits.depth, tokens)
                meter.is_used = False
        return wanted

    def grant(self, granted: Mapping[str, float]) -> None:
        for tenant in self._nodes.spread:
            for meter in self._meters.get(tenant, {}).values():
                meter.granted(granted.get(_budget_of(tenant, meter), 0.0))

    @property
    def is_shared(self) -> bool:
        return bool(self._nodes.spread)

    def serve(self, slots: Slots) -> None:
        """Set the executor that asks for push tasks, by its slots."""
        if self.executor_room is None or self.executor_room.slots is not slots:
            self.executor_room = Room(slots)
            self._of_lane.clear()

    # Lanes

    def is_closed(self, key: LaneKey) -> bool:
        return self._book is not None and self._book.is_paused(key.tenant, key.queue)

    @property
    def has_limits(self) -> bool:
        return self._book is not None and bool(self._book)

    def is_limited(self, tenant: int) -> bool:
        if self._book is not None and self._book.is_limited(tenant):
            return True
        return self._tenant_gate_of(tenant) is not None

    def tenants_changed(self) -> None:
        """Find the meters again, because tenants were stopped or resumed."""
        self._of_lane.clear()

    def room(self, key: LaneKey, now_ms: int) -> int:
        """How many of the lane's tasks may be started now."""
        most = UNLIMITED
        for meter in self.meters(key, now_ms):
            most = min(most, meter.available(now_ms))
        return most

    def take(self, key: LaneKey, count: int, now_ms: int) -> Promised:
        """Promise to start this many tasks; `end_promise` ends the promise."""
        meters = self.meters(key, now_ms)
        for meter in meters:
            meter.took(count, now_ms)
        return meters

    def end_promise(self, key: LaneKey, promised: Promised, count: int, started: int, now_ms: int) -> set[int]:
        """End a promise of `count` tasks; returns the lanes that waited for those that were not started."""
        _release(promised, count, started, now_ms)
        if started == count:
            return set()
        woken: set[int] = set()
        for meter in promised:
            if isinstance(meter, Meter) and meter.waiting and meter.available(now_ms) > 0:
                woken |= meter.waiting
                meter.waiting.clear()
        for scope, host, _ in decode_gate(key.gate):
            if scope == "host":
                woken |= self.host_changed(key.tenant, host)
        return woken

    def wait_for(self, lane: int, key: LaneKey, now_ms: int) -> int | None:
        """When a lane without room may have some; None: `ended` will report it."""
        until: int | None = now_ms
        for meter in self.meters(key, now_ms):
            if meter.available(now_ms) > 0:
                continue
            following = meter.next_ms(now_ms)
            if following is None:
                until = None
            elif until is not None:
                until = max(until, following)
            if isinstance(meter, TenantGate):
                meter.want()
            if isinstance(meter, RoomMeter) and self.executor_room is not None:
                self.executor_room.wait(meter, lane, now_ms)
            if isinstance(meter, Meter):
                (meter.waiting if following is None or meter.promised else meter.delayed).add(lane)
        for scope, host, _ in decode_gate(key.gate):
            if scope == "host":
                self._at_hosts.setdefault((key.tenant, host), set()).add(lane)
        return until

    def not_called(self, tenant: int, host: str, now_ms: int) -> None:
        """Take back a call that the target's breaker let through and that is not made."""
        throttle = self._throttle_of(tenant, host)
        if throttle is not None:
            throttle.gave_back(1, now_ms)

    def host_changed(self, tenant: int, host: str) -> set[int]:
        """Note that more or fewer calls to a target may be made; returns the lanes that waited for it."""
        return self._at_hosts.pop((tenant, host), set())

    def meters(self, key: LaneKey, now_ms: int) -> tuple[Meter | Throttle, ...]:
        known = self._of_lane.get(key)
        if known is not None:
            return known
        names: list[MeterName] = []
        if self.is_limited(key.tenant):
            names = [_TENANT, ("queue", key.queue, "")]
        found: list[Meter | Throttle] = [
            meter for name in names if (meter := self._meter(key.tenant, name, now_ms)) is not None
        ]
        if (stopped := self._tenant_gate_of(key.tenant)) is not None:
            found.append(stopped)
        if self.executor_room is not None and key.kind is Kind.PUSH:
            found.append(self.executor_room.of_tenant(key.tenant))
        if key.gate:
            found += self._of_gate(key.tenant, decode_gate(key.gate), now_ms)
            # Gates have few lanes, which change often (a breaker may be gone tomorrow), so these are not cached.
            return tuple(found)
        self._of_lane[key] = tuple(found)
        return self._of_lane[key]

    # Tasks

    def admit(self, tenant: int, gate: Gate, now_ms: int) -> Promised | None:
        """Promise a place at a gate for one task that was claimed from its home; None: there is no place."""
        if not self._has_room(tenant, gate):
            return None
        meters = tuple(self._of_gate(tenant, gate, now_ms))
        if any(meter.available(now_ms) < 1 for meter in meters):
            return None
        for meter in meters:
            meter.took(1, now_ms)
        return meters

    def start(
        self,
        attempt: Attempt,
        key: LaneKey,
        gate: Gate,
        now_ms: int,
        admitted: Promised = (),
        meters: Sequence[Meter] | None = None,
    ) -> None:
        """Start a task that is given to its holder; it uses the place at the gate that was promised to it alone.

        `meters` is the result of `counted` for such a task, if it is known.
        """
        _release(admitted, 1, 1, now_ms)
        self.found(attempt, key, gate, now_ms, meters)
        if (stopped := self._tenant_gate_of(key.tenant)) is not None:
            stopped.started(attempt, now_ms)

    def found(
        self, attempt: Attempt, key: LaneKey, gate: Gate, now_ms: int, meters: Sequence[Meter] | None = None
    ) -> None:
        """Count a running task from now on, at these meters only."""
        task, number = attempt
        if meters is None:
            meters = self.counted(key, gate, now_ms)
        if (before := self._running.pop(task, None)) is not None:
            # An earlier attempt whose end was not reported yet, or the same one under other limits.
            for meter in before.meters:
                meter.ended()
        for meter in meters:
            meter.running += 1
        if meters:
            self._running[task] = Run(number, tuple(meters))

    def ended(self, attempts: Iterable[Past]) -> set[int]:
        """Stop counting ended attempts; returns the lanes that waited for them."""
        woken: set[int] = set()
        for task, number, never_began in attempts:
            run = self._running.get(task)
            if run is None or run.number > number:
                # The task's next attempt runs already: this report came late.
                continue
            del self._running[task]
            for meter in run.meters:
                meter.ended()
                woken |= meter.waiting
                meter.waiting.clear()
                if never_began and meter.limits.rate is not None:
                    meter.granted(1.0)
                    woken |= meter.delayed
                    meter.delayed.clear()
        return woken

    @property
    def running(self) -> Mapping[uuid.UUID, Run]:
        return self._running

    def refused(self) -> list[tuple[int, Meter]]:
        """The meters for which other nodes have all places, with their tenants."""
        return [
            (tenant, meter) for tenant, meters in self._meters.items() for meter in meters.values() if meter.is_refused
        ]

    def withdraw(self, admitted: Promised, now_ms: int) -> None:
        """Undo the admission of a task that does not start; the promise to its lane belongs to the claim."""
        _release(admitted, 1, 0, now_ms)

    def take_opened(self, now_ms: int) -> set[int]:
        """Lanes that wait at meters with room, although no event has opened them."""
        opened: set[int] = set()
        for meters in self._meters.values():
            for meter in meters.values():
                if meter.waiting and meter.available(now_ms) > 0:
                    opened |= meter.waiting
                    meter.waiting.clear()
        return opened

    def forget_idle(self, now_ms: int) -> None:
        """Drop meters that are in the same state as new ones."""
        dropped = False
        for tenant, meters in list(self._meters.items()):
            idle = [name for name, meter in meters.items() if meter.is_at_rest(now_ms)]
            for name in idle:
                del meters[name]
            dropped |= bool(idle)
            if not meters:
                del self._meters[tenant]
        if dropped:
            self._of_lane.clear()

    def describe(self, key: LaneKey, now_ms: int) -> tuple[tuple[Limitation, str, datetime | None], ...]:
        """Why a lane cannot be served now, in words, and until when if that is known."""
        found: list[tuple[Limitation, str, datetime | None]] = []
        for meter in self.meters(key, now_ms):
            if isinstance(meter, RoomMeter):
                if meter.room <= 0:
                    found.append(("no_slot", meter.reason, None))
                continue
            if meter.available(now_ms) > 0:
                continue
            following = meter.next_ms(now_ms)
            until = None if following is None else from_ms(following)
            if isinstance(meter, Meter):
                found.append((*in_words(meter), until))
            elif isinstance(meter, TenantGate):
                found.append(("tenant_breaker", meter.reason, until))
            else:
                found.append(("breaker", meter.reason, until))
        return tuple(found)

    def counted(self, key: LaneKey, gate: Gate, now_ms: int) -> list[Meter]:
        """The meters at which a task counts while it runs."""
        has_gate = bool(key.gate) and not is_for_type_alone(key.gate)
        meters = [*self.meters(key, now_ms), *([] if has_gate else self._of_gate(key.tenant, gate, now_ms))]
        return [meter for meter in meters if isinstance(meter, Meter)]

    def _of_gate(self, tenant: int, gate: Gate, now_ms: int) -> list[Meter | Throttle]:
        found: list[Meter | Throttle] = []
        for name in gate:
            if name[0] == "host":
                throttle = self._throttle_of(tenant, name[1])
                if throttle is not None:
                    found.append(throttle)
                if self.executor_room is not None:
                    found.append(self.executor_room.of_host(tenant, name[1]))
            elif (meter := self._meter(tenant, name, now_ms)) is not None:
                found.append(meter)
        return found

    def _has_room(self, tenant: int, gate: Gate) -> bool:
        """Whether the meters of a gate exist or may be made; those of lanes and running tasks are always made."""
        meters = self._meters.get(tenant, {})
        return len(meters) < MAX_METERS_PER_TENANT or all(name[0] == "host" or name in meters for name in gate)

    def _meter(self, tenant: int, name: MeterName, now_ms: int) -> Meter | None:
        meters = self._meters.setdefault(tenant, {})
        meter = meters.get(name)
        if meter is None:
            limits = None if self._book is None else self._book.limits_of(tenant, name)
            if limits is None or limits.is_empty:
                return None
            meter = meters[name] = Meter(name, limits, min(self.since_ms, now_ms))
            meter.nodes = self._nodes.of(tenant)
        return meter


def strict_of(meters: Iterable[Meter]) -> list[tuple[Meter, int]]:
    """The meters with a cap that must hold even beside another feeder."""
    return [
        (meter, meter.limits.max_running)
        for meter in meters
        if meter.is_strict and meter.limits.max_running is not None
    ]


def _release(promised: Promised, count: int, started: int, now_ms: int) -> None:
    """End a promise: started tasks count as running already, the rest is given back."""
    for meter in promised:
        if isinstance(meter, Meter):
            meter.promised -= started
        if started < count:
            meter.gave_back(count - started, now_ms)


def _budget_of(tenant: int, meter: Meter) -> str:
    return f"run {tenant} {encode_gate((meter.name,))}"


class ThrottleOf(Protocol):
    def __call__(self, tenant: int, host: str, /) -> Throttle | None: ...


class TenantGateOf(Protocol):
    def __call__(self, tenant: int, /) -> TenantGate | None: ...


def _no_throttle(tenant: int, host: str) -> Throttle | None:
    return None


def _no_gate(tenant: int) -> TenantGate | None:
    return None


class Used:
    """How much a claim takes of limits that several of its lanes share, while it is planned."""

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
