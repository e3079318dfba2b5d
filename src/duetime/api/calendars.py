"""Named calendars: times that many schedules leave out."""

from dataclasses import dataclass

from duetime.api import schedule_operations as operations
from duetime.api import schedule_views as views
from duetime.api.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.schedule_reading import check_name
from duetime.api.schedule_schemas import CalendarRequest
from duetime.errors import Conflict, FieldError, InvalidInput, NotFound
from duetime.lifecycle.recurrences import Recurrences, StoredCalendar
from duetime.lifecycle.schedules import Schedules
from duetime.recurrence import NamedCalendar, find_calendar_errors

_decode = make_decoder(CalendarRequest)


@dataclass(frozen=True)
class CalendarCalls:
    recurrences: Recurrences
    schedules: Schedules

    def routes(self) -> list[Route]:
        return [
            Route(operations.LIST_CALENDARS, self.list),
            Route(operations.GET_CALENDAR, self.get),
            Route(operations.PUT_CALENDAR, self.put),
            Route(operations.DELETE_CALENDAR, self.delete),
        ]

    async def list(self, request: Request) -> Answer:
        request.query()
        found = await self.recurrences.calendars(request.caller.tenant)
        return json_answer(200, views.CalendarPage([_view_of(each) for each in found.values()], None))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, _view_of(await self._find(request)))

    async def put(self, request: Request) -> Answer:
        request.query()
        name = check_name(request.path["name"])
        asked = await request.json(_decode)
        tenant = request.caller.tenant
        entries = NamedCalendar(exclude=tuple(asked.dates))
        try:
            has_changed = await self.recurrences.put_calendar(tenant, name, entries)
        except InvalidInput as error:
            found = {each.path: each.message for each in error.errors}
            found |= {each.path: each.message for each in find_calendar_errors(entries)}
            errors = [FieldError(path.replace("exclude", "dates", 1), message) for path, message in found.items()]
            raise InvalidInput.all(errors) from error
        replanned = await self.schedules.replan_users_of(tenant, name) if has_changed else 0
        return json_answer(200, views.CalendarPut(name, (await self._find(request)).version, replanned))

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        stored = await self._find(request)
        users = await self.schedules.users_of(request.caller.tenant, stored.name, 1)
        if users:
            raise Conflict(f"schedule {users[0]} leaves this calendar out; change it first")
        await self.recurrences.delete_calendar(request.caller.tenant, stored.name)
        return Answer(204, b"")

    async def _find(self, request: Request) -> StoredCalendar:
        name = request.path["name"]
        found = (await self.recurrences.calendars(request.caller.tenant)).get(name)
        if found is None:
            raise NotFound(f"there is no calendar {name[:80]}")
        return found


def _view_of(calendar: StoredCalendar) -> views.CalendarView:
    dates = [*calendar.entries.dates, *calendar.entries.exclude]
    return views.CalendarView(calendar.name, dates, calendar.version, calendar.updated_at)
