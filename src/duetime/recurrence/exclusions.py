"""Which instants a schedule leaves out, and up to where.

An exclusion is judged by the local time of an instant, so a day that a clock change
interrupts is excluded exactly.  The span that it returns is for jumping: every
instant of the span after the one asked about is excluded too.
"""

from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from duetime.recurrence.cron import ALL_HOURS, ALL_MINUTES, ClockRule, parse_cron
from duetime.recurrence.moments import Instant, LocalDay, LocalTime, read_moment
from duetime.recurrence.spec import Exclusion, ExclusionRule, NamedCalendar, Problem, SpecError
from duetime.recurrence.steps import UNLIMITED, Steps, finish
from duetime.recurrence.zones import DAY_SECONDS, EARLIEST_SECOND, LATEST_SECOND, Zone, find_zone

MAXIMUM_EXCLUSIONS = 1000
MAXIMUM_TEXT = 1000
#: This many of the existing calendars are compared with an unknown name, to suggest similar ones.
MAXIMUM_ALIKE = 100
#: The steps for reading an entry, besides those of its cron.
ENTRY_STEPS = 3


#: The steps for finding where an excluded stretch ends.
STRETCH_STEPS = 4


class LocalExclusion(Protocol):
    @property
    def size(self) -> int:
        """Its approximate size in bytes."""

    def span(self, local: int, steps: Steps) -> tuple[int, int] | None:
        """The span of excluded local times around this one, [start, end); None if this one is not excluded."""


