"""The relay: looks into the outbox four times a second, and makes tasks of what became visible.

One node has the duty; two at once are harmless.  A look reads what the look
before could not see: rows of transactions that were open then, or that began
since.  So it costs next to nothing when nothing was written, however many rows
went through, and misses none, however late it was committed.  Now and then a
look begins from nothing, because numbers of transactions mean nothing any more
after the database was restored or failed over.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from duetime.lifecycle.outbox import NOTHING_SEEN, Outbox, Snapshot
from duetime.service import Loop

BATCH = 1_000
_PAUSE = timedelta(seconds=0.25)
_WHOLE_EVERY_SECONDS = 10.0
#: A look at everything takes at most this share of the time.
_WHOLE_SHARE = 0.02


@dataclass
class _Look:
    """One pass over what is visible, in batches."""

    base: Snapshot
    began_at: float
    #: What its first batch could see; later batches only see more.
    seen: Snapshot | None = None
    after: tuple[int, int] = (0, 0)
    #: Every row that it met is relayed.
    is_complete: bool = True


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
        #: All that this shows is relayed.
        self._seen = NOTHING_SEEN
        self._look: _Look | None = None
        self._whole_at = 0.0
        self.loop = Loop("outbox", self.step)

    async def step(self) -> timedelta:
        """Relay one batch; come back at once if it was full."""
        if not self._has_duty("outbox"):
            self._seen, self._look = NOTHING_SEEN, None
            return _PAUSE
        look, self._look = self._look or self._begin(), None
        seen, letters = await self._outbox.look(look.base, look.after, self._batch)
        look.seen = look.seen or seen
        if letters and await self._outbox.relay(letters) < len(letters):
            look.is_complete = False
        if len(letters) == self._batch:
            look.after = (letters[-1].transaction, letters[-1].id)
            self._look = look
            return timedelta(0)
        self._end(look)
        return _PAUSE

    def _begin(self) -> _Look:
        now = self._monotonic()
        return _Look(NOTHING_SEEN if now >= self._whole_at else self._seen, now)

    def _end(self, look: _Look) -> None:
        if look.base is NOTHING_SEEN:
            now = self._monotonic()
            self._whole_at = now + max(_WHOLE_EVERY_SECONDS, (now - look.began_at) / _WHOLE_SHARE)
        if look.is_complete and look.seen is not None:
            self._seen = look.seen
