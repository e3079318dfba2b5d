"""Deadlines of many items under one timer.

The timer is set for the earliest deadline it knows; when it fires it checks the
items that are still there.  Most items are over long before their deadline, so
adding and discarding one costs no more than an entry in a dictionary.
"""

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

# uvloop's timers fire within half a millisecond of their time, and sometimes before it.
_EARLY_SECONDS = 0.001


class Deadlines(Generic[Item]):
    """`expire` is called with each item that is still there at its deadline, a time of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Item], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._deadlines: dict[Item, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = math.inf

    def add(self, item: Item, deadline: float) -> None:
        self._deadlines[item] = deadline
        if deadline < self._fires_at:
            self._set_timer(deadline)

    def discard(self, item: Item) -> None:
        self._deadlines.pop(item, None)

    def close(self) -> None:
        """Forget everything."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fires_at = math.inf

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._fire)
        self._fires_at = at

    def _fire(self) -> None:
        self._timer, self._fires_at = None, math.inf
        by = self._loop.time() + _EARLY_SECONDS
        expired = [item for item, deadline in self._deadlines.items() if deadline <= by]
        for item in expired:
            # The callback of one that expired may have removed others.
            if self._deadlines.pop(item, None) is not None:
                self._expire(item)
        if self._timer is None and self._deadlines:
            self._set_timer(min(self._deadlines.values()))
