"""Announce stored tasks: hand over those that were stored for a holder, and wake the lanes of the others."""

import uuid
from collections import Counter
from collections.abc import Collection

from duetime import metrics
from duetime.lifecycle.submission.batch import Answers, Load, Submitted, has_time
from duetime.lifecycle.submission.handover import Reservation, WaitingHolders, lease
from duetime.lifecycle.tasks.onward import Wake
from duetime.model.task import LeasedTask

#: By request for tasks, the tasks that were stored for it.
Handed = dict[int, list[LeasedTask]]


class Announcer:
    def __init__(self, wake: Wake, holders: WaitingHolders | None) -> None:
        self._wake = wake
        self._holders = holders

    def reserve(self, load: Load) -> Reservation | None:
        """Reserve room of waiting holders for tasks that are due now. `hand_over` must follow."""
        if self._holders is None:
            return None
        lanes = load.lanes
        if load.is_untimed and load.has_one_lane:
            return self._holders.reserve({lanes[0]: len(lanes)})
        if not load.is_untimed:
            places = zip(load.tasks, lanes, strict=True)
            lanes = [lane for task, lane in places if not has_time(task)]
            if not lanes:
                return None
        return self._holders.reserve(Counter(lanes))

    def announce(self, load: Load, answers: Answers, reservation: Reservation | None = None) -> Handed:
        """Wake each lane with the first of its new tasks. Return the tasks that are handed over instead."""
        if load.is_stored and (reservation is None or reservation.picked_at is None or not reservation.taken):
            self._wake(_first_of(load))
            metrics.TASKS_OF_CALLS.inc(len(load.ids))
            return {}
        picked_at = None if reservation is None else reservation.picked_at
        taken = {} if reservation is None else reservation.taken
        handed: Handed = {}
        first: dict[int, uuid.UUID] = {}
        stored = 0
        for batch, answer in zip(load.batches, answers, strict=True):
            for task, lane, each in zip(batch.tasks, batch.lanes, answer, strict=True):
                if not isinstance(each, Submitted) or not each.is_new:
                    continue
                stored += 1
                identifier = each.id
                if picked_at is not None and identifier in taken:
                    number, holder = taken[identifier]
                    handed.setdefault(number, []).append(lease(task, identifier, lane, holder, picked_at))
                elif lane not in first or identifier < first[lane]:
                    first[lane] = identifier
        if first:
            self._wake(first.values())
        metrics.TASKS_OF_CALLS.inc(stored)
        if handed:
            metrics.HANDED_OVER.inc(sum([len(tasks) for tasks in handed.values()]))
        return handed

    def hand_over(self, reservation: Reservation, handed: Handed) -> None:
        if self._holders is not None:
            self._holders.hand_over(reservation, handed)


def _first_of(load: Load) -> Collection[uuid.UUID]:
    """Return the first id of each lane."""
    lanes, ids = load.lanes, load.ids
    if load.is_untimed:
        # The ids of a lane ascend.
        if load.has_one_lane:
            return ids[:1]
        return dict(zip(reversed(lanes), reversed(ids), strict=True)).values()
    first: dict[int, uuid.UUID] = {}
    for lane, identifier in zip(lanes, ids, strict=True):
        if lane not in first or identifier < first[lane]:
            first[lane] = identifier
    return first.values()
