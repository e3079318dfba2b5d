"""How far each lane is drained for certain, without I/O.

A look at a lane shows the rows that are visible then; rows that become visible later
come from transactions that were open, or had not begun, at that time.  A note
(the database's time, and the number of its next transaction) is firm once every
transaction below that number has ended.  A transaction that stores a row reads the
database's clock after it has its number, and refuses wakes that lie more than the
tolerance before that time.  So after a look that found a lane empty up to a point,
everything before min(that point, the firm note's time minus the tolerance) has been
taken, for good.
"""

import uuid
from collections import deque

from duetime.ids import EARLIEST, due_ms_of, just_before


class Hints:
    def __init__(self, tolerance_ms: int) -> None:
        self._tolerance_ms = tolerance_ms
        self._notes: deque[tuple[int, int]] = deque()
        self._firm_ms: int | None = None
        self._noted_ms = 0
        self._lows: dict[int, uuid.UUID] = {}
        self._changed: set[int] = set()

    def low(self, lane: int) -> uuid.UUID:
        """Every row of the lane up to here has been taken."""
        return self._lows.get(lane, EARLIEST)

    def restore(self, lows: dict[int, uuid.UUID], now_ms: int) -> None:
        """Restore what an earlier feeder stored, without values from a clock that was ahead."""
        self._lows = {lane: low for lane, low in lows.items() if due_ms_of(low) <= now_ms}

    def note(self, now_ms: int, oldest_open: int, next_new: int) -> None:
        """Remember when this snapshot was taken, and which notes it makes firm."""
        if now_ms < self._noted_ms:
            # The clock went back, or an older answer came late.
            self.forget()
        self._noted_ms = now_ms
        while self._notes and self._notes[0][1] <= oldest_open:
            self._firm_ms = self._notes.popleft()[0]
        # Notes would pile up behind a transaction that stays open for hours.
        if len(self._notes) < 3600:
            self._notes.append((now_ms, next_new))

    def seen(self, lane: int, first: uuid.UUID | None) -> None:
        """Note that a look from the lane's low mark found `first` waiting, or nothing."""
        if self._firm_ms is None:
            return
        low = just_before(max(self._firm_ms - self._tolerance_ms, 0))
        if first is not None and first <= low:
            low = uuid.UUID(int=first.int - 1)
        if low > self.low(lane):
            self._lows[lane] = low
            self._changed.add(lane)

    def forget(self) -> None:
        """Forget everything: the database's clock went back, so nothing is certain any more."""
        self._notes.clear()
        self._firm_ms = None
        self._noted_ms = 0
        self._lows.clear()
        self._changed.clear()

    def take_changed(self) -> dict[int, uuid.UUID]:
        """The low marks that moved since the last call, for storing."""
        changed = {lane: self._lows[lane] for lane in self._changed if lane in self._lows}
        self._changed.clear()
        return changed
