"""Give memory back to the system when a busy time is over.

Large requests leave free memory behind, which the allocator keeps for the next ones: 10
to 20 MB that an idle node does not need.  While the node is busy, nothing is given back,
because it would need the memory again at once.
"""

import ctypes
from collections.abc import Callable
from datetime import timedelta

from duetime.long_work import LongWork
from duetime.service import Loop

LOOK_EVERY = timedelta(seconds=2)


def find_trim() -> Callable[[], object]:
    """The function of the C library, if it has one (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: trim(0)) if trim is not None else (lambda: None)


class Memory:
    def __init__(self, turns: LongWork, trim: Callable[[], object] | None = None) -> None:
        self._turns = turns
        self._trim = trim or find_trim()
        #: The count of long pieces of work at the last check, and when memory was last given back.
        self._seen = self._trimmed = turns.count
        self.loop = Loop("memory", self.step)

    async def step(self) -> timedelta:
        """Give memory back once after each busy time, when nothing was done between two checks."""
        if self._turns.count == self._seen != self._trimmed:
            self._trim()
            self._trimmed = self._seen
        self._seen = self._turns.count
        return LOOK_EVERY
