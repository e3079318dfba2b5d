"""Keep the node's idea of the database's time fresh, and report jumps."""

import time
from datetime import timedelta

import structlog

from duetime.database.pool import Database
from duetime.scheduler.feed import Feeder
from duetime.service import Loop

log = structlog.get_logger()
READ_EVERY = timedelta(seconds=1)
#: An answer that took long looks like a small jump; only larger ones are news.
_NEWS_US = 500_000


class Clockwork:
    def __init__(self, database: Database, feeder: Feeder) -> None:
        self._database = database
        self._feeder = feeder
        #: When the database last told its time, in monotonic seconds.
        self.answered_at = time.monotonic()
        self.loop = Loop("clock", self.step, jitter=0.0)

    async def step(self) -> timedelta:
        jump_us = await self._database.read_clock()
        self.answered_at = time.monotonic()
        if abs(jump_us) > _NEWS_US:
            log.warning("the database's clock jumped", seconds=round(jump_us / 1e6, 3))
        # A slow answer moves the bound back a little; that costs a look, and loses nothing.
        if jump_us < -_NEWS_US:
            self._feeder.clock_jumped(jump_us)
        return READ_EVERY
