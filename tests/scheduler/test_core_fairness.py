"""Fairness of the core, case by case: small rooms, suspensions, queues without a worker, comers and goers."""

import itertools
import uuid
from collections import Counter
from collections.abc import Sequence

from asks import NOW, ask_for, key_of, wake_of
from duetime.model.task import Kind, PriorityClass
from duetime.scheduler.core import Core
from duetime.scheduler.plan import Ask

CRITICAL, HIGH, LOW = PriorityClass.CRITICAL, PriorityClass.HIGH, PriorityClass.LOW
NUMBERS = itertools.count(1)


def serve(core: Core, turns: int, *asks: Ask) -> Counter[int]:
    """Endless backlog; rows by lane."""
    served: Counter[int] = Counter()
    for _ in range(turns):
        mine = [next(NUMBERS) for _ in asks]
        for number, ask in zip(mine, asks, strict=True):
            core.ask(number, ask)
        plan = core.plan(NOW)
        if plan:
            first = wake_of(0, NOW - 1000).int
            taken: dict[int, Sequence[tuple[uuid.UUID, int]]] = {
                order.lane: [(uuid.UUID(int=max(order.hint.int, first) + 1), 9)] * order.room for order in plan.orders
            }
            served.update({order.lane: order.room for order in plan.orders})
            core.claimed(plan, taken, {})
        for number in mine:
            core.withdraw(number)
    return served


def test_classes_share_also_a_worker_with_little_room() -> None:
    core = Core()
    core.woke(256, key_of(priority=CRITICAL), wake_of(256))
    core.woke(512, key_of(priority=HIGH), wake_of(512))
    served = serve(core, 600, ask_for(2))
    assert abs(served[256] / 1200 - 8 / 12) < 0.05, served


def test_push_tenants_share_by_weight_while_any_worker_polls() -> None:
    core = Core()
    core.woke(256, key_of(1, kind=Kind.PUSH), wake_of(256))
    core.woke(512, key_of(2, kind=Kind.PUSH), wake_of(512))
    core.woke(768, key_of(2, priority=LOW, kind=Kind.PUSH), wake_of(768))
    core.woke(1024, key_of(3), wake_of(1024))
    served = serve(core, 300, ask_for(3, None, kind=Kind.PUSH), ask_for(1, 3))
    assert abs(served[256] - served[512] - served[768]) < 30, served


def test_a_suspension_earns_no_credit() -> None:
    core = Core()
    for tenant in (1, 2):
        core.woke(256 * tenant, key_of(tenant, kind=Kind.PUSH), wake_of(256 * tenant))
    core.rule({}, frozenset({2}))
    serve(core, 5_000, ask_for(2, None, kind=Kind.PUSH))
    core.rule({}, frozenset())
    served = serve(core, 500, ask_for(2, None, kind=Kind.PUSH))
    assert served[256] > 400, served


def test_a_newcomer_gets_no_credit_of_a_suspended_tenant() -> None:
    core = Core()
    for tenant in (1, 2):
        core.woke(256 * tenant, key_of(tenant, kind=Kind.PUSH), wake_of(256 * tenant))
    core.rule({}, frozenset({2}))
    serve(core, 5_000, ask_for(2, None, kind=Kind.PUSH))
    core.woke(768, key_of(3, kind=Kind.PUSH), wake_of(768))
    served = serve(core, 500, ask_for(2, None, kind=Kind.PUSH))
    assert served[256] > 400, served


def test_a_queue_without_a_worker_gathers_no_credit() -> None:
    core = Core()
    core.woke(256, key_of(queue="a"), wake_of(256))
    core.woke(512, key_of(queue="b"), wake_of(512))
    serve(core, 5_000, ask_for(1, queues=frozenset({"a"})))
    served = serve(core, 500, ask_for(1))
    assert served[256] > 200, served


def test_a_new_queue_gets_no_credit_of_one_without_a_worker() -> None:
    core = Core()
    core.woke(256, key_of(queue="a"), wake_of(256))
    core.woke(512, key_of(queue="gpu", requires=("gpu",)), wake_of(512))
    serve(core, 5_000, ask_for(1))
    core.woke(768, key_of(queue="c"), wake_of(768))
    served = serve(core, 500, ask_for(1))
    assert served[256] > 200, served


def test_a_queue_that_had_a_worker_of_its_own_is_not_in_debt() -> None:
    core = Core()
    core.woke(256, key_of(queue="a"), wake_of(256))
    core.woke(512, key_of(queue="b"), wake_of(512))
    serve(core, 5_000, ask_for(1, queues=frozenset({"a"})), ask_for(1, queues=frozenset({"b"})))
    serve(core, 5_000, ask_for(10, queues=frozenset({"a"})), ask_for(1, queues=frozenset({"b"})))
    served = serve(core, 500, ask_for(1))
    assert served[256] > 200, served


def test_a_drained_lane_that_comes_back_often_does_not_begin_anew_at_the_front() -> None:
    # Tenant 1 has endless work; tenant 2 has one row at a time, always again: it takes one turn each, not more.
    core = Core()
    core.rule({1: 9}, frozenset())
    core.woke(256, key_of(1, kind=Kind.PUSH), wake_of(256))
    served: Counter[int] = Counter()
    for turn in range(1000):
        core.woke(512, key_of(2, kind=Kind.PUSH), wake_of(512, unique=turn + 1))
        number = next(NUMBERS)
        core.ask(number, ask_for(1, None, kind=Kind.PUSH))
        plan = core.plan(NOW)
        assert plan is not None
        [order] = plan.orders
        served[order.lane] += 1
        core.claimed(plan, {order.lane: [(uuid.UUID(int=order.hint.int + 1), 9)]}, {})
        if order.lane == 512:
            core.drop(512)
    assert served[256] > 800, served
