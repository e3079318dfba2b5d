"""Limits without I/O: caps, rates, and what several lanes have in common."""

import uuid
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.ids import make_id
from duetime.model.attempt import Past
from duetime.model.gates import encode_gate, gate_of
from duetime.model.limits import Limits, TypeLimits
from duetime.model.task import Kind, LaneKey, Options, PriorityClass, Target
from duetime.scheduler import limits as limits_module
from duetime.scheduler.core import Core
from duetime.scheduler.limits import Governor
from duetime.scheduler.meter import Meter
from duetime.scheduler.plan import Ask, Plan
from duetime.scheduler.rulebook import Book

TENANT = 1
HOME = LaneKey(TENANT, "default", PriorityClass.NORMAL, Kind.PULL)
OTHER = LaneKey(TENANT, "other", PriorityClass.NORMAL, Kind.PULL)
START_MS = 1_000_000


def make_core(book: Book, lanes: Mapping[int, LaneKey], rows: int = 1) -> Core:
    core = Core()
    core.governor.since_ms = START_MS - 3_600_000
    core.governor.rule(book)
    for lane, key in lanes.items():
        core.woke(lane, key, make_id(START_MS - 10, rows, lane))
    return core


def ask(core: Core, number: int, room: int, tenant: int | None = TENANT, kind: Kind = Kind.PULL) -> None:
    core.ask(number, Ask(number, tenant, kind, None, frozenset(), room))


def carry_out(core: Core, plan: Plan | None, now_ms: int) -> dict[int, list[uuid.UUID]]:
    """Every order gets all it asks for; returns the tasks started, by lane."""
    if plan is None:
        return {}
    started = {}
    taken = {}
    for order in plan.orders:
        ids = [make_id(now_ms, place, order.lane) for place in range(order.room)]
        taken[order.lane] = [(each, 100) for each in ids]
        started[order.lane] = ids
        key = core._table.known[order.lane].key
        for task in ids:
            core.governor.start((task, 1), key, (), now_ms)
    core.claimed(plan, taken, {}, {}, now_ms)
    return started


def test_a_cap_holds_and_an_end_lets_the_next_one_start() -> None:
    core = make_core(Book(queues={(TENANT, "default"): Limits(max_running=3)}), {256: HOME})
    ask(core, 1, 10)

    first = carry_out(core, core.plan(START_MS), START_MS)
    ask(core, 2, 10)

    assert len(first[256]) == 3
    assert core.plan(START_MS) is None
    core.open_lanes(core.governor.ended([Past(first[256][0], 1)]))
    assert len(carry_out(core, core.plan(START_MS), START_MS)[256]) == 1


def test_a_tenants_cap_is_shared_by_its_lanes_within_one_claim() -> None:
    core = make_core(Book(tenants={TENANT: Limits(max_running=5)}), {256: HOME, 512: OTHER})
    ask(core, 1, 100)

    started = carry_out(core, core.plan(START_MS), START_MS)

    assert sum(len(tasks) for tasks in started.values()) == 5


def test_a_rate_delays_and_says_when_it_goes_on() -> None:
    core = make_core(Book(tenants={TENANT: Limits(rate=10, burst=2)}), {256: HOME})
    ask(core, 1, 100)

    assert len(carry_out(core, core.plan(START_MS), START_MS)[256]) == 2
    ask(core, 2, 100)
    assert core.plan(START_MS) is None
    opens_ms = core.next_ms()
    assert opens_ms is not None
    assert START_MS < opens_ms <= START_MS + 101
    assert core.plan(opens_ms - 50) is None
    assert len(carry_out(core, core.plan(opens_ms), opens_ms)[256]) == 1


def test_over_a_minute_a_rate_is_kept_even_if_every_look_is_late() -> None:
    meter = Meter(("rate", "sms", ""), Limits(rate=100, burst=1), START_MS)
    started, now_ms = 0, START_MS
    for step in range(2_000):
        now_ms += 30 + step % 7
        count = meter.available(now_ms)
        meter.took(count, now_ms)
        meter.gave_back(0, now_ms)
        meter.promised = 0
        started += count

    seconds = (now_ms - START_MS) / 1000
    assert abs(started / seconds - 100) < 2


