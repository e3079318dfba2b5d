"""Read one cron field into the numbers that it allows.

Numbers are bits of an integer.  `H` is a number hashed by blake2b from the key of the
schedule and the field that it is in: the same on every machine.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from duetime.recurrence.spec import Problem

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

_HASHED = re.compile(r"H(?:\((\w+)-(\w+)\))?")
_LAST_OFFSET = re.compile(r"L-(\d{1,2})")
_NEAREST = re.compile(r"(\d{1,2})W")
_NUMBERED = re.compile(r"(\w+)#(\d+)")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a cron: its name in sentences, its bounds, and what may be written in it."""

    name: str
    low: int
    high: int
    names: tuple[tuple[str, int], ...] = ()
    # The highest number that may be written; 7 means Sunday as well.
    written_high: int | None = None
    wraps: bool = False
    is_day: bool = False
    hash_high: int | None = None

    @property
    def size(self) -> int:
        return self.high - self.low + 1


SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23, wraps=True)
# The hashed day is one that every month has.
DAY = Field("day of month", 1, 31, is_day=True, hash_high=28)
MONTH = Field("month", 1, 12, names=tuple((name, i) for i, name in enumerate(_MONTH_NAMES, 1)), wraps=True)
WEEKDAY = Field(
    "day of week",
    0,
    6,
    names=tuple((name, i) for i, name in enumerate(_WEEKDAY_NAMES)),
    written_high=7,
    wraps=True,
    is_day=True,
)
YEAR = Field("year", 1970, 2199)


@dataclass(frozen=True, slots=True)
class FieldSet:
    """What a field allows: plain numbers as bits, and the relative days of the two day fields."""

    mask: int = 0
    # It begins with `*` or `?`: cron(5) then treats the field as unrestricted.
    is_star: bool = False
    last_offsets: tuple[int, ...] = ()
    last_workday: bool = False
    nearest: tuple[int, ...] = ()
    numbered: tuple[tuple[int, int], ...] = ()


def hashed_number(key: str, purpose: str) -> int:
    """64 bits that depend on nothing but the two texts."""
    return int.from_bytes(blake2b(f"{key}\0{purpose}".encode(), digest_size=8).digest(), "big")


#: Longer texts are parsed each time; this bounds the caches of texts in bytes.
MAXIMUM_KEPT_TEXT = 100


def parse_field(field: Field, text: str, key: str) -> FieldSet:
    """Read one field. A Problem says what is wrong with it."""
    return _parse_field(field, text, key) if len(text) > MAXIMUM_KEPT_TEXT else _kept_field(field, text, key)


# One entry is about 200 bytes, at most 1 kB; fields repeat far more often than whole crons do.
@lru_cache(maxsize=4096)
def _kept_field(field: Field, text: str, key: str) -> FieldSet:
    return _parse_field(field, text, key)


def _parse_field(field: Field, text: str, key: str) -> FieldSet:
    if not text.isascii():
        raise Problem(_cannot_read(field, text))
    upper = text.upper()
    if upper == "*" or (upper == "?" and field.is_day):
        return FieldSet(_bits(range(field.low, field.high + 1)), is_star=True)
    mask = 0
    last_offsets: list[int] = []
    nearest: list[int] = []
    numbered: list[tuple[int, int]] = []
    last_workday = False
    for item in upper.split(","):
        if field is DAY and item == "LW":
            last_workday = True
        elif field is DAY and item == "L":
            last_offsets.append(0)
        elif field is DAY and (found := _LAST_OFFSET.fullmatch(item)):
            last_offsets.append(_within(int(found[1]), 0, 30, f'"{item}"', field))
        elif field is DAY and (found := _NEAREST.fullmatch(item)):
            nearest.append(_number(field, found[1]))
        elif field is WEEKDAY and (found := _NUMBERED.fullmatch(item)):
            numbered.append(
                (_number(field, found[1]) % 7, _within(int(found[2]), 1, 5, f'the number in "{item}"', field))
            )
        elif field is WEEKDAY and item.endswith("L") and item != "L":
            numbered.append((_number(field, item[:-1]) % 7, -1))
        else:
            mask |= _parse_item(field, item, key)
    return FieldSet(
        mask,
        is_star=upper.startswith("*") or (field.is_day and upper.startswith("?")),
        last_offsets=tuple(sorted(set(last_offsets))),
        last_workday=last_workday,
        nearest=tuple(sorted(set(nearest))),
        numbered=tuple(sorted(set(numbered))),
    )


def _parse_item(field: Field, item: str, key: str) -> int:
    """One element of a list: a number, a range, `*` or `H`, each with or without a step."""
    base, slash, step_text = item.partition("/")
    step = 1
    if slash:
        if not step_text.isdecimal() or len(step_text) > 4 or int(step_text) < 1:
            raise Problem(f'{field.name} "{item}" needs a whole number above 0 after the slash')
        # A step longer than its range leaves only the first number, as in every cron: the idiom `*/100,1-7` with a
        # weekday uses that.
        step = int(step_text)
    if found := _HASHED.fullmatch(base):
        return _hashed_bits(field, found, step, stepped=bool(slash), key=key)
    if base == "*" or (base == "?" and field.is_day):
        return _bits(range(field.low, field.high + 1, step))
    if "-" in base:
        low_text, _, high_text = base.partition("-")
        return _range_bits(field, _number(field, low_text), _number(field, high_text), step, item)
    number = _number(field, base)
    if slash:
        return _bits(range(number if number <= field.high else field.low, field.high + 1, step))
    return 1 << (number if number <= field.high else field.low)


def _range_bits(field: Field, low: int, high: int, step: int, item: str) -> int:
    if low > high:
        if not field.wraps:
            raise Problem(
                f'{field.name} "{item}" runs backwards; write two ranges: {low}-{field.high},{field.low}-{high}'
            )
        high += field.size
    return _bits((number - field.low) % field.size + field.low for number in range(low, high + 1, step))


def _hashed_bits(field: Field, found: re.Match[str], step: int, *, stepped: bool, key: str) -> int:
    low, high = field.low, field.hash_high or field.high
    if found[1] is not None:
        low, high = _number(field, found[1]), _number(field, found[2])
        if low > high or high > field.high:
            raise Problem(f'{field.name} "{found[0]}" needs a range that runs upwards from {field.low} to {field.high}')
    slot = hashed_number(key, field.name)
    if stepped:
        return _bits(range(low + slot % min(step, high - low + 1), high + 1, step))
    return 1 << (low + slot % (high - low + 1))


def _number(field: Field, text: str) -> int:
    if text.isdecimal() and len(text) <= 4:
        return _within(int(text), field.low, field.written_high or field.high, f'"{text}"', field)
    for name, number in field.names:
        if name == text:
            return number
    raise Problem(_cannot_read(field, text))


def _cannot_read(field: Field, text: str) -> str:
    if text == "?":
        return f'{field.name} cannot be "?"; only the two day fields can'
    if text == "L" and field is WEEKDAY:
        return 'day of week "L" does not say which weekday; write FRIL for the last Friday'
    names = f" or a name such as {field.names[0][0]}" if field.names else ""
    high = field.written_high or field.high
    return f'{field.name} "{text}" cannot be read; use a number from {field.low} to {high}{names}'


def _within(number: int, low: int, high: int, what: str, field: Field) -> int:
    if not low <= number <= high:
        raise Problem(f"{field.name}: {what} is outside {low} to {high}")
    return number


def _bits(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
