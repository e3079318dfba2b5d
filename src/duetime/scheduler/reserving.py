"""Reserve waiting asks for tasks that are about to be stored: asks with room for which nothing else is due.

`lifecycle/submission/handover.py` explains the purpose.
"""

from collections.abc import Callable, Container, Mapping

from duetime.lifecycle.submission.handover import Reservation
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.due_lanes import DueLanes
from duetime.scheduler.limits import Governor
from duetime.scheduler.plan import Ask
from duetime.scheduler.shares import deal

#: With more due lanes than this nothing is reserved: checking them would cost more than it saves.
MAX_LANES_PER_RESERVE = 64


def reserve(
    wanted: Mapping[int, tuple[LaneKey, int]],
    asks: Mapping[int, Ask],
    table: DueLanes,
    suspended: Container[int],
    governor: Governor,
    now_ms: int,
) -> dict[int, list[tuple[int, int]]]:
    """Reserve asks for these tasks, as (ask, how many) by lane; tasks that wait already come first."""
    keys = [key for key, _ in wanted.values()]
    fitting = [(number, ask) for number, ask in asks.items() if any(ask.fits(key) for key in keys)]
    if not fitting:
        return {}
    table.let_come_due(now_ms)
    left = {number: ask.room for number, ask in fitting if not _has_due_for(ask, table, suspended, now_ms)}
    reserved: dict[int, list[tuple[int, int]]] = {}
    #: How much room the executor has, by tenant.
    rooms: dict[int, int] = {}
    if not left:
        return reserved
    for lane, (key, count) in wanted.items():
        work = table.known.get(lane)
        if key.tenant in suspended or (work is not None and (work.is_being_claimed or table.is_due(work))):
            continue
        if governor.is_limited(key.tenant) or governor.is_closed(key):
            # Tasks that have to be counted, or may not start, take the normal path.
            continue
        if (room := governor.executor_room) is not None and key.kind is Kind.PUSH:
            if room.has_full(key.tenant, now_ms):
                # Tasks that wait at the gate of a full host come first.
                continue
            rooms.setdefault(key.tenant, room.of_tenant(key.tenant).available(now_ms))
            count = min(count, rooms[key.tenant])
            rooms[key.tenant] -= count
        dealt = [
            place
            for numbers in _alike({number: asks[number] for number in left if asks[number].fits(key)})
            for place in deal(count, numbers, left)
        ]
        if dealt:
            reserved[lane] = dealt
    return reserved


def make_reservation(dealt: Mapping[int, list[tuple[int, int]]], ask_of: Callable[[int], Ask]) -> Reservation:
    """The reservation, with a place for each task."""
    by_lane: dict[int, list[tuple[frozenset[str] | None, list[tuple[int, int]]]]] = {}
    for lane, counts in dealt.items():
        rows = dict(counts)
        for numbers in _alike({number: ask_of(number) for number in rows}):
            places = [(number, ask_of(number).holder) for number in reversed(numbers) for _ in range(rows[number])]
            by_lane.setdefault(lane, []).append((ask_of(numbers[0]).types, places))
    return Reservation(by_lane, frozenset(number for counts in dealt.values() for number, _ in counts))


def _alike(asks: Mapping[int, Ask]) -> list[list[int]]:
    """Group asks that handle the same types; the types of the tasks are not checked here and may be any."""
    groups: dict[frozenset[str] | None, list[int]] = {}
    for number, ask in asks.items():
        groups.setdefault(ask.types, []).append(number)
    return list(groups.values())


def _has_due_for(ask: Ask, table: DueLanes, suspended: Container[int], now_ms: int) -> bool:
    groups = [
        group
        for group in table.due
        if group[0] is ask.kind and ask.tenant in (None, group[1]) and group[1] not in suspended
    ]
    works = [
        work
        for group in groups
        for work in table.due[group].values()
        # Lanes of types that no holder handles may be many, and stay due.
        if work.closed_until_ms <= now_ms and (work.source is None or ask.fits(work.key))
    ]
    return len(works) > MAX_LANES_PER_RESERVE or any(ask.fits(work.key) for work in works)
