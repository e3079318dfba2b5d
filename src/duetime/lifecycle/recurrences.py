"""Compiled recurrences, kept for as long as they are used, and the named calendars they need."""

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from duetime.admin.quotas import lock_quotas
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput, NotFound
from duetime.model.quotas import DEFAULT_CALENDARS, Quotas
from duetime.model.schedule import ScheduleBody, decode_body
from duetime.recurrence import NamedCalendar, Recurrence, SpecError, check_calendar, compile_definition

SQL = load(__package__, "schedules.sql")
#: Memory does not grow with the number of schedules.
KEPT_RECURRENCES = 5_000
_KEPT_TENANTS = 1_000
_CALENDARS_SECONDS = 1.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NamedCalendar).decode


class StoredCalendar(msgspec.Struct, frozen=True):
    name: str
    version: int
    entries: NamedCalendar
    updated_at: datetime


class Recurrences:
    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._kept: OrderedDict[tuple[int, int, tuple[tuple[str, int], ...]], tuple[ScheduleBody, Recurrence]] = (
            OrderedDict()
        )
        self._calendars: dict[int, tuple[float, dict[str, StoredCalendar]]] = {}

    async def of(
        self, tenant: int, schedule: tuple[int, int], key: str, definition: bytes, calendars: Sequence[str]
    ) -> tuple[ScheduleBody, Recurrence]:
        """The body and recurrence of a stored schedule (its id and version); raises SpecError."""
        named = await self.calendars(tenant) if calendars else {}
        used = tuple((name, named[name].version) for name in calendars if name in named)
        place = (*schedule, used)
        found = self._kept.get(place)
        if found is None:
            body = decode_body(definition)
            found = (body, compile_body(body, key, named))
            self._kept[place] = found
            if len(self._kept) > KEPT_RECURRENCES:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(place)
        return found

    async def calendars(self, tenant: int) -> dict[str, StoredCalendar]:
        """The tenant's calendars, as they were a moment ago at most."""
        known = self._calendars.get(tenant)
        if known is not None and known[0] > self._monotonic():
            return known[1]
        rows = await self._database.run(SQL["read_calendars"], tenant=tenant)
        found = {
            row["name"]: StoredCalendar(row["name"], row["version"], _decode(row["entries"]), row["updated_at"])
            for row in rows
        }
        if len(self._calendars) >= _KEPT_TENANTS:
            self._calendars.clear()
        self._calendars[tenant] = (self._monotonic() + _CALENDARS_SECONDS, found)
        return found

    async def put_calendar(self, tenant: int, name: str, entries: NamedCalendar) -> bool:
        """Store a calendar; whether anything changed."""
        try:
            check_calendar(entries)
        except SpecError as error:
            raise InvalidInput.at(error.path, error.message) from error
        encoded = _encode(entries)
        weigh, put = SQL["weigh_calendars"], SQL["put_calendar"]
        asked: dict[str, object] = {"tenant": tenant, "name": name}
        async with self._database.connection() as connection, connection.transaction():
            quotas = await lock_quotas(connection, tenant)
            row = await connection.fetchrow(weigh.sql, *weigh.arguments(asked))
            _check_room(quotas, len(encoded), row["others"], row["bytes_of_others"], row["bytes"])
            rows = await connection.fetch(put.sql, *put.arguments({**asked, "entries": encoded}))
        self._calendars.pop(tenant, None)
        return bool(rows)

    async def delete_calendar(self, tenant: int, name: str) -> None:
        rows = await self._database.run(SQL["delete_calendar"], tenant=tenant, name=name)
        self._calendars.pop(tenant, None)
        if not rows:
            raise NotFound(f"there is no calendar {name[:80]}")


def _check_room(quotas: Quotas, size: int, others: int, size_of_others: int, old_size: int | None) -> None:
    """Raise if a calendar of this size is one too many; what only shrinks may stay over its quota."""
    most = DEFAULT_CALENDARS if quotas.max_calendars is None else quotas.max_calendars
    if old_size is None and others >= most:
        raise InvalidInput.at("name", f"a tenant has at most {most:,} calendars (max_calendars)")
    most_bytes = quotas.max_calendar_bytes
    if most_bytes is not None and size_of_others + size > most_bytes and size > (old_size or 0):
        raise InvalidInput.at(
            "dates",
            f"the calendars of a tenant have at most {most_bytes:,} bytes together (max_calendar_bytes);"
            f" the others have {size_of_others:,}, and this one {size:,}",
        )


def compile_body(body: ScheduleBody, key: str, calendars: Mapping[str, StoredCalendar]) -> Recurrence:
    """Raises SpecError, also for a calendar that is not there."""
    return compile_definition(body.definition(key), {name: each.entries for name, each in calendars.items()})
