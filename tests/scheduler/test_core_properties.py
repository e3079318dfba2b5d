"""What the core promises about shares, for any weights, classes, rooms and mixes of holders.

The core stands alone here: rows are numbers, and every plan is carried out as
it was made.  A backlog is endless unless it says how many rows it has.
"""

import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asks import NOW, ask_for, key_of, wake_of
from depth import far
from duetime.ids import SHARDS, due_ms_of
from duetime.model.task import Kind, LaneKey, PriorityClass
from duetime.scheduler.core import MAX_ROWS_PER_CLAIM, Core
from duetime.scheduler.plan import Ask, Plan
from duetime.scheduler.shares import CLASS_SHARES

QUICK = settings(max_examples=far(12, 250), deadline=None)
LONG = settings(max_examples=far(8, 150), deadline=None)
CLASSES = st.sampled_from(PriorityClass)


@dataclass
class World:
    """A core, and lanes with so many rows; those without a number never end."""

    lanes: Mapping[int, LaneKey]
    rows: dict[int, int] = field(default_factory=dict)
    core: Core = field(default_factory=Core)
    asks: dict[int, Ask] = field(default_factory=dict)
    served: Counter[int] = field(default_factory=Counter)
    numbers: int = 0

    def wake(self, lane: int, due_ms: int = NOW) -> None:
        self.core.woke(lane, self.lanes[lane], wake_of(lane, due_ms))

    def wake_all(self) -> None:
        for lane in self.lanes:
            self.wake(lane)

    def ask(self, ask: Ask) -> int:
        self.numbers += 1
        self.asks[self.numbers] = ask
        self.core.ask(self.numbers, ask)
        return self.numbers

    def clear(self) -> None:
        """Nobody waits any more."""
        for number in self.asks:
            self.core.withdraw(number)
        self.asks.clear()

    def step(self, *asks: Ask) -> Counter[int]:
        """These holders ask, one plan is carried out, and they go; rows by lane."""
        for ask in asks:
            self.ask(ask)
        given = self.carry_out(self.core.plan(NOW))
        self.clear()
        return given

    def carry_out(self, plan: Plan | None) -> Counter[int]:
        if plan is None:
            return Counter()
        self.check(plan)
        hints = {order.lane: order.hint for order in plan.orders}
        given = Counter({order.lane: min(order.room, self.rows.get(order.lane, order.room)) for order in plan.orders})
        taken: dict[int, Sequence[tuple[uuid.UUID, int]]] = {
            lane: [(_behind(hints[lane], count), 100)] * count for lane, count in given.items()
        }
        for lane, count in given.items():
            if lane in self.rows:
                self.rows[lane] -= count
        answers = self.core.claimed(plan, taken, {})
        for number, got in answers.items():
            assert len(got) <= self.asks[number].room
            del self.asks[number]
        assert sum(map(len, answers.values())) == given.total()
        self.served += given
        return +given

    def check(self, plan: Plan) -> None:
        """Nobody is given more than its room, or what it cannot run; no lane is in it twice."""
        room = Counter[int]()
        for order in plan.orders:
            assert order.room == sum(rows for _, rows in order.asks)
            for number, rows in order.asks:
                assert rows > 0
                assert self.asks[number].fits(self.lanes[order.lane])
                room[number] += rows
        assert all(rows <= self.asks[number].room for number, rows in room.items())
        assert room.total() <= MAX_ROWS_PER_CLAIM
        assert len({order.lane for order in plan.orders}) == len(plan.orders)

    def left(self, lane: int) -> float:
        return self.rows.get(lane, math.inf)


_EARLIER = wake_of(0, NOW - 1_000).int


def _behind(hint: uuid.UUID, rows: int) -> uuid.UUID:
    """The wake of the last of so many rows behind the hint; only that counts."""
    return uuid.UUID(int=max(hint.int, _EARLIER) + rows)


def push_ask(room: int) -> Ask:
    return ask_for(room, tenant=None, kind=Kind.PUSH)


def tenants_of(world: World, served: Mapping[int, int]) -> Counter[int]:
    tenants = Counter[int]()
    for lane, rows in served.items():
        tenants[world.lanes[lane].tenant] += rows
    return tenants


def assert_shares(served: Mapping[int, int], weights: Mapping[int, int], slack: float) -> None:
    """Each has its share of the whole, within a few per cent and so many rows."""
    whole, all_weights = sum(served.values()), sum(weights.values())
    for each, weight in weights.items():
        fair = whole * weight / all_weights
        assert abs(served.get(each, 0) - fair) <= 0.03 * fair + slack, (each, served, weights)


