"""A slow, independent reading of cron and of the DST policies, to hold the engine against.

It walks UTC minute by minute and looks at the wall clock, and shares no code with
the engine: fields are tested by asking a date, not by masks.
"""

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
Seen = dict[datetime, list[datetime]]
_NAMES = {name: str(i) for i, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}


def _in_plain(text: str, value: int, low: int, high: int) -> bool:
    for item in text.split(","):
        base, _, step_text = item.partition("/")
        step = int(step_text or 1)
        if base == "*":
            first, last = low, high
        elif "-" in base:
            first, last = (int(part) for part in base.split("-"))
        else:
            first = int(base)
            last = high if step_text else first
        # A range that wraps is walked as it is read.
        number = first
        while True:
            if number == value:
                return True
            walked = 0
            while number != last and walked < step:
                number = low if number == high else number + 1
                walked += 1
            if walked < step:
                break
    return False


def _nearest_workday(year: int, month: int, day: int) -> int | None:
    length = monthrange(year, month)[1]
    if day > length:
        return None
    for distance in (0, -1, 1, -2, 2):
        if 1 <= day + distance <= length and datetime(year, month, day + distance).weekday() < 5:
            return day + distance
    raise AssertionError


def _is_day(text: str, moment: datetime) -> bool:
    length = monthrange(moment.year, moment.month)[1]
    for item in text.split(","):
        if item == "L":
            matches = moment.day == length
        elif item == "LW":
            matches = moment.day == max(d for d in range(1, length + 1) if moment.replace(day=d).weekday() < 5)
        elif item.startswith("L-"):
            matches = moment.day == length - int(item[2:])
        elif item.endswith("W"):
            matches = moment.day == _nearest_workday(moment.year, moment.month, int(item[:-1]))
        else:
            matches = _in_plain(item, moment.day, 1, 31)
        if matches:
            return True
    return False


def _is_weekday(text: str, moment: datetime) -> bool:
    weekday = moment.isoweekday() % 7
    for item in text.split(","):
        if "#" in item:
            name, number = item.split("#")
            matches = weekday == int(_NAMES.get(name, name)) and (moment.day + 6) // 7 == int(number)
        elif item.endswith("L"):
            name = item[:-1]
            length = monthrange(moment.year, moment.month)[1]
            matches = weekday == int(_NAMES.get(name, name)) and moment.day + 7 > length
        else:
            matches = _in_plain("-".join(_NAMES.get(part, part) for part in item.split("-")), weekday, 0, 6)
        if matches:
            return True
    return False


def _six(cron: str) -> list[str]:
    """Minute to year, of a cron with five fields, or with seven and the second 0."""
    parts = cron.split()
    if len(parts) == 5:
        return [*parts, "*"]
    assert (len(parts), parts[0]) == (7, "0")
    return parts[1:]


class CronMatch:
    """Whether a wall clock time is one of a cron's; each number and each date is judged once."""

    def __init__(self, cron: str) -> None:
        minute, hour, self._day, month, self._weekday, self._year = _six(cron)
        self._minutes = {value for value in range(60) if _in_plain(minute, value, 0, 59)}
        self._hours = {value for value in range(24) if _in_plain(hour, value, 0, 23)}
        self._months = {value for value in range(1, 13) if _in_plain(month, value, 1, 12)}
        self._dates: dict[date, bool] = {}

    def __call__(self, moment: datetime) -> bool:
        if moment.minute not in self._minutes or moment.hour not in self._hours or moment.month not in self._months:
            return False
        day = moment.date()
        if day not in self._dates:
            by_day, by_weekday = _is_day(self._day, moment), _is_weekday(self._weekday, moment)
            is_open = self._day.startswith("*") or self._weekday.startswith("*")
            is_day = (by_day and by_weekday) if is_open else (by_day or by_weekday)
            self._dates[day] = is_day and (self._year == "*" or _in_plain(self._year, moment.year, 1970, 2199))
        return self._dates[day]


@lru_cache(maxsize=64)
def _walk(zone_key: str, start: datetime, end: datetime) -> tuple[list[tuple[datetime, datetime]], Seen]:
    """Every minute with its wall clock time, and for each wall clock time the instants that show it."""
    zone = ZoneInfo(zone_key)
    walk: list[tuple[datetime, datetime]] = []
    seen: Seen = {}
    instant = start
    while instant < end:
        wall = instant.astimezone(zone).replace(tzinfo=None, fold=0)
        walk.append((instant, wall))
        seen.setdefault(wall, []).append(instant)
        instant += MINUTE
    return walk, seen


def is_fine(cron: str) -> bool:
    minute, hour = _six(cron)[:2]
    return minute.startswith("*") or hour.startswith("*") or all(_in_plain(hour, value, 0, 23) for value in range(24))


def fires(cron: str, zone_key: str, gap: str, overlap: str, start: datetime, end: datetime) -> list[datetime]:
    """Every instant from start to end at which the cron fires, by walking all minutes.

    Which wall clock times are missing or come twice is seen from the walk itself,
    which begins and ends two days outside of what is asked.
    """
    walk, seen = _walk(zone_key, start - timedelta(days=2), end + timedelta(days=2))
    matches = CronMatch(cron)
    found: set[datetime] = set()
    fine = is_fine(cron)
    for wall, instants in seen.items():
        if matches(wall):
            if fine or overlap == "both":
                found.update(instants)
            else:
                found.add(instants[0] if overlap == "first" else instants[-1])
    if gap == "shift" and not fine:
        for (_, before), (after_instant, after) in pairwise(walk):
            missing = before + MINUTE
            while missing < after:
                if missing not in seen and matches(missing):
                    found.add(after_instant)
                    break
                missing += MINUTE
    return sorted(instant for instant in found if start <= instant < end)


def to_ms(moment: datetime) -> int:
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
