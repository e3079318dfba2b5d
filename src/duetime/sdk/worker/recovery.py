"""Recovered attempts: which of them may begin, and when.

An earlier holder lost these, perhaps because one of them killed it.  So an
attempt begins only after a beat has named it as started: if it kills this
worker as well, the server charges it for the crash.

Most are innocent: their worker was killed for some other reason.  They are
named together in one beat, as many as there are free slots, and run side by
side.  An attempt that was lost in two crashes is suspected: such attempts begin
one at a time, the next one when the previous one has run for a second.  An attempt
that was lost in more crashes runs while no other recovered attempt does, so that
no other is charged if it kills the worker again.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from duetime.sdk.worker.context import Held

#: An attempt that has run this long is no longer suspected of killing its worker at once.
TRIAL_SECONDS = 1.0
#: From the first number of crashes on, attempts begin one at a time; from the second on, each runs alone.
ONE_AT_A_TIME = 2
ALONE = 3


class Slots(Protocol):
    """Where attempts run."""

    def free_slots(self, is_async: bool) -> int: ...

    def add_first(self, held: Iterable[Held]) -> None: ...


class Recovery:
    def __init__(
        self, slots: Slots, beat_now: Callable[[], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._beat_now = beat_now
        self._monotonic = monotonic
        #: Must not begin yet.
        self._waiting: deque[Held] = deque()
        #: To be named as started by the next beat, or named by a beat that is not acknowledged yet.
        self._announced: set[Held] = set()
        #: May begin, or running.
        self._active: set[Held] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._announced or self._active)

    @property
    def announced(self) -> int:
        return len(self._announced)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, held: Held) -> None:
        self._waiting.append(held)

    def announce(self) -> None:
        """Choose the attempts that may begin now, so that the next beat names them."""
        if not self._waiting:
            return
        room = {
            is_async: self._slots.free_slots(is_async)
            - sum(each.handler.is_async is is_async for each in self._announced)
            for is_async in (True, False)
        }
        following: list[Held] = []
        stays: deque[Held] = deque()
        for held in self._waiting:
            is_async = held.handler.is_async
            if room[is_async] > 0 and self._may_begin(held):
                room[is_async] -= 1
                held.has_started = True
                self._announced.add(held)
                following.append(held)
            else:
                stays.append(held)
        self._waiting = stays
        if following:
            self._beat_now()

    def acknowledge(self, named: Collection[tuple[Held, bool]]) -> None:
        """Let the attempts begin that an acknowledged beat named as started."""
        if not self._announced:
            return
        heard = [held for held, has_started in named if has_started and held in self._announced]
        self._announced.difference_update(heard)
        self._active.update(heard)
        if heard:
            self._slots.add_first(heard)

    def discard(self, held: Held) -> None:
        """Forget an attempt that has ended or that this worker no longer holds."""
        self._active.discard(held)
        self._announced.discard(held)
        if held in self._waiting:
            self._waiting.remove(held)

    def take_idle(self) -> list[Held]:
        """Return all attempts that were not given to the slots yet."""
        idle = [*self._waiting, *self._announced]
        self._waiting.clear()
        self._announced.clear()
        return idle

    def _may_begin(self, held: Held) -> bool:
        others = self._announced | self._active
        if any(_crashes(other) >= ALONE for other in others):
            return False
        if _crashes(held) >= ALONE:
            return not others
        if _crashes(held) >= ONE_AT_A_TIME:
            return not any(self._is_on_trial(other) for other in others)
        return True

    def _is_on_trial(self, held: Held) -> bool:
        if _crashes(held) < ONE_AT_A_TIME:
            return False
        return held.started_us is None or self._monotonic() - held.began < TRIAL_SECONDS


def _crashes(held: Held) -> int:
    """How many crashes it was lost in. If the server does not say so, every attempt is suspected."""
    return ONE_AT_A_TIME if held.task.crashes is None else held.task.crashes
