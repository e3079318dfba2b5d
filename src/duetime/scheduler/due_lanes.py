"""Lanes with known work, as a heap by next wake; the due ones are grouped by which lanes compete.

What is known of a lane is a hint: nothing is lost when it is wrong, because the
feeder looks again, and a lane that is drained is forgotten.
"""

import heapq
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from duetime.ids import EARLIEST, due_ms_of
from duetime.model.gates import encode_gate, limits_at
from duetime.model.task import Kind, LaneKey
from duetime.scheduler.limits import Promised

#: A group of lanes that compete: those of one tenant, for one kind of holder.
LaneGroup = tuple[Kind, int]


@dataclass
class Work:
    """A lane that has, or will have, tasks to claim."""

    lane: int
    key: LaneKey
    next_ms: int
    #: Claims read after this wake; earlier rows have been taken.
    hint: uuid.UUID = EARLIEST
    mean_bytes: float = 200.0
    #: If the lane holds only tasks of one type, which wait for a holder of that type: the lane they were parked from.
    source: LaneKey | None = None
    #: A limit is used up: until this time no row of the lane is read.
    closed_until_ms: int = 0
    #: Whether a claim of this lane, or a `Core.hold`, is under way; and the meters at which its rows are promised.
    is_being_claimed: bool = False
    promised: Promised = ()
    #: The earliest wake that was reported during the claim, which may not have seen it.
    woken: uuid.UUID | None = None
    #: Another node feeds the lane now; it is forgotten when the claim under way has ended.
    is_dropped: bool = False


class DueLanes:
    def __init__(self, on_empty: Callable[[LaneGroup], None]) -> None:
        #: Called with a group that has no due lane any more.
        self._on_empty = on_empty
        self.known: dict[int, Work] = {}
        #: The lanes that are due.
        self.due: dict[LaneGroup, dict[int, Work]] = {}
        self._heap: list[tuple[int, int]] = []

    def woke(self, lane: int, key: LaneKey, wake: uuid.UUID) -> bool:
        """Note that a row was put into due, or was seen there; returns whether there may be something new to plan."""
        due_ms = due_ms_of(wake)
        work = self.known.get(lane)
        if work is not None and work.key != key and not work.is_being_claimed:
            # The lane belonged to a gate that is gone, and was given to another one.
            self.drained(work, None)
            work = None
        if work is None:
            hint = just_before_wake(wake)
            work = self.known[lane] = Work(lane, key, due_ms, hint, source=source_of(key))
            self._await_time(work)
            return True
        work.is_dropped = False
        if work.is_being_claimed and (work.woken is None or wake < work.woken):
            work.woken = wake
        if wake <= work.hint:
            work.hint = just_before_wake(wake)
        if due_ms >= work.next_ms:
            return False
        work.next_ms = due_ms
        self._await_time(work)
        return True

    def forget_hints(self) -> None:
        """Forget all hints, because the database's clock went back: rows may lie before them."""
        for work in self.known.values():
            work.hint = EARLIEST

    def next_ms(self) -> int | None:
        """When the next lane becomes due; None if no lane waits for a time."""
        while self._heap:
            due_ms, lane = self._heap[0]
            work = self.known.get(lane)
            if work is not None and work.next_ms == due_ms and not self.is_due(work):
                return due_ms
            heapq.heappop(self._heap)
        return None

    def let_come_due(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, lane = heapq.heappop(self._heap)
            work = self.known.get(lane)
            if work is not None and work.next_ms == due_ms and not self.is_due(work):
                self.due.setdefault((work.key.kind, work.key.tenant), {})[lane] = work

    def drained(self, work: Work, next_wake: uuid.UUID | None) -> None:
        """Note that the lane has nothing more due: it waits for its next wake, or is forgotten."""
        group = (work.key.kind, work.key.tenant)
        lanes = self.due.get(group, {})
        lanes.pop(work.lane, None)
        if not lanes:
            self.due.pop(group, None)
            self._on_empty(group)
        if next_wake is None:
            del self.known[work.lane]
        else:
            work.next_ms = due_ms_of(next_wake)
            self._await_time(work)

    def is_due(self, work: Work) -> bool:
        return work.lane in self.due.get((work.key.kind, work.key.tenant), ())

    def _await_time(self, work: Work) -> None:
        heapq.heappush(self._heap, (work.next_ms, work.lane))
        # Outdated entries leave only when their time comes, which may be in a year: remove them here.
        if len(self._heap) > 2 * len(self.known) + 1_000:
            self._heap = [(work.next_ms, work.lane) for work in self.known.values() if not self.is_due(work)]
            heapq.heapify(self._heap)


@lru_cache(maxsize=8_192)
def source_of(key: LaneKey) -> LaneKey | None:
    """For a lane that holds only one type: the lane in which its tasks were found among others."""
    gate = encode_gate(limits_at(key.gate))
    return None if gate == key.gate else msgspec.structs.replace(key, gate=gate)


def just_before_wake(wake: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=max(wake.int - 1, 0))
