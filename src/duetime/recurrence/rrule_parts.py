"""The parts of an RFC 5545 rule, and which days they choose.

The days of a month are one integer with bit d for day d; single days are counted
from 1970-01-01, and weekdays from Sunday, 0.
"""

from dataclasses import dataclass
from datetime import date

from duetime.recurrence.days import (
    ALL_MONTHS,
    EPOCH_ORDINAL,
    first_weekday,
    month_length,
    nth_weekday,
    weekday_days,
)


@dataclass(frozen=True, slots=True)
class RuleParts:
    """A rule with every default filled in; weekdays count from Sunday, 0."""

    frequency: str
    start: int
    interval: int = 1
    count: int | None = None
    until: int | None = None
    months: int = ALL_MONTHS
    month_days: tuple[int, ...] = ()
    year_days: frozenset[int] = frozenset()
    week_numbers: frozenset[int] = frozenset()
    weekdays: int = 0
    ordinals: tuple[tuple[int, int], ...] = ()
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    week_start: int = 1
    ordinals_in_year: bool = False

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        lists = (self.month_days, self.year_days, self.week_numbers, self.hours, self.minutes, self.seconds)
        return 500 + 60 * sum(map(len, lists)) + 36 * len(self.positions) + 100 * len(self.ordinals)

    @property
    def month_steps(self) -> int:
        """The steps that `days_of` takes."""
        ordinals = () if self.ordinals_in_year else self.ordinals
        return 1 + (len(self.month_days) + len(ordinals)) // 4

    @property
    def day_of_year_steps(self) -> int:
        """The steps that `is_day_of_year` takes for four days."""
        return 1 + (len(self.ordinals) // 3 if self.ordinals_in_year else 0) + (2 if self.week_numbers else 0)

    def days_of(self, year: int, month: int) -> int:
        """The days of a month, as bits, by BYMONTH, BYMONTHDAY and BYDAY."""
        if not self.months >> month & 1:
            return 0
        length = month_length(year, month)
        mask = (2 << length) - 2
        if self.month_days:
            wanted = 0
            for day in self.month_days:
                if day > 0:
                    wanted |= 1 << day
                elif day + length >= 0:
                    wanted |= 1 << (length + 1 + day)
            mask &= wanted
        if (self.weekdays or self.ordinals) and not self.ordinals_in_year:
            first = first_weekday(year, month)
            wanted = weekday_days(self.weekdays, first)
            for weekday, number in self.ordinals:
                wanted |= nth_weekday(weekday, number, first, length)
            mask &= wanted
        return mask

    def is_day_of_year(self, day: int, year: int, first: int, length: int) -> bool:
        """Whether a day matches the parts that count within a year, which begins at `first`."""
        number = day - first + 1
        if self.year_days and number not in self.year_days and number - length - 1 not in self.year_days:
            return False
        if self.ordinals_in_year:
            weekday = weekday_of(day)
            from_start, from_end = (number - 1) // 7 + 1, -((length - number) // 7) - 1
            if not self.weekdays >> weekday & 1 and not any(
                weekday == wanted and place in (from_start, from_end) for wanted, place in self.ordinals
            ):
                return False
        return not self.week_numbers or self._has_week(day, year)

    def _has_week(self, day: int, year: int) -> bool:
        # A week belongs to the year that contains its fourth day.
        fourth = day - (weekday_of(day) - self.week_start) % 7 + 3
        owner = year_of(fourth)
        number = (fourth - first_day(owner)) // 7 + 1
        # The last week of a year contains the third day before its end, or one of the six days before that.
        last = first_day(owner + 1) - 1
        weeks = (last - (weekday_of(last) - self.week_start - 3) % 7 - first_day(owner)) // 7 + 1
        return number in self.week_numbers or number - weeks - 1 in self.week_numbers


def weekday_of(day: int) -> int:
    """The weekday of a day counted from 1970-01-01, a Thursday."""
    return (day + 4) % 7


def year_of(day: int) -> int:
    return date.fromordinal(day + EPOCH_ORDINAL).year


def first_day(year: int) -> int:
    return date(year, 1, 1).toordinal() - EPOCH_ORDINAL


def times_of_day(parts: RuleParts) -> list[int]:
    return sorted(
        hour * 3600 + minute * 60 + s for hour in parts.hours for minute in parts.minutes for s in parts.seconds
    )
