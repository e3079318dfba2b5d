# Made by tests/sdk/write_client.py of async_schedules.py: change that, then `make client`.
"""The calls of a client about schedules and calendars."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal, Unpack

from duetime.sdk.calls import schedules as calls
from duetime.sdk.calls.schedules import CALENDARS, SCHEDULES, ScheduleFilter
from duetime.sdk.client.sync_sender import CallSender
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


class Schedules(CallSender):
    """Schedules, which make tasks, and calendars of the times that they exclude."""

    def schedule(self, name: str, type: str, payload: object = None, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Create or replace a schedule. Absent options get their defaults, even if they were set before."""
        return self.send(SCHEDULES.put(name, shape_schedule(type, payload, options)))

    def get_schedule(self, name: str) -> Schedule:
        return self.send(SCHEDULES.get(name))

    def list_schedules(self, *, page_size: int | None = None, **filter: Unpack[ScheduleFilter]) -> Iterator[Schedule]:
        """Return every schedule that matches, by name. The iterator reads one page at a time."""
        return self.items(lambda cursor: SCHEDULES.list(**filter, limit=page_size, cursor=cursor))

    def delete_schedule(
        self, name: str, tasks: Literal["keep", "cancel"] = "keep", *, version: int | None = None
    ) -> DeletedSchedule:
        """Delete a schedule. `tasks="cancel"` also cancels the tasks that it made and that are not over."""
        return self.send(calls.delete_schedule(name, tasks, version))

    def pause_schedule(self, name: str, note: str | None = None) -> Schedule:
        return self.send(calls.steer_schedule("pause", name, note))

    def resume_schedule(self, name: str, note: str | None = None) -> Schedule:
        """Resume a schedule with its next time. Times that passed meanwhile are not made up for."""
        return self.send(calls.steer_schedule("resume", name, note))

    def trigger_schedule(self, name: str, as_of: datetime | str | None = None) -> Triggered:
        """Start a run at once, for now or for a time in the past."""
        return self.send(calls.trigger_schedule(name, as_of))

    def schedule_runs(self, name: str, *, page_size: int | None = None) -> Iterator[Run]:
        """Return what happened at the schedule's times, the latest first."""
        return self.items(lambda cursor: calls.schedule_runs(name, limit=page_size, cursor=cursor))

    def backfill_schedule(
        self, name: str, from_: datetime | str, to: datetime | str, *, rate: float | None = None
    ) -> Backfill:
        """Make the tasks of a past range, at `rate` per second."""
        return self.send(calls.backfill_schedule(name, from_, to, rate))

    def list_backfills(self, name: str) -> list[Backfill]:
        page = self.send(calls.list_backfills(name))
        return page.items

    def get_backfill(self, name: str, backfill: int) -> Backfill:
        return self.send(calls.get_backfill(name, backfill))

    def cancel_backfill(self, name: str, backfill: int) -> Backfill:
        """Stop a backfill. The tasks that it made stay."""
        return self.send(calls.cancel_backfill(name, backfill))

    def preview_schedule(
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
        return self.send(calls.preview_schedule(name, given, count=count, from_=from_))

    def put_calendar(self, name: str, dates: Iterable[Exclusion]) -> CalendarPut:
        """Create or replace a calendar, whose times schedules can exclude by its name."""
        return self.send(calls.put_calendar(name, dates))

    def get_calendar(self, name: str) -> Calendar:
        return self.send(CALENDARS.get(name))

    def list_calendars(self) -> list[Calendar]:
        return list(self.items(lambda cursor: CALENDARS.list(cursor=cursor)))

    def delete_calendar(self, name: str) -> None:
        self.send(CALENDARS.delete(name))
