"""The rule by which calls share the slots, played with hosts that hang, are slow or are quick."""

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import far
from duetime.executor.hosts import Lines
from duetime.executor.slots import Host, Slot, Slots

HUNG = 45.0


def begin_all(slots: Slots, tenant: int, hosts: Sequence[str], now: float = 0.0, most: int = 10_000) -> list[Slot]:
    """Begin calls to these hosts in turn, as many as may begin."""
    begun: list[Slot] = []
    while len(begun) < most:
        before = len(begun)
        for name in hosts:
            host = slots.host(tenant, name, now)
            if len(begun) < most and slots.may_begin(host, now):
                begun.append(slots.begin(host, now))
        if len(begun) == before:
            break
    return begun


def make_quick(slots: Slots, tenant: int, name: str, now: float, calls: int = 1) -> Host:
    """So many calls to the host end at once."""
    host = slots.host(tenant, name, now)
    for _ in range(calls):
        slots.end(slots.begin(host, now), now)
    return host


def hosts(count: int) -> list[str]:
    return [f"h{number}" for number in range(count)]


# Hosts that hang


@pytest.mark.parametrize("count", [1, 4, 40, 400])
@pytest.mark.parametrize("per_host", [64, 512])
def test_a_tenant_with_hung_hosts_leaves_half_of_the_slots(count: int, per_host: int) -> None:
    slots = Slots(512, per_host)

    held = len(begin_all(slots, 1, hosts(count)))

    assert min(64, per_host) <= held <= 224
    # Another tenant's calls begin at once: to a host of which nothing is known, and to one that is quick.
    assert len(begin_all(slots, 2, ["new"], 10.0, 64)) == 64
    make_quick(slots, 3, "quick", 10.0, 64)
    assert len(begin_all(slots, 3, ["quick"], 10.0, 64)) >= 32


@pytest.mark.parametrize("tenants", [10, 100])
def test_tenants_whose_hosts_hang_all_at_once_leave_room_to_others(tenants: int) -> None:
    slots = Slots(512, 64)
    for _ in range(100):
        for tenant in range(tenants):
            begin_all(slots, tenant, hosts(4), most=1)

    assert begin_all(slots, -1, ["new"], 10.0, 1)
    make_quick(slots, -2, "quick", 10.0)
    assert len(begin_all(slots, -2, ["quick"], 10.0)) >= 16


@pytest.mark.parametrize("tenants", [10, 30])
def test_tenants_whose_hosts_hang_one_after_the_other_leave_room_to_others(tenants: int) -> None:
    slots = Slots(512, 64)
    for tenant in range(tenants):
        begin_all(slots, tenant, hosts(40), now=10.0 * tenant)

    assert begin_all(slots, -1, ["new"], 1_000.0, 1)


def test_two_thousand_tenants_whose_hosts_hang_leave_the_last_slots_to_quick_hosts() -> None:
    slots = Slots(512, 64)
    make_quick(slots, -1, "quick", 0.0)
    for tenant in range(2_000):
        begin_all(slots, tenant, hosts(2))

    assert slots.running <= 496
    assert begin_all(slots, -1, ["quick"], 0.5, 4)


def test_a_quick_host_of_a_tenant_whose_other_hosts_hang_is_called() -> None:
    slots = Slots(512, 64)
    make_quick(slots, 1, "quick", 0.0)
    begin_all(slots, 1, hosts(40))

    assert len(begin_all(slots, 1, ["quick"], 0.5)) >= 16


def test_a_quick_host_that_takes_all_it_may_leaves_room_to_the_new_host_of_its_tenant() -> None:
    slots = Slots(512, 512)
    make_quick(slots, 1, "quick", 0.0, 1_000)
    assert len(begin_all(slots, 1, ["quick"], 0.5)) == 448

    assert len(begin_all(slots, 1, ["new"], 0.5)) >= 16


