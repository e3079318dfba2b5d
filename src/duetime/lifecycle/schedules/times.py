"""The times of schedules: what is wrong with a definition, and when it fires.

A definition that takes too long, or is wrong by now, raises an `InvalidInput` that says so.
"""

from duetime.database.pool import Database
from duetime.lifecycle.schedules.evaluations import refusal_of
from duetime.lifecycle.schedules.reader import ScheduleReader
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.schedules.stored import StoredSchedule
from duetime.model.schedule import ScheduleBody
from duetime.recurrence import Fire, PreviewLine, Recurrence, SpecError


class ScheduleTimes(ScheduleReader):
    def __init__(self, database: Database, recurrences: Recurrences) -> None:
        super().__init__(database)
        self._recurrences = recurrences

    async def recurrence(self, schedule: StoredSchedule) -> tuple[ScheduleBody, Recurrence]:
        try:
            return await self._recurrences.of(
                schedule.tenant,
                (schedule.id, schedule.version),
                key_of(schedule.tenant, schedule.name),
                schedule.definition,
                schedule.calendars,
            )
        except SpecError as error:
            raise refusal_of(error) from error

    async def compile(self, tenant: int, name: str, body: ScheduleBody) -> Recurrence:
        """What a schedule would do; `InvalidInput` says what is wrong with it."""
        try:
            return await self._recurrences.compile(tenant, key_of(tenant, name), body)
        except SpecError as error:
            raise refusal_of(error) from error

    async def preview(self, tenant: int, recurrence: Recurrence, from_ms: int, count: int) -> list[PreviewLine]:
        """The times from one on, with what is excluded between them."""
        try:
            return await self._recurrences.preview(tenant, recurrence, from_ms, count)
        except SpecError as error:
            raise refusal_of(error) from error

    async def upcoming(
        self, tenant: int, body: ScheduleBody, recurrence: Recurrence, from_ms: int, count: int
    ) -> list[PreviewLine]:
        """A few times from one on, without what is excluded."""
        try:
            return await self._recurrences.upcoming(tenant, body.spec, recurrence, from_ms, count)
        except SpecError as error:
            raise refusal_of(error) from error

    async def first_fire(self, tenant: int, body: ScheduleBody, recurrence: Recurrence, now_ms: int) -> Fire | None:
        """The first fire that has not come yet. A search that may take long waits for its turn.

        The recurrence keeps the answer: asking again under a lock takes no time.
        """
        return await self._recurrences.first_fire(tenant, body, recurrence, now_ms)


def key_of(tenant: int, name: str) -> str:
    """The key that hashed slots and jitter are made from; it never changes."""
    return f"{tenant}/{name}"