@st.composite
def push_lanes(draw: st.DrawFn) -> dict[int, LaneKey]:
    """Up to six tenants, each with one lane in one to four classes."""
    lanes: dict[int, LaneKey] = {}
    for tenant in range(1, draw(st.integers(1, 6)) + 1):
        for priority in draw(st.sets(CLASSES, min_size=1)):
            lanes[SHARDS * (len(lanes) + 1)] = key_of(tenant, "q", priority, Kind.PUSH)
    return lanes


@st.composite
def pull_lanes(draw: st.DrawFn) -> dict[int, LaneKey]:
    """Up to three tenants with up to two queues each."""
    places = draw(st.sets(st.tuples(st.integers(1, 3), st.sampled_from(["a", "b"]), CLASSES), min_size=1, max_size=10))
    return {
        SHARDS * (number + 1): key_of(tenant, queue, priority)
        for number, (tenant, queue, priority) in enumerate(sorted(places))
    }


ROOMS = st.lists(st.integers(1, 300), min_size=1, max_size=20)
SMALL_ROOMS = st.lists(st.integers(1, 12), min_size=1, max_size=20)
WEIGHTS = st.lists(st.integers(1, 10), min_size=6, max_size=6)


def _weights(drawn: Sequence[int], lanes: Mapping[int, LaneKey]) -> dict[int, int]:
    return {tenant: drawn[tenant - 1] for tenant in {key.tenant for key in lanes.values()}}


# Shares


@LONG
@given(push_lanes(), WEIGHTS, SMALL_ROOMS | ROOMS)
def test_tenants_get_their_weights_of_the_executors(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int]
) -> None:
    world, weights = World(lanes), _weights(drawn, lanes)
    world.core.rule(weights, frozenset())
    world.wake_all()

    for turn in range(300):
        world.step(push_ask(rooms[turn % len(rooms)]))

    assert_shares(tenants_of(world, world.served), weights, slack=2 * max(rooms))


@LONG
@given(push_lanes(), WEIGHTS, SMALL_ROOMS)
def test_classes_get_their_shares_of_their_tenant(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int]
) -> None:
    world = World(lanes)
    world.core.rule(_weights(drawn, lanes), frozenset())
    world.wake_all()

    for turn in range(300):
        world.step(push_ask(rooms[turn % len(rooms)]))

    for tenant in {key.tenant for key in lanes.values()}:
        of_tenant = {lane: CLASS_SHARES[key.priority] for lane, key in lanes.items() if key.tenant == tenant}
        assert_shares({lane: world.served[lane] for lane in of_tenant}, of_tenant, slack=2 * max(rooms))


@LONG
@given(st.sets(CLASSES, min_size=2), st.lists(st.integers(60, 300), min_size=1, max_size=20))
def test_classes_get_their_shares_of_a_workers_large_room(classes: set[PriorityClass], rooms: list[int]) -> None:
    lanes = {SHARDS * (number + 1): key_of(priority=each) for number, each in enumerate(sorted(classes))}
    world = World(lanes)
    world.wake_all()

    for turn in range(100):
        world.step(ask_for(rooms[turn % len(rooms)]))

    shares = {lane: CLASS_SHARES[key.priority] for lane, key in lanes.items()}
    assert_shares(world.served, shares, slack=2 * max(rooms))


# Nobody starves


@QUICK
@given(push_lanes(), WEIGHTS, SMALL_ROOMS | ROOMS)
def test_every_lane_is_served_again_within_the_rows_that_its_share_allows(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int]
) -> None:
    world, weights = World(lanes), _weights(drawn, lanes)
    world.core.rule(weights, frozenset())
    world.wake_all()
    since = Counter[int]()
    longest = Counter[int]()

    for turn in range(200):
        given = world.step(push_ask(rooms[turn % len(rooms)]))
        for lane in lanes:
            since[lane] = 0 if lane in given else since[lane] + given.total()
            longest[lane] = max(longest[lane], since[lane])

    for lane, key in lanes.items():
        beside = sum(CLASS_SHARES[each.priority] for each in lanes.values() if each.tenant == key.tenant)
        share = weights[key.tenant] / sum(weights.values()) * CLASS_SHARES[key.priority] / beside
        assert longest[lane] <= 3 / share + 2 * max(rooms)


