"""Make a recurrence of a definition, or say which part of it is wrong.

Parsed crons and zones are kept in bounded caches, so compiling the same definition
again is cheap, and many definitions do not fill the memory.  Long work is done in
pieces, and work that takes too long is refused.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from duetime.recurrence.cron import parse_calendar_entry, parse_cron
from duetime.recurrence.exclusions import ExclusionSet, compile_calendar_in_pieces, compile_exclusions
from duetime.recurrence.fields import hashed_number
from duetime.recurrence.moments import Instant, LocalDay, LocalTime, read_moment
from duetime.recurrence.recurrence import Recurrence
from duetime.recurrence.rrule_text import parse_rrule
from duetime.recurrence.sources import DateRule, EverySource, InstantSource, Source, WallSource
from duetime.recurrence.spec import Definition, ExclusionRule, NamedCalendar, Problem, Spec, SpecError
from duetime.recurrence.steps import COMPILE_STEPS, SEARCH_STEPS, UNLIMITED, OutOfSteps, Steps, TooCostly, finish
from duetime.recurrence.words import describe
from duetime.recurrence.zones import Zone, find_zone

MAXIMUM_ENTRIES = 100
MAXIMUM_DATES = 1000
MAXIMUM_RULES = 10
MAXIMUM_TEXT = 1000
#: The approximate size of a recurrence in bytes, without its sources and exclusions.
_SIZE = 1_500
# A hundred years; a longer time is more likely a typing mistake than intended.
MAXIMUM_SECONDS = 100 * 366 * 86_400


def compile_definition(
    definition: Definition,
    calendars: Mapping[str, NamedCalendar],
    steps: Steps | None = None,
    search_steps: int = SEARCH_STEPS,
) -> Recurrence:
    """The recurrence of a definition; raises SpecError at the first error.

    A definition whose fires all lie in the past compiles as well: the caller asks
    `next` whether there is one.
    """
    named = {}
    for path, name in _named(definition.spec):
        if name in calendars and name not in named:
            with calendar_errors(name, path):
                named[name] = finish(compile_calendar_in_pieces(calendars[name], definition.timezone, Steps(UNLIMITED)))
    return finish(compile_in_pieces(definition, named, list(calendars), steps, search_steps))


def _named(spec: Spec) -> list[tuple[str, str]]:
    """The names of the calendars, and where each is named."""
    return [
        (f"spec.exclude[{place}].calendar", rule.calendar)
        for place, rule in enumerate(spec.exclude)
        if isinstance(rule, ExclusionRule) and rule.calendar is not None
    ]


@contextmanager
def calendar_errors(name: str, path: str) -> Iterator[None]:
    """Report an error in a calendar at the place that names the calendar."""
    try:
        yield
    except SpecError as error:
        if error.path == "timezone":
            raise
        raise SpecError(path, f'calendar "{name}" is wrong at {error.path}: {error.message}') from None


def compile_in_pieces(
    definition: Definition,
    calendars: Mapping[str, ExclusionSet],
    known: Sequence[str] = (),
    steps: Steps | None = None,
    search_steps: int = SEARCH_STEPS,
) -> Generator[None, None, Recurrence]:
    """Like `compile_definition`, in pieces, with compiled calendars; `known` names all calendars that exist."""
    steps = steps or Steps(COMPILE_STEPS)
    try:
        return (yield from _compile(definition, calendars, known, steps, search_steps))
    except OutOfSteps:
        raise TooCostly(
            "spec", f"reading it takes more than {COMPILE_STEPS:,} steps; use fewer and shorter entries"
        ) from None


def _compile(
    definition: Definition,
    calendars: Mapping[str, ExclusionSet],
    known: Sequence[str],
    steps: Steps,
    search_steps: int,
) -> Generator[None, None, Recurrence]:
    spec = definition.spec
    _check_limits(definition)
    try:
        zone = find_zone(definition.timezone)
    except Problem as problem:
        raise SpecError("timezone", str(problem)) from None
    sources = yield from _compile_sources(definition, zone, steps)
    after_ms = None
    if spec.after is not None:
        if sources:
            raise SpecError("spec.after", "`after` waits for each run to end; it cannot be combined with other sources")
        after_ms = _milliseconds("spec.after", spec.after, lowest=1)
    elif not sources:
        raise SpecError("spec", "it has nothing to fire at; give cron, every, after, rrule, calendar or dates")
    jitter_ms = _milliseconds("jitter", definition.jitter, lowest=0)
    exclusions = None
    if spec.exclude:
        exclusions = yield from compile_exclusions(
            spec.exclude, zone, definition.key, calendars, known, "spec.exclude", steps
        )
    return Recurrence(
        sources=tuple(sources),
        zone=zone,
        exclusions=exclusions,
        start_at=definition.start_at,
        end_at=definition.end_at,
        # This is the same for every fire of a schedule, and less than the jitter itself.
        jitter_ms=hashed_number(definition.key, "jitter") * jitter_ms >> 64,
        after_ms=after_ms,
        describe=lambda: describe(definition),
        size=_SIZE + sum(source.size for source in sources) + (0 if exclusions is None else exclusions.size),
        search_steps=search_steps,
    )


def _check_limits(definition: Definition) -> None:
    spec = definition.spec
    for name, entries, limit in (
        ("cron", spec.cron, MAXIMUM_ENTRIES),
        ("calendar", spec.calendar, MAXIMUM_ENTRIES),
        ("dates", spec.dates, MAXIMUM_DATES),
        ("rrule", spec.rrule, MAXIMUM_RULES),
    ):
        if len(entries) > limit:
            raise SpecError(f"spec.{name}", f"it has {len(entries)} entries; use at most {limit}")
    for name, texts in (("cron", spec.cron), ("rrule", spec.rrule), ("dates", spec.dates)):
        for index, text in enumerate(texts):
            if len(text) > MAXIMUM_TEXT:
                raise SpecError(f"spec.{name}[{index}]", f"it is longer than {MAXIMUM_TEXT} characters")
    if definition.start_at is not None and definition.end_at is not None and definition.end_at <= definition.start_at:
        raise SpecError("end_at", "it must be after start_at")


def _compile_sources(definition: Definition, zone: Zone, steps: Steps) -> Generator[None, None, list[Source]]:
    spec, dst, key = definition.spec, definition.dst, definition.key
    sources: list[Source] = []
    for index, text in enumerate(spec.cron):
        try:
            rule = parse_cron(text, key)
        except Problem as problem:
            raise SpecError(f"spec.cron[{index}]", str(problem)) from None
        steps.take(rule.steps)
        if steps.is_piece_over():
            yield
        sources.append(WallSource(rule, zone, dst, is_fine=rule.is_fine))
    for index, entry in enumerate(spec.calendar):
        path = f"spec.calendar[{index}]"
        for name in entry.__struct_fields__:
            if len(str(getattr(entry, name))) > MAXIMUM_TEXT:
                raise SpecError(f"{path}.{name}", f"it is longer than {MAXIMUM_TEXT} characters")
        rule = parse_calendar_entry(entry, key, path)
        steps.take(rule.steps)
        if steps.is_piece_over():
            yield
        sources.append(WallSource(rule, zone, dst, is_fine=rule.is_fine))
    for index, text in enumerate(spec.rrule):
        start = None if definition.start_at is None else definition.start_at // 1000
        try:
            parsed = yield from parse_rrule(text, zone, start, steps)
        except Problem as problem:
            raise SpecError(f"spec.rrule[{index}]", str(problem)) from None
        except OutOfSteps:
            raise TooCostly(
                f"spec.rrule[{index}]",
                "rrule would walk years to find its dates; with COUNT, use UNTIL or the end of the schedule instead",
            ) from None
        sources.append(WallSource(parsed.rule, parsed.zone, dst, is_fine=parsed.is_fine))
    if spec.dates:
        steps.take(2 * len(spec.dates))
        sources.extend(_compile_dates(definition, zone))
        if steps.is_piece_over():
            yield
    if (every := _compile_every(spec)) is not None:
        sources.append(every)
    return sources


def _compile_dates(definition: Definition, zone: Zone) -> list[Source]:
    locals_: set[int] = set()
    instants: list[int] = []
    for index, text in enumerate(definition.spec.dates):
        path = f"spec.dates[{index}]"
        try:
            moment = read_moment(text)
        except Problem as problem:
            raise SpecError(path, str(problem)) from None
        match moment:
            case LocalTime(local):
                locals_.add(local)
            case Instant(at_ms):
                instants.append(at_ms // 1000 * 1000)
            case LocalDay():
                raise SpecError(path, f'"{text}" has no time of day; write {text}T09:00')
    sources: list[Source] = []
    if locals_:
        sources.append(WallSource(DateRule(sorted(locals_)), zone, definition.dst, is_fine=False))
    if instants:
        sources.append(InstantSource(instants))
    return sources


def _compile_every(spec: Spec) -> EverySource | None:
    if spec.every is None:
        if spec.phase:
            raise SpecError("spec.phase", "`phase` moves the times of `every`; give `every` too, or leave it out")
        return None
    every_ms = _milliseconds("spec.every", spec.every, lowest=1)
    phase_ms = _milliseconds("spec.phase", spec.phase, lowest=0)
    if phase_ms >= every_ms:
        raise SpecError(
            "spec.phase", f"{spec.phase:g} s is not below `every`, {spec.every:g} s; use the rest of the division"
        )
    return EverySource(every_ms, phase_ms)


def _milliseconds(path: str, seconds: float, *, lowest: int) -> int:
    if not math.isfinite(seconds) or not lowest <= seconds <= MAXIMUM_SECONDS:
        raise SpecError(path, f"{seconds:g} s is outside {lowest} to {MAXIMUM_SECONDS} s")
    return round(seconds * 1000)
