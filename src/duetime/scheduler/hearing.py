"""Which holders get work without a beat being heard since: pure rules, no I/O.

A poll is no sign of life.  If polls get through and beats do not, a holder would be
given the same tasks again and again, and begin none of them.  So a holder that was
given work gets no more once a fixed time has passed without a beat.  If it then
lapses, a new holder of its name gets nothing before its first beat.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from duetime.clock import Monotonic
from duetime.lifecycle.holders.holders import BEAT_EVERY_SECONDS
from duetime.scheduler.plan import Ask

#: Two beats, and a look at the counters that came just before the second.
UNHEARD_SECONDS = 2 * BEAT_EVERY_SECONDS + 1.0
#: A longer gap between two looks means that this process itself stood still, and may have missed beats.
LONGEST_GAP_SECONDS = 3.0
#: Names of holders that ended unheard; beyond this number the oldest are forgotten.
_MOST_NAMES = 10_000


@dataclass(slots=True)
class _Given:
    ask: Ask
    #: The monotonic time since which it has work that no beat has named, and its counter at that time.
    since: float
    beats: int


class Hearing:
    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._given: dict[int, _Given] = {}
        #: The counters at the last look.
        self._beats: Mapping[int, int] = {}
        self._looked_at = monotonic()
        #: Holders that get nothing, and since when no beat was heard.
        self.unheard: dict[int, tuple[Ask, float]] = {}
        #: (tenant, name) of holders that ended unheard.
        self._names: dict[tuple[int | None, str], None] = {}

    def gave(self, ask: Ask) -> None:
        """Note that a holder was given work."""
        if ask.holder not in self._given:
            self._given[ask.holder] = _Given(ask, self._monotonic(), self._beats.get(ask.holder, 0))

    def is_unheard(self, ask: Ask) -> bool:
        """Whether a holder gets nothing until one of its beats is heard."""
        if ask.holder in self.unheard:
            return True
        if not self._names or (ask.tenant, ask.worker) not in self._names or self._beats.get(ask.holder, 0):
            return False
        self.unheard[ask.holder] = (ask, self._monotonic())
        return True

    def look(self, beats: Mapping[int, int]) -> list[Ask]:
        """Take the counters of all living holders; returns the asks that get nothing from now on."""
        now = self._monotonic()
        if now - self._looked_at > LONGEST_GAP_SECONDS:
            self.interrupted()
        self._beats, self._looked_at = beats, now
        for holder, given in list(self._given.items()):
            if beats.get(holder, 0) != given.beats:
                del self._given[holder]
        for holder, (ask, _) in list(self.unheard.items()):
            if holder not in self._given and beats.get(holder, 0):
                del self.unheard[holder]
                self._names.pop((ask.tenant, ask.worker), None)
        found = [
            (given.ask, given.since)
            for holder, given in self._given.items()
            if holder not in self.unheard and now - given.since >= UNHEARD_SECONDS
        ]
        self.unheard |= {ask.holder: (ask, since) for ask, since in found}
        return [ask for ask, _ in found]

    def interrupted(self) -> None:
        """Start counting again: the database did not answer, so no holder could beat."""
        now = self._monotonic()
        for given in self._given.values():
            given.since = now

    def forget(self, holders: Collection[int]) -> None:
        """Forget holders that have ended."""
        for holder in holders:
            given, unheard = self._given.pop(holder, None), self.unheard.pop(holder, None)
            ask = given.ask if given is not None else unheard[0] if unheard is not None else None
            if ask is not None and ask.worker:
                self._names[ask.tenant, ask.worker] = None
        while len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]
