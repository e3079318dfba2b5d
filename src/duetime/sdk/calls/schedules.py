"""The calls about schedules and calendars.

The caller names a schedule, so repeating a put, pause or delete changes
nothing. A trigger and a backfill make something new each time: they are sent
once, and if no answer arrives, the error is raised.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from duetime.sdk.calls.call import ApiCall, encode, make_query, without_none
from duetime.sdk.calls.collection import Collection
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.schedules import (
    Backfill,
    Calendar,
    CalendarPut,
    DeletedSchedule,
    Preview,
    PutResults,
    Run,
    Schedule,
    Triggered,
)

MAX_PUT_BATCH = 1_000

SCHEDULES = Collection("schedules", Schedule, Page[Schedule])
CALENDARS = Collection("calendars", Calendar, Page[Calendar])

_read_results = msgspec.json.Decoder(PutResults).decode
_read_deleted = msgspec.json.Decoder(DeletedSchedule).decode
_read_triggered = msgspec.json.Decoder(Triggered).decode
_read_runs = msgspec.json.Decoder(Page[Run]).decode
_read_backfill = msgspec.json.Decoder(Backfill).decode
_read_backfills = msgspec.json.Decoder(Page[Backfill]).decode
_read_preview = msgspec.json.Decoder(Preview).decode
_read_calendar_put = msgspec.json.Decoder(CalendarPut).decode


class ScheduleFilter(TypedDict, total=False):
    """Which schedules to list."""

    state: str | None
    origin: str | None
    source: str | None
    #: The prefix of their names.
    prefix: str | None


def put_schedules(named: Iterable[Mapping[str, Any] | None], *, dry_run: bool = False) -> ApiCall[PutResults]:
    """Put up to 1,000 definitions that have names. With `dry_run`, only say what would be done."""
    path = "/v1/schedules/batch?dry_run=true" if dry_run else "/v1/schedules/batch"
    return ApiCall("POST", path, _read_results, encode({"items": list(named)}))


def delete_schedule(name: str, tasks: str | None, version: int | None) -> ApiCall[DeletedSchedule]:
    query = make_query({"tasks": tasks, "version": version})
    return ApiCall("DELETE", SCHEDULES.path_of(name) + query, _read_deleted)


def steer_schedule(verb: Literal["pause", "resume"], name: str, note: str | None) -> ApiCall[Schedule]:
    return SCHEDULES.act(verb, name, without_none({"note": note}))


def trigger_schedule(name: str, as_of: datetime | str | None) -> ApiCall[Triggered]:
    return SCHEDULES.post((name, "trigger"), without_none({"as_of": as_of}), _read_triggered)


def schedule_runs(name: str, *, limit: int | None, cursor: str | None) -> ApiCall[Page[Run]]:
    query = make_query({"limit": limit, "cursor": cursor})
    return ApiCall("GET", SCHEDULES.path_of(name, "runs") + query, _read_runs)


def backfill_schedule(name: str, from_: datetime | str, to: datetime | str, rate: float | None) -> ApiCall[Backfill]:
    fields = without_none({"from": from_, "to": to, "rate": rate})
    return SCHEDULES.post((name, "backfill"), fields, _read_backfill)


def list_backfills(name: str) -> ApiCall[Page[Backfill]]:
    return ApiCall("GET", SCHEDULES.path_of(name, "backfills"), _read_backfills)


def get_backfill(name: str, backfill: int | str) -> ApiCall[Backfill]:
    return ApiCall("GET", SCHEDULES.path_of(name, "backfills", backfill), _read_backfill)


def cancel_backfill(name: str, backfill: int | str) -> ApiCall[Backfill]:
    return SCHEDULES.post((name, "backfills", backfill, "cancel"), None, _read_backfill)


def preview_schedule(
    name: str | None, definition: Mapping[str, Any], *, count: int | None, from_: datetime | str | None
) -> ApiCall[Preview]:
    """Preview a stored schedule or, if a definition is given, the schedule that it describes."""
    asked = without_none({"from": from_, "count": count})
    if not definition:
        return ApiCall("GET", SCHEDULES.path_of(name, "preview") + make_query(asked), _read_preview)
    return SCHEDULES.post(("preview",), without_none({"name": name, **definition, **asked}), _read_preview)


def put_calendar(name: str, dates: Iterable[object]) -> ApiCall[CalendarPut]:
    return ApiCall("PUT", CALENDARS.path_of(name), _read_calendar_put, encode({"dates": list(dates)}))
