"""Cron expressions and calendar entries, as rules over local times.

A rule answers which local time comes next or came last; it knows nothing of zones.
The search goes from field to field: its cost is that of the months passed over,
however often the rule fires.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from duetime.recurrence.days import FIRST_YEAR, DayRule, lowest
from duetime.recurrence.fields import (
    DAY,
    HOUR,
    MAXIMUM_KEPT_TEXT,
    MINUTE,
    MONTH,
    SECOND,
    WEEKDAY,
    YEAR,
    FieldSet,
    parse_field,
)
from duetime.recurrence.spec import CalendarEntry, Problem, SpecError
from duetime.recurrence.steps import OutOfSteps, Steps
from duetime.recurrence.zones import DAY_SECONDS

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_USES_HASH = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")

#: About this many characters of a cron with many numbers take a microsecond.
CHARACTERS_A_STEP = 3
ALL_HOURS = (1 << 24) - 1
ALL_MINUTES = (1 << 60) - 1
_ALL_YEARS = sum(1 << year for year in range(YEAR.low, YEAR.high + 1))
MONTH_WORDS = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


@dataclass(frozen=True, slots=True)
class ClockRule:
    """Times of day, by bits, on the days of a DayRule."""

    seconds: int
    minutes: int
    hours: int
    days: DayRule
    # Hourly or finer: it follows elapsed time through a clock change.
    is_fine: bool
    has_seconds: bool
    #: The steps that reading it took.
    steps: int

    @property
    def size(self) -> int:
        return 1_500

    def next_local(self, local: int, steps: Steps) -> int | None:
        """The first matching local time at or after this one."""
        day, second = divmod(local, DAY_SECONDS)
        time = self._time_from(second)
        if time is not None:
            found = self.days.next_day(day, steps)
            if found == day:
                return day * DAY_SECONDS + time
        else:
            found = self.days.next_day(day + 1, steps)
        return None if found is None else found * DAY_SECONDS + self._first_time()

    def previous_local(self, local: int, steps: Steps) -> int | None:
        """The last matching local time at or before this one."""
        day, second = divmod(local, DAY_SECONDS)
        time = self._time_until(second)
        if time is not None:
            found = self.days.previous_day(day, steps)
            if found == day:
                return day * DAY_SECONDS + time
        else:
            found = self.days.previous_day(day - 1, steps)
        return None if found is None else found * DAY_SECONDS + self._last_time()

    def matches(self, local: int) -> bool:
        minute_of_day, second = divmod(local % DAY_SECONDS, 60)
        hour, minute = divmod(minute_of_day, 60)
        return bool(
            self.hours >> hour & 1
            and self.minutes >> minute & 1
            and self.seconds >> second & 1
            and self.days.matches(local // DAY_SECONDS)
        )

    def _first_time(self) -> int:
        return lowest(self.hours) * 3600 + lowest(self.minutes) * 60 + lowest(self.seconds)

    def _last_time(self) -> int:
        return _highest(self.hours) * 3600 + _highest(self.minutes) * 60 + _highest(self.seconds)

    def _time_from(self, time: int) -> int | None:
        minute_of_day, second = divmod(time, 60)
        hour, minute = divmod(minute_of_day, 60)
        hours = self.hours >> hour
        if hours & 1:
            minutes = self.minutes >> minute
            if minutes & 1 and (seconds := self.seconds >> second):
                return time + lowest(seconds)
            minutes &= ~1
            if minutes:
                return (minute_of_day + lowest(minutes)) * 60 + lowest(self.seconds)
            hours &= ~1
        if not hours:
            return None
        return (hour + lowest(hours)) * 3600 + lowest(self.minutes) * 60 + lowest(self.seconds)

    def _time_until(self, time: int) -> int | None:
        minute_of_day, second = divmod(time, 60)
        hour, minute = divmod(minute_of_day, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1 and (seconds := self.seconds & ((2 << second) - 1)):
                return minute_of_day * 60 + _highest(seconds)
            if minutes := self.minutes & ((1 << minute) - 1):
                return hour * 3600 + _highest(minutes) * 60 + _highest(self.seconds)
        if hours := self.hours & ((1 << hour) - 1):
            return _highest(hours) * 3600 + _highest(self.minutes) * 60 + _highest(self.seconds)
        return None


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


def expand_macro(text: str) -> str:
    """The cron that a macro stands for; anything else unchanged."""
    stripped = text.strip()
    if not stripped.startswith("@"):
        return stripped
    name = stripped.lower()
    if name in _MACROS:
        return _MACROS[name]
    if name.startswith("@every"):
        raise Problem(f'cron "{stripped}" is an interval; give it as `every`, in seconds')
    if name == "@reboot":
        raise Problem('cron "@reboot" has no time; give `dates`, or submit a task when the machine starts')
    raise Problem(f'cron "{stripped}" is no macro; use one of {", ".join(_MACROS)}')


def parse_cron(text: str, key: str) -> ClockRule:
    """Read 5 fields, 6 with the second first, 7 with the year last, or a macro. A Problem says what is wrong."""
    key = key if _USES_HASH.search(text) else ""
    return _parse_cron(text, key) if len(text) > MAXIMUM_KEPT_TEXT else _kept_cron(text, key)


# A rule is under 1.5 kB, so the cache stays under 3 MB.
@lru_cache(maxsize=2048)
def _kept_cron(text: str, key: str) -> ClockRule:
    return _parse_cron(text, key)


def _parse_cron(text: str, key: str) -> ClockRule:
    parts = expand_macro(text).split()
    if len(parts) not in (5, 6, 7):
        raise Problem(
            f'cron "{text}" has {len(parts)} fields; it needs 5 (minute, hour, day of month, month, day of week), '
            "6 with the second first, or 7 with the second first and the year last"
        )
    has_seconds = len(parts) > 5
    # Fields are added at both ends: a cron of five fields is at second 0 of any year.
    filled = [*(() if has_seconds else ("0",)), *parts, *(() if len(parts) == 7 else ("*",))]
    try:
        second, minute, hour, day, month, weekday, year = (
            parse_field(field, part, key)
            for field, part in zip((SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, YEAR), filled, strict=True)
        )
    except Problem as problem:
        raise Problem(f'cron "{text}": {problem}') from None
    either = not day.is_star and not weekday.is_star
    days = _day_rule(day, month, weekday, years=_years_of(year), either=either)
    read_steps = len(text) // CHARACTERS_A_STEP + _refuse_if_it_never_comes(f'cron "{text}"', days)
    return _clock_rule(second, minute, hour, days, has_seconds=has_seconds, steps=read_steps)


def parse_calendar_entry(entry: CalendarEntry, key: str, path: str) -> ClockRule:
    """Read the fields of a calendar entry. A SpecError names the field that is wrong."""
    sets = []
    for field, name, default in (
        (SECOND, "second", "0"),
        (MINUTE, "minute", "0"),
        (HOUR, "hour", "0"),
        (DAY, "day", "*"),
        (MONTH, "month", "*"),
        (WEEKDAY, "weekday", "*"),
        (YEAR, "year", "*"),
    ):
        value = getattr(entry, name)
        try:
            sets.append(parse_field(field, default if value is None else str(value).strip(), key))
        except Problem as problem:
            raise SpecError(f"{path}.{name}", str(problem)) from None
    second, minute, hour, day, month, weekday, year = sets
    days = _day_rule(day, month, weekday, years=_years_of(year), either=False)
    try:
        read_steps = _refuse_if_it_never_comes("the calendar entry", days)
    except Problem as problem:
        raise SpecError(path, str(problem)) from None
    return _clock_rule(second, minute, hour, days, has_seconds=True, steps=read_steps)


def _years_of(year: FieldSet) -> int | None:
    """The years that it names; None for all years, also for those that cannot be written."""
    return None if year.mask == _ALL_YEARS else year.mask >> FIRST_YEAR


def _clock_rule(
    second: FieldSet, minute: FieldSet, hour: FieldSet, days: DayRule, *, has_seconds: bool, steps: int
) -> ClockRule:
    # "Hourly or finer" is defined as in Debian's cron.
    is_fine = hour.mask == ALL_HOURS or hour.is_star or minute.is_star
    return ClockRule(second.mask, minute.mask, hour.mask, days, is_fine, has_seconds, steps)


def _day_rule(day: FieldSet, month: FieldSet, weekday: FieldSet, *, years: int | None, either: bool) -> DayRule:
    any_day, any_weekday = day.mask == (1 << 32) - 2, weekday.mask == 0b111_1111
    if either and (any_day or any_weekday):
        # Any day or a certain weekday is any day.
        any_day = any_weekday = True
    return DayRule(
        months=month.mask,
        years=years,
        any_day=any_day,
        days=day.mask,
        last_offsets=day.last_offsets,
        last_workday=day.last_workday,
        nearest=day.nearest,
        any_weekday=any_weekday,
        weekdays=weekday.mask,
        numbered=weekday.numbered,
        either=either,
    )


def _refuse_if_it_never_comes(what: str, days: DayRule) -> int:
    """Return the steps that finding its first day took."""
    steps = Steps()
    try:
        # 1970-01-01; the calendar repeats after the 400 years that next_day searches.
        if days.next_day(0, steps) is not None:
            return steps.spent
    except OutOfSteps:
        raise Problem(f"{what} fires too seldom to be found; name fewer relative days such as 15W or FRI#2") from None
    plain_days = [day for day in range(1, 32) if days.days >> day & 1]
    months = [month for month in range(1, 13) if days.months >> month & 1]
    lengths = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    relative = days.last_offsets or days.last_workday or days.nearest
    if plain_days and not relative and all(lengths[month] < plain_days[0] for month in months):
        names = " and ".join(MONTH_WORDS[month] for month in months)
        raise Problem(f"{what} never fires: {names} {'has' if len(months) == 1 else 'have'} no day {plain_days[0]}")
    parts = "month, day and weekday" if days.years is None else "month, day, weekday and year"
    raise Problem(f"{what} never fires: no date has its {parts} together")
