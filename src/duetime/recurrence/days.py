"""Which days a cron or a calendar entry falls on.

The days of a month are one integer with bit d for day d, so that a whole month costs
a few operations and a search goes from month to month, never from day to day.
Weekdays are counted from Sunday, 0.
"""

from dataclasses import dataclass
from datetime import date

from duetime.recurrence.steps import Steps
from duetime.recurrence.zones import LATEST_YEAR

# date.toordinal() of 1970-01-01: days are counted from there.
EPOCH_ORDINAL = 719_163
# The Gregorian calendar repeats, weekdays included, after 400 years: a day that does not come in that time never
# comes.
GREGORIAN_MONTHS = 400 * 12 + 1

_EARLIEST_YEAR = 2
#: The first year that a cron can name.
FIRST_YEAR = 1970
ALL_WEEKDAYS = 0b111_1111
ALL_MONTHS = 0b1_1111_1111_1110
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def month_length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month]


def first_weekday(year: int, month: int) -> int:
    return date(year, month, 1).isoweekday() % 7


def lowest(mask: int) -> int:
    """The position of the lowest bit of a mask that has one."""
    return (mask & -mask).bit_length() - 1


def weekday_days(weekdays: int, first: int) -> int:
    """The days of a month, not cut to its length, that fall on these weekdays if the 1st falls on `first`."""
    week = ((weekdays >> first) | (weekdays << (7 - first))) & ALL_WEEKDAYS
    return (week | week << 7 | week << 14 | week << 21 | week << 28) << 1


def nth_weekday(weekday: int, number: int, first: int, length: int) -> int:
    """The nth such weekday of a month, as a mask; negative numbers count from its end; 0 if there is none."""
    earliest = 1 + (weekday - first) % 7
    weeks = number - 1 if number > 0 else (length - earliest) // 7 + number + 1
    day = earliest + 7 * weeks
    return 1 << day if 1 <= day <= length else 0


def nearest_workday(day: int, first: int, length: int) -> int:
    """The day from Monday to Friday that is nearest to this one in the same month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True)
class DayRule:
    """Days by month, day of month and weekday; `either` joins the last two by OR, as cron does when both are given."""

    months: int = ALL_MONTHS
    #: As bits from FIRST_YEAR on; None: all years, also those that cannot be written.
    years: int | None = None
    any_day: bool = True
    days: int = 0
    last_offsets: tuple[int, ...] = ()
    last_workday: bool = False
    nearest: tuple[int, ...] = ()
    any_weekday: bool = True
    weekdays: int = 0
    numbered: tuple[tuple[int, int], ...] = ()
    either: bool = False

    def days_of(self, year: int, month: int) -> int:
        """The matching days of a month."""
        if not self.months >> month & 1 or (self.years is not None and not self._has_year(year)):
            return 0
        length = month_length(year, month)
        full = (2 << length) - 2
        if self.any_day and self.any_weekday:
            return full
        first = first_weekday(year, month)
        if self.any_day:
            return self._by_weekday(first, length) & full
        if self.any_weekday:
            return self._by_day(first, length) & full
        if self.either:
            return (self._by_day(first, length) | self._by_weekday(first, length)) & full
        return self._by_day(first, length) & self._by_weekday(first, length) & full

    def _by_day(self, first: int, length: int) -> int:
        mask = self.days
        for offset in self.last_offsets:
            if offset < length:
                mask |= 1 << (length - offset)
        if self.last_workday:
            mask |= 1 << nearest_workday(length, first, length)
        for day in self.nearest:
            if day <= length:
                mask |= 1 << nearest_workday(day, first, length)
        return mask

    def _by_weekday(self, first: int, length: int) -> int:
        mask = weekday_days(self.weekdays, first)
        for weekday, number in self.numbered:
            mask |= nth_weekday(weekday, number, first, length)
        return mask

    def _has_year(self, year: int) -> bool:
        return year >= FIRST_YEAR and bool((self.years or 0) >> (year - FIRST_YEAR) & 1)

    def _month_steps(self) -> int:
        return 1 + (len(self.last_offsets) + len(self.nearest) + len(self.numbered)) // 4

    def matches(self, day: int) -> bool:
        start = date.fromordinal(day + EPOCH_ORDINAL)
        return bool(self.days_of(start.year, start.month) >> start.day & 1)

    def next_day(self, day: int, steps: Steps, matching: bool = True) -> int | None:
        """The first day at or after `day` that matches (or that does not), within one Gregorian cycle."""
        start = date.fromordinal(day + EPOCH_ORDINAL)
        year, month = start.year, start.month
        # Leave out the days of the first month that are already over.
        over = (1 << start.day) - 1
        last_year = (
            LATEST_YEAR
            if self.years is None or not matching
            else min(FIRST_YEAR + self.years.bit_length() - 1, LATEST_YEAR)
        )
        month_steps = 0
        for _ in range(GREGORIAN_MONTHS if year <= last_year else 0):
            mask = self.days_of(year, month)
            if not matching:
                mask = ((2 << month_length(year, month)) - 2) & ~mask
            mask &= ~over
            if mask:
                return date(year, month, lowest(mask)).toordinal() - EPOCH_ORDINAL
            month_steps = month_steps or self._month_steps()
            steps.take(month_steps)
            over = 0
            month += 1
            if month > 12:
                year, month = year + 1, 1
                if year > last_year:
                    return None
        return None

    def previous_day(self, day: int, steps: Steps, matching: bool = True) -> int | None:
        """The last day at or before `day` that matches (or that does not), within one Gregorian cycle."""
        start = date.fromordinal(day + EPOCH_ORDINAL)
        year, month = start.year, start.month
        allowed = (2 << start.day) - 1
        first_year = _EARLIEST_YEAR if self.years is None or not matching else FIRST_YEAR + lowest(self.years)
        month_steps = 0
        for _ in range(GREGORIAN_MONTHS if year >= first_year else 0):
            mask = self.days_of(year, month)
            if not matching:
                mask = ((2 << month_length(year, month)) - 2) & ~mask
            mask &= allowed
            if mask:
                return date(year, month, mask.bit_length() - 1).toordinal() - EPOCH_ORDINAL
            month_steps = month_steps or self._month_steps()
            steps.take(month_steps)
            allowed = -1
            month -= 1
            if month < 1:
                year, month = year - 1, 12
                if year < first_year:
                    return None
        return None
