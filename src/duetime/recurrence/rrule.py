"""Recurrence rules of RFC 5545, as rules over local times.

A search goes straight to the period (the year, month, week, day, hour, minute or
second) that contains the time asked about, by arithmetic from DTSTART, and looks at
a bounded number of periods from there.  Only COUNT makes it go through all times
from DTSTART, once.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from datetime import date

from duetime.recurrence.days import ALL_MONTHS, EPOCH_ORDINAL, lowest
from duetime.recurrence.rrule_parts import RuleParts, first_day, times_of_day, weekday_of, year_of
from duetime.recurrence.sources import DateRule, LocalRule
from duetime.recurrence.steps import Steps
from duetime.recurrence.zones import DAY_SECONDS, LATEST_SECOND, LATEST_YEAR

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
UNIT_SECONDS = {"DAILY": DAY_SECONDS, "HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}
MAXIMUM_COUNT = 10_000
#: The steps for looking at the days of a week.
_WEEK_STEPS = 3
#: The steps for one time of a COUNT, besides those of the periods looked at.
COUNTED_STEPS = 2
# The periods looked at in one search: a time that does not come in them counts as never coming.
_PERIODS = {"YEARLY": 400, "MONTHLY": 1200, "WEEKLY": 2100}
_FINE_PERIODS = 8000


class DayPeriodRule:
    """YEARLY, MONTHLY and WEEKLY: periods of several days, each day with the same times."""

    def __init__(self, parts: RuleParts) -> None:
        self._parts = parts
        self._times = times_of_day(parts)
        self._base = self._period_of(parts.start // DAY_SECONDS)
        self._latest = self._period_of(LATEST_SECOND // DAY_SECONDS) - 1
        self._memory: tuple[int, list[int]] | None = None
        months = (1 if parts.frequency == "MONTHLY" else parts.months.bit_count()) * (1 + parts.month_steps)
        self._visit_steps = _WEEK_STEPS if parts.frequency == "WEEKLY" else 2 + months
        self._chosen_steps = len(parts.positions) // 3

    @property
    def size(self) -> int:
        days = 366 if self._parts.frequency == "YEARLY" else 31
        return 2_000 + self._parts.size + 36 * (len(self._times) + days)

    def next_local(self, local: int, steps: Steps) -> int | None:
        parts = self._parts
        local = max(local, parts.start)
        index = (self._period_of(local // DAY_SECONDS) - self._base) // parts.interval
        for number in range(index, index + _PERIODS[parts.frequency]):
            period = self._base + number * parts.interval
            if period > self._latest:
                return None
            found = self._first_from(self._days(period, steps), local)
            if found is not None:
                return _until(found, parts)
        return None

    def previous_local(self, local: int, steps: Steps) -> int | None:
        parts = self._parts
        if parts.until is not None:
            local = min(local, parts.until)
        index = (self._period_of(local // DAY_SECONDS) - self._base) // parts.interval
        for number in range(index, max(-1, index - _PERIODS[parts.frequency]), -1):
            found = self._last_until(self._days(self._base + number * parts.interval, steps), local)
            if found is not None:
                return found if found >= parts.start else None
        return None

    def _period_of(self, day: int) -> int:
        match self._parts.frequency:
            case "YEARLY":
                return year_of(day)
            case "MONTHLY":
                moment = date.fromordinal(day + EPOCH_ORDINAL)
                return moment.year * 12 + moment.month - 1
            case _:
                return (day + 4 - self._parts.week_start) // 7

    def _first_from(self, days: list[int], local: int) -> int | None:
        """The first time of a period's days, with BYSETPOS applied, that is not before this one."""
        if self._parts.positions:
            chosen = self._chosen(days)
            place = bisect_left(chosen, local)
            return chosen[place] if place < len(chosen) else None
        day, time = divmod(local, DAY_SECONDS)
        place = bisect_left(days, day)
        if place < len(days) and days[place] == day:
            if time <= self._times[-1]:
                return day * DAY_SECONDS + self._times[bisect_left(self._times, time)]
            place += 1
        return days[place] * DAY_SECONDS + self._times[0] if place < len(days) else None

    def _last_until(self, days: list[int], local: int) -> int | None:
        """The last time of a period's days, with BYSETPOS applied, that is not after this one."""
        if self._parts.positions:
            chosen = self._chosen(days)
            place = bisect_right(chosen, local)
            return chosen[place - 1] if place else None
        day, time = divmod(local, DAY_SECONDS)
        place = bisect_right(days, day)
        if place and days[place - 1] == day:
            if time >= self._times[0]:
                return day * DAY_SECONDS + self._times[bisect_right(self._times, time) - 1]
            place -= 1
        return days[place - 1] * DAY_SECONDS + self._times[-1] if place else None

    def _chosen(self, days: list[int]) -> list[int]:
        """The times that BYSETPOS chooses: places among all times of the period, which need not be listed."""
        times = self._times
        total = len(days) * len(times)
        places = {place - 1 if place > 0 else total + place for place in self._parts.positions}
        return [
            days[place // len(times)] * DAY_SECONDS + times[place % len(times)]
            for place in sorted(places)
            if 0 <= place < total
        ]

    def _days(self, period: int, steps: Steps) -> list[int]:
        steps.take(1 + self._chosen_steps)
        if self._memory is None or self._memory[0] != period:
            steps.take(self._visit_steps)
            self._memory = (period, self._find_days(period, steps))
        return self._memory[1]

    def _find_days(self, period: int, steps: Steps) -> list[int]:
        parts = self._parts
        if parts.frequency == "WEEKLY":
            first = period * 7 - 4 + parts.week_start
            return [
                day for day in range(first, first + 7) if parts.weekdays >> weekday_of(day) & 1 and self._in_month(day)
            ]
        if parts.frequency == "MONTHLY":
            return _listed(parts, period // 12, period % 12 + 1)
        days = [day for month in range(1, 13) for day in _listed(parts, period, month)]
        if parts.year_days or parts.week_numbers or parts.ordinals_in_year:
            steps.take(len(days) * parts.day_of_year_steps // 4)
            first, length = first_day(period), first_day(period + 1) - first_day(period)
            days = [day for day in days if parts.is_day_of_year(day, period, first, length)]
        return days

    def _in_month(self, day: int) -> bool:
        months = self._parts.months
        return months == ALL_MONTHS or bool(months >> date.fromordinal(day + EPOCH_ORDINAL).month & 1)


def _listed(parts: RuleParts, year: int, month: int) -> list[int]:
    mask = parts.days_of(year, month)
    days = []
    if mask:
        before = date(year, month, 1).toordinal() - EPOCH_ORDINAL - 1
        while mask:
            days.append(before + lowest(mask))
            mask &= mask - 1
    return days


class UnitRule:
    """DAILY and finer: equal periods, each with the same times in it; the BY parts leave some periods out."""

    def __init__(self, parts: RuleParts) -> None:
        self._parts = parts
        self._unit = UNIT_SECONDS[parts.frequency]
        self._step = self._unit * parts.interval
        self._base = parts.start // self._unit * self._unit
        place = FREQUENCIES.index(parts.frequency) - 3
        everything = ((24, 3600, parts.hours), (60, 60, parts.minutes), (60, 1, parts.seconds))
        # Parts coarser than the period, or of its size, choose periods; finer parts are times within each period.
        self._limits = [(size, unit, frozenset(wanted)) for size, unit, wanted in everything[:place] if wanted]
        offsets = [0]
        for _, unit, wanted in everything[place:]:
            offsets = [offset + number * unit for offset in offsets for number in sorted(wanted)]
        if parts.positions:
            places = {place - 1 if place > 0 else len(offsets) + place for place in parts.positions}
            offsets = [offsets[place] for place in sorted(places) if 0 <= place < len(offsets)]
        self._offsets = offsets
        self._visit_steps = 1 + sum(len(wanted) // 20 for _, _, wanted in self._limits)
        self._filters_days = bool(parts.months != ALL_MONTHS or parts.month_days or parts.weekdays or parts.year_days)

    @property
    def size(self) -> int:
        return 2_000 + self._parts.size + 36 * len(self._offsets)

    def next_local(self, local: int, steps: Steps) -> int | None:
        local = max(local, self._parts.start)
        index = (local - self._base) // self._step
        for _ in range(_FINE_PERIODS):
            steps.take(self._visit_steps)
            period = self._base + index * self._step
            if period > LATEST_SECOND:
                return None
            allowed = self._allowed_from(period, steps)
            if allowed is None:
                return None
            if allowed == period:
                place = bisect_left(self._offsets, local - period)
                if place < len(self._offsets):
                    return _until(period + self._offsets[place], self._parts)
                index += 1
            else:
                index = -((self._base - allowed) // self._step)
        return None

    def previous_local(self, local: int, steps: Steps) -> int | None:
        parts = self._parts
        if parts.until is not None:
            local = min(local, parts.until)
        index = (local - self._base) // self._step
        for _ in range(_FINE_PERIODS):
            if index < 0:
                return None
            steps.take(self._visit_steps)
            period = self._base + index * self._step
            allowed = self._allowed_until(period, steps)
            if allowed is None:
                return None
            if allowed == period:
                place = bisect_right(self._offsets, local - period)
                if place:
                    found = period + self._offsets[place - 1]
                    return found if found >= parts.start else None
                index -= 1
            else:
                index = (allowed - self._base) // self._step
        return None

    def _allowed_from(self, period: int, steps: Steps) -> int | None:
        """This period if it is allowed, or a later time before which no period is."""
        if self._filters_days:
            day = period // DAY_SECONDS
            found = self._find_day(day, 1, steps)
            if found != day:
                return None if found is None else found * DAY_SECONDS
        for size, unit, wanted in self._limits:
            number = period // unit
            if number % size not in wanted:
                later = [place for place in wanted if place > number % size]
                base = number - number % size
                return (base + (min(later) if later else size)) * unit
        return period

    def _allowed_until(self, period: int, steps: Steps) -> int | None:
        """This period if it is allowed, or an earlier one after which no period is."""
        if self._filters_days:
            day = period // DAY_SECONDS
            found = self._find_day(day, -1, steps)
            if found != day:
                return None if found is None else (found + 1) * DAY_SECONDS - self._unit
        for size, unit, wanted in self._limits:
            number = period // unit
            if number % size not in wanted:
                earlier = [place for place in wanted if place < number % size]
                base = number - number % size
                return (base + max(earlier) + 1 if earlier else base) * unit - self._unit
        return period

    def _find_day(self, day: int, direction: int, steps: Steps) -> int | None:
        """The nearest day, this one included, that the day parts allow."""
        parts = self._parts
        moment = date.fromordinal(day + EPOCH_ORDINAL)
        year, month = moment.year, moment.month
        open_days = -1 << moment.day if direction > 0 else (2 << moment.day) - 1
        # Dates by month and weekday come within 40 years, or never.
        for _ in range(40 * 12 + 1):
            steps.take(1 + parts.month_steps)
            mask = parts.days_of(year, month) & open_days
            open_days = -1
            while mask:
                chosen = lowest(mask) if direction > 0 else mask.bit_length() - 1
                found = date(year, month, chosen).toordinal() - EPOCH_ORDINAL
                if not parts.year_days:
                    return found
                steps.take(1 + parts.day_of_year_steps)
                first = first_day(year)
                if parts.is_day_of_year(found, year, first, first_day(year + 1) - first):
                    return found
                mask &= ~(1 << chosen)
            year, month = divmod(year * 12 + month - 1 + direction, 12)
            month += 1
            if not 2 <= year <= LATEST_YEAR:
                return None
        return None


def _until(found: int, parts: RuleParts) -> int | None:
    return found if parts.until is None or found <= parts.until else None


def counted_times(parts: RuleParts, steps: Steps) -> Generator[None, None, Sequence[int]]:
    """The first COUNT times of a rule, in order, found in pieces; at most 80 kB."""
    rule = make_rule(parts)
    found = array("q")
    upcoming = parts.start
    while len(found) < (parts.count or 0):
        steps.take(COUNTED_STEPS)
        local = rule.next_local(upcoming, steps)
        if local is None:
            break
        upcoming = local + 1
        found.append(local)
        if steps.is_piece_over():
            yield
    return found


def make_rule(parts: RuleParts) -> DayPeriodRule | UnitRule:
    """The rule without its COUNT."""
    return UnitRule(parts) if parts.frequency in UNIT_SECONDS else DayPeriodRule(parts)


class AmendedRule:
    """A rule with RDATE added and EXDATE taken away."""

    def __init__(self, rule: LocalRule, added: Sequence[int], removed: frozenset[int]) -> None:
        self._rule, self._added, self._removed = rule, DateRule(added), removed

    @property
    def size(self) -> int:
        return self._rule.size + self._added.size + 100 * len(self._removed)

    def next_local(self, local: int, steps: Steps) -> int | None:
        while True:
            steps.take(2)
            found = [self._rule.next_local(local, steps), self._added.next_local(local, steps)]
            first = min((one for one in found if one is not None), default=None)
            if first not in self._removed or first is None:
                return first
            local = first + 1

    def previous_local(self, local: int, steps: Steps) -> int | None:
        while True:
            steps.take(2)
            found = [self._rule.previous_local(local, steps), self._added.previous_local(local, steps)]
            last = max((one for one in found if one is not None), default=None)
            if last not in self._removed or last is None:
                return last
            local = last - 1