@QUICK
@given(pull_lanes(), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_lane_that_some_worker_fits_is_served_whoever_else_asks(lanes: dict[int, LaneKey], rooms: list[int]) -> None:
    world = World(lanes)
    world.wake_all()
    tenants = sorted({key.tenant for key in lanes.values()})
    bound = 2 * sum(CLASS_SHARES.values()) * len(lanes)

    for turn in range(bound):
        world.step(*[ask_for(rooms[turn % len(rooms)], tenant, holder=tenant) for tenant in tenants])

    assert set(world.served) == set(lanes)


@QUICK
@given(push_lanes(), pull_lanes(), SMALL_ROOMS)
def test_workers_and_executors_do_not_take_from_each_other(
    push: dict[int, LaneKey], pull: dict[int, LaneKey], rooms: list[int]
) -> None:
    lanes = {**push, **{lane + SHARDS * 1_000: key for lane, key in pull.items()}}
    world = World(lanes)
    world.wake_all()
    tenants = sorted({key.tenant for key in pull.values()})

    for turn in range(200):
        asks = [ask_for(rooms[(turn + tenant) % len(rooms)], tenant, holder=tenant) for tenant in tenants]
        given = world.step(push_ask(rooms[turn % len(rooms)]), *asks)
        # Each kind is served in each plan.
        assert {lanes[lane].kind for lane in given} == {Kind.PUSH, Kind.PULL}

    assert set(world.served) == set(lanes)


# Nothing is left lying while somebody has room


@QUICK
@given(pull_lanes() | push_lanes(), st.data())
def test_as_long_as_a_waiting_row_fits_a_waiting_holder_something_is_planned(
    lanes: dict[int, LaneKey], data: st.DataObject
) -> None:
    world = World(lanes, {lane: data.draw(st.integers(1, 30)) for lane in lanes})
    world.wake_all()
    asks = data.draw(
        st.lists(
            st.builds(
                Ask,
                st.just(1),
                st.sampled_from([None, 1, 2, 3]),
                st.sampled_from(Kind),
                st.sampled_from([None, frozenset({"a"}), frozenset({"b"}), frozenset({"q"})]),
                st.just(frozenset[str]()),
                st.integers(1, 20),
            ),
            min_size=1,
            max_size=30,
        )
    )
    for ask in asks:
        world.ask(ask)

    # Each plan answers an ask, or finds the end of a lane.
    for _ in range(len(asks) + len(lanes) + 1):
        fits = any(ask.fits(key) and world.left(lane) > 0 for ask in world.asks.values() for lane, key in lanes.items())
        plan = world.core.plan(NOW)
        assert plan is not None or not fits
        if plan is None:
            break
        world.carry_out(plan)
    else:
        raise AssertionError("plans that give nothing went on")


@QUICK
@given(push_lanes(), WEIGHTS, st.integers(1, 400))
def test_room_is_used_up_when_there_is_enough_work(lanes: dict[int, LaneKey], drawn: list[int], room: int) -> None:
    world = World(lanes)
    world.core.rule(_weights(drawn, lanes), frozenset())
    world.wake_all()

    for _ in range(20):
        given = world.step(push_ask(room))
        # Shares are whole rows: what rounding leaves is less than one for each lane.
        assert room - len(lanes) < given.total() <= room


@QUICK
@given(push_lanes(), WEIGHTS, SMALL_ROOMS, st.data())
def test_who_has_nothing_leaves_its_share_to_the_others(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int], data: st.DataObject
) -> None:
    idle = data.draw(st.sampled_from(sorted({key.tenant for key in lanes.values()})))
    assume(any(key.tenant != idle for key in lanes.values()))
    weights = _weights(drawn, lanes)
    world = World(lanes, {lane: 5 for lane, key in lanes.items() if key.tenant == idle})
    world.core.rule(weights, frozenset())
    world.wake_all()
    while any(world.rows.values()):
        world.step(push_ask(max(rooms)))
    # That a lane has ended is known when a claim finds less than it had room for.
    for _ in range(len(lanes)):
        world.step(push_ask(100 * len(lanes)))
    world.served.clear()

    given = [world.step(push_ask(rooms[turn % len(rooms)])).total() for turn in range(200)]

    assert given == [rooms[turn % len(rooms)] for turn in range(200)]
    busy = {tenant: weight for tenant, weight in weights.items() if tenant != idle}
    assert_shares(tenants_of(world, world.served), busy, slack=2 * max(rooms) + 2 * len(lanes))


# Idling earns nothing


@QUICK
@given(push_lanes(), WEIGHTS, SMALL_ROOMS, st.data())
def test_who_comes_back_gets_its_share_from_then_on_and_no_more(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int], data: st.DataObject
) -> None:
    late = data.draw(st.sampled_from(sorted({key.tenant for key in lanes.values()})))
    assume(any(key.tenant != late for key in lanes.values()))
    weights = _weights(drawn, lanes)
    world = World(lanes)
    world.core.rule(weights, frozenset())
    for lane, key in lanes.items():
        if key.tenant != late:
            world.wake(lane)
    for turn in range(300):
        world.step(push_ask(rooms[turn % len(rooms)]))
    world.served.clear()

    for lane, key in lanes.items():
        if key.tenant == late:
            world.wake(lane)
    for turn in range(60):
        world.step(push_ask(rooms[turn % len(rooms)]))

    assert_shares(tenants_of(world, world.served), weights, slack=2 * max(rooms))


# Order, and plans that came to nothing


