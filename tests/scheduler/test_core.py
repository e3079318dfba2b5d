"""The core's decisions: never too much, never too early, never for nobody, and no wake is lost."""

import pickle
import uuid
from bisect import insort
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asks import NOW, ask_for, key_of, plan_of, take, wake_of
from depth import far
from duetime.ids import due_ms_of, just_after, make_id
from duetime.model.gates import encode_gate, with_type
from duetime.model.task import Kind, LaneKey, PriorityClass
from duetime.scheduler.core import (
    MAX_BYTES_PER_CLAIM,
    MAX_LANES_PER_CLAIM,
    MAX_ROWS_PER_CLAIM,
    Ask,
    Core,
    Plan,
)
from duetime.scheduler.shares import CLASS_SHARES


def test_without_work_or_without_a_holder_there_is_nothing_to_plan() -> None:
    core = Core()
    core.ask(1, ask_for())
    assert core.plan(NOW) is None

    core.withdraw(1)
    core.woke(257, key_of(), wake_of(257))
    assert core.plan(NOW) is None


def test_a_lane_is_planned_in_its_millisecond_and_not_before() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257, NOW + 50))

    assert core.next_ms() == NOW + 50
    assert core.plan(NOW + 49) is None
    assert plan_of(core, NOW + 50).orders[0].lane == 257
    assert core.next_ms() is None


def test_an_earlier_wake_counts_and_a_later_one_does_not() -> None:
    core = Core()
    core.woke(257, key_of(), wake_of(257, NOW + 50))
    core.woke(257, key_of(), wake_of(257, NOW + 90))
    core.woke(257, key_of(), wake_of(257, NOW + 20))

    assert core.next_ms() == NOW + 20
    assert core.known_lanes() == 1


def test_a_claim_that_left_room_tells_when_the_lane_is_due_next() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257))

    take(core, plan_of(core), {257: [wake_of(257)]}, {257: wake_of(257, NOW + 70)})

    assert core.next_ms() == NOW + 70


def test_a_lane_with_nothing_more_is_forgotten() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257))

    take(core, plan_of(core), {257: [wake_of(257)]})

    assert core.known_lanes() == 0


def test_a_full_claim_comes_again_behind_what_it_took() -> None:
    core = Core()
    core.ask(1, ask_for(room=2))
    core.ask(2, ask_for(room=0))
    core.woke(257, key_of(), wake_of(257, unique=1))
    taken = [wake_of(257, unique=1), wake_of(257, unique=2)]

    take(core, plan_of(core), {257: taken})
    core.ask(3, ask_for())

    assert plan_of(core).orders[0].hint == taken[-1]


# No wake is lost


def test_a_wake_during_a_claim_brings_the_lane_back_from_before_it() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257, unique=5))
    plan = plan_of(core)
    missed = wake_of(257, unique=7)

    core.woke(257, key_of(), missed)
    core.woke(257, key_of(), wake_of(257, unique=9))
    take(core, plan, {257: [wake_of(257, unique=5), wake_of(257, unique=8)]})
    core.ask(2, ask_for())

    assert plan_of(core).orders[0].hint < missed


def test_a_wake_behind_the_hint_lowers_it() -> None:
    core = Core()
    core.ask(1, ask_for(room=1))
    core.woke(257, key_of(), wake_of(257, unique=5))
    take(core, plan_of(core), {257: [wake_of(257, unique=5)]})

    core.woke(257, key_of(), wake_of(257, unique=3))
    core.ask(2, ask_for())

    assert plan_of(core).orders[0].hint < wake_of(257, unique=3)


def test_a_plan_that_could_not_be_carried_out_is_made_again() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257, unique=5))
    plan = plan_of(core)
    core.woke(257, key_of(), wake_of(257, unique=3))

    core.put_back(plan)

    [order] = plan_of(core).orders
    assert order.hint < wake_of(257, unique=3)
    assert order.asks == plan.orders[0].asks


def test_a_clock_that_went_back_makes_hints_worthless() -> None:
    core = Core()
    core.ask(1, ask_for(room=1))
    core.woke(257, key_of(), wake_of(257, unique=5))
    take(core, plan_of(core), {257: [wake_of(257, unique=5)]})

    core.forget_hints()
    core.ask(2, ask_for())

    assert plan_of(core).orders[0].hint.int == 0


# Who


def test_a_lane_or_an_ask_is_in_one_claim_at_a_time() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257))
    plan_of(core)
    core.ask(2, ask_for())
    assert core.plan(NOW) is None
    assert (core.is_being_served(1), core.is_being_served(2)) == (True, False)

    core.woke(513, key_of(queue="other"), wake_of(513))

    assert {number for order in plan_of(core).orders for number, _ in order.asks} == {2}


