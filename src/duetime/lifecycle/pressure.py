"""When too much waits to be stored: low classes wait first, then submissions are refused, the most important last.

What waits to be stored is bounded for each class by its mark: by how long the
oldest has waited, by tasks, and by bytes.  Beyond it a submission of the class
is refused with 429 `overloaded`; nothing that was accepted is dropped.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from duetime.errors import Overloaded
from duetime.lifecycle.gather import Backlog
from duetime.lifecycle.winners import Call
from duetime.model.task import NewTask, PriorityClass

#: What a task takes beside its payload, roughly.
_TASK_BYTES = 500
_MIB = 1024 * 1024


class Mark(NamedTuple):
    seconds: float
    tasks: int
    size: int


#: A class is refused from here on.  Statements have ten seconds, so the last mark is before they time out.
MARKS = {
    PriorityClass.LOW: Mark(2.0, 100_000, 64 * _MIB),
    PriorityClass.NORMAL: Mark(4.0, 200_000, 128 * _MIB),
    PriorityClass.HIGH: Mark(6.0, 300_000, 192 * _MIB),
    PriorityClass.CRITICAL: Mark(8.0, 400_000, 256 * _MIB),
}


def size_of(call: Call) -> int:
    return sum([len(task.payload) for task in call.tasks]) + _TASK_BYTES * len(call.tasks)


def rank_of(call: Call) -> int:
    """A call ranks as the least important of its tasks, or one critical task would carry a thousand others."""
    if len(call.tasks) == 1:
        return call.tasks[0].lane.priority
    return least_important(call.tasks)


def least_important(tasks: Sequence[NewTask]) -> PriorityClass:
    # Tasks of a batch share their lanes.
    lanes = {id(task.lane): task.lane for task in tasks}
    return max(lane.priority for lane in lanes.values())


class Pressure:
    def __init__(self, backlog: Callable[[], Backlog]) -> None:
        self._backlog = backlog

    def refuse(self, priority: PriorityClass) -> Overloaded | None:
        """Why nothing of this class is accepted now; None: it is."""
        waiting = self._backlog()
        mark = MARKS[priority]
        if waiting.seconds < mark.seconds and waiting.weight < mark.tasks and waiting.size < mark.size:
            return None
        return Overloaded(
            f"{waiting.weight:,} tasks wait to be stored, the oldest for {waiting.seconds:.1f} s;"
            f" submissions of the class {priority.word} are refused until there are fewer",
            max(1.0, waiting.seconds),
        )
