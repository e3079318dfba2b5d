"""Fields in a schedule's payload: `{{fire_time}}` and a few more, from a fixed list.

Fields are replaced only in texts of the payload, and only these names are known: a
template is data, it computes nothing.  A text that is nothing but one numeric field
becomes a number.
"""

import re
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from duetime.clock import from_ms

_FIELD = re.compile(r"\{\{\s*([a-z_]+)\s*\}\}")
_ANY_FIELD = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class _Values(msgspec.Struct, frozen=True):
    schedule: str
    nominal_ms: int
    run_at_ms: int
    task: uuid.UUID

    @property
    def fire_time(self) -> datetime:
        return from_ms(self.nominal_ms)


def _utc(instant: datetime) -> str:
    text = instant.isoformat(timespec="milliseconds" if instant.microsecond else "seconds")
    return text.replace("+00:00", "Z")


#: What a payload may name.  Times are UTC.
FIELDS: dict[str, tuple[str, Callable[[_Values], str | int]]] = {
    "fire_time": ("the time the schedule says, as 2027-03-01T09:00:00Z", lambda at: _utc(at.fire_time)),
    "fire_date": ("its date, as 2027-03-01", lambda at: f"{at.fire_time:%Y-%m-%d}"),
    "fire_time_unix": ("the same in seconds since 1970, as a number", lambda at: at.nominal_ms // 1000),
    "fire_time_unix_ms": ("in milliseconds since 1970, as a number", lambda at: at.nominal_ms),
    "run_at": ("the time the task is due, with jitter", lambda at: _utc(from_ms(at.run_at_ms))),
    "schedule": ("the schedule's name", lambda at: at.schedule),
    "task_id": ("the id of the task", lambda at: str(at.task)),
}


def unknown_fields(payload: bytes) -> list[str]:
    """The text in double braces is not a known field."""
    if b"{{" not in payload:
        return []
    found: list[str] = []
    _walk(
        msgspec.json.decode(payload),
        lambda text: found.extend(name.strip() for name in _ANY_FIELD.findall(text) if name.strip() not in FIELDS),
    )
    return found


def render(payload: bytes, schedule: str, nominal_ms: int, run_at_ms: int, task: uuid.UUID) -> bytes:
    """The payload with its fields filled in."""
    values = _Values(schedule, nominal_ms, run_at_ms, task)

    def fill(text: str) -> object:
        if "{{" not in text:
            return text
        whole = _FIELD.fullmatch(text)
        if whole is not None and whole[1] in FIELDS:
            return FIELDS[whole[1]][1](values)
        return _FIELD.sub(lambda found: str(FIELDS[found[1]][1](values)) if found[1] in FIELDS else found[0], text)

    return msgspec.json.encode(_walk(msgspec.json.decode(payload), fill))


def _walk(value: Any, visit: Callable[[str], object]) -> Any:
    match value:
        case str():
            return visit(value)
        case list():
            return [_walk(each, visit) for each in value]
        case dict():
            return {name: _walk(each, visit) for name, each in value.items()}
        case _:
            return value
