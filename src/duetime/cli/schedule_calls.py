"""Requests about schedules and calendars, and what their answers hold.

Answers may have fields that are not known here and lack ones that are.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from duetime.errors import UsageError
from duetime.sdk.shapes import Problem
from duetime.sdk.wire import Call

_encode_any = msgspec.json.Encoder().encode


class Fire(msgspec.Struct):
    at: datetime
    local: str = ""
    note: str | None = None
    excluded: bool = False


class Counters(msgspec.Struct):
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    buffered: int = 0


class Skip(msgspec.Struct):
    at: datetime | None = None
    fire_time: datetime | None = None
    reason: str = ""


class Schedule(msgspec.Struct):
    """Beside its definition, which `show` reads as it was sent."""

    name: str
    state: str = ""
    spec: dict[str, Any] = {}
    timezone: str = "UTC"
    task: dict[str, Any] = {}
    note: str | None = None
    origin: str = "api"
    source: str | None = ""
    version: int = 0
    words: str | None = None
    next_fires: list[Fire] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    buffered_now: int = 0
    last_skip: Skip | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SchedulePage(msgspec.Struct):
    items: list[Schedule]
    next: str | None = None


class PlainPage(msgspec.Struct):
    items: list[dict[str, Any]]
    next: str | None = None


class Run(msgspec.Struct):
    fire_time: datetime | None = None
    at: datetime | None = None
    cause: str = ""
    outcome: str = ""
    reason: str | None = None
    task: str | None = None
    state: str | None = None
    ended_at: datetime | None = None


class RunPage(msgspec.Struct):
    items: list[Run]
    next: str | None = None


class Backfill(msgspec.Struct):
    id: str | int
    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    rate: float | None = None
    state: str = ""
    created_count: int = 0
    reached: datetime | None = None
    created_at: datetime | None = None
    ended_at: datetime | None = None
    waits_for: str | None = None


class Backfills(msgspec.Struct):
    items: list[Backfill]


class Preview(msgspec.Struct):
    fires: list[Fire] = []
    words: str | None = None


class Triggered(msgspec.Struct):
    task: str | None = None
    fire_time: datetime | None = None


class Deleted(msgspec.Struct):
    name: str = ""
    cancelled: int = 0


class Calendar(msgspec.Struct):
    name: str = ""
    dates: list[Any] = []
    updated_at: datetime | None = None


class Calendars(msgspec.Struct):
    items: list[Calendar]
    next: str | None = None


class BatchItem(msgspec.Struct):
    name: str = ""
    result: str = ""
    version: int = 0
    error: Problem | None = None


class BatchAnswer(msgspec.Struct):
    results: list[BatchItem]
    accepted: int = 0
    rejected: int = 0


def _encode(body: Mapping[str, object]) -> bytes:
    try:
        return _encode_any(body)
    except UnicodeEncodeError as error:
        raise UsageError("there are characters in it that are not text: write it in UTF-8") from error


def schedule_path(name: str, *rest: object) -> str:
    return "/".join(("/v1/schedules", *(quote(str(part), safe="", errors="surrogateescape") for part in (name, *rest))))


def calendar_path(name: str) -> str:
    return f"/v1/calendars/{quote(name, safe='', errors='surrogateescape')}"


def ask(path: str, fields: Mapping[str, object] | None = None) -> Call[bytes]:
    """A GET, with those fields that are given."""
    given = {name: value for name, value in (fields or {}).items() if value is not None}
    return Call("GET", path + ("?" + urlencode(given, errors="surrogateescape") if given else ""), bytes)


def post(path: str, fields: Mapping[str, object] | None = None) -> Call[bytes]:
    given = {name: value for name, value in (fields or {}).items() if value is not None}
    return Call("POST", path, bytes, _encode(given))


def put(path: str, body: Mapping[str, object]) -> Call[bytes]:
    return Call("PUT", path, bytes, _encode(body))


def list_schedules(fields: Mapping[str, object], limit: int | None, cursor: str | None) -> Call[SchedulePage]:
    call = ask("/v1/schedules", {**fields, "limit": limit, "cursor": cursor})
    return Call("GET", call.path, msgspec.json.Decoder(SchedulePage).decode)


def list_plain(fields: Mapping[str, object], limit: int, cursor: str | None) -> Call[PlainPage]:
    """The same as they were sent, to be compared."""
    call = ask("/v1/schedules", {**fields, "limit": limit, "cursor": cursor})
    return Call("GET", call.path, msgspec.json.Decoder(PlainPage).decode)


def list_runs(name: str, limit: int | None, cursor: str | None) -> Call[RunPage]:
    call = ask(schedule_path(name, "runs"), {"limit": limit, "cursor": cursor})
    return Call("GET", call.path, msgspec.json.Decoder(RunPage).decode)
