"""How room is divided: between tenants by weight, within a tenant by class and by age, within the limits."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duetime.model.task import PriorityClass

#: Shares of a tenant's room between its classes.
CLASS_SHARES = {
    PriorityClass.CRITICAL: 8,
    PriorityClass.HIGH: 4,
    PriorityClass.NORMAL: 2,
    PriorityClass.LOW: 1,
}
MAX_SHARE = 8
#: A task that has waited this long counts as one class higher, and again after the same time.
AGE_MS = 10_000


@dataclass(frozen=True)
class Competitor:
    """A lane that can be served now: its share, its position, what its limits allow, and the asks that fit."""

    lane: int
    tenant: int
    share: float
    had: float
    most: int
    asks: tuple[int, ...]


#: By lane, (ask, how many rows).
Dealt = dict[int, list[tuple[int, int]]]


def share_of(priority: PriorityClass, age_ms: int = 0) -> int:
    """A class's share, doubled for every ten seconds that its first task has waited, up to that of critical."""
    share = CLASS_SHARES[priority]
    if age_ms >= AGE_MS:
        share = min(MAX_SHARE, share << min(age_ms // AGE_MS, 3))
    return share


def deal_by_weight(
    lanes: Sequence[Competitor], rooms: Mapping[int, int], room: int, weights: Mapping[int, int]
) -> Dealt:
    """With much room: give each lane its share at once, rounded, and at least one row."""
    shares = _shares(lanes, room, weights)
    left = dict(rooms)
    dealt = {lane.lane: deal(shares[lane.lane], lane.asks, left) for lane in lanes}
    return {lane: counts for lane, counts in dealt.items() if counts}


def _shares(lanes: Sequence[Competitor], room: int, weights: Mapping[int, int]) -> dict[int, int]:
    """How much of the room each lane may use; what a limit keeps one lane from using goes to the others."""
    shares: dict[int, int] = {}
    open_lanes, left = list(lanes), room
    while open_lanes:
        divided = _divide(open_lanes, left, weights)
        full = [lane for lane in open_lanes if lane.most < divided[lane.lane]]
        if not full:
            return shares | divided
        for lane in full:
            shares[lane.lane] = lane.most
            left = max(0, left - lane.most)
        open_lanes = [lane for lane in open_lanes if lane.lane not in shares]
    return shares


def _divide(lanes: Sequence[Competitor], room: int, weights: Mapping[int, int]) -> dict[int, int]:
    by_tenant: dict[int, list[Competitor]] = {}
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


def deal_by_turns(
    lanes: Sequence[Competitor], rooms: Mapping[int, int], tenants: Mapping[int, float], weights: Mapping[int, int]
) -> Dealt:
    """With little room: row by row to the lane that has had least, because rounding would make weights meaningless."""
    left = dict(rooms)
    choices = Counter(number for lane in lanes for number in lane.asks)
    of_tenant: dict[int, list[tuple[float, int, Competitor]]] = {}
    for place, lane in enumerate(lanes):
        if lane.most > 0:
            of_tenant.setdefault(lane.tenant, []).append((lane.had, place, lane))
    for queue in of_tenant.values():
        heapq.heapify(queue)
    order = [(tenants[tenant], tenant) for tenant in of_tenant]
    heapq.heapify(order)
    dealt: dict[int, dict[int, int]] = {}
    while order and any(left.values()):
        had, tenant = heapq.heappop(order)
        queue = of_tenant[tenant]
        lane_had, place, lane = heapq.heappop(queue)
        # The ask with the fewest other lanes to choose from gets the row, so that no room is left unused.
        number = min((each for each in lane.asks if left[each]), key=choices.__getitem__, default=None)
        if number is not None:
            left[number] -= 1
            got = dealt.setdefault(lane.lane, {})
            got[number] = got.get(number, 0) + 1
            had += 1 / weights.get(tenant, 1)
            if sum(got.values()) < lane.most:
                heapq.heappush(queue, (lane_had + 1 / lane.share, place, lane))
        # A lane whose asks have no room left takes no further part.
        if queue:
            heapq.heappush(order, (had, tenant))
    return {lane: list(got.items()) for lane, got in dealt.items()}


def deal(wanted: int, numbers: Sequence[int], left: dict[int, int]) -> list[tuple[int, int]]:
    """Deal rows to the asks that fit, evenly, as far as each has room."""
    counts = []
    for place, number in enumerate(numbers):
        if wanted <= 0:
            break
        even = -(-wanted // (len(numbers) - place))
        rows = min(even, left[number])
        if rows > 0:
            left[number] -= rows
            wanted -= rows
            counts.append((number, rows))
    return counts


def cut(counts: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Keep the first rows, up to this number."""
    kept = []
    for number, rows in counts:
        rows = min(rows, most)
        most -= rows
        if rows:
            kept.append((number, rows))
    return kept
