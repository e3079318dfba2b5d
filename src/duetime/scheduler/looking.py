"""The feeder's look at its lanes: it finds rows that were not reported to it.

Once a second, or every third second if looking is costly, it looks at its lanes from
where they are drained for certain, which finds rows whose commit became visible late; a
look from the very beginning takes at most 0.05 % of the time.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog

from duetime.clock import Monotonic
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Unavailable
from duetime.ids import LATEST, just_before
from duetime.lifecycle.submission.storing import MINT_TOLERANCE_MS
from duetime.lifecycle.tasks.claim import note, peek
from duetime.scheduler.hints import Hints
from duetime.scheduler.rounds import Rounds
from duetime.service import Loop

log = structlog.get_logger()
LOOK_EVERY = timedelta(seconds=1)
#: Looks take at most this share of the time, but come at least this often.
_LOOK_SHARE = 0.01
_LOOK_AT_LEAST_EVERY_SECONDS = 3.0
_NOTE_AHEAD_SECONDS = 0.1
KEEP_HINTS_EVERY_SECONDS = 15.0
#: The most lanes that one pass looks at; with more, lanes take turns.
LANES_PER_LOOK = 2_000
SQL = load(__package__, "looking.sql")


class Looker:
    def __init__(
        self,
        database: Database,
        own_lanes: Callable[[], list[int]],
        wake: Callable[[Iterable[uuid.UUID]], None],
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._database = database
        self._own_lanes = own_lanes
        self._wake = wake
        self.hints = Hints(MINT_TOLERANCE_MS)
        self._rounds = Rounds()
        self._look_turn = 0
        self._round_turn = 0
        self._keep_at = 0.0
        self.loop = Loop("look", self.step, jitter=0.0)

    async def start(self) -> None:
        """Look at everything once, from the point that the former feeder had reached."""
        rows = await self._database.run(SQL["read_hints"])
        self.hints.restore({row["lane"]: row["drained"] for row in rows}, self._database.clock.now_ms())
        await self.look_at(self._own_lanes())
        self._keep_at = self._monotonic() + KEEP_HINTS_EVERY_SECONDS

    async def step(self) -> timedelta:
        lanes = self._own_lanes()
        if not lanes:
            return LOOK_EVERY
        chosen, self._look_turn = _take_turns(lanes, self._look_turn)
        around = await note(self._database)
        self.hints.note(around.now_us // 1000, around.oldest_open, around.next_new)
        # By then the statements of that moment have ended, so the look can tell what is drained up to it.
        await asyncio.sleep(_NOTE_AHEAD_SECONDS)
        looked_at = self._monotonic()
        await self._look({lane: self.hints.low(lane) for lane in chosen})
        began = self._monotonic()
        pause = min((began - looked_at) / _LOOK_SHARE, _LOOK_AT_LEAST_EVERY_SECONDS)
        await self._go_round(lanes)
        if began >= self._keep_at:
            self._keep_at = began + KEEP_HINTS_EVERY_SECONDS
            await self.keep_hints()
        return max(LOOK_EVERY, timedelta(seconds=pause))

    async def look_at(self, lanes: list[int]) -> None:
        for place in range(0, len(lanes), LANES_PER_LOOK):
            await self._look({lane: self.hints.low(lane) for lane in lanes[place : place + LANES_PER_LOOK]})

    async def keep_hints(self) -> None:
        """Store the hints for the next feeder, which begins further back without them."""
        lows = self.hints.take_changed()
        if lows:
            await run_once(self._database, SQL["keep_hints"], lanes=list(lows), drained=list(lows.values()))

    async def keep_hints_or_not(self) -> None:
        try:
            await self.keep_hints()
        except Unavailable as error:
            log.warning("hints could not be kept", error=str(error))

    async def _go_round(self, lanes: list[int]) -> None:
        """Look from the very beginning, whatever the hints say, as far as the allowed time goes."""
        while stretch := self._rounds.next(self._database.clock.now_ms(), began := self._monotonic()):
            from_ms, until_ms = stretch
            chosen, turn = _take_turns(lanes, self._round_turn)
            if until_ms is None:
                self._round_turn = turn
            until = LATEST if until_ms is None else just_before(until_ms)
            await self._look(dict.fromkeys(chosen, just_before(from_ms)), until)
            self._rounds.looked(until_ms, began, self._monotonic())

    async def _look(self, hints: dict[int, uuid.UUID], until: uuid.UUID = LATEST) -> None:
        look = await peek(self._database, hints, until)
        self.hints.note(look.now_us // 1000, look.oldest_open, look.next_new)
        found = []
        for lane, first in look.first.items():
            if until == LATEST and hints[lane] <= self.hints.low(lane):
                self.hints.seen(lane, first)
            if first is not None:
                found.append(first)
        if found:
            self._wake(found)


def _take_turns(lanes: list[int], turn: int) -> tuple[list[int], int]:
    if len(lanes) <= LANES_PER_LOOK:
        return lanes, 0
    turn %= len(lanes)
    return (lanes[turn:] + lanes[:turn])[:LANES_PER_LOOK], turn + LANES_PER_LOOK