def test_a_slow_host_is_one_whose_calls_are_old_or_ended_late() -> None:
    slots = Slots(512, 512)
    host = make_quick(slots, 1, "a", 0.0, 5)
    old = slots.begin(host, 1.0)
    assert slots.look_at(host, 2.0)
    assert not slots.look_at(host, 4.0)
    assert (slots.slow, host.tenant.slow) == (1, 1)

    slots.end(old, 4.0)

    assert not host.is_quick
    make_quick(slots, 1, "a", 5.0, 3)
    assert not slots.look_at(host, 5.0)
    make_quick(slots, 1, "a", 5.0, 1)
    assert slots.look_at(host, 5.0)
    assert (slots.slow, host.tenant.slow) == (0, 0)


# Quick hosts


@dataclass
class Play:
    """Backlogs without end: whoever has had least, by weight, is asked first, as the feeder does."""

    slots: Slots
    weights: Mapping[int, int]
    seconds: Mapping[int, float]
    hosts: int = 1
    begun: Counter[int] = field(default_factory=Counter)
    held: float = 0.0

    def run(self, until: float, count_from: float) -> None:
        running: list[tuple[float, int, Slot]] = []
        numbers = itertools.count()
        had = dict.fromkeys(self.weights, 0.0)
        steps = 0
        for step in range(int(until / 0.01)):
            now = step * 0.01
            while running and running[0][0] <= now:
                self.slots.end(heapq.heappop(running)[2], now)
            if step % 25 == 0:
                self.slots.sweep(now)
            queue = [(had[tenant], tenant) for tenant in self.weights]
            heapq.heapify(queue)
            while queue:
                _, tenant = heapq.heappop(queue)
                number = next(numbers)
                host = self.slots.host(tenant, f"h{number % self.hosts}", now)
                if not self.slots.may_begin(host, now):
                    continue
                ends_at = now + self.seconds[tenant] * (0.75 + (number * 7 % 11) / 22)
                heapq.heappush(running, (ends_at, number, self.slots.begin(host, now)))
                self.begun[tenant] += now >= count_from
                had[tenant] += 1 / self.weights[tenant]
                heapq.heappush(queue, (had[tenant], tenant))
            level = min(had.values())
            had = {tenant: min(place, level + 8 / self.weights[tenant]) for tenant, place in had.items()}
            if now >= count_from:
                self.held += self.slots.running
                steps += 1
        self.held /= steps


@pytest.mark.parametrize(("seconds", "count"), [(0.05, 1), (0.5, 1), (0.5, 8)])
def test_a_tenant_alone_uses_nearly_all_slots_if_its_hosts_are_quick(seconds: float, count: int) -> None:
    play = Play(Slots(512, 512), {1: 1}, {1: seconds}, count)

    play.run(4.0, 2.0)

    assert play.held >= 440


def test_one_host_has_five_hundred_quick_calls_after_one_another() -> None:
    slots = Slots(512, 512)
    host = slots.host(1, "a", 0.0)
    waves = []
    left = 500
    while left:
        wave = begin_all(slots, 1, ["a"], 0.1 * len(waves), left)
        left -= len(wave)
        waves.append(len(wave))
        for slot in wave:
            slots.end(slot, 0.1 * len(waves))

    assert len(waves) <= 3
    assert host.running == slots.running == 0


@pytest.mark.parametrize(
    "weights", [{1: 1, 2: 2, 3: 4}, {1: 1, 2: 10}, {1: 3, 2: 3}, {**dict.fromkeys(range(1, 11), 1), 11: 10}]
)
def test_quick_hosts_share_by_weight(weights: dict[int, int]) -> None:
    play = Play(Slots(256, 256, weights.__getitem__), weights, dict.fromkeys(weights, 0.1))

    play.run(6.0, 2.0)

    every = sum(weights.values())
    for tenant, weight in weights.items():
        assert play.begun[tenant] / play.begun.total() == pytest.approx(weight / every, rel=0.1)
    assert play.held >= 0.85 * 256


def test_a_light_tenant_is_not_kept_small_beside_a_heavy_one_that_hangs() -> None:
    weights = {1: 1_000, 2: 1}
    slots = Slots(512, 64, weights.__getitem__)
    begin_all(slots, 1, hosts(40))

    assert len(begin_all(slots, 2, hosts(4))) >= 16


