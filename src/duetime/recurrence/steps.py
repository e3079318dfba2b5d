"""The budget of an evaluation: steps that are counted, never time.

A step is about a microsecond of work: a month passed over, an exclusion asked, a
period of a rule looked at.  Counting makes a refusal the same on every machine,
and bounds how long one search can hold whoever runs it.
"""

from collections.abc import Generator
from typing import TypeVar

from duetime.recurrence.spec import SpecError

#: What finding one time may take, jitter included: about 20 ms.
SEARCH_STEPS = 20_000
#: What reading one definition may take, its named calendars apart.
COMPILE_STEPS = 300_000
#: What one preview may take.
PREVIEW_STEPS = 500_000
#: What a look for everything that is wrong with a refused definition may take.
JUDGE_STEPS = 10_000
#: For work that is bounded by the size of what is read.
UNLIMITED = 1 << 62
#: Work is done in pieces of this many steps; one search is never divided.
PIECE_STEPS = 2_000

Result = TypeVar("Result")


class TooCostly(SpecError):
    """Evaluating the definition takes more steps than it may."""


class OutOfSteps(Exception):
    """A search has used up its steps; whoever began it says what that means."""


class Steps:
    """Counts the steps of one recurrence, search by search."""

    __slots__ = ("_before", "_limit", "_piece", "left")

    def __init__(self, limit: int = SEARCH_STEPS) -> None:
        self._limit = limit
        self.left = limit
        self._before = 0
        self._piece = 0

    def begin(self) -> None:
        """A new search, which has the whole limit for itself."""
        self._before += self._limit - self.left
        self.left = self._limit

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise OutOfSteps

    def note(self, count: int) -> None:
        """Count steps that are not part of a search."""
        self._before += count

    @property
    def spent(self) -> int:
        """All steps so far, over all searches."""
        return self._before + self._limit - self.left

    def is_piece_over(self) -> bool:
        """Whether it is time to let others go on; the next piece begins then."""
        spent = self.spent
        if spent - self._piece < PIECE_STEPS:
            return False
        self._piece = spent
        return True


def finish(work: Generator[None, None, Result]) -> Result:
    """Do all pieces at once, and give what comes of them."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
