"""Who is alive: holders whose counter stands still are ended.

A holder lapses when its counter was seen unchanged for nine seconds (or as long
as it may be silent) of this process's own monotonic time, while its own calls
to the database succeeded throughout.  A database that was away, a process that was stopped, or a clock
that jumped therefore lapse nobody: the watch begins anew.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

import asyncpg
import structlog

from duetime.admin.tenants import read_names
from duetime.clock import Monotonic
from duetime.config import DEFAULT_SILENCE_SECONDS
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.lifecycle.holders.holders import SQL, Holders
from duetime.lifecycle.holders.lapse import LOOKBACK, end_silent_holders, sweep_left_behind
from duetime.lifecycle.tasks.onward import Onward
from duetime.scheduler.polls import Polls
from duetime.service import Loop
from duetime.signals import ignore

log = structlog.get_logger()
SILENCE_SECONDS = DEFAULT_SILENCE_SECONDS
LOOK_EVERY = timedelta(seconds=1)
#: A longer gap between two looks means that this process stood still itself.
LONGEST_GAP_SECONDS = 3.0
#: Whatever any holder ever left behind; between such sweeps only those that ended lately are looked at.
FULL_SWEEP_EVERY_SECONDS = 60.0
_EVER = timedelta(days=3650)
#: So many of those that lapsed, or are not heard, have a line of their own after one look.
MOST_NAMED = 20


class Watch:
    """Counters and since when they are unchanged; no I/O."""

    def __init__(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def look(
        self, beats: Mapping[int, int], at: float, silences: Mapping[int, float] = MappingProxyType({})
    ) -> list[tuple[int, int]]:
        """Take the counters read at this time; returns the holders that have been silent too long.

        Those in `silences` may be silent for so long, the others for as long as is usual.
        """
        if self._looked_at is not None and at - self._looked_at > LONGEST_GAP_SECONDS:
            self._seen.clear()
        self._looked_at = at
        self._seen = {
            holder: known if (known := self._seen.get(holder)) and known[0] == count else (count, at)
            for holder, count in beats.items()
        }
        return [
            (holder, count)
            for holder, (count, since) in self._seen.items()
            if at - since >= silences.get(holder, self._silence_seconds)
        ]

    def interrupted(self) -> None:
        """The database did not answer: nobody could have beaten."""
        self._seen.clear()
        self._looked_at = None


class Liveness:
    def __init__(
        self,
        database: Database,
        holders: Holders,
        onward: Onward,
        polls: Polls | None = None,
        monotonic: Monotonic = time.monotonic,
        silence_seconds: float = SILENCE_SECONDS,
        watch: Watch | None = None,
        on_lapsed: Callable[[set[int]], None] = ignore,
    ) -> None:
        """`on_lapsed` is told of the holders that were ended here."""
        self._database = database
        self._holders = holders
        self._onward = onward
        self._polls = polls
        self._monotonic = monotonic
        self._watch = watch or Watch(silence_seconds)
        self._full_sweep_at = monotonic()
        self._on_lapsed = on_lapsed
        self.loop = Loop("liveness", self.step, jitter=0.0)

    async def step(self) -> timedelta:
        """Look at the counters once, end who is silent, and move on what they left."""
        known = self._holders.known()
        asked = set() if self._polls is None else self._polls.holders()
        try:
            rows = await self._database.run(SQL["read_beats"], timeout=2.0)
            silences = {row["id"]: row["max_silence"] for row in rows if row["max_silence"] is not None}
            silent = self._watch.look({row["id"]: row["beats"] for row in rows}, self._monotonic(), silences)
            # Another node may have written what this one took for stored.
            self._holders.learn_silences(silences)
            ended = await end_silent_holders(self._database, self._holders, silent)
        except Unavailable:
            self._watch.interrupted()
            if self._polls is not None:
                self._polls.hearing.interrupted()
            # A sweep may have been cut off, and its holders ended longer ago than the next one looks back.
            self._full_sweep_at = self._monotonic()
            raise
        # Another node may have ended a holder that this one still knows by name.
        alive = {row["id"] for row in rows} - ended
        self._holders.forget(known - alive)
        if self._polls is not None:
            if gone := asked - alive:
                self._polls.forget(gone)
            unheard = self._polls.hear({row["id"]: row["beats"] for row in rows if row["id"] not in ended})
            for ask in unheard[:MOST_NAMED]:
                log.warning("a worker gets no work because no beat of it is heard", worker=ask.worker)
            if len(unheard) > MOST_NAMED:
                log.warning("more workers get no work because no beat is heard", count=len(unheard) - MOST_NAMED)
        if ended:
            self._on_lapsed(ended)
            await self._tell([row for row in rows if row["id"] in ended])
        is_full = self._monotonic() >= self._full_sweep_at
        swept = await sweep_left_behind(self._database, self._onward, _EVER if is_full else LOOKBACK)
        if is_full:
            self._full_sweep_at = self._monotonic() + FULL_SWEEP_EVERY_SECONDS
        if swept:
            log.info("attempts moved on from ended holders", attempts=swept)
        return LOOK_EVERY

    async def _tell(self, lapsed: Sequence[asyncpg.Record]) -> None:
        # A node's own executor has no tenant.
        tenants = {row["tenant"] for row in lapsed if row["tenant"] is not None}
        names = await read_names(self._database, tenants)
        # A tenant may make up thousands of workers: those of others have their lines all the same.
        counts = Counter(row["tenant"] for row in lapsed)
        lapsed = sorted(lapsed, key=lambda row: counts[row["tenant"]])
        for row in lapsed[:MOST_NAMED]:
            # Who never beat may be the last question of a worker that has signed off by now.
            tell = log.warning if row["beats"] else log.info
            tell("holder lapsed", holder=row["name"], tenant=names.get(row["tenant"], row["tenant"]))
        if left := Counter(names.get(row["tenant"], row["tenant"]) for row in lapsed[MOST_NAMED:]):
            named = dict(left.most_common(MOST_NAMED))
            log.warning("more holders lapsed, without a line each", count=left.total(), tenants=named)
