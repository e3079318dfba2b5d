"""Named calendars: times that many schedules leave out."""

from dataclasses import dataclass
from functools import partial

from duetime.api.problems import with_more, wrong_with_each
from duetime.api.schedules import operations, views
from duetime.api.schedules.queries import make_name_cursor, read_name_cursor
from duetime.api.schedules.reading import check_name
from duetime.api.schedules.schemas import CalendarRequest
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.filters import read_page
from duetime.errors import Conflict, FieldError, InvalidInput
from duetime.lifecycle.schedules.calendars import Calendars, StoredCalendar
from duetime.lifecycle.schedules.changes import Schedules
from duetime.recurrence import NamedCalendar, find_calendar_errors

_decode = make_decoder(CalendarRequest)


@dataclass(frozen=True)
class CalendarCalls:
    calendars: Calendars
    schedules: Schedules

    def routes(self) -> list[Route]:
        return [
            Route(operations.LIST_CALENDARS, self.list),
            Route(operations.GET_CALENDAR, self.get),
            Route(operations.PUT_CALENDAR, self.put),
            Route(operations.DELETE_CALENDAR, self.delete),
        ]

    async def list(self, request: Request) -> Answer:
        cursor, limit = read_page(request.query())
        found, has_more = await self.calendars.page(request.caller.tenant, read_name_cursor(cursor), limit)
        following = make_name_cursor(found[-1].name) if has_more else None
        return json_answer(200, views.CalendarPage([_view_of(each) for each in found], following))

    async def get(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, _view_of(await self._find(request)))

    async def put(self, request: Request) -> Answer:
        request.query()
        name, tenant = request.path["name"], request.caller.tenant
        judge = partial(_check, name)
        asked = await request.json(_decode, judge=judge)
        try:
            check_name(name)
            has_changed = await self.calendars.put(tenant, name, NamedCalendar(exclude=tuple(asked.dates)))
        except InvalidInput as error:
            raise with_more(_of_dates(error), partial(judge, asked)) from error
        replanned = await self.schedules.replan_users_of(tenant, name) if has_changed else 0
        return json_answer(200, views.CalendarPut(name, (await self._find(request)).version, replanned))

    async def delete(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        stored = await self._find(request)
        users = await self.schedules.users_of(request.caller.tenant, stored.name, 1)
        if users:
            raise Conflict(f"schedule {users[0]} leaves this calendar out; change it first")
        await self.calendars.delete(request.caller.tenant, stored.name)
        return Answer(204, b"")

    async def _find(self, request: Request) -> StoredCalendar:
        return await self.calendars.find(request.caller.tenant, request.path["name"])


def _check(name: str, asked: CalendarRequest) -> None:
    """Raise everything that is wrong with a calendar that is refused."""
    errors = wrong_with_each(lambda: check_name(name))
    found = find_calendar_errors(NamedCalendar(exclude=tuple(asked.dates)))
    wrong = InvalidInput.all([FieldError(each.path, each.message) for each in found])
    errors += _of_dates(wrong).errors
    if errors:
        raise InvalidInput.all(errors)


def _of_dates(error: InvalidInput) -> InvalidInput:
    """The error with the field names of the request."""
    renamed = [FieldError(each.path.replace("exclude", "dates", 1), each.message) for each in error.errors]
    return InvalidInput.all(renamed)


def _view_of(calendar: StoredCalendar) -> views.CalendarView:
    dates = [*calendar.entries.dates, *calendar.entries.exclude]
    return views.CalendarView(calendar.name, dates, calendar.version, calendar.updated_at)
