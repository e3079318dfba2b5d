"""Read RRULE text: DTSTART, RRULE, RDATE and EXDATE lines.

Parts that RFC 5545 forbids together are refused, with a sentence that says so.
A rule without DTSTART begins at the start of the schedule or, if that has none, at
local midnight of 1970-01-01.  DTSTART itself fires only if the rule matches it.
"""

import re
from collections.abc import Generator
from datetime import datetime
from typing import NamedTuple

from duetime.recurrence.days import ALL_MONTHS
from duetime.recurrence.rrule import FREQUENCIES, MAXIMUM_COUNT, AmendedRule, counted_times, make_rule
from duetime.recurrence.rrule_parts import RuleParts, weekday_of
from duetime.recurrence.sources import DateRule, LocalRule
from duetime.recurrence.spec import Problem
from duetime.recurrence.steps import OutOfSteps, Steps
from duetime.recurrence.zones import DAY_SECONDS, LATEST_YEAR, Zone, find_zone, local_datetime, local_seconds

_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_BY_DAY = re.compile(r"([+-]?\d{1,2})?(SU|MO|TU|WE|TH|FR|SA)")
_DATE_TIME = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")
# For each list part: the bounds of its numbers, and whether they may be negative.
_LISTS = {
    "BYSECOND": (0, 59, False),
    "BYMINUTE": (0, 59, False),
    "BYHOUR": (0, 23, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYMONTH": (1, 12, False),
    "BYSETPOS": (1, 366, True),
}
# The most times that BYHOUR, BYMINUTE and BYSECOND may make together; they are kept in memory.
MAXIMUM_TIMES = 1440
#: The steps for reading a rule, besides those of its text and its first time.
READ_STEPS = 20
_PARTS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS}


class ParsedRule(NamedTuple):
    rule: LocalRule
    zone: Zone
    parts: RuleParts

    @property
    def is_fine(self) -> bool:
        return self.parts.frequency in ("HOURLY", "MINUTELY", "SECONDLY")


