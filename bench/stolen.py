"""The processors' time that the host gave to others while something was measured.

On a machine that is shared, a virtual processor that wants to run has to wait
for others ("steal" in /proc/stat).  That says nothing about what is measured: a run
that lost much of its time is made again, for every peer alike.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench.results import Run

#: A run that lost more of its time than this is made again, at most this often.
MOST_PERCENT = 8.0
MORE_RUNS = 2
_STEAL = 7


class Stolen:
    """The percentage of the processors' time that others had since this was made or asked last."""

    def __init__(self, file: Path = Path("/proc/stat")) -> None:
        self._file = file
        self._before = self._read()

    def percent(self) -> float:
        now = self._read()
        spent = [after - before for before, after in zip(self._before, now, strict=True)]
        self._before = now
        return round(100 * spent[_STEAL] / sum(spent), 1) if sum(spent) else 0.0

    def _read(self) -> list[int]:
        """user, nice, system, idle, iowait, irq, softirq, steal; empty if there is no such file."""
        try:
            line = self._file.read_text().split("\n", 1)[0]
        except OSError:
            return [0] * (_STEAL + 1)
        return [int(word) for word in line.split()[1 : _STEAL + 2]]


async def measure_undisturbed(
    measure: Callable[[], Awaitable[Run]],
    stolen: Stolen,
    more_runs: int,
    tell: Callable[[str], None],
    most_percent: float = MOST_PERCENT,
) -> Run:
    """Return one run, or the least disturbed of several."""
    best: Run | None = None
    for left in range(more_runs, -1, -1):
        stolen.percent()
        run = msgspec.structs.replace(await measure(), stolen_percent=stolen.percent())
        if best is None or run.stolen_percent < best.stolen_percent:
            best = run
        if best.stolen_percent <= most_percent or not left:
            return best
        tell(f"others had {run.stolen_percent:.0f} % of the processors' time: once more")
    raise AssertionError("unreachable")