class Spans:
    """Merged spans, in local seconds or in milliseconds, found by bisection."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        # 16 bytes a span; a list of numbers takes 80.
        self._starts = array("q")
        self._ends = array("q")
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    @property
    def size(self) -> int:
        return 300 + 16 * len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def span(self, at: int, steps: Steps) -> tuple[int, int] | None:
        steps.take(1)
        index = bisect_right(self._starts, at) - 1
        return (self._starts[index], self._ends[index]) if index >= 0 and at < self._ends[index] else None


class CronExclusion:
    """The whole minutes, or with six fields the seconds, that a cron matches."""

    __slots__ = ("_rule", "_unit")

    def __init__(self, rule: ClockRule) -> None:
        self._rule = rule
        # What the cron leaves open is excluded in one piece.
        if rule.has_seconds and rule.seconds != ALL_MINUTES:
            self._unit = 1
        elif rule.minutes != ALL_MINUTES:
            self._unit = 60
        elif rule.hours != ALL_HOURS:
            self._unit = 3600
        else:
            self._unit = DAY_SECONDS

    @property
    def size(self) -> int:
        return 100 + self._rule.size

    def span(self, local: int, steps: Steps) -> tuple[int, int] | None:
        steps.take(1)
        if not self._rule.matches(local if self._rule.has_seconds else local - local % 60):
            return None
        if self._unit < DAY_SECONDS:
            start = local - local % self._unit
            return start, start + self._unit
        day = local // DAY_SECONDS
        before = self._rule.days.previous_day(day, steps, matching=False)
        after = self._rule.days.next_day(day, steps, matching=False)
        start = EARLIEST_SECOND if before is None else (before + 1) * DAY_SECONDS
        return start, LATEST_SECOND if after is None else after * DAY_SECONDS


@dataclass(frozen=True, slots=True)
class ExclusionSet:
    """All exclusions of a definition in its zone."""

    zone: Zone
    locals_: tuple[LocalExclusion, ...]
    instants: tuple[Spans, ...] = ()
    # In the order written, for reasons and words: each one as a separate set.
    parts: tuple[tuple[str, "ExclusionSet"], ...] = ()

    def span(self, at_ms: int, steps: Steps) -> tuple[int, int] | None:
        """The span of excluded milliseconds around this one, [start, end); None if this one fires."""
        for instants in self.instants:
            if found := instants.span(at_ms, steps):
                return found
        if self.locals_:
            second = at_ms // 1000
            local = second + self.zone.offset_at(second)
            for exclusion in self.locals_:
                if found := exclusion.span(local, steps):
                    steps.take(STRETCH_STEPS)
                    return self._span_of(second, *found)
        return None

    def _span_of(self, second: int, start: int, end: int) -> tuple[int, int]:
        """The span of instants around this one during which the wall clock stays within a local span."""
        entry, reentry, back = self.zone.meetings(max(start, EARLIEST_SECOND))
        first = reentry if reentry <= second else entry
        exit_, last, forth = self.zone.meetings(min(end, LATEST_SECOND))
        if exit_ > second:
            last = exit_
        # An edge that occurs twice: the clock goes back over it and leaves the span on the other side.
        if back is not None and second < back.at:
            last = min(last, back.at)
        if forth is not None and second >= forth.at:
            first = max(first, forth.at)
        return min(first, second) * 1000, max(last, second + 1) * 1000

    def reason(self, at_ms: int, steps: Steps) -> str | None:
        """The first exclusion, as written, that leaves this instant out."""
        second = at_ms // 1000
        local = second + self.zone.offset_at(second)
        return next((label for label, part in self.parts if part._holds(at_ms, local, steps)), None)

    def _holds(self, at_ms: int, local: int, steps: Steps) -> bool:
        return any(each.span(at_ms, steps) for each in self.instants) or any(
            each.span(local, steps) for each in self.locals_
        )

    @property
    def size(self) -> int:
        """Its approximate size in bytes, with its calendars."""
        own = sum(each.size for each in (*self.locals_, *self.instants))
        # Only the plain spans of a part are its own; everything else in it is counted above.
        return own + sum(len(label) + 700 for label, _ in self.parts)


def compile_exclusions(
    exclusions: tuple[Exclusion, ...],
    zone: Zone,
    key: str,
    calendars: Mapping[str, ExclusionSet],
    known: Sequence[str],
    path: str,
    steps: Steps,
) -> Generator[None, None, ExclusionSet]:
    """Read all exclusions, in pieces. A SpecError names the one that is wrong."""
    if len(exclusions) > MAXIMUM_EXCLUSIONS:
        raise SpecError(path, f"there are {len(exclusions)} exclusions; use at most {MAXIMUM_EXCLUSIONS}")
    own: list[tuple[str, ExclusionSet]] = []
    named: dict[str, ExclusionSet] = {}
    parts: list[tuple[str, ExclusionSet]] = []
    for index, exclusion in enumerate(exclusions):
        here = f"{path}[{index}]"
        if isinstance(exclusion, ExclusionRule) and exclusion.calendar is not None:
            part = _named_part(exclusion, calendars, known, here)
            if exclusion.calendar in named:
                continue
            named[exclusion.calendar] = part[1]
        else:
            part = (exclusion_words(exclusion), _compile_one(exclusion, zone, key, here, steps))
            own.append(part)
        parts.append(part)
        if steps.is_piece_over():
            yield
    # Calendars are shared by all schedules that name them, so their spans are not merged with others.
    joined = [_joined(zone, own), *named.values()] if own else [*named.values()]
    return ExclusionSet(
        zone,
        tuple(local for each in joined for local in each.locals_),
        tuple(instants for each in joined for instants in each.instants),
        tuple(parts),
    )


def _joined(zone: Zone, parts: list[tuple[str, ExclusionSet]]) -> ExclusionSet:
    """Join many sets into one, with their plain spans merged."""
    spans = [span for _, part in parts for each in part.locals_ if isinstance(each, Spans) for span in each]
    instants = [span for _, part in parts for each in part.instants for span in each]
    others = tuple(each for _, part in parts for each in part.locals_ if not isinstance(each, Spans))
    return ExclusionSet(
        zone, (Spans(spans), *others) if spans else others, (Spans(instants),) if instants else (), tuple(parts)
    )


def _named_part(
    rule: ExclusionRule, calendars: Mapping[str, ExclusionSet], known: Sequence[str], path: str
) -> tuple[str, ExclusionSet]:
    name = rule.calendar or ""
    if rule.from_ is not None or rule.to is not None or rule.cron is not None:
        raise SpecError(path, "an exclusion is either `from` with `to`, or `cron`, or `calendar`; give one")
    if name not in calendars:
        alike = get_close_matches(name[:100], known[:MAXIMUM_ALIKE], n=1)
        hint = f'did you mean "{alike[0]}"?' if alike else f"make it first: PUT /v1/calendars/{name[:100]}"
        raise SpecError(f"{path}.calendar", f'there is no calendar "{name[:100]}"; {hint}')
    return f'calendar "{name}"', calendars[name]


def compile_calendar_in_pieces(
    calendar: NamedCalendar, zone_key: str, steps: Steps
) -> Generator[None, None, ExclusionSet]:
    """The exclusions of a calendar as a schedule in this zone reads it. A SpecError names the one that is wrong."""
    try:
        zone = find_zone(zone_key)
    except Problem as problem:
        raise SpecError("timezone", str(problem)) from None
    if len(calendar.dates) + len(calendar.exclude) > MAXIMUM_EXCLUSIONS:
        raise SpecError("dates", f"a calendar has at most {MAXIMUM_EXCLUSIONS} entries")
    parts = []
    entries = [(f"dates[{index}]", text) for index, text in enumerate(calendar.dates)]
    for path, exclusion in [*entries, *((f"exclude[{index}]", each) for index, each in enumerate(calendar.exclude))]:
        if isinstance(exclusion, ExclusionRule) and exclusion.calendar is not None:
            raise SpecError(f"{path}.calendar", "a calendar cannot name another; list its entries here")
        parts.append(("", _compile_one(exclusion, zone, "", path, steps)))
        if steps.is_piece_over():
            yield
    # The calendar's own name is given as the reason, so the parts are not kept.
    joined = _joined(zone, parts)
    return ExclusionSet(zone, joined.locals_, joined.instants)


def check_calendar(calendar: NamedCalendar, steps: Steps | None = None) -> None:
    """Raise the SpecError that a schedule using this calendar would meet."""
    finish(compile_calendar_in_pieces(calendar, "UTC", steps or Steps(UNLIMITED)))


def _compile_one(exclusion: Exclusion, zone: Zone, key: str, path: str, steps: Steps) -> ExclusionSet:
    steps.take(ENTRY_STEPS)
    match exclusion:
        case str():
            day = _read(exclusion, path)
            if not isinstance(day, LocalDay):
                raise SpecError(
                    path, f'"{exclusion[:40]}" is not a whole day; write 2027-12-24, or use `from` and `to`'
                )
            return _local_set(zone, day.day * DAY_SECONDS, (day.day + 1) * DAY_SECONDS)
        case ExclusionRule(from_=str() as start, to=str() as end, cron=None):
            return _compile_range(zone, start, end, path)
        case ExclusionRule(from_=None, to=None, cron=str() as text):
            if len(text) > MAXIMUM_TEXT:
                raise SpecError(f"{path}.cron", f"it is longer than {MAXIMUM_TEXT} characters")
            try:
                rule = parse_cron(text, key)
            except Problem as problem:
                raise SpecError(f"{path}.cron", str(problem)) from None
            steps.take(rule.steps)
            return ExclusionSet(zone, (CronExclusion(rule),))
        case _:
            raise SpecError(path, "an exclusion is either `from` with `to`, or `cron`, or `calendar`; give one")


def _compile_range(zone: Zone, start_text: str, end_text: str, path: str) -> ExclusionSet:
    result: ExclusionSet
    match _read(start_text, f"{path}.from"), _read(end_text, f"{path}.to"):
        case LocalDay(first), LocalDay(last):
            start, end = first * DAY_SECONDS, (last + 1) * DAY_SECONDS
            result = _local_set(zone, start, end)
        case LocalTime(start), LocalTime(end):
            result = _local_set(zone, start, end)
        case Instant(start), Instant(end):
            result = ExclusionSet(zone, (), (Spans([(start, end)]),))
        case _:
            raise SpecError(
                f"{path}.to", "`from` and `to` must be written alike: both days, both local, or both with offset"
            )
    if start >= end:
        raise SpecError(f"{path}.to", f'"{end_text}" is not after "{start_text}"')
    return result


def _local_set(zone: Zone, start: int, end: int) -> ExclusionSet:
    return ExclusionSet(zone, (Spans([(start, end)]),))


def _read(text: str, path: str) -> LocalDay | LocalTime | Instant:
    try:
        return read_moment(text)
    except Problem as problem:
        raise SpecError(path, str(problem)) from None


def exclusion_words(exclusion: Exclusion) -> str:
    """The exclusion as a short phrase, for reasons and words."""
    match exclusion:
        case str():
            return exclusion
        case ExclusionRule(calendar=str() as name):
            return f'calendar "{name}"'
        case ExclusionRule(cron=str() as text):
            return f'cron "{text}"'
        case _:
            return f"{exclusion.from_} to {exclusion.to}"
