"""How room is divided: between tenants by weight, within a tenant by class and by age, within what limits allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duetime.model.task import PriorityClass
from duetime.scheduler.limits import UNLIMITED

#: Shares of a tenant's room between its classes.
CLASS_SHARES = {
    PriorityClass.CRITICAL: 8,
    PriorityClass.HIGH: 4,
    PriorityClass.NORMAL: 2,
    PriorityClass.LOW: 1,
}
MAX_SHARE = 8
#: Whoever waits for so long counts as one class higher, and again after the same time.
AGE_MS = 10_000


@dataclass(frozen=True)
class Served:
    """A lane that takes part: its share, and what it has had."""

    lane: int
    tenant: int
    share: float
    served: float


def share_of(priority: PriorityClass, age_ms: int = 0) -> int:
    """A class's share, doubled for every ten seconds that its first task has waited, up to that of critical."""
    share = CLASS_SHARES[priority]
    if age_ms >= AGE_MS:
        share = min(MAX_SHARE, share << min(age_ms // AGE_MS, 3))
    return share


def shares_by_weight(
    lanes: Sequence[Served], room: int, weights: Mapping[int, int], most: Mapping[int, int]
) -> dict[int, int]:
    """How much of the room each lane may use: tenants by weight, classes by their share, each at least one.

    What a lane may not use because of a limit goes to the others.
    """
    shares: dict[int, int] = {}
    open_lanes, left = list(lanes), room
    while open_lanes:
        divided = _divide(open_lanes, left, weights)
        full = [lane for lane in open_lanes if most.get(lane.lane, UNLIMITED) < divided[lane.lane]]
        if not full:
            return shares | divided
        for lane in full:
            shares[lane.lane] = most[lane.lane]
            left = max(0, left - most[lane.lane])
        open_lanes = [lane for lane in open_lanes if lane.lane not in shares]
    return shares


def _divide(lanes: Sequence[Served], room: int, weights: Mapping[int, int]) -> dict[int, int]:
    by_tenant: dict[int, list[Served]] = {}
    for lane in lanes:
        by_tenant.setdefault(lane.tenant, []).append(lane)
    all_weights = sum(weights.get(tenant, 1) for tenant in by_tenant)
    shares = {}
    for tenant, of_tenant in by_tenant.items():
        tenant_room = room * weights.get(tenant, 1) / all_weights
        all_shares = sum(lane.share for lane in of_tenant)
        for lane in of_tenant:
            shares[lane.lane] = max(1, round(tenant_room * lane.share / all_shares))
    return shares


def shares_by_turns(
    lanes: Sequence[Served],
    tenants: Mapping[int, float],
    room: int,
    weights: Mapping[int, int],
    most: Mapping[int, int],
) -> dict[int, int]:
    """Row by row to who has had least: where the room is small, rounding would make weights meaningless."""
    tenant_served = dict(tenants)
    served = {lane.lane: lane.served for lane in lanes}
    shares = dict.fromkeys(served, 0)
    by_tenant: dict[int, list[Served]] = {}
    for lane in lanes:
        if most.get(lane.lane, UNLIMITED) > 0:
            by_tenant.setdefault(lane.tenant, []).append(lane)
    for _ in range(room):
        if not by_tenant:
            break
        tenant = min(by_tenant, key=tenant_served.__getitem__)
        lane = min(by_tenant[tenant], key=lambda each: served[each.lane])
        shares[lane.lane] += 1
        tenant_served[tenant] += 1 / weights.get(tenant, 1)
        served[lane.lane] += 1 / lane.share
        if shares[lane.lane] >= most.get(lane.lane, UNLIMITED):
            by_tenant[tenant].remove(lane)
            if not by_tenant[tenant]:
                del by_tenant[tenant]
    return shares


def deal(wanted: int, numbers: Sequence[int], left: dict[int, int]) -> list[tuple[int, int]]:
    """Deal rows to the asks that fit, evenly, as far as each has room."""
    slots = []
    for place, number in enumerate(numbers):
        if wanted <= 0:
            break
        even = -(-wanted // (len(numbers) - place))
        rows = min(even, left[number])
        if rows > 0:
            left[number] -= rows
            wanted -= rows
            slots.append((number, rows))
    return slots
