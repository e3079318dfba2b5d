"""Asks, lanes and wakes for tests of the scheduler's core."""

import uuid
from collections import Counter

from duetime.ids import make_id
from duetime.model.task import Kind, LaneKey, PriorityClass
from duetime.scheduler.core import Core
from duetime.scheduler.plan import Ask, Plan

NOW = 1_700_000_000_000


def key_of(
    tenant: int = 1,
    queue: str = "default",
    priority: PriorityClass = PriorityClass.NORMAL,
    kind: Kind = Kind.PULL,
    requires: tuple[str, ...] = (),
) -> LaneKey:
    return LaneKey(tenant, queue, priority, kind, requires)


def ask_for(
    room: int = 10,
    tenant: int | None = 1,
    *,
    holder: int = 100,
    kind: Kind = Kind.PULL,
    queues: frozenset[str] | None = None,
    tags: frozenset[str] = frozenset(),
    types: frozenset[str] | None = None,
) -> Ask:
    return Ask(holder, tenant, kind, queues, tags, room, types)


def wake_of(lane: int, due_ms: int = NOW, unique: int = 0) -> uuid.UUID:
    return make_id(due_ms, unique, lane)


def plan_of(core: Core, now_ms: int = NOW) -> Plan:
    plan = core.plan(now_ms)
    assert plan is not None
    return plan


def take(
    core: Core, plan: Plan, rows: dict[int, list[uuid.UUID]], later: dict[int, uuid.UUID] | None = None
) -> Counter[int]:
    """Carry a plan out; how many rows each ask got."""
    answers = core.claimed(plan, {lane: [(wake, 100) for wake in wakes] for lane, wakes in rows.items()}, later or {})
    return Counter({number: len(got) for number, got in answers.items()})


# When
