"""Read the dates and times that people write: a local day, a local time, or RFC 3339."""

import re
from datetime import UTC, date, datetime
from typing import NamedTuple

from duetime.recurrence.days import EPOCH_ORDINAL
from duetime.recurrence.spec import Problem
from duetime.recurrence.zones import LATEST_YEAR, local_seconds

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?", re.ASCII)
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)


class LocalDay(NamedTuple):
    day: int


class LocalTime(NamedTuple):
    local: int


class Instant(NamedTuple):
    at_ms: int


def read_moment(text: str) -> LocalDay | LocalTime | Instant:
    """Return what the text means. Raise Problem if it is none of the three or no such date exists."""
    try:
        if _DAY.fullmatch(text):
            return LocalDay(date.fromisoformat(_known(text)).toordinal() - EPOCH_ORDINAL)
        if _TIME.fullmatch(text):
            return LocalTime(local_seconds(datetime.fromisoformat(_known(text))))
        if _RFC_3339.fullmatch(text):
            moment = datetime.fromisoformat(_known(text).upper()).astimezone(UTC)
            return Instant(local_seconds(moment.replace(tzinfo=None)) * 1000 + moment.microsecond // 1000)
    except ValueError as error:
        raise Problem(f'"{text}" is no date between 1900 and {LATEST_YEAR}') from error
    raise Problem(
        f'"{text[:40]}" cannot be read; write 2027-03-01, 2027-03-01T09:00 or, with an offset, 2027-03-01T09:00:00Z'
    )


def _known(text: str) -> str:
    if not 1900 <= int(text[:4]) <= LATEST_YEAR:
        raise ValueError(text)
    return text