def test_only_who_can_serve_a_lane_gets_it() -> None:
    core = Core()
    core.woke(257, key_of(queue="a", requires=("gpu",)), wake_of(257))
    core.ask(1, ask_for(tenant=2, tags=frozenset({"gpu"})))
    core.ask(2, ask_for(tags=frozenset({"cpu"})))
    core.ask(3, ask_for(tags=frozenset({"gpu"}), queues=frozenset({"b"})))
    core.ask(4, ask_for(tenant=None, kind=Kind.PUSH, tags=frozenset({"gpu"})))
    assert core.plan(NOW) is None

    core.ask(5, ask_for(tags=frozenset({"gpu", "cpu"}), queues=frozenset({"a", "b"})))

    assert plan_of(core).holder_of_ask.keys() == {5}


def test_an_ask_that_was_withdrawn_gets_nothing_more() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257))
    plan = plan_of(core)

    core.withdraw(1)

    # The feeder gives back what its claim brings; the lane goes on.
    assert take(core, plan, {257: [wake_of(257)]}, {257: wake_of(257, NOW + 1)}) == {1: 1}
    assert core.plan(NOW + 1) is None
    assert not core.is_being_served(1)


def test_an_ask_that_got_nothing_waits_on() -> None:
    core = Core()
    core.ask(1, ask_for())
    core.woke(257, key_of(), wake_of(257))
    assert take(core, plan_of(core), {}) == {}

    core.woke(257, key_of(), wake_of(257, unique=9))

    assert plan_of(core).holder_of_ask == {1: 100}


def test_rows_are_dealt_evenly_between_asks() -> None:
    core = Core()
    for number in range(4):
        core.ask(number, ask_for(room=10, holder=number))
    core.woke(257, key_of(), wake_of(257))

    plan = plan_of(core)

    assert dict(plan.orders[0].asks) == {0: 10, 1: 10, 2: 10, 3: 10}
    rows = [wake_of(257, unique=unique) for unique in range(25)]
    assert take(core, plan, {257: rows}) == {0: 10, 1: 10, 2: 5}


# How many


def test_classes_share_by_their_weight() -> None:
    core = Core()
    core.ask(1, ask_for(room=150))
    lanes = {257 + 256 * place: priority for place, priority in enumerate(PriorityClass)}
    for lane, priority in lanes.items():
        core.woke(lane, key_of(priority=priority), wake_of(lane))

    rooms = {lanes[order.lane]: order.room for order in plan_of(core).orders}

    assert rooms == {priority: 10 * share for priority, share in CLASS_SHARES.items()}


def test_tenants_share_alike_however_many_lanes_they_have() -> None:
    core = Core()
    core.ask(1, ask_for(room=120, tenant=None, kind=Kind.PUSH))
    for place in range(11):
        lane = 256 * (place + 1)
        core.woke(lane, key_of(tenant=1 if place else 2, queue=str(place), kind=Kind.PUSH), wake_of(lane))

    rooms = Counter[bool]()
    for order in plan_of(core).orders:
        rooms[order.lane == 256] += order.room

    assert rooms == {True: 60, False: 60}


def test_a_claim_is_bounded_in_rows_lanes_and_bytes() -> None:
    core = Core()
    core.ask(1, ask_for(room=1_000_000))
    core.woke(256, key_of(), wake_of(256))
    assert plan_of(core).orders[0].room == MAX_ROWS_PER_CLAIM

    core = Core()
    core.ask(1, ask_for(room=1_000_000))
    for place in range(2 * MAX_LANES_PER_CLAIM):
        core.woke(256 * (place + 1), key_of(queue=str(place)), wake_of(256 * (place + 1)))
    assert len(plan_of(core).orders) == MAX_LANES_PER_CLAIM

    core = Core()
    for number in range(20):
        core.ask(number, ask_for(room=1_000))
        core.woke(256, key_of(), wake_of(256, unique=number))
        order = plan_of(core).orders[0]
        rows = [(wake_of(256, unique=row), 64 * 1024) for row in range(order.room)]
        core.claimed(Plan((order,), {number: 100}), {256: rows}, {})
    assert order.room * 64 * 1024 <= 1.01 * MAX_BYTES_PER_CLAIM


def test_memory_does_not_grow_with_what_has_been_served() -> None:
    core = Core()
    tomorrow = wake_of(257, NOW + 86_400_000)
    core.woke(257, key_of(), tomorrow)
    for number in range(20_000):
        core.ask(number, ask_for())
        core.woke(257, key_of(), wake_of(257, NOW + number))
        take(core, plan_of(core, NOW + number), {257: [wake_of(257, NOW + number)]}, {257: tomorrow})

    assert core.known_lanes() == 1
    assert len(pickle.dumps(core)) < 50_000
    assert core.next_ms() == NOW + 86_400_000