@given(
    st.floats(0.1, 1000), st.integers(1, 50), st.lists(st.tuples(st.integers(1, 500), st.integers(0, 30)), max_size=50)
)
def test_a_rate_never_gives_more_than_its_burst_and_what_has_passed(
    rate: float, burst: int, steps: list[tuple[int, int]]
) -> None:
    meter = Meter(("rate", "k", ""), Limits(rate=rate, burst=burst), START_MS)
    now_ms, started = START_MS, 0
    for wait_ms, wanted in steps:
        now_ms += wait_ms
        count = min(wanted, meter.available(now_ms))
        meter.took(count, now_ms)
        meter.promised = 0
        started += count
        passed = (now_ms - START_MS) / 1000
        assert started <= rate * passed + burst + rate * 0.05 + 1e-6


def test_what_was_reserved_and_did_not_start_is_given_back() -> None:
    core = make_core(Book(tenants={TENANT: Limits(max_running=4, rate=1, burst=4)}), {256: HOME})
    ask(core, 1, 10)
    plan = core.plan(START_MS)
    assert plan is not None

    core.put_back(plan, START_MS)

    assert core.governor.room(HOME, START_MS) == 4


def test_the_room_that_a_limited_lane_cannot_use_goes_to_the_others() -> None:
    core = make_core(Book(queues={(TENANT, "default"): Limits(max_running=1)}), {256: HOME, 512: OTHER})
    ask(core, 1, 100)

    started = carry_out(core, core.plan(START_MS), START_MS)

    assert {lane: len(tasks) for lane, tasks in started.items()} == {256: 1, 512: 99}


def test_a_paused_queue_is_left_alone_until_it_is_opened() -> None:
    core = make_core(Book(paused=frozenset({(TENANT, "default")})), {256: HOME})
    ask(core, 1, 10)

    assert core.plan(START_MS) is None

    core.governor.rule(Book())
    core.open_lanes()
    assert core.plan(START_MS) is not None


def test_nothing_limited_starts_in_a_shard_that_is_not_counted_yet() -> None:
    core = make_core(Book(tenants={TENANT: Limits(max_running=5)}), {256: HOME})
    core.governor.uncounted = frozenset({0})
    ask(core, 1, 10)

    assert core.plan(START_MS) is None

    core.governor.uncounted = frozenset()
    core.open_lanes()
    assert core.plan(START_MS) is not None


def test_no_call_starts_in_a_shard_of_whose_targets_nothing_is_known_yet() -> None:
    push = msgspec.structs.replace(HOME, kind=Kind.PUSH)
    core = make_core(Book(), {256: push, 257: push, 512: HOME})
    core.governor.uncounted = frozenset({0})
    for number, kind in enumerate(Kind):
        ask(core, number, 10, kind=kind)

    assert set(carry_out(core, core.plan(START_MS), START_MS)) == {257, 512}
    ask(core, 9, 10, kind=Kind.PUSH)
    other = msgspec.structs.replace(OTHER, kind=Kind.PUSH)
    assert core.reserve({768: (other, 1)}, START_MS) == {}
    core.governor.uncounted = frozenset()
    core.open_lanes()
    assert 256 in carry_out(core, core.plan(START_MS), START_MS)


def test_a_bucket_begins_empty_with_the_node_and_a_key_that_is_at_rest_is_forgotten() -> None:
    governor = Governor(START_MS)
    governor.rule(Book(key_limits=lambda tenant, key: Limits(rate=2, burst=4), keyed=frozenset({TENANT})))
    gate = (("rate", "k", ""),)

    assert governor.admit(TENANT, gate, START_MS) is None
    admitted = governor.admit(TENANT, gate, START_MS + 500)
    assert admitted is not None
    governor.start((uuid.uuid4(), 1), HOME, gate, START_MS + 500, admitted)
    governor.forget_idle(START_MS + 1_000)
    assert governor._meters[TENANT]
    governor.ended([Past(task, 1) for task in governor.running])
    governor.forget_idle(START_MS + 60_000)
    assert not governor._meters


def test_a_lower_cap_lets_what_runs_end_and_starts_nothing_until_then() -> None:
    governor = Governor(START_MS)
    governor.rule(Book(tenants={TENANT: Limits(max_running=5)}))
    tasks = [uuid.uuid4() for _ in range(5)]
    for task in tasks:
        governor.found((task, 1), HOME, (), START_MS)

    governor.rule(Book(tenants={TENANT: Limits(max_running=2)}))

    assert governor.room(HOME, START_MS) == 0
    governor.ended([Past(task, 1) for task in tasks[:3]])
    assert governor.room(HOME, START_MS) == 0
    governor.ended([Past(tasks[3], 1)])
    assert governor.room(HOME, START_MS) == 1


