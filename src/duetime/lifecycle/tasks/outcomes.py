"""How many attempts of each lane have ended, and how many of them failed: raised in batches, read once a second.

A failed attempt (also for good) counts as failed, and so does one whose holder
died while it ran.  What was snoozed, given back, cancelled or never ran says
nothing either way.
"""

from collections import Counter
from collections.abc import Iterable

from duetime.model.task import Outcome

_FAILURES = frozenset({Outcome.FAILED, Outcome.LAPSED, Outcome.UNKNOWN})


class OutcomeCounts:
    """By lane: whoever reads them knows whose it is."""

    def __init__(self) -> None:
        self._succeeded: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()

    def succeeded(self, lanes: Iterable[int] | None, lane: int | None, count: int) -> None:
        """So many attempts succeeded: all of one lane, or of these lanes."""
        if lane is not None:
            self._succeeded[lane] += count
        elif lanes is not None:
            self._succeeded.update(lanes)

    def ended(self, ends: Iterable[tuple[int, Outcome]]) -> None:
        """Attempts of these lanes ended like this."""
        for lane, outcome in ends:
            if outcome in _FAILURES:
                self._failed[lane] += 1

    def take(self) -> tuple[Counter[int], Counter[int]]:
        """What succeeded and what failed since this was last asked."""
        taken = self._succeeded, self._failed
        self._succeeded, self._failed = Counter(), Counter()
        return taken
