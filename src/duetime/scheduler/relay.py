"""The relay: looks into the outbox four times a second, and makes tasks of rows that became visible.

One node has the duty; two at once are harmless.  A look reads what the look
before could not see: rows of transactions that were open then, or that began
since.  So it costs next to nothing when nothing was written, however many rows
went through, and misses none, however late it was committed.  A look that finds many
rows takes turns with new looks, so that one producer's million delays no other.

Rows that were put aside, because their tenant may have no more tasks waiting, are
tried again once a second, tenant by tenant.

After every error, and now and then anyway, a look begins from nothing: numbers of
transactions mean nothing any more after the database was restored or failed over.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from duetime.lifecycle.submission.outbox import NOTHING_SEEN, Outbox, Snapshot
from duetime.service import Loop

BATCH = 1_000
_PAUSE = timedelta(seconds=0.25)
_AT_ONCE = timedelta(0)
_ASIDE_PAUSE = timedelta(seconds=1)
#: How many unfinished looks there may be; no new one begins beyond.
_MAX_LOOKS = 8
_WHOLE_EVERY_SECONDS = 10.0
#: A look at everything takes at most this share of the time.
_WHOLE_SHARE = 0.02
_BEGINNING = (0, 0)


@dataclass(frozen=True)
class _Look:
    """One pass over what `base` did not show, starting after a place."""

    base: Snapshot
    after: tuple[int, int] = _BEGINNING


class Relay:
    def __init__(
        self,
        outbox: Outbox,
        *,
        has_duty: Callable[[str], bool] = lambda duty: True,
        batch: int = BATCH,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._has_duty = has_duty
        self._batch = batch
        self._monotonic = monotonic
        #: The rows of this snapshot are relayed, or left to unfinished looks.
        self._seen = NOTHING_SEEN
        self._looks: deque[_Look] = deque()
        self._is_turn_of_old = False
        self._whole_at = 0.0
        self.loop = Loop("outbox", self.step)
        self.aside_loop = Loop("outbox aside", self.step_aside)

    async def step(self) -> timedelta:
        """Relay one batch; return no delay if there is more."""
        if not self._has_duty("outbox"):
            self._forget()
            return _PAUSE
        look = self._next()
        try:
            began_at = self._monotonic()
            seen, letters = await self._outbox.look(look.base, look.after, self._batch)
            if look == _Look(NOTHING_SEEN):
                now = self._monotonic()
                self._whole_at = now + max(_WHOLE_EVERY_SECONDS, (now - began_at) / _WHOLE_SHARE)
            is_complete = not letters or await self._outbox.relay(letters) == len(letters)
        except BaseException:
            self._forget()
            raise
        if not is_complete:
            # Another relay has these rows; if it gives up, they must be found again.
            self._forget()
            return _PAUSE
        if look.after == _BEGINNING:
            self._seen = seen
        if len(letters) == self._batch:
            self._looks.append(_Look(look.base, (letters[-1].transaction, letters[-1].id)))
        return _AT_ONCE if self._looks else _PAUSE

    async def step_aside(self) -> timedelta:
        """Relay some rows that were put aside and may become tasks by now."""
        if not self._has_duty("outbox"):
            return _ASIDE_PAUSE
        return _AT_ONCE if await self._outbox.relay_aside() else _ASIDE_PAUSE

    def _next(self) -> _Look:
        """The next look: an unfinished one and a new one in turns."""
        if self._looks and (self._is_turn_of_old or len(self._looks) >= _MAX_LOOKS):
            self._is_turn_of_old = False
            return self._looks.popleft()
        self._is_turn_of_old = True
        is_whole = not self._looks and self._monotonic() >= self._whole_at
        return _Look(NOTHING_SEEN if is_whole else self._seen)

    def _forget(self) -> None:
        self._seen = NOTHING_SEEN
        self._looks.clear()
