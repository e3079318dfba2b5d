"""Keep the node's idea of the database's time fresh, and report jumps."""

import time
from datetime import timedelta

import structlog

from duetime.database.pool import Database
from duetime.scheduler.feed import Feeder
from duetime.service import Loop

log = structlog.get_logger()
READ_EVERY = timedelta(seconds=1)
#: Smaller ones are the work of whoever keeps the clock right.
_NEWS_US = 500_000


class Clockwork:
    def __init__(self, database: Database, feeder: Feeder) -> None:
        self._database = database
        self._feeder = feeder
        self.loop = Loop("clock", self.step, jitter=0.0)

    async def step(self) -> timedelta:
        asked_at = time.monotonic()
        jump_us = await self._database.read_clock()
        answered_at = time.monotonic()
        # An answer that was long on its way is that much too low.
        news_us = _NEWS_US + int((answered_at - asked_at) * 1_000_000)
        if abs(jump_us) > news_us:
            log.warning("the database's clock jumped", seconds=round(jump_us / 1e6, 3))
        if jump_us < -news_us:
            self._feeder.clock_jumped(jump_us)
        return READ_EVERY
