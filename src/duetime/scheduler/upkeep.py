"""Upkeep: make partitions ahead, end expired tasks, retire old rows; one node at a time.

Each duty is a separate step.  Of the nodes that share the shards one has the duty, the
others stand by; an advisory lock separates nodes that do not know each other, and ends
with its connection.
"""

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import structlog

from duetime.admin.breaker_states import retire_memories
from duetime.database.changing import retire_operations
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import EARLIEST
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.flow import retire_flow
from duetime.lifecycle.submission.outbox import retire_refused
from duetime.lifecycle.tasks.park import retire_places
from duetime.lifecycle.tasks.retire import (
    freeze_partitions,
    read_old_dead,
    retire_fires,
    retire_listed,
    retire_partitions,
    retire_requests,
    retire_rescheduled,
    retire_rows,
    trim_oldest,
)
from duetime.lifecycle.tasks.steer import SQL as STEER_SQL
from duetime.lifecycle.tasks.steer import Steering
from duetime.service import Loop

_SQL = load(__package__, "upkeep.sql")
log = structlog.get_logger()
_BATCH = 1_000
_HOUR_MS = 3_600_000
#: Rows may become visible after their end has passed, so the last minute is looked at again.
_LOOK_BACK = timedelta(minutes=1)


class Upkeep:
    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        lanes: Lanes,
        steering: Steering,
        *,
        retention: timedelta,
        dead_retention: timedelta,
        has_duty: Callable[[str], bool] = lambda duty: True,
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._lanes = lanes
        self._steering = steering
        self._retention = retention
        self._dead_retention = dead_retention
        self._has_duty = has_duty
        self._expired_to: tuple[datetime, uuid.UUID] = (datetime(1970, 1, 1, tzinfo=UTC), EARLIEST)
        self.loops: Sequence[Loop] = (
            Loop("expire", self.expire),
            Loop("prepare", self.prepare),
            Loop("tidy", self.tidy),
            Loop("retire", self.retire),
        )

    async def expire(self) -> timedelta:
        """End waiting tasks whose time to start is over."""
        if not self._has_duty("expire") or self._database.clock.is_held:
            return timedelta(seconds=1)
        until = self._database.clock.now()
        after, after_task = self._expired_to
        rows = await self._database.run(
            STEER_SQL["expire"], after=after, after_task=after_task, until=until, batch=_BATCH
        )
        if rows and rows[0]["seen"] == _BATCH:
            self._expired_to = (rows[0]["reached"], rows[0]["reached_task"])
            return timedelta(0)
        self._expired_to = (until - _LOOK_BACK, EARLIEST)
        return timedelta(seconds=1)

    async def prepare(self) -> timedelta:
        """Make partitions ahead, and learn the lanes that other nodes made."""
        await self._partitions.make_ahead()
        await self._lanes.load()
        return timedelta(seconds=30)

    async def tidy(self) -> timedelta:
        """Drop rows with their own retention: keys, dead letters, holders that ended long ago."""
        async with self._alone("tidy") as is_alone:
            if is_alone:
                now = self._database.clock.now()
                await retire_rows(self._database, now, self._retention)
                await retire_flow(self._database, now)
                await retire_places(self._database, now - timedelta(days=1))
                await retire_memories(self._database)
                await retire_operations(self._database)
                while old := await read_old_dead(self._database, now - self._dead_retention, _BATCH):
                    await self._steering.drop(old)
                    log.info("dead letters past their retention dropped", count=len(old))
                await retire_refused(self._database, now - self._dead_retention)
                await retire_requests(self._database, self._database.clock.now_ms() - 2 * _HOUR_MS)
        return timedelta(minutes=1)

    async def retire(self) -> timedelta:
        """Drop partitions past retention, and freeze those whose time is over."""
        async with self._alone("retire") as is_alone:
            if is_alone:
                now_ms = self._database.clock.now_ms()
                keep_ms = int(self._retention.total_seconds() * 1000)
                await retire_partitions(self._database, now_ms - keep_ms)
                await retire_fires(self._database, now_ms - keep_ms)
                await retire_listed(self._database, now_ms - keep_ms)
                await trim_oldest(self._database, self._database.clock.now() - self._retention)
                await retire_rescheduled(self._database, now_ms - keep_ms)
                await freeze_partitions(self._database, now_ms - _HOUR_MS)
        return timedelta(minutes=10)

    @asynccontextmanager
    async def _alone(self, duty: str) -> AsyncIterator[bool]:
        if not self._has_duty(duty):
            yield False
            return
        async with self._database.connection() as connection:
            [row] = await self._database.run_in(connection, _SQL["try_duty"], {"duty": duty})
            try:
                yield row["got"]
            finally:
                if row["got"] and not connection.is_closed():
                    await self._database.run_in(connection, _SQL["end_duty"], {"duty": duty})