# Whatever happens

LANES = {
    256 * (place + 1) + tenant: key_of(tenant, queue, priority, kind, requires)
    for place, (tenant, queue, priority, kind, requires) in enumerate(
        [
            (1, "a", PriorityClass.CRITICAL, Kind.PULL, ()),
            (1, "a", PriorityClass.LOW, Kind.PULL, ()),
            (1, "b", PriorityClass.NORMAL, Kind.PULL, ("gpu",)),
            (2, "a", PriorityClass.HIGH, Kind.PULL, ()),
            (2, "a", PriorityClass.NORMAL, Kind.PUSH, ()),
        ]
    )
}
#: Of which all rows wait for somebody who handles the type.
LANES |= {
    256 * place + 1: msgspec.structs.replace(LANES[257], gate=encode_gate(with_type((), name)))
    for place, name in ((8, "x"), (9, "y"))
}


class CoreMachine(RuleBasedStateMachine):
    """The core against one table of rows, all of them reported, and asks that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core()
        self.now_ms = NOW
        self.due: dict[int, list[uuid.UUID]] = {lane: [] for lane in LANES}
        self.asks: dict[int, Ask] = {}
        #: Plans that are being carried out, with the rows that there were as they began.
        self.claims: list[tuple[Plan, dict[int, list[uuid.UUID]]]] = []
        self.numbers = 0

    @rule(lane=st.sampled_from(sorted(LANES)), wait_ms=st.integers(-50, 200), rows=st.integers(1, 5))
    def put_rows(self, lane: int, wait_ms: int, rows: int) -> None:
        for _ in range(rows):
            self.numbers += 1
            wake = wake_of(lane, self.now_ms + wait_ms, self.numbers)
            insort(self.due[lane], wake)
            self.core.woke(lane, LANES[lane], wake)

    @rule(
        tenant=st.sampled_from([1, 2, None]),
        kind=st.sampled_from(Kind),
        queues=st.sampled_from([None, frozenset({"a"})]),
        tags=st.sampled_from([frozenset[str](), frozenset({"gpu"})]),
        room=st.integers(0, 8),
        types=st.sampled_from([None, frozenset({"x"}), frozenset({"x", "y"})]),
    )
    def ask(
        self,
        tenant: int | None,
        kind: Kind,
        queues: frozenset[str] | None,
        tags: frozenset[str],
        room: int,
        types: frozenset[str] | None,
    ) -> None:
        self.numbers += 1
        self.asks[self.numbers] = Ask(self.numbers, tenant, kind, queues, tags, room, types)
        self.core.ask(self.numbers, self.asks[self.numbers])

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.asks:
            number = data.draw(st.sampled_from(sorted(self.asks)))
            del self.asks[number]
            self.core.withdraw(number)

    @rule(ms=st.integers(1, 150))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def plan(self) -> None:
        plan = self.core.plan(self.now_ms)
        if plan is None:
            self.check_nothing_is_left()
            return
        being_claimed = {order.lane for claim, _ in self.claims for order in claim.orders}
        rooms: Counter[int] = Counter()
        for order in plan.orders:
            assert order.lane not in being_claimed
            assert order.room == sum(rows for _, rows in order.asks)
            assert all(rows > 0 for _, rows in order.asks)
            # Reported rows that are due lie behind the hint; the lane has one unless others took them.
            assert all(wake > order.hint for wake in self.due[order.lane])
            for number, rows in order.asks:
                assert self.asks[number].fits(LANES[order.lane])
                assert plan.holder_of_ask[number] == self.asks[number].holder
                rooms[number] += rows
        assert all(rows <= self.asks[number].room for number, rows in rooms.items())
        assert rooms.keys() == plan.holder_of_ask.keys()
        self.claims.append((plan, {lane: list(wakes) for lane, wakes in self.due.items()}))

    def check_nothing_is_left(self) -> None:
        being_claimed = {order.lane for claim, _ in self.claims for order in claim.orders}
        for number, ask in self.asks.items():
            if ask.room and not self.core.is_being_served(number):
                for lane, key in LANES.items():
                    if lane not in being_claimed and ask.fits(key):
                        assert not any(due_ms_of(wake) <= self.now_ms for wake in self.due[lane])

    @rule(data=st.data(), is_lost=st.booleans(), is_old=st.booleans())
    def end_claim(self, data: st.DataObject, is_lost: bool, is_old: bool) -> None:
        """A claim sees the rows that there are, or only those that there were when it began."""
        if not self.claims:
            return
        plan, before = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        if is_lost:
            self.core.put_back(plan)
            return
        until = just_after(self.now_ms)
        taken = {}
        later = {}
        for order in plan.orders:
            wakes = [wake for wake in self.due[order.lane] if not is_old or wake in before[order.lane]]
            rows = [wake for wake in wakes if order.hint < wake < until][: order.room]
            self.due[order.lane] = [wake for wake in self.due[order.lane] if wake not in rows]
            taken[order.lane] = [(wake, 10) for wake in rows]
            if coming := [wake for wake in wakes if wake >= until]:
                later[order.lane] = coming[0]
        answers = self.core.claimed(plan, taken, later)

        given = [place for got in answers.values() for place in got]
        assert sorted(given) == [(lane, place) for lane in sorted(taken) for place in range(len(taken[lane]))]
        for number, got in answers.items():
            assert number not in self.asks or len(got) <= self.asks[number].room
            self.asks.pop(number, None)

    @rule(data=st.data())
    def somebody_else_takes(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(sorted(LANES)))
        if self.due[lane]:
            self.due[lane].pop(data.draw(st.integers(0, len(self.due[lane]) - 1)))

    @invariant()
    def lanes_with_work_are_known(self) -> None:
        assert self.core.known_lanes() >= sum(1 for wakes in self.due.values() if wakes)
        next_ms = self.core.next_ms()
        assert next_ms is None or next_ms > 0


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=far(50, 1_000), stateful_step_count=50, deadline=None)


def test_a_class_that_came_first_does_not_starve_the_others_when_room_is_small() -> None:
    core = Core()
    low = LaneKey(1, "q", PriorityClass.LOW, Kind.PULL)
    critical = LaneKey(1, "q", PriorityClass.CRITICAL, Kind.PULL)
    served = {256: 0, 512: 0}
    core.woke(256, low, make_id(1, 1, 256))
    core.woke(512, critical, make_id(2, 1, 512))
    for number in range(900):
        core.ask(number, Ask(1, 1, Kind.PULL, None, frozenset(), 1))
        plan = core.plan(10)
        assert plan is not None
        [order] = plan.orders
        served[order.lane] += 1
        core.claimed(plan, {order.lane: [(make_id(3 + number, 1, order.lane), 100)]}, {})

    assert served == {256: 100, 512: 800}


def serve_tenants(core: Core, tenants: Sequence[int], rounds: int, room: int = 7) -> Counter[int]:
    """How many rows each tenant gets of an endless backlog."""
    served = Counter[int]()
    for number in range(rounds):
        core.ask(number, ask_for(room=room, tenant=None, kind=Kind.PUSH))
        plan = core.plan(NOW)
        if plan is None:
            continue
        taken = {}
        for order in plan.orders:
            served[order.lane // 256] += order.room
            taken[order.lane] = [
                (make_id(NOW, number * 1_000 + place + 2, order.lane), 100) for place in range(order.room)
            ]
        core.claimed(plan, taken, {})
    return served


@pytest.mark.parametrize("room", [1, 2, 7, 100])
def test_tenants_share_by_their_weights(room: int) -> None:
    core = Core()
    core.rule({2: 2, 3: 4}, frozenset())
    for tenant in (1, 2, 3):
        core.woke(256 * tenant, key_of(tenant=tenant, kind=Kind.PUSH), wake_of(256 * tenant))

    served = serve_tenants(core, (1, 2, 3), 2_000, room)

    whole = sum(served.values())
    assert whole == 2_000 * room
    for tenant, weight in ((1, 1), (2, 2), (3, 4)):
        assert abs(served[tenant] / whole - weight / 7) < 0.05 * weight / 7


def test_a_tenant_that_comes_late_catches_up_with_nobody() -> None:
    core = Core()
    core.woke(256, key_of(tenant=1, kind=Kind.PUSH), wake_of(256))
    serve_tenants(core, (1,), 1_000)
    core.woke(512, key_of(tenant=2, kind=Kind.PUSH), wake_of(512))

    served = serve_tenants(core, (1, 2), 100)

    assert abs(served[1] - served[2]) <= 7


def test_nothing_of_a_suspended_tenant_is_planned_or_reserved() -> None:
    core = Core()
    suspended, other = key_of(tenant=1), key_of(tenant=2)
    core.ask(1, ask_for(tenant=1))
    core.ask(2, ask_for(tenant=2))
    core.rule({}, frozenset({1}))
    core.woke(256, suspended, wake_of(256))

    assert core.plan(NOW) is None
    assert core.reserve({512: (suspended, 1)}, NOW) == {}
    assert core.reserve({768: (other, 1)}, NOW) == {768: [(2, 1)]}

    assert core.rule({}, frozenset())
    assert [order.lane for order in plan_of(core).orders] == [256]
