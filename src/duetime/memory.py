"""Memory goes back to the system when a busy time is over.

Large requests leave free memory behind, which the allocator keeps for the next ones: 10
to 20 MB of a node that from then on only waits.  While it is busy, nothing is given back:
it would be asked for again at once.
"""

import ctypes
from collections.abc import Callable
from datetime import timedelta

from duetime.service import Loop
from duetime.turns import Turns

LOOK_EVERY = timedelta(seconds=2)


def find_trim() -> Callable[[], object]:
    """The C library's own call, where it has one (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim is not None else (lambda: None)


class Memory:
    def __init__(self, turns: Turns, trim: Callable[[], object] | None = None) -> None:
        self._turns = turns
        self._trim = trim or find_trim()
        #: Long pieces of work until the last look, and until memory was given back last.
        self._seen = self._trimmed = turns.count
        self.loop = Loop("memory", self.step)

    async def step(self) -> timedelta:
        """Once for each busy time, when nothing was done between two looks."""
        if self._turns.count == self._seen != self._trimmed:
            self._trim()
            self._trimmed = self._seen
        self._seen = self._turns.count
        return LOOK_EVERY