def test_a_tasks_gate_names_its_limits_and_nothing_else() -> None:
    limits = TypeLimits(max_running=1, rate=5, concurrency_key="order.shop")
    book = Book(
        type_limits=lambda tenant, name: limits if name == "sale" else None,
        typed=frozenset({TENANT}),
        key_limits=lambda tenant, key: Limits(rate=1) if key == "sms" else None,
        keyed=frozenset({TENANT}),
        slowed=lambda tenant, host: host == "slow.example:443",
    )
    options = Options(
        concurrency_key="free", rate_key="sms", target=Target("https://Slow.example/x"), requires=[], schedule=None
    )

    assert gate_of(book, TENANT, "mail", b"{}", None) == ()
    assert gate_of(book, TENANT, "sale", b'{"order": {"shop": 7}}', None) == (
        ("type", "sale", ""),
        ("type_key", "sale", "7"),
    )
    assert gate_of(book, TENANT, "sale", b"3", None)[1] == ("type_key", "sale", "null")
    assert gate_of(book, TENANT, "mail", b"{}", options) == (("rate", "sms", ""), ("host", "slow.example:443", ""))
    assert gate_of(book, TENANT + 1, "mail", b"{}", Options(rate_key="sms")) == ()


def test_the_lane_of_a_gate_has_the_limits_of_tenant_queue_and_gate() -> None:
    governor = Governor(0)
    governor.rule(
        Book(
            tenants={TENANT: Limits(max_running=9)},
            key_limits=lambda tenant, key: Limits(max_running=2, rate=50),
            keyed=frozenset({TENANT}),
        )
    )
    key = LaneKey(
        TENANT, "default", PriorityClass.NORMAL, Kind.PULL, gate=encode_gate((("key", "c", ""), ("rate", "r", "")))
    )

    assert governor.room(key, START_MS) == 2
    governor.take(key, 2, START_MS)
    assert governor.room(key, START_MS) == 0
    assert governor.room(HOME, START_MS) == 7
    [(reason, detail, until)] = governor.describe(key, START_MS)
    assert (reason, until) == ("cap", None)
    assert "concurrency_key 'c'" in detail


def test_who_waits_long_counts_as_a_higher_class() -> None:
    low = LaneKey(TENANT, "default", PriorityClass.LOW, Kind.PULL)
    critical = LaneKey(TENANT, "default", PriorityClass.CRITICAL, Kind.PULL)

    def rooms(waited_ms: int) -> dict[int, int]:
        core = Core()
        core.woke(256, low, make_id(START_MS - waited_ms, 1, 256))
        core.woke(512, critical, make_id(START_MS - 10, 1, 512))
        ask(core, 1, 90)
        plan = core.plan(START_MS)
        assert plan is not None
        return {order.lane: order.room for order in plan.orders}

    assert rooms(10) == {256: 10, 512: 80}
    assert rooms(10_500) == {256: 18, 512: 72}
    assert rooms(60_000) == {256: 45, 512: 45}


def test_nothing_of_a_paused_queue_is_handed_over() -> None:
    core = Core()
    core.governor.rule(Book(paused=frozenset({(TENANT, "default")})))
    ask(core, 1, 10)

    assert core.reserve({256: (HOME, 1)}, START_MS) == {}
    assert core.reserve({512: (OTHER, 1)}, START_MS) == {512: [(1, 1)]}


def test_a_lane_that_waited_for_a_reservation_is_opened_when_it_is_given_back() -> None:
    for limits in (Limits(max_running=5), Limits(rate=0.01, burst=5)):
        core = make_core(Book(tenants={TENANT: limits}), {256: HOME})
        ask(core, 1, 5)
        plan = core.plan(START_MS)
        assert plan is not None
        core.woke(512, OTHER, make_id(START_MS - 5, 1, 512))
        ask(core, 2, 5)
        assert core.plan(START_MS) is None

        # Somebody has cancelled what the claim was for: it brings nothing, and nothing will end.
        core.claimed(plan, {}, {}, {}, START_MS)

        following = core.plan(START_MS)
        assert following is not None
        assert [order.lane for order in following.orders] == [512]


def test_a_limit_that_is_set_while_a_claim_is_in_the_air_counts_what_that_starts() -> None:
    core = make_core(Book(tenants={2: Limits(max_running=1)}), {256: HOME})
    ask(core, 1, 10)
    plan = core.plan(START_MS)

    core.governor.rule(Book(tenants={TENANT: Limits(max_running=12)}))
    assert len(carry_out(core, plan, START_MS)[256]) == 10

    assert core.governor.room(HOME, START_MS) == 2


