"""Which attempts a worker has to drop, by the answer to a beat.

A worker that was cut off may hold several attempts of one task.  Numbers grow,
and a task is claimed once at a time: if an attempt is lost, so is every older
one of its task.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from duetime.sdk.worker.context import Held, Stop
from duetime.sdk.worker.protocol import EndedAttempt, Verdicts


def dropped_by(
    verdicts: Verdicts, named: Iterable[tuple[Held, bool]], held: Collection[Held]
) -> list[tuple[Held, Stop]]:
    """Return the held attempts that this answer ends. `named` are the attempts that its beat named."""
    numbers: dict[str, list[int]] = {}
    for each, _ in named:
        numbers.setdefault(each.task.id, []).append(each.task.attempt)
    cancelled, lost = verdicts.cancelled_attempts, verdicts.lost_attempts
    # An older server lists tasks, not attempts.  If a task is cancelled, all its attempts end.
    ends = {task: max(numbers[task]) for task in verdicts.cancelled if task in numbers}
    newest_cancelled = ends if cancelled is None else _newest(cancelled)
    newest_lost = _newest_of_oldest(verdicts.lost, numbers) if lost is None else _newest(lost)
    dropped = []
    for each in held:
        task, number = each.task.id, each.task.attempt
        if number <= newest_cancelled.get(task, 0):
            dropped.append((each, Stop.CANCELLED))
        elif number <= newest_lost.get(task, 0):
            dropped.append((each, Stop.LOST))
    return dropped


def _newest(attempts: Iterable[EndedAttempt]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for each in attempts:
        newest[each.id] = max(newest.get(each.id, 0), each.attempt)
    return newest


def _newest_of_oldest(tasks: Iterable[str], numbers: Mapping[str, list[int]]) -> dict[str, int]:
    """An older server lists a task once for each lost attempt: that many of its oldest attempts are lost."""
    return {
        task: sorted(numbers[task])[min(count, len(numbers[task])) - 1]
        for task, count in Counter(tasks).items()
        if task in numbers
    }