def test_slots_are_used_beside_a_heavy_tenant_that_wants_little() -> None:
    weights = {1: 1_000, **dict.fromkeys(range(2, 12), 1)}
    play = Play(Slots(512, 512, weights.__getitem__), dict.fromkeys(range(2, 12), 1), dict.fromkeys(range(2, 12), 0.1))
    begin_all(play.slots, 1, ["a"], most=1)

    play.run(4.0, 2.0)

    assert play.held >= 400


def test_a_slow_host_beside_quick_tenants_that_want_all_begins() -> None:
    weights = dict.fromkeys(range(1, 5), 1)
    play = Play(Slots(512, 512), weights, {1: 20.0, 2: 0.1, 3: 0.1, 4: 0.1})

    play.run(6.0, 2.0)

    assert play.slots.find_tenant(1).running >= 8
    assert play.held >= 0.9 * 512


def test_weights_that_change_are_seen() -> None:
    weights = {1: 1, 2: 1}
    slots = Slots(512, 512, weights.__getitem__)
    begin_all(slots, 1, ["a"], most=50)
    begin_all(slots, 2, ["a"], most=50)
    weights[1] = 100

    slots.sweep(1.0)

    assert len(begin_all(slots, 2, ["a"], 1.0)) < len(begin_all(slots, 1, ["a"], 1.0))


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16])
def test_few_slots_are_used_as_well(size: int) -> None:
    slots = Slots(size, size)

    assert begin_all(slots, 1, ["a"])
    play = Play(Slots(size, size), {1: 1, 2: 1}, {1: 0.1, 2: 0.1})
    play.run(4.0, 2.0)

    assert min(play.begun[1], play.begun[2]) > 0
    assert play.held >= 0.45 * size


# What may be claimed


@settings(max_examples=far(60, 1_000), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.sampled_from([0.1, 1.5, HUNG])), max_size=60),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_as_many_calls_as_there_are_places_begin_and_no_more(
    calls: list[tuple[int, str, float]], size: int, per_host: int
) -> None:
    slots = Slots(size, per_host)
    running: list[tuple[float, Slot]] = []
    now = 0.0
    for tenant, name, seconds in calls:
        now += 0.1
        for ends_at, slot in [each for each in running if each[0] <= now]:
            slots.end(slot, now)
            running.remove((ends_at, slot))
        host = slots.host(tenant, name, now)
        if slots.may_begin(host, now):
            running.append((now + seconds, slots.begin(host, now)))
    for tenant, name in itertools.product((1, 2, 3), "abc"):
        host = slots.host(tenant, name, now)
        told = slots.room_of_host(host, now)
        begun = begin_all(slots, tenant, [name], now)
        # A step of rounding more may begin, because each that begins counts among those that share.
        assert told <= len(begun) <= told + 2
        for slot in begun:
            slots.end(slot, now)


# Any history