def test_a_limit_that_is_lifted_while_a_claim_is_in_the_air_keeps_no_reservation() -> None:
    book = Book(tenants={TENANT: Limits(max_running=3)})
    core = make_core(book, {256: HOME})
    ask(core, 1, 10)
    plan = core.plan(START_MS)
    assert plan is not None

    core.governor.rule(Book())
    core.claimed(plan, {}, {}, {}, START_MS)
    core.governor.rule(book)

    assert core.governor.room(HOME, START_MS) == 3


def test_a_place_at_a_gate_that_was_admitted_is_counted_once() -> None:
    governor = Governor(START_MS)
    governor.rule(Book(key_limits=lambda tenant, key: Limits(max_running=2), keyed=frozenset({TENANT})))
    gate = (("key", "k", ""),)
    waits = msgspec.structs.replace(HOME, gate=encode_gate(gate))

    admitted = governor.admit(TENANT, gate, START_MS)
    assert admitted is not None
    assert governor.room(waits, START_MS) == 1
    governor.start((uuid.uuid4(), 1), HOME, gate, START_MS, admitted)
    assert governor.room(waits, START_MS) == 1
    withdrawn = governor.admit(TENANT, gate, START_MS)
    assert withdrawn is not None
    governor.withdraw(withdrawn, START_MS)
    assert governor.room(waits, START_MS) == 1


def test_a_new_limit_counts_what_runs_under_others_already() -> None:
    governor = Governor(START_MS)
    governor.rule(Book(tenants={TENANT: Limits(max_running=10)}))
    task, gate = uuid.uuid4(), (("key", "k", ""),)
    governor.found((task, 1), HOME, (), START_MS)

    book = Book(
        tenants={TENANT: Limits(max_running=10)},
        key_limits=lambda tenant, key: Limits(max_running=1),
        keyed=frozenset({TENANT}),
    )
    governor.rule(book)
    governor.found((task, 1), HOME, gate, START_MS)

    assert governor.admit(TENANT, gate, START_MS) is None
    assert governor.room(HOME, START_MS) == 9


def test_a_rate_that_is_set_beside_a_cap_owes_nothing_for_what_started_before() -> None:
    core = make_core(Book(tenants={TENANT: Limits(max_running=1_000)}), {256: HOME})
    core.governor.since_ms = START_MS
    ask(core, 1, 500)
    carry_out(core, core.plan(START_MS), START_MS)

    core.governor.rule(Book(tenants={TENANT: Limits(max_running=1_000, rate=10)}))

    assert core.governor.room(HOME, START_MS + 200) >= 1


def test_with_nobody_to_serve_there_is_nothing_to_wake_up_for() -> None:
    core = make_core(Book(tenants={TENANT: Limits(rate=1, burst=1)}), {256: HOME})
    ask(core, 1, 1)
    carry_out(core, core.plan(START_MS), START_MS)
    ask(core, 2, 1)
    assert core.plan(START_MS) is None
    assert core.next_ms() is not None

    core.withdraw(2)

    assert core.plan(START_MS + 10_000) is None
    assert core.next_ms() is None


def test_a_meter_that_is_shared_from_now_on_asks_for_a_token_though_it_has_a_part_of_one() -> None:
    governor = Governor(START_MS)
    governor.rule(Book(tenants={TENANT: Limits(rate=1, burst=1)}))
    assert governor.room(HOME, START_MS + 400) == 0

    governor.share({TENANT: 2})
    assert governor.room(HOME, START_MS + 400) == 0

    [want] = governor.wants().values()
    assert want.tokens >= 0.6
    governor.grant(dict.fromkeys(["run 1 " + encode_gate((("tenant", "", ""),))], 1.0))
    assert governor.room(HOME, START_MS + 400) == 1


def test_the_lane_of_a_gate_is_limited_however_many_keys_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_METERS_PER_TENANT", 3)
    governor = Governor(START_MS)
    governor.rule(Book(key_limits=lambda tenant, key: Limits(max_running=1), keyed=frozenset({TENANT})))
    admitted = [governor.admit(TENANT, (("key", str(each), ""),), START_MS) for each in range(5)]
    assert [each is not None for each in admitted] == [True, True, True, False, False]

    waits = msgspec.structs.replace(HOME, gate=encode_gate((("key", "4", ""),)))

    assert governor.room(waits, START_MS) == 1
