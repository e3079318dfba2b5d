"""The calls about schedules and calendars, without I/O: what both clients share.

A schedule is named by its caller, so to put, pause or delete it again changes
nothing.  A trigger and a backfill make something new each time: they are sent
once, and an answer that does not arrive is raised.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict
from urllib.parse import quote

import msgspec

from duetime.sdk.schedule_shapes import (
    Backfill,
    BackfillPage,
    Calendar,
    CalendarPage,
    CalendarPut,
    DeletedSchedule,
    Exclusion,
    Preview,
    PutResults,
    RunPage,
    Schedule,
    SchedulePage,
    Triggered,
    shape_schedule,
    shape_times,
)
from duetime.sdk.wire import Call, encode, make_query, without_none

MAX_PUT_BATCH = 1_000

_read_schedule = msgspec.json.Decoder(Schedule).decode
_read_page = msgspec.json.Decoder(SchedulePage).decode
_read_results = msgspec.json.Decoder(PutResults).decode
_read_deleted = msgspec.json.Decoder(DeletedSchedule).decode
_read_triggered = msgspec.json.Decoder(Triggered).decode
_read_runs = msgspec.json.Decoder(RunPage).decode
_read_backfill = msgspec.json.Decoder(Backfill).decode
_read_backfills = msgspec.json.Decoder(BackfillPage).decode
_read_preview = msgspec.json.Decoder(Preview).decode
_read_calendar = msgspec.json.Decoder(Calendar).decode
_read_calendars = msgspec.json.Decoder(CalendarPage).decode
_read_calendar_put = msgspec.json.Decoder(CalendarPut).decode


class ScheduleFilter(TypedDict, total=False):
    """Which schedules a list holds."""

    state: str | None
    origin: str | None
    source: str | None
    #: How their names begin.
    prefix: str | None


def _path(name: str, *rest: object) -> str:
    return "/".join(("/v1/schedules", *(quote(str(part), safe="") for part in (name, *rest))))


def _calendar_path(name: str) -> str:
    return f"/v1/calendars/{quote(name, safe='')}"


def put_schedule(name: str, type: str, payload: object, options: Mapping[str, Any]) -> Call[Schedule]:
    return Call("PUT", _path(name), _read_schedule, encode(shape_schedule(type, payload, options)))


def put_schedules(named: Iterable[Mapping[str, Any]]) -> Call[PutResults]:
    """Shaped definitions with their names, up to 1,000."""
    return Call("POST", "/v1/schedules/batch", _read_results, encode({"items": list(named)}))


def get_schedule(name: str) -> Call[Schedule]:
    return Call("GET", _path(name), _read_schedule)


def list_schedules(filter: ScheduleFilter, *, limit: int | None, cursor: str | None) -> Call[SchedulePage]:
    return Call("GET", "/v1/schedules" + make_query({**filter, "limit": limit, "cursor": cursor}), _read_page)


def delete_schedule(name: str, tasks: str, version: int | None) -> Call[DeletedSchedule]:
    return Call("DELETE", _path(name) + make_query({"tasks": tasks, "version": version}), _read_deleted)


def steer_schedule(verb: Literal["pause", "resume"], name: str, note: str | None) -> Call[Schedule]:
    return Call("POST", _path(name, verb), _read_schedule, encode(without_none({"note": note})))


def trigger_schedule(name: str, as_of: datetime | str | None) -> Call[Triggered]:
    body = encode(without_none({"as_of": as_of}))
    return Call("POST", _path(name, "trigger"), _read_triggered, body)


def schedule_runs(name: str, *, limit: int | None, cursor: str | None) -> Call[RunPage]:
    return Call("GET", _path(name, "runs") + make_query({"limit": limit, "cursor": cursor}), _read_runs)


def backfill_schedule(name: str, from_: datetime | str, to: datetime | str, rate: float | None) -> Call[Backfill]:
    body = encode(without_none({"from": from_, "to": to, "rate": rate}))
    return Call("POST", _path(name, "backfill"), _read_backfill, body)


def list_backfills(name: str) -> Call[BackfillPage]:
    return Call("GET", _path(name, "backfills"), _read_backfills)


def get_backfill(name: str, backfill: int) -> Call[Backfill]:
    return Call("GET", _path(name, "backfills", backfill), _read_backfill)


def cancel_backfill(name: str, backfill: int) -> Call[Backfill]:
    return Call("POST", _path(name, "backfills", backfill, "cancel"), _read_backfill)


def preview_schedule(
    name: str | None, options: Mapping[str, Any], *, count: int | None, from_: datetime | str | None
) -> Call[Preview]:
    """Of a stored schedule, or of what the options describe."""
    definition = shape_times(options)
    asked = without_none({"from": from_, "count": count})
    if definition == {"spec": {}}:
        if name is None:
            raise ValueError("preview_schedule: give the name of a schedule, or cron=, every= and so on")
        return Call("GET", _path(name, "preview") + make_query(asked), _read_preview)
    body = without_none({"name": name, **definition, **asked})
    return Call("POST", "/v1/schedules/preview", _read_preview, encode(body))


def put_calendar(name: str, dates: Iterable[Exclusion]) -> Call[CalendarPut]:
    return Call("PUT", _calendar_path(name), _read_calendar_put, encode({"dates": list(dates)}))


def get_calendar(name: str) -> Call[Calendar]:
    return Call("GET", _calendar_path(name), _read_calendar)


def list_calendars(*, cursor: str | None) -> Call[CalendarPage]:
    return Call("GET", "/v1/calendars" + make_query({"cursor": cursor}), _read_calendars)


def delete_calendar(name: str) -> Call[None]:
    return Call("DELETE", _calendar_path(name), lambda body: None)
