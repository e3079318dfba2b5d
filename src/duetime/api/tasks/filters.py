"""Filters and pages, from a query string or from a body."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

import msgspec

from duetime.admin.keys import Caller
from duetime.api.bodies.requests import DeadFilterRequest, FilterRequest, Instant
from duetime.clock import to_ms_rounded_up
from duetime.errors import FieldError, InvalidInput
from duetime.views.filters import DEFAULT_LIMIT, MAX_LIMIT, TaskFilter

Result = TypeVar("Result")

_RIGHT_TIME = "must be a time such as 2030-01-31T12:00:00Z, with its zone"


def read_list(query: dict[str, list[str]], caller: Caller) -> tuple[TaskFilter, str | None, int]:
    """Filter, cursor and limit of a list for this caller; `InvalidInput` names every wrong parameter."""
    errors: list[FieldError] = []

    def tried(read: Callable[[], Result]) -> Result | None:
        try:
            return read()
        except InvalidInput as error:
            errors.extend(error.errors)
            return None

    words = {name: tried(partial(read_one, query, name)) for name in ("state", "type", "queue", "priority", "schedule")}
    times = [tried(partial(read_time, query, name)) for name in ("from", "to")]
    wanted = tried(lambda: TaskFilter.of(**words, labels=query.get("label", []), from_ms=times[0], to_ms=times[1]))
    page = tried(lambda: read_page(query))
    if errors or wanted is None or page is None:
        raise InvalidInput.all(errors)
    return (within(wanted, caller), *page)


def within(wanted: TaskFilter, caller: Caller) -> TaskFilter:
    """The filter, restricted to the tasks that the caller's key reaches."""
    return msgspec.structs.replace(wanted, within=caller.confinement) if caller.is_confined else wanted


def filter_of(asked: DeadFilterRequest) -> TaskFilter:
    """The same from a body; its errors are under `filter`."""
    try:
        return TaskFilter.of(
            asked.state if isinstance(asked, FilterRequest) else None,
            asked.type,
            asked.queue,
            asked.priority,
            asked.label,
            _to_ms("from", asked.from_),
            _to_ms("to", asked.to),
            asked.schedule,
        )
    except InvalidInput as error:
        raise InvalidInput.all([FieldError(f"filter.{each.path}", each.message) for each in error.errors]) from error


def read_page(query: dict[str, list[str]]) -> tuple[str | None, int]:
    """Cursor and limit of a list."""
    limit = read_number(query, "limit", MAX_LIMIT)
    return read_one(query, "cursor"), DEFAULT_LIMIT if limit is None else limit


def read_number_cursor(cursor: str | None, none: int = 0, digits: int = 9) -> int:
    """The number after which a page begins, in a list by number."""
    if cursor is None:
        return none
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= digits):
        raise not_a_cursor()
    return int(cursor)


def not_a_cursor() -> InvalidInput:
    return InvalidInput.at("cursor", "not a cursor of this list; use `next` of the page before, or none")


def read_number(query: dict[str, list[str]], name: str, highest: int) -> int | None:
    """A number from 1 to the highest."""
    text = read_one(query, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= highest):
        raise InvalidInput.at(name, f"must be a number from 1 to {highest}")
    return int(text)


def read_flag(query: dict[str, list[str]], name: str) -> bool:
    match query.get(name, ["false"])[-1]:
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise InvalidInput.at(name, "must be true or false")


def read_one(query: dict[str, list[str]], name: str) -> str | None:
    values = query.get(name, [])
    if len(values) > 1:
        raise InvalidInput.at(name, "must be given once")
    return values[0] if values else None


def read_time(query: dict[str, list[str]], name: str) -> int | None:
    text = read_one(query, name)
    if text is None:
        return None
    try:
        # In a query string a plain plus means a space, and no time has a space before its zone.
        return _to_ms(name, msgspec.convert(text.replace(" ", "+") if "T" in text else text, Instant))
    except msgspec.ValidationError as error:
        raise InvalidInput.at(name, _RIGHT_TIME) from error


def _to_ms(name: str, instant: datetime | None) -> int | None:
    try:
        return None if instant is None else to_ms_rounded_up(instant)
    except (OverflowError, ValueError) as error:
        # The first and last day of the calendar, in a zone that moves them out of it.
        raise InvalidInput.at(name, "is not a time within the years 1 to 9999") from error
