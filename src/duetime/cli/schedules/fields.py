"""The fields of a schedule's definition: their names, their valid values, and their canonical form.

Two definitions with the same meaning have the same canonical form: durations and
times have one spelling, one cron line is a text, and absent fields have their defaults.
Files are read strictly. Answers of the server are read leniently, so that a newer
server causes no errors.  No I/O.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from duetime.cli.schedules.documents import Path, kind_of, unknown_key
from duetime.model.duration import format_duration, parse_duration
from duetime.model.headers import HIDDEN, secret_names
from duetime.model.retry import DEFAULT_RETRY
from duetime.model.task import PriorityClass

OVERLAPS = ["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]
MISFIRES = ["fire_latest", "fire_all", "skip"]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
DELIVERIES = ["at_least_once", "at_most_once"]
#: A schedule needs at least one of these to fire.
FIRING = ("cron", "every", "after", "rrule", "calendar", "dates")
#: Operators set these too: a definition without them leaves them as they are.
STEERED = ("paused", "note")
_CALENDAR_FIELDS = ("year", "month", "day", "weekday", "hour", "minute", "second")


class WrongField(Exception):
    """A field with a wrong value: where it is, and what would be right."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


@dataclass(frozen=True)
class Reading:
    """How to read a definition."""

    zone: ZoneInfo | None = None
    is_lenient: bool = False
    #: Whether required fields must be present; in `defaults:` they may be absent.
    is_whole: bool = True


#: Checks a value and returns its canonical form.
Field = Callable[[object, Path, Reading], object]


def canonical(definition: object, *, is_lenient: bool = False, is_whole: bool = True) -> dict[str, object]:
    """Return the definition in its canonical form, with defaults filled in. Raises WrongField."""
    zone = _zone_of(definition.get("timezone") if isinstance(definition, dict) else None)
    found = _definition(definition, (), Reading(zone, is_lenient, is_whole))
    assert isinstance(found, dict)
    return found


def canonical_dates(dates: object, *, is_lenient: bool = False) -> object:
    """Return the entries of a calendar. Raises WrongField."""
    return _exclusions(dates if dates is not None else [], ("dates",), Reading(None, is_lenient))


def _zone_of(name: object) -> ZoneInfo | None:
    try:
        return ZoneInfo(name if isinstance(name, str) else "UTC")
    except (ValueError, OSError):
        # The server knows its time zones and will report an error for this one.
        return None


def _text(value: object, path: Path, reading: Reading) -> object:
    if not isinstance(value, str):
        raise WrongField(path, f"is {kind_of(value)}, not text: put it in quotes")
    return value


def _whole(least: int) -> Field:
    def read(value: object, path: Path, reading: Reading) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise WrongField(path, f"must be a whole number from {least} on")
        return value

    return read


def _rate(value: object, path: Path, reading: Reading) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise WrongField(path, "must be a number greater than 0")
    return value


def _flag(value: object, path: Path, reading: Reading) -> object:
    if not isinstance(value, bool):
        raise WrongField(path, "must be true or false")
    return value


def _duration(value: object, path: Path, reading: Reading) -> object:
    try:
        return format_duration(parse_duration(value))
    except ValueError as error:
        raise WrongField(path, f"is not a duration: {error}") from error


def _choice(choices: Sequence[str]) -> Field:
    def read(value: object, path: Path, reading: Reading) -> object:
        if value not in choices:
            raise WrongField(path, f"must be one of {', '.join(choices)}")
        return value

    return read


def _list_of(inner: Field, *, is_sorted: bool = False) -> Field:
    def read(value: object, path: Path, reading: Reading) -> object:
        if not isinstance(value, list):
            raise WrongField(path, f"is {kind_of(value)}, not a list")
        found = [inner(each, (*path, place), reading) for place, each in enumerate(value)]
        return sorted(found, key=_order) if is_sorted else found

    return read


def _lines(value: object, path: Path, reading: Reading) -> object:
    """Read one text, or several in a list. A list of one becomes a text."""
    if isinstance(value, list):
        found = [" ".join(str(_text(each, (*path, place), reading)).split()) for place, each in enumerate(value)]
        return found[0] if len(found) == 1 else found
    if not isinstance(value, str):
        raise WrongField(path, f"is {kind_of(value)}, not text or a list of texts")
    return " ".join(value.split())