@dataclass
class World:
    """Lines, slots, and targets that answer when they please; what is true is counted anew each time."""

    size: int
    per_host: int
    weights: Mapping[int, int]
    seconds: Mapping[tuple[int, str], float]
    now: float = 0.0
    running: list[tuple[float, tuple[int, str], Slot]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    waiting: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.slots = Slots(self.size, self.per_host, self.weights.__getitem__)
        self.lines: Lines[tuple[int, str]] = Lines(self.slots)

    def arrive(self, name: tuple[int, str]) -> None:
        host = self.slots.host(*name, self.now)
        if (slot := self.lines.take(host, self.now)) is not None:
            self._run(name, slot)
            return
        if not host.waiting:
            self._check_refusal(name)
        if self.lines.wait(host, name, self.now + 4.0, self.now):
            self.waiting[name] += 1
        else:
            self.refused.append(name)

    def _check_refusal(self, name: tuple[int, str]) -> None:
        """Nobody is refused who holds less than its share, as it follows from who is running."""
        held = Counter(each[0] for _, each, _ in self.running)
        at_host = sum(each == name for _, each, _ in self.running)
        free = self.size - len(self.running)
        if free <= 0 or at_host >= self.per_host:
            return
        weight = self.weights[name[0]]
        holders = len(held) + (name[0] not in held)
        mean = (sum(self.weights[each[0]] for _, each, _ in self.running) + weight) / (len(self.running) + 1)
        part = min(1.0, max(weight / mean, 1 / (4 * holders)))
        slow = Counter(each[0] for _, each, slot in self.running if not slot.host.is_quick)
        if self.slots.find(*name).is_quick:
            assert at_host + held[name[0]] >= free * part - 1e-9
            return
        slow_free = min(free, self.size - self.size // 8 - slow.total())
        assert at_host + slow[name[0]] >= slow_free * part - 1e-9

    def _run(self, name: tuple[int, str], slot: Slot) -> None:
        self.running.append((self.now + self.seconds[name], name, slot))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            ended = min(self.running, key=lambda each: each[0], default=None)
            swept_at = (int(self.now * 4) + 1) / 4
            if min(swept_at, until) < (until if ended is None else ended[0]):
                self.now = min(swept_at, until)
                if self.now == until:
                    return
                self.sweep()
            elif ended is None or ended[0] > until:
                self.now = until
                return
            else:
                self.now = max(self.now, ended[0])
                self.running.remove(ended)
                self._let_in(self.lines.free(ended[2], self.now))

    def sweep(self) -> None:
        out, begun = self.lines.sweep(self.now)
        self._let_in(begun)
        self.waiting.subtract(out)
        self.refused += out
        for host in self.lines._lines:
            assert not self.slots.may_begin(host, self.now), "it waits though the rule would let it begin"

    def _let_in(self, begun: Sequence[tuple[tuple[int, str], Slot]]) -> None:
        for name, slot in begun:
            self.waiting[name] -= 1
            self._run(name, slot)

    def check(self) -> None:
        slots = self.slots
        assert slots.running == len(self.running) <= self.size
        assert self.lines.waiting == self.waiting.total() <= self.size
        slow = [slot for _, _, slot in self.running if not slot.host.is_quick]
        assert slots.slow == len(slow)
        assert slots._weights == sum(self.weights[name[0]] for _, name, _ in self.running)
        for tenant in slots._tenants.values():
            assert tenant.running == sum(name[0] == tenant.number for _, name, _ in self.running)
            assert tenant.slow == sum(slot.host.tenant is tenant for slot in slow)
            assert tenant.quick_hosts == sum(host.is_quick for host in tenant.hosts.values())
            assert all(host.running <= self.per_host for host in tenant.hosts.values())


PLACES = [(tenant, name) for tenant in (1, 2, 3) for name in "ab"]


@settings(max_examples=far(60, 600), deadline=None)
@given(
    size=st.integers(1, 64),
    per_host=st.integers(1, 64),
    weights=st.lists(st.integers(1, 1_000), min_size=3, max_size=3),
    seconds=st.lists(st.sampled_from([0.01, 0.3, 0.9, 1.5, 5.0, HUNG]), min_size=6, max_size=6),
    steps=st.lists(
        st.tuples(st.sampled_from(PLACES), st.integers(1, 40), st.sampled_from([0.0, 0.01, 0.3, 1.0, 3.0])),
        max_size=30,
    ),
    turning=st.sampled_from(PLACES),
    turns_to=st.sampled_from([0.01, HUNG]),
)
def test_whatever_hosts_do_nobody_waits_below_its_share(
    size: int,
    per_host: int,
    weights: list[int],
    seconds: list[float],
    steps: list[tuple[tuple[int, str], int, float]],
    turning: tuple[int, str],
    turns_to: float,
) -> None:
    takes = dict(zip(PLACES, seconds, strict=True))
    world = World(size, per_host, dict(zip((1, 2, 3), weights, strict=True)), takes)
    for number, (name, count, pause) in enumerate(steps):
        if number == len(steps) // 2:
            takes[turning] = turns_to
        for _ in range(count):
            world.arrive(name)
        world.check()
        world.wait(pause)
        world.check()

    world.wait(3 * HUNG + 10.0)
    world.check()
    # All are over, and whoever was turned away comes again and gets in: nothing is lost.
    assert (world.slots.running, world.lines.waiting, world.slots.slow) == (0, 0, 0)
    again, world.refused = world.refused, []
    while again:
        for name in again:
            world.arrive(name)
        again, world.refused = world.refused, []
        world.wait(3 * HUNG)
    world.wait(100 * HUNG)
    world.sweep()
    assert (world.slots.running, world.lines.waiting, world.slots.slow, len(world.slots)) == (0, 0, 0, 0)
