"""Keep the node's copy of the database's clock up to date, and report jumps.

The first answer that carries the time shows a jump.  After a large one nothing is
claimed or fired until the clock has been read again: an answer that was wrong for a
moment then does no harm.
"""

import asyncio
from datetime import timedelta

import structlog

from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.service import Loop

log = structlog.get_logger()
READ_EVERY = timedelta(seconds=1)
#: The time between two readings while the clock jumps to and fro or the database does not answer.
_AGAIN_SECONDS = 0.1


class ClockSync:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_stopping = False
        self._reading: asyncio.Task[None] | None = None
        self.loop = Loop("clock", self.step, jitter=0.0)
        database.clock.jumped.listen(self._jumped)

    async def step(self) -> timedelta:
        await self._database.read_clock()
        return READ_EVERY

    async def start(self) -> None:
        self.loop.start()

    async def stop(self) -> None:
        self._is_stopping = True
        await self.loop.stop()
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _jumped(self, jump_us: int) -> None:
        log.warning("the database's clock jumped", seconds=round(jump_us / 1e6, 3))
        is_reading = self._reading is not None and not self._reading.done()
        if self._database.clock.is_held and not is_reading and not self._is_stopping:
            self._reading = asyncio.create_task(self._read_anew(), name="read the clock anew")

    async def _read_anew(self) -> None:
        while self._database.clock.is_held:
            try:
                await self._database.read_clock()
            except Unavailable:
                # Nothing can be claimed meanwhile, either.
                pass
            if self._database.clock.is_held:
                await asyncio.sleep(_AGAIN_SECONDS)