def _instant(value: object, path: Path, reading: Reading) -> object:
    """Return a time in UTC. A time without an offset is in the schedule's zone."""
    moment = _read_time(value, path)
    if moment.tzinfo is None:
        if reading.zone is None:
            return moment.isoformat()
        moment = moment.replace(tzinfo=reading.zone)
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise WrongField(path, "is beyond the calendar") from error


def _local(value: object, path: Path, reading: Reading) -> object:
    """Read a day, or a time by the clock of the schedule's zone."""
    text = _text(value, path, reading)
    assert isinstance(text, str)
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        moment = _read_time(text, path)
    if moment.tzinfo is not None and reading.zone is not None:
        try:
            moment = moment.astimezone(reading.zone)
        except OverflowError as error:
            raise WrongField(path, "is beyond the calendar") from error
        if moment.fold == 0:
            moment = moment.replace(tzinfo=None)
    exact = "auto" if moment.microsecond or moment.second else "minutes"
    return moment.isoformat(timespec=exact)


def _read_time(value: object, path: Path) -> datetime:
    try:
        return datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError as error:
        raise WrongField(path, "is not a time such as 2030-01-31T09:00:00+01:00") from error


def _mapping_of(inner: Field) -> Field:
    def read(value: object, path: Path, reading: Reading) -> object:
        if not isinstance(value, dict):
            raise WrongField(path, f"is {kind_of(value)}, not a mapping")
        return {key: inner(each, (*path, key), reading) for key, each in value.items()}

    return read


def _anything(value: object, path: Path, reading: Reading) -> object:
    return value


def _object(
    fields: Mapping[str, Field], defaults: Mapping[str, object] | None = None, needed: Sequence[str] = ()
) -> Field:
    """Read a mapping with these fields. None means the default, like an absent field."""

    def read(value: object, path: Path, reading: Reading) -> object:
        if not isinstance(value, dict):
            raise WrongField(path, f"is {kind_of(value)}, not a mapping")
        found: dict[str, object] = {}
        for key, each in value.items():
            if key not in fields:
                if reading.is_lenient:
                    continue
                raise WrongField((*path, key), unknown_key(key, fields))
            if each is None:
                continue
            try:
                found[key] = fields[key](each, (*path, key), reading)
            except WrongField:
                if not reading.is_lenient:
                    raise
                found[key] = each
        for key in needed:
            if key not in found and reading.is_whole and not reading.is_lenient:
                raise WrongField(path, f"has no {key}")
        # An incomplete definition is only checked, never compared.
        return {**(defaults or {}), **found} if reading.is_whole else found

    return read


def _exclusion(value: object, path: Path, reading: Reading) -> object:
    if isinstance(value, str):
        return _local(value, path, reading)
    if not isinstance(value, dict):
        raise WrongField(path, "must be a day, or a mapping of from and to, cron, or calendar")
    found = _EXCLUSION(value, path, reading)
    if not reading.is_lenient and set(value) not in ({"from", "to"}, {"cron"}, {"calendar"}):
        raise WrongField(path, "must be a day, or a mapping of from and to, cron, or calendar")
    return found


