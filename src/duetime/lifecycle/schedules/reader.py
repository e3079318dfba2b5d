"""Read stored schedules, and what became of their times."""

import uuid

import asyncpg

from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.errors import NotFound
from duetime.lifecycle.schedules.recurrences import SQL
from duetime.lifecycle.schedules.stored import StoredSchedule, stored_of
from duetime.model.schedule import ScheduleState


class ScheduleReader:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: int, name: str) -> StoredSchedule:
        rows = await self._database.run(SQL["find"], tenant=tenant, names=[name])
        if not rows:
            raise NotFound(f"there is no schedule {name[:80]}")
        return stored_of(rows[0])

    async def page(
        self,
        tenant: int,
        *,
        after: str = "",
        limit: int = 50,
        prefix: str | None = None,
        origin: str | None = None,
        source: str | None = None,
        state: ScheduleState | None = None,
        types: list[str] | None = None,
        task_lanes: list[int] | None = None,
    ) -> tuple[list[StoredSchedule], bool]:
        """The schedules after a name, and whether there are more.

        `types` are patterns of the types of the tasks that they make, `task_lanes` the lanes of these tasks.
        """
        found = await self._database.run(
            SQL["list"],
            tenant=tenant,
            after=after,
            limit=limit + 1,
            bytes=PAGE_BYTES,
            prefix=prefix,
            origin=origin,
            source=source,
            types=types,
            task_lanes=task_lanes,
            is_paused=None if state is None else state is ScheduleState.PAUSED,
            has_ended=None if state in (None, ScheduleState.PAUSED) else state is ScheduleState.ENDED,
        )
        rows, has_more = cut_page(found, limit)
        return [stored_of(row) for row in rows], has_more

    async def users_of(self, tenant: int, calendar: str, limit: int, after: str = "") -> list[str]:
        """Schedules that leave this calendar out, by name."""
        rows = await self._database.run(SQL["of_calendar"], tenant=tenant, calendar=calendar, after=after, limit=limit)
        return [row["name"] for row in rows]

    async def read_runs(self, schedule: StoredSchedule, before: uuid.UUID, limit: int) -> list[asyncpg.Record]:
        """What became of its times, the latest first."""
        return await self._database.run(SQL["read_runs"], schedule=schedule.id, before=before, limit=limit)

    async def room_left(self, tenant: int, most: int | None, wanted: int) -> int:
        """How many more schedules the tenant may have now, for a trial."""
        if most is None:
            return wanted
        [row] = await self._database.run(SQL["read_shard"], tenant=tenant)
        left: int = most - row["schedules"]
        return max(0, left)
