"""Count how many attempts of each lane have ended, and how many of them failed. Read once a second.

A failed attempt (also for good) counts as failed, and so does one whose holder
died while it ran.  Attempts that were snoozed, released, cancelled or never ran
do not count.
"""

from collections import Counter
from collections.abc import Iterable

from duetime.model.task import Outcome

_FAILURES = frozenset({Outcome.FAILED, Outcome.LAPSED, Outcome.UNKNOWN})


class OutcomeCounts:
    """By lane: readers know whose it is."""

    def __init__(self) -> None:
        self._succeeded: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()

    def succeeded(self, lanes: Iterable[int] | None, lane: int | None, count: int) -> None:
        """Count succeeded attempts: this many of one lane, or one of each of these lanes."""
        if lane is not None:
            self._succeeded[lane] += count
        elif lanes is not None:
            self._succeeded.update(lanes)

    def ended(self, ends: Iterable[tuple[int, Outcome]]) -> None:
        """Count attempts of these lanes that ended with this outcome."""
        for lane, outcome in ends:
            if outcome in _FAILURES:
                self._failed[lane] += 1

    def take(self) -> tuple[Counter[int], Counter[int]]:
        """What succeeded and what failed since the last call."""
        taken = self._succeeded, self._failed
        self._succeeded, self._failed = Counter(), Counter()
        return taken