def _part(value: object, path: Path, reading: Reading) -> object:
    """Read a field of a calendar entry: text as in cron, or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise WrongField(path, "must be a number, or text as in a cron field")
    return str(value).strip()


_EXCLUSION = _object({"from": _local, "to": _local, "cron": _lines, "calendar": _text})
_exclusions = _list_of(_exclusion, is_sorted=True)

_SPEC = _object(
    {
        "cron": _lines,
        "every": _duration,
        "phase": _duration,
        "after": _duration,
        "rrule": _lines,
        "calendar": _list_of(_object(dict.fromkeys(_CALENDAR_FIELDS, _part))),
        "dates": _list_of(_local, is_sorted=True),
        "exclude": _exclusions,
    },
    {"phase": "0s", "exclude": []},
)
_DST_DEFAULTS: dict[str, object] = {"gap": "shift", "overlap": "first"}
_RETRY_DEFAULTS: dict[str, object] = {
    "max_attempts": DEFAULT_RETRY.max_attempts,
    "min_backoff": format_duration(DEFAULT_RETRY.min_backoff),
    "max_backoff": format_duration(DEFAULT_RETRY.max_backoff),
    "max_doublings": DEFAULT_RETRY.max_doublings,
    "max_retry_duration": None,
    "max_crashes": DEFAULT_RETRY.max_crashes,
}
_RETRY = _object(
    {
        "max_attempts": _whole(1),
        "min_backoff": _duration,
        "max_backoff": _duration,
        "max_doublings": _whole(0),
        "max_retry_duration": _duration,
        "max_crashes": _whole(1),
    }
)


def _retry(value: object, path: Path, reading: Reading) -> object:
    found = _RETRY(value, path, reading)
    assert isinstance(found, dict)
    least = found.get("min_backoff", "0s")
    # The longest wait is never shorter than the first one, even if it is absent.
    longest = max(DEFAULT_RETRY.max_backoff, parse_duration(least) if isinstance(least, str) else 0.0)
    return {**_RETRY_DEFAULTS, "max_backoff": format_duration(longest), **found} if reading.is_whole else found


_PLAIN_TARGET = _object(
    {
        "url": _text,
        "method": _choice(METHODS),
        "headers": _mapping_of(_text),
        "secret_headers": _list_of(_text, is_sorted=True),
        "timeout": _duration,
        "retry_on": _list_of(_whole(400), is_sorted=True),
    },
    {"method": "POST", "headers": {}, "secret_headers": [], "timeout": None, "retry_on": []},
    needed=("url",),
)


def _target(value: object, path: Path, reading: Reading) -> object:
    """Secrets are compared and shown as the server shows them: by their names only."""
    found = _PLAIN_TARGET(value, path, reading)
    assert isinstance(found, dict)
    headers = found.get("headers")
    if isinstance(headers, dict):
        secret = secret_names(headers, map(str, found.get("secret_headers") or ()))
        found["headers"] = {**headers, **dict.fromkeys(secret, HIDDEN)}
        if reading.is_whole:
            found["secret_headers"] = sorted(secret)
    return found


_TASK = _object(
    {
        "type": _text,
        "payload": _anything,
        "queue": _text,
        "priority": _choice([each.word for each in PriorityClass]),
        "target": _target,
        "retry": _retry,
        "timeout": _duration,
        "sla": _duration,
        "labels": _mapping_of(_text),
        "delivery": _choice(DELIVERIES),
        "requires": _list_of(_text, is_sorted=True),
        "expires_after": _duration,
        "concurrency_key": _text,
        "rate_key": _text,
    },
    {
        "payload": None,
        "queue": "default",
        "priority": "normal",
        "target": None,
        "retry": _RETRY_DEFAULTS,
        "timeout": None,
        "sla": None,
        "labels": {},
        "delivery": "at_least_once",
        "requires": [],
        "expires_after": None,
        "concurrency_key": None,
        "rate_key": None,
    },
    needed=("type",),
)


def _checked_spec(value: object, path: Path, reading: Reading) -> object:
    found = _SPEC(value, path, reading)
    assert isinstance(found, dict)
    found = {name: each for name, each in found.items() if each != [] or name == "exclude"}
    if reading.is_whole and not reading.is_lenient and not any(name in found for name in FIRING):
        raise WrongField(path, f"says nothing that fires: give it {', '.join(FIRING[:-1])} or {FIRING[-1]}")
    return found


_definition = _object(
    {
        "spec": _checked_spec,
        "timezone": _text,
        "dst": _object(
            {"gap": _choice(["shift", "skip"]), "overlap": _choice(["first", "last", "both"])}, _DST_DEFAULTS
        ),
        "jitter": _duration,
        "start_at": _instant,
        "end_at": _instant,
        "max_fires": _whole(1),
        "overlap": _choice(OVERLAPS),
        "misfire": _choice(MISFIRES),
        "misfire_threshold": _duration,
        "catchup_window": _duration,
        "catchup_rate": _rate,
        "pause_on_failure": _flag,
        "task": _TASK,
        "paused": _flag,
        "note": _text,
    },
    {
        "timezone": "UTC",
        "dst": _DST_DEFAULTS,
        "jitter": "0s",
        "start_at": None,
        "end_at": None,
        "max_fires": None,
        "overlap": "skip",
        "misfire": "fire_latest",
        "misfire_threshold": "10s",
        "catchup_window": "1d",
        "catchup_rate": 10,
        "pause_on_failure": False,
    },
    needed=("spec", "task"),
)


def _order(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
