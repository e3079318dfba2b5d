"""Starts of tasks, as the programs that run them note them: whose task it was, when it was submitted, when it began.

Times are epoch seconds of one machine's clock.  One program appends to a file, which
may be read while it grows.
"""

import math
import os
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<idd")


class Start(NamedTuple):
    #: The number in the task's payload.
    who: int
    submitted_at: float
    began_at: float

    @property
    def lag_ms(self) -> float:
        return 1000.0 * (self.began_at - self.submitted_at)


class Notes:
    """Where a program writes; what was noted is in the file after the next `write`."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._records: list[bytes] = []

    def note(self, who: int, submitted_at: float) -> None:
        self._records.append(_RECORD.pack(who, submitted_at, time.time()))

    def write(self) -> None:
        if self._records:
            records, self._records = self._records, []
            os.write(self._file, b"".join(records))


class Starts:
    """Reads what was noted since it was made, a part at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._place = file.stat().st_size if file.exists() else 0

    def unread(self) -> int:
        """How many were noted since the last `read`; this call costs almost nothing."""
        return (self._file.stat().st_size - self._place) // _RECORD.size if self._file.exists() else 0

    def read(self) -> list[Start]:
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._place)
            data = file.read()
        data = data[: len(data) // _RECORD.size * _RECORD.size]
        self._place += len(data)
        return [Start(*record) for record in _RECORD.iter_unpack(data)]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def rate_between(starts: Sequence[Start], first: float, last: float) -> float:
    """Starts a second between two instants."""
    return sum(first <= start.began_at < last for start in starts) / (last - first)


def by_second(starts: Sequence[Start], first: float, seconds: int) -> list[tuple[float, float]]:
    """(second from the first, starts in it): points of a plot."""
    counts = [0] * seconds
    for start in starts:
        place = math.floor(start.began_at - first)
        if 0 <= place < seconds:
            counts[place] += 1
    return [(float(second), float(count)) for second, count in enumerate(counts)]
