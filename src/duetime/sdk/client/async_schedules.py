"""The calls of a client about schedules and calendars."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Literal, Unpack

from duetime.sdk.calls import schedules as calls
from duetime.sdk.calls.schedules import CALENDARS, SCHEDULES, ScheduleFilter
from duetime.sdk.client.async_sender import AsyncCallSender
from duetime.sdk.shapes.schedules import (
    Backfill,
    Calendar,
    CalendarPut,
    DeletedSchedule,
    Exclusion,
    Preview,
    Run,
    Schedule,
    ScheduleOptions,
    TimesOptions,
    Triggered,
    shape_schedule,
    shape_times,
)


class AsyncSchedules(AsyncCallSender):
    """Schedules, which make tasks, and calendars of the times that they exclude."""

    async def schedule(
        self, name: str, type: str, payload: object = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create or replace a schedule. Absent options get their defaults, even if they were set before."""
        return await self.send(SCHEDULES.put(name, shape_schedule(type, payload, options)))

    async def get_schedule(self, name: str) -> Schedule:
        return await self.send(SCHEDULES.get(name))

    def list_schedules(
        self, *, page_size: int | None = None, **filter: Unpack[ScheduleFilter]
    ) -> AsyncIterator[Schedule]:
        """Return every schedule that matches, by name. The iterator reads one page at a time."""
        return self.items(lambda cursor: SCHEDULES.list(**filter, limit=page_size, cursor=cursor))

    async def delete_schedule(
        self, name: str, tasks: Literal["keep", "cancel"] = "keep", *, version: int | None = None
    ) -> DeletedSchedule:
        """Delete a schedule. `tasks="cancel"` also cancels the tasks that it made and that are not over."""
        return await self.send(calls.delete_schedule(name, tasks, version))

    async def pause_schedule(self, name: str, note: str | None = None) -> Schedule:
        return await self.send(calls.steer_schedule("pause", name, note))

    async def resume_schedule(self, name: str, note: str | None = None) -> Schedule:
        """Resume a schedule with its next time. Times that passed meanwhile are not made up for."""
        return await self.send(calls.steer_schedule("resume", name, note))

    async def trigger_schedule(self, name: str, as_of: datetime | str | None = None) -> Triggered:
        """Start a run at once, for now or for a time in the past."""
        return await self.send(calls.trigger_schedule(name, as_of))

    def schedule_runs(self, name: str, *, page_size: int | None = None) -> AsyncIterator[Run]:
        """Return what happened at the schedule's times, the latest first."""
        return self.items(lambda cursor: calls.schedule_runs(name, limit=page_size, cursor=cursor))

    async def backfill_schedule(
        self, name: str, from_: datetime | str, to: datetime | str, *, rate: float | None = None
    ) -> Backfill:
        """Make the tasks of a past range, at `rate` per second."""
        return await self.send(calls.backfill_schedule(name, from_, to, rate))

    async def list_backfills(self, name: str) -> list[Backfill]:
        page = await self.send(calls.list_backfills(name))
        return page.items

    async def get_backfill(self, name: str, backfill: int) -> Backfill:
        return await self.send(calls.get_backfill(name, backfill))

    async def cancel_backfill(self, name: str, backfill: int) -> Backfill:
        """Stop a backfill. The tasks that it made stay."""
        return await self.send(calls.cancel_backfill(name, backfill))

    async def preview_schedule(
        self,
        name: str | None = None,
        *,
        count: int | None = None,
        from_: datetime | str | None = None,
        **options: Unpack[TimesOptions],
    ) -> Preview:
        """Preview a stored schedule, or the one that the options describe under this name (which decides `H`)."""
        definition = shape_times(options)
        is_stored = definition == {"spec": {}}
        if is_stored and name is None:
            raise ValueError("preview_schedule: give the name of a schedule, or cron=, every= and so on")
        given = {} if is_stored else definition
        return await self.send(calls.preview_schedule(name, given, count=count, from_=from_))

    async def put_calendar(self, name: str, dates: Iterable[Exclusion]) -> CalendarPut:
        """Create or replace a calendar, whose times schedules can exclude by its name."""
        return await self.send(calls.put_calendar(name, dates))

    async def get_calendar(self, name: str) -> Calendar:
        return await self.send(CALENDARS.get(name))

    async def list_calendars(self) -> list[Calendar]:
        return [each async for each in self.items(lambda cursor: CALENDARS.list(cursor=cursor))]

    async def delete_calendar(self, name: str) -> None:
        await self.send(CALENDARS.delete(name))
