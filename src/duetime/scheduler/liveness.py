"""Liveness: holders whose counter does not change are ended.

A holder lapses when this process has seen its counter unchanged for nine seconds (or
for as long as it may be silent) of its own monotonic time, while its own calls to the
database succeeded throughout.  So a database that was away, a process that was stopped,
or a clock that jumped lapses no holder: the watch begins again.
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
#: A longer gap between two looks means that this process itself stood still.
LONGEST_GAP_SECONDS = 3.0
#: How often to sweep what any holder ever left behind; sweeps in between cover only holders that ended lately.
FULL_SWEEP_EVERY_SECONDS = 60.0
_EVER = timedelta(days=3650)
#: How many lapsed or unheard holders get a log line of their own after one look.
MOST_NAMED = 20


class Watch:
    """The counters, and since when each is unchanged; no I/O."""

    def __init__(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def look(
        self, beats: Mapping[int, int], at: float, silences: Mapping[int, float] = MappingProxyType({})
    ) -> list[tuple[int, int]]:
        """Take the counters read at this time; returns the holders that have been silent too long.

        `silences` says how long some holders may be silent; the others may for the usual time.
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
        """Start counting again: the database did not answer, so no holder could beat."""
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
        """`on_lapsed` is called with the holders that were ended here."""
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
        """Look at the counters once, end silent holders, and move on the attempts that they left."""
        known = self._holders.known()
        asked = set() if self._polls is None else self._polls.holders()
        try:
            rows = await self._database.run(SQL["read_beats"], timeout=2.0)
            silences = {row["id"]: row["max_silence"] for row in rows if row["max_silence"] is not None}
            silent = self._watch.look({row["id"]: row["beats"] for row in rows}, self._monotonic(), silences)
            # Another node may have overwritten the values that this one takes for the stored ones.
            self._holders.learn_silences(silences)
            ended = await end_silent_holders(self._database, self._holders, silent)
        except Unavailable:
            self._watch.interrupted()
            if self._polls is not None:
                self._polls.hearing.interrupted()
            # A sweep may have been cut off, and its holders ended longer ago than the next sweep covers.
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
        # A tenant may invent thousands of workers: the workers of other tenants still get their lines.
        counts = Counter(row["tenant"] for row in lapsed)
        lapsed = sorted(lapsed, key=lambda row: counts[row["tenant"]])
        for row in lapsed[:MOST_NAMED]:
            # A holder that never beat may come from the last poll of a worker that has signed off since.
            tell = log.warning if row["beats"] else log.info
            tell("holder lapsed", holder=row["name"], tenant=names.get(row["tenant"], row["tenant"]))
        if left := Counter(names.get(row["tenant"], row["tenant"]) for row in lapsed[MOST_NAMED:]):
            named = dict(left.most_common(MOST_NAMED))
            log.warning("more holders lapsed, without a line each", count=left.total(), tenants=named)