def parse_rrule(text: str, zone: Zone, start_second: int | None, steps: Steps) -> Generator[None, None, ParsedRule]:
    """Read one entry, in pieces. A Problem says what is wrong with it."""
    steps.take(READ_STEPS + len(text) // 2)
    if not text.isascii():
        raise Problem("rrule has letters or digits beyond ASCII; write it with plain ones")
    start: int | None = None
    rule_text: str | None = None
    amendments: list[tuple[str, str, str]] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        head, colon, value = line.partition(":")
        name, _, parameters = head.partition(";")
        match name.upper() if colon else "RRULE":
            case "DTSTART":
                if start is not None:
                    raise Problem("rrule has two DTSTART lines; keep one")
                start, zone = _read_start(parameters, value.strip(), zone)
            case "RRULE":
                if rule_text is not None:
                    raise Problem("rrule has two RRULE lines; give each as an entry of its own")
                rule_text = value if colon else line
            case "RDATE" | "EXDATE":
                amendments.append((name.upper(), parameters.upper(), value))
            case other:
                raise Problem(f'rrule cannot use a "{other[:40]}" line; use DTSTART, RRULE, RDATE and EXDATE')
    if rule_text is None:
        raise Problem('rrule needs a rule such as "FREQ=DAILY;INTERVAL=2"')
    if start is None:
        start = 0 if start_second is None else zone.locate(start_second)[0]
    parts = _read_parts(rule_text.strip().upper(), start, zone)
    rule: LocalRule = make_rule(parts)
    if parts.until is not None and parts.until < start:
        raise Problem("rrule never fires: UNTIL is before DTSTART")
    if _first_local(rule, start, steps) is None:
        raise Problem(
            f'rrule "{rule_text}" never fires, or would walk years to find its next date; ask for less at once'
        )
    if parts.count is not None:
        rule = DateRule((yield from counted_times(parts, steps)))
    if amendments:
        added = [at for line in amendments if line[0] == "RDATE" for at in _read_amendment(*line, zone)]
        removed = [at for line in amendments if line[0] == "EXDATE" for at in _read_amendment(*line, zone)]
        rule = AmendedRule(rule, sorted(added), frozenset(removed))
    return ParsedRule(rule, zone, parts)


def _first_local(rule: LocalRule, start: int, steps: Steps) -> int | None:
    """The first time of a rule; None if there is none, or if finding it takes more than one search may."""
    search = Steps()
    try:
        return rule.next_local(start, search)
    except OutOfSteps:
        return None
    finally:
        steps.take(search.spent)


def _read_start(parameters: str, value: str, zone: Zone) -> tuple[int, Zone]:
    name, _, setting = parameters.partition("=")
    if name.upper() == "TZID":
        zone = find_zone(setting)
    elif parameters and parameters.upper() not in ("VALUE=DATE", "VALUE=DATE-TIME"):
        raise Problem(f'DTSTART cannot use "{parameters[:40]}"; use DTSTART;TZID=Europe/Berlin:20270101T090000')
    if value.endswith("Z"):
        zone = find_zone("UTC")
    local, _ = _read_date_time("DTSTART", value, zone)
    return local, zone


def _read_date_time(name: str, value: str, zone: Zone) -> tuple[int, bool]:
    """The local time that a value of RFC 5545 means, and whether it is a whole day."""
    found = _DATE_TIME.fullmatch(value)
    try:
        if found is None:
            raise ValueError(value)
        moment = datetime.strptime(found[1] + (found[2] or "000000"), "%Y%m%d%H%M%S")
        if not 1900 <= moment.year <= LATEST_YEAR:
            raise ValueError(value)
        local = local_seconds(moment)
        if found[3]:
            local = zone.locate(local)[0]
    except (ValueError, OverflowError) as error:
        raise Problem(f'{name} "{value[:40]}" is no date; write 20270301T090000, or with a Z for UTC') from error
    return local, found[2] is None


def _read_amendment(name: str, parameters: str, value: str, zone: Zone) -> list[int]:
    if parameters and parameters not in ("VALUE=DATE-TIME", f"TZID={zone.key.upper()}"):
        advice = "dates" if name == "RDATE" else "exclude"
        raise Problem(f'{name} cannot use "{parameters[:40]}"; use `{advice}` of the spec instead')
    times = []
    for item in value.upper().split(","):
        local, is_day = _read_date_time(name, item.strip(), zone)
        if is_day:
            advice = "dates" if name == "RDATE" else "exclude"
            raise Problem(f'{name} "{item[:40]}" has no time; use `{advice}` of the spec for whole days')
        times.append(local)
    return times


def _read_parts(text: str, start: int, zone: Zone) -> RuleParts:
    given: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        if name not in _PARTS or not value:
            raise Problem(
                f'rrule part "{part[:40]}" cannot be read; use {", ".join(sorted(_PARTS))}, each with a value'
            )
        if name in given:
            raise Problem(f"rrule has {name} twice; keep one")
        given[name] = value
    frequency = given.get("FREQ", "")
    if frequency not in FREQUENCIES:
        raise Problem(f"rrule needs FREQ, one of {', '.join(FREQUENCIES)}")
    lists = {name: _read_list(name, given[name]) for name in _LISTS if name in given}
    weekdays, ordinals = _read_weekdays(given["BYDAY"]) if "BYDAY" in given else (0, ())
    _refuse_what_does_not_go_together(frequency, given, ordinals)
    count = _read_number("COUNT", given["COUNT"]) if "COUNT" in given else None
    if count is not None and count > MAXIMUM_COUNT:
        raise Problem(f"rrule COUNT {count} is above {MAXIMUM_COUNT}; use UNTIL or the end of the schedule")
    until = None
    if "UNTIL" in given:
        until, is_day = _read_date_time("UNTIL", given["UNTIL"], zone)
        until += DAY_SECONDS - 1 if is_day else 0
    week_start = given.get("WKST", "MO")
    if week_start not in _WEEKDAYS:
        raise Problem(f"rrule WKST must be one of {', '.join(_WEEKDAYS)}")

    first = local_datetime(start)
    months, month_days = lists.get("BYMONTH", ()), lists.get("BYMONTHDAY", ())
    if not (month_days or weekdays or ordinals or "BYYEARDAY" in lists):
        if frequency == "WEEKLY" or "BYWEEKNO" in lists:
            weekdays = 1 << weekday_of(start // DAY_SECONDS)
        elif frequency in ("YEARLY", "MONTHLY"):
            month_days = (first.day,)
            months = months or ((first.month,) if frequency == "YEARLY" else ())
    place = FREQUENCIES.index(frequency)
    times = 1
    for name, below in (("BYHOUR", "HOURLY"), ("BYMINUTE", "MINUTELY"), ("BYSECOND", "SECONDLY")):
        times *= len(lists.get(name, ())) or 1 if place < FREQUENCIES.index(below) else 1
    if times > MAXIMUM_TIMES:
        raise Problem(f"rrule names {times} times in each day or hour, above {MAXIMUM_TIMES}; use a finer FREQ")
    return RuleParts(
        frequency=frequency,
        start=start,
        interval=_read_number("INTERVAL", given.get("INTERVAL", "1")),
        count=count,
        until=until,
        months=sum(1 << month for month in set(months)) if months else ALL_MONTHS,
        month_days=month_days,
        year_days=frozenset(lists.get("BYYEARDAY", ())),
        week_numbers=frozenset(lists.get("BYWEEKNO", ())),
        weekdays=weekdays,
        ordinals=ordinals,
        hours=lists.get("BYHOUR", (first.hour,) if place < FREQUENCIES.index("HOURLY") else ()),
        minutes=lists.get("BYMINUTE", (first.minute,) if place < FREQUENCIES.index("MINUTELY") else ()),
        seconds=lists.get("BYSECOND", (first.second,) if place < FREQUENCIES.index("SECONDLY") else ()),
        positions=lists.get("BYSETPOS", ()),
        week_start=_WEEKDAYS.index(week_start),
        ordinals_in_year=bool(ordinals) and frequency == "YEARLY" and "BYMONTH" not in lists,
    )


def _refuse_what_does_not_go_together(
    frequency: str, given: dict[str, str], ordinals: tuple[tuple[int, int], ...]
) -> None:
    if "COUNT" in given and "UNTIL" in given:
        raise Problem("rrule has COUNT and UNTIL; keep one")
    if "BYWEEKNO" in given and frequency != "YEARLY":
        raise Problem("rrule BYWEEKNO works only with FREQ=YEARLY")
    if "BYYEARDAY" in given and frequency in ("DAILY", "WEEKLY", "MONTHLY"):
        raise Problem(f"rrule BYYEARDAY does not work with FREQ={frequency}; use FREQ=YEARLY")
    if "BYMONTHDAY" in given and frequency == "WEEKLY":
        raise Problem("rrule BYMONTHDAY does not work with FREQ=WEEKLY; use FREQ=MONTHLY")
    if ordinals and (frequency not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in given):
        raise Problem("rrule BYDAY with a number, such as 2MO, works only with FREQ=MONTHLY or YEARLY without BYWEEKNO")
    if "BYSETPOS" in given and not any(name.startswith("BY") and name != "BYSETPOS" for name in given):
        raise Problem("rrule BYSETPOS needs another BY part to choose from")


def _read_number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 9 or int(value) < 1:
        raise Problem(f'rrule {name} "{value[:40]}" must be a whole number above 0')
    return int(value)


def _read_list(name: str, value: str) -> tuple[int, ...]:
    low, high, is_signed = _LISTS[name]
    numbers = set()
    for item in value.split(","):
        digits = item[1:] if item[:1] in "+-" and is_signed else item
        if not digits.isdecimal() or len(digits) > 3 or not low <= int(digits) <= high:
            sign = ", or counted from the end with a minus" if is_signed else ""
            raise Problem(f'rrule {name} "{item[:40]}" must be a number from {low} to {high}{sign}')
        numbers.add(int(item))
    return tuple(sorted(numbers))


def _read_weekdays(value: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    weekdays = 0
    ordinals: list[tuple[int, int]] = []
    for item in value.split(","):
        found = _BY_DAY.fullmatch(item)
        if found is None or (found[1] and not 1 <= abs(int(found[1])) <= 53):
            raise Problem(f'rrule BYDAY "{item[:40]}" cannot be read; write MO, or 2MO, or -1FR')
        if found[1]:
            ordinals.append((_WEEKDAYS.index(found[2]), int(found[1])))
        else:
            weekdays |= 1 << _WEEKDAYS.index(found[2])
    return weekdays, tuple(sorted(set(ordinals)))
