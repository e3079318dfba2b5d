"""The budget of an evaluation: it counts steps, never time.

A step is about a microsecond of work: a month passed over, an exclusion asked, a
period of a rule looked at.  Because steps are counted, a refusal is the same on every
machine, and one search can keep its caller busy only for a bounded time.
"""

from collections.abc import Generator
from typing import TypeVar

from duetime.recurrence.spec import SpecError

#: The most steps for finding one time, jitter included: about 20 ms.
SEARCH_STEPS = 20_000
#: The most steps for reading one definition, without its named calendars.
COMPILE_STEPS = 300_000
#: The most steps for one preview.
PREVIEW_STEPS = 500_000
#: The most steps for finding everything that is wrong with a refused definition.
JUDGE_STEPS = 10_000
#: For work that the size of its input bounds.
UNLIMITED = 1 << 62
#: Work is done in pieces of this many steps; one search is never divided.
PIECE_STEPS = 2_000

Result = TypeVar("Result")


class TooCostly(SpecError):
    """Evaluating the definition takes more steps than allowed."""


class OutOfSteps(Exception):
    """A search has used up its steps; the code that began it says what that means."""


class Steps:
    """Counts the steps of one recurrence, search by search."""

    __slots__ = ("_before", "_limit", "_piece", "left")

    def __init__(self, limit: int = SEARCH_STEPS) -> None:
        self._limit = limit
        self.left = limit
        self._before = 0
        self._piece = 0

    def begin(self) -> None:
        """Begin a new search, which has the whole limit for itself."""
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
        """The number of steps so far, over all searches."""
        return self._before + self._limit - self.left

    def is_piece_over(self) -> bool:
        """Whether it is time to let other work run. If so, the next piece begins."""
        spent = self.spent
        if spent - self._piece < PIECE_STEPS:
            return False
        self._piece = spent
        return True


def finish(work: Generator[None, None, Result]) -> Result:
    """Do all pieces at once, and return their result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
