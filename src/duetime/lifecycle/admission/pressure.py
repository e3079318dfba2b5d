"""When too much waits to be stored: low classes wait first, then submissions are refused, the most important last.

What waits to be stored is bounded for each class by its mark: by how long the
oldest has waited, by tasks, and by bytes.  Beyond it a submission of the class
is refused with 429 `overloaded`; nothing that was accepted is dropped.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from duetime.database.gather import Backlog
from duetime.errors import Overloaded
from duetime.model.task import NewTask, PriorityClass

_MIB = 1024 * 1024


class Mark(NamedTuple):
    seconds: float
    tasks: int
    size: int


#: From this mark on a class is refused. Statements have ten seconds, so the last mark comes before they time out.
MARKS = {
    PriorityClass.LOW: Mark(2.0, 100_000, 64 * _MIB),
    PriorityClass.NORMAL: Mark(4.0, 200_000, 128 * _MIB),
    PriorityClass.HIGH: Mark(6.0, 300_000, 192 * _MIB),
    PriorityClass.CRITICAL: Mark(8.0, 400_000, 256 * _MIB),
}
#: Below this part of the lowest mark nobody checks again for this long: the mark cannot be reached in that time.
CALM_PART = 10
CALM_SECONDS = 0.005


def least_important(tasks: Iterable[NewTask]) -> PriorityClass:
    return max(task.lane.priority for task in tasks)


class Pressure:
    def __init__(self, backlog: Callable[[], Backlog], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._backlog = backlog
        self._monotonic = monotonic
        self._calm_until = -math.inf

    def refuse(self, priority: PriorityClass) -> Overloaded | None:
        """Why nothing of this class is accepted now; None: it is accepted."""
        now = self._monotonic()
        if now < self._calm_until:
            return None
        waiting = self._backlog()
        if _is_below(waiting, MARKS[PriorityClass.LOW], CALM_PART):
            self._calm_until = now + CALM_SECONDS
        if _is_below(waiting, MARKS[priority]):
            return None
        return Overloaded(
            f"{waiting.weight:,} tasks wait to be stored, the oldest for {waiting.seconds:.1f} s;"
            f" submissions of the class {priority.word} are refused until there are fewer",
            max(1.0, waiting.seconds),
        )

    def refuse_batch(self, tasks: Iterable[NewTask]) -> Overloaded | None:
        """The same for a batch, which is accepted or refused as its least important task."""
        if self.refuse(PriorityClass.LOW) is None:
            return None
        return self.refuse(least_important(tasks))


def _is_below(waiting: Backlog, mark: Mark, part: int = 1) -> bool:
    return (
        part * waiting.seconds < mark.seconds and part * waiting.weight < mark.tasks and part * waiting.size < mark.size
    )