@QUICK
@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), SMALL_ROOMS)
def test_rows_of_a_lane_are_taken_in_the_order_of_their_wakes_and_not_too_early(
    delays: list[int], rooms: list[int]
) -> None:
    core, lane = Core(), SHARDS
    waiting = sorted(wake_of(lane, NOW + delay, place) for place, delay in enumerate(delays))
    for place, delay in enumerate(delays):
        core.woke(lane, key_of(), wake_of(lane, NOW + delay, place))
    taken: list[uuid.UUID] = []
    now, number = NOW, 0
    while waiting:
        next_ms = core.next_ms()
        now = max(now, next_ms) if next_ms is not None else now
        number += 1
        core.ask(number, ask_for(rooms[number % len(rooms)]))
        plan = core.plan(now)
        assert plan is not None
        [order] = plan.orders
        # No row that waits lies before where the claim begins to read.
        assert order.hint < waiting[0]
        rows = [wake for wake in waiting if due_ms_of(wake) <= now][: order.room]
        waiting = waiting[len(rows) :]
        later = {lane: waiting[0]} if waiting and len(rows) < order.room else {}
        core.claimed(plan, {lane: [(wake, 100) for wake in rows]}, later)
        core.withdraw(number)
        taken += rows

    assert taken == sorted(taken)
    assert len(taken) == len(delays)


@QUICK
@given(push_lanes(), WEIGHTS, SMALL_ROOMS, st.lists(st.booleans(), min_size=1, max_size=20))
def test_plans_that_failed_cost_nobody_its_share(
    lanes: dict[int, LaneKey], drawn: list[int], rooms: list[int], failures: list[bool]
) -> None:
    assume(not all(failures))
    world, weights = World(lanes), _weights(drawn, lanes)
    world.core.rule(weights, frozenset())
    world.wake_all()

    for turn in range(300):
        world.ask(push_ask(rooms[turn % len(rooms)]))
        plan = world.core.plan(NOW)
        assert plan is not None
        if failures[turn % len(failures)]:
            world.core.put_back(plan)
        else:
            world.carry_out(plan)
        world.clear()

    assert_shares(tenants_of(world, world.served), weights, slack=2 * max(rooms))


@QUICK
@given(push_lanes(), st.integers(1, 50), st.data())
def test_a_seat_is_kept_only_where_nobody_waits_before_it_and_within_the_room(
    lanes: dict[int, LaneKey], room: int, data: st.DataObject
) -> None:
    world = World(lanes)
    due = data.draw(st.sets(st.sampled_from(sorted(lanes))))
    for lane in due:
        world.wake(lane)
    number = world.ask(push_ask(room))

    reserved = world.core.reserve({lane: (key, 5) for lane, key in lanes.items()}, NOW)

    dealt = [(each, rows) for asks in reserved.values() for each, rows in asks]
    assert not due or not dealt
    assert sum(rows for _, rows in dealt) == (0 if due else min(room, 5 * len(lanes)))
    assert {each for each, _ in dealt} <= {number}
    # Until it is known what became of the reservation, the holder is not planned for.
    if dealt:
        world.wake_all()
        assert world.core.plan(NOW) is None
        world.core.end_reservation([number], ())
        assert world.carry_out(world.core.plan(NOW)).total() > 0


@LONG
@given(st.sets(CLASSES, min_size=2), SMALL_ROOMS | ROOMS)
def test_classes_get_their_shares_of_a_tenants_workers(classes: set[PriorityClass], rooms: list[int]) -> None:
    lanes = {SHARDS * (number + 1): key_of(priority=each) for number, each in enumerate(sorted(classes))}
    world = World(lanes)
    world.wake_all()

    for turn in range(300):
        world.step(ask_for(rooms[turn % len(rooms)]))

    shares = {lane: CLASS_SHARES[key.priority] for lane, key in lanes.items()}
    assert_shares(world.served, shares, slack=2 * max(rooms))


@QUICK
@given(st.sets(CLASSES, min_size=2), SMALL_ROOMS, st.data())
def test_a_class_that_comes_back_gets_its_share_from_then_on_and_no_more(
    classes: set[PriorityClass], rooms: list[int], data: st.DataObject
) -> None:
    late = data.draw(st.sampled_from(sorted(classes)))
    lanes = {SHARDS * (number + 1): key_of(priority=each) for number, each in enumerate(sorted(classes))}
    world = World(lanes)
    for lane, key in lanes.items():
        if key.priority is not late:
            world.wake(lane)
    for turn in range(300):
        world.step(ask_for(rooms[turn % len(rooms)]))
    world.served.clear()

    world.wake_all()
    for turn in range(120):
        world.step(ask_for(rooms[turn % len(rooms)]))

    shares = {lane: CLASS_SHARES[key.priority] for lane, key in lanes.items()}
    assert_shares(world.served, shares, slack=2 * max(rooms))
