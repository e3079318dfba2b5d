"""A definition in English: "at 02:00 every day, Europe/Berlin".

The words are made from the parsed definition, not from the text written, so that
they show what it really does.  They are for people; nothing reads them back.
"""

from duetime.recurrence.cron import ALL_HOURS, MONTH_WORDS, ClockRule, parse_calendar_entry, parse_cron
from duetime.recurrence.days import ALL_MONTHS, FIRST_YEAR, DayRule
from duetime.recurrence.spec import Definition, Exclusion, ExclusionRule
from duetime.recurrence.zones import clock_text

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_PLACES = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last"}
# More times of day than these are described by their fields.
_TIMES_TOLD = 6
_ENTRIES_TOLD = 4
_SOURCES_TOLD = 20


def describe(definition: Definition) -> str:
    """All sources, the zone, then what is left out."""
    spec, key = definition.spec, definition.key
    pieces = [_rule_words(parse_cron(text, key)) for text in spec.cron[:_SOURCES_TOLD]]
    pieces += [_rule_words(parse_calendar_entry(each, key, "")) for each in spec.calendar[:_SOURCES_TOLD]]
    pieces += [f"by the rule {text.strip().splitlines()[-1].removeprefix('RRULE:')}" for text in spec.rrule]
    untold = sum(max(0, len(entries) - _SOURCES_TOLD) for entries in (spec.cron, spec.calendar))
    if untold:
        pieces.append(f"by {untold} more")
    if spec.dates:
        pieces.append(f"on {_told(list(spec.dates[:_ENTRIES_TOLD]), 'given dates', len(spec.dates))}")
    if spec.every is not None:
        phase = f", {_duration(spec.phase)} later than round times" if spec.phase else ""
        pieces.append(f"every {_duration(spec.every, counts_one=False)}{phase}")
    if spec.after is not None:
        pieces.append(f"{_duration(spec.after)} after each run ends")
    words = f"{'; and '.join(pieces)}, {definition.timezone}"
    if spec.exclude:
        told = [_exclusion_words(exclusion) for exclusion in spec.exclude[:_ENTRIES_TOLD]]
        words += f", except {_told(told, 'exclusions', len(spec.exclude))}"
    return words


def _exclusion_words(exclusion: Exclusion) -> str:
    match exclusion:
        case ExclusionRule(calendar=str() as name):
            return name
        case ExclusionRule(cron=str() as text):
            return _rule_words(parse_cron(text, ""))
        case ExclusionRule(from_=start, to=end):
            return f"{start} to {end}"
        case _:
            return exclusion


def _rule_words(rule: ClockRule) -> str:
    times, days = _time_words(rule), _day_words(rule.days)
    if times.startswith("at ") and rule.days.any_day and rule.days.any_weekday and rule.days.months == ALL_MONTHS:
        times += " every day"
    return f"{times} {days}" if days else times


def _time_words(rule: ClockRule) -> str:
    seconds, minutes, hours = _numbers(rule.seconds), _numbers(rule.minutes), _numbers(rule.hours)
    if len(seconds) * len(minutes) * len(hours) <= _TIMES_TOLD:
        times = [hour * 3600 + minute * 60 + second for hour in hours for minute in minutes for second in seconds]
        return f"at {_listed([clock_text(time) for time in times])}"
    within = "" if rule.hours == ALL_HOURS else f" of {_counted('hour', hours)}"
    if len(seconds) > 1:
        step = _step(seconds, 60)
        rhythm = (
            "every second" if step == 1 else f"every {step} seconds" if step else f"at {_counted('second', seconds)}"
        )
        of_minutes = "" if len(minutes) == 60 else f" of {_counted('minute', minutes)}"
        return f"{rhythm}{of_minutes}{within}"
    suffix = f" at second {seconds[0]}" if seconds != [0] else ""
    step = _step(minutes, 60)
    if step and len(minutes) > 1:
        return f"{'every minute' if step == 1 else f'every {step} minutes'}{within}{suffix}"
    hour_step = _step(hours, 24)
    if len(minutes) == 1 and hour_step:
        rhythm = "every hour" if hour_step == 1 else f"every {hour_step} hours"
        return f"{rhythm}{f' at minute {minutes[0]}' if minutes[0] else ''}{suffix}"
    return f"at {_counted('minute', minutes)}{within or ' of every hour'}{suffix}"


def _day_words(rule: DayRule) -> str:
    by_day, by_weekday = _month_day_words(rule), _weekday_words(rule)
    months = "every month" if rule.months == ALL_MONTHS else _listed([MONTH_WORDS[m] for m in _numbers(rule.months)])
    parts = []
    if not rule.any_day and not rule.any_weekday:
        joint = "or on" if rule.either else "if it is also"
        parts.append(f"on {by_day} of {months}, {joint} {by_weekday}")
    elif not rule.any_day:
        parts.append(f"on {by_day} of {months}")
    elif not rule.any_weekday:
        of_months = f" of {months}" if rule.numbered else f" in {months}" if rule.months != ALL_MONTHS else ""
        parts.append(f"on {by_weekday}{of_months}")
    elif rule.months != ALL_MONTHS:
        parts.append(f"every day in {months}")
    if rule.years is not None:
        parts.append(f"in {_ranges([FIRST_YEAR + place for place in _numbers(rule.years)])}")
    return " ".join(parts)


def _month_day_words(rule: DayRule) -> str:
    words = []
    if days := _numbers(rule.days):
        words.append(_counted("day", days))
    for offset in rule.last_offsets:
        words.append("the last day" if offset == 0 else f"the day {offset} before the last")
    words += [f"the weekday nearest to day {day}" for day in rule.nearest]
    if rule.last_workday:
        words.append("the last weekday")
    return _listed(words)


def _weekday_words(rule: DayRule) -> str:
    days = _numbers(rule.weekdays)
    words = ["Monday to Friday"] if days == [1, 2, 3, 4, 5] else [_WEEKDAYS[day] for day in days]
    return _listed(words + [f"the {_PLACES[number]} {_WEEKDAYS[weekday]}" for weekday, number in rule.numbered])


def _numbers(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _step(numbers: list[int], size: int) -> int | None:
    """The step that produces exactly these numbers from 0 on, if it divides the size."""
    step = size // len(numbers)
    return step if numbers == list(range(0, size, step)) and size % step == 0 else None


def _counted(noun: str, numbers: list[int]) -> str:
    return f"{noun}{'' if len(numbers) == 1 else 's'} {_ranges(numbers)}"


def _ranges(numbers: list[int]) -> str:
    """Numbers in order, with three or more in sequence written as a range."""
    words: list[str] = []
    index = 0
    while index < len(numbers):
        last = index
        while last + 1 < len(numbers) and numbers[last + 1] == numbers[last] + 1:
            last += 1
        if last - index >= 2:
            words.append(f"{numbers[index]} to {numbers[last]}")
        else:
            words += [str(number) for number in numbers[index : last + 1]]
        index = last + 1
    return _listed(words)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def _told(words: list[str], noun: str, count: int) -> str:
    return _listed(words) if count <= _ENTRIES_TOLD else f"{count} {noun}"


def _duration(seconds: float, *, counts_one: bool = True) -> str:
    """Seconds in the largest unit that divides them: "every minute" needs no number, "1 minute later" does."""
    for unit, size in (("week", 604_800), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size and seconds % size == 0:
            number = int(seconds // size)
            if number == 1:
                return f"1 {unit}" if counts_one else unit
            return f"{number} {unit}s"
    return f"{seconds:g} seconds"
