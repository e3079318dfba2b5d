"""Everything that is wrong with a definition, where compiling it stops at the first thing.

Each part is compiled on its own, which takes longer than compiling the whole: only for definitions that are refused.
"""

from msgspec.structs import replace

from duetime.recurrence.compile import compile_definition
from duetime.recurrence.exclusions import check_calendar
from duetime.recurrence.spec import Definition, ExclusionRule, NamedCalendar, Spec, SpecError

#: So many are enough to mend at a time.
MAXIMUM_ERRORS = 50
_HOURLY = Spec(every=3600.0)
_LISTS = ("cron", "calendar", "rrule", "dates", "exclude")


def find_spec_errors(definition: Definition) -> list[SpecError]:
    """What is wrong with each part, but not whether the calendars that it names are there."""
    found: list[SpecError] = []
    bare = Definition(_HOURLY, definition.timezone, definition.dst, key=definition.key)
    _try(bare, found)
    if found:
        bare = replace(bare, timezone="UTC")
    _try(Definition(_HOURLY, jitter=definition.jitter), found)
    spec = definition.spec
    if spec.every is not None or spec.phase:
        _try(replace(bare, spec=Spec(every=spec.every, phase=spec.phase)), found)
    for name in _LISTS:
        for place, entry in enumerate(getattr(spec, name)):
            if len(found) >= MAXIMUM_ERRORS:
                return found
            if isinstance(entry, ExclusionRule) and entry.calendar is not None:
                continue
            # Exclusions alone are nothing to fire at.
            alone = replace(_HOURLY if name == "exclude" else Spec(), **{name: (entry,)})
            _try(replace(bare, spec=alone), found, f"spec.{name}[0]", f"spec.{name}[{place}]")
    return found


def find_calendar_errors(calendar: NamedCalendar) -> list[SpecError]:
    """What is wrong with each exclusion of a calendar."""
    found: list[SpecError] = []
    for place, entry in enumerate(calendar.exclude):
        if len(found) >= MAXIMUM_ERRORS:
            break
        try:
            check_calendar(NamedCalendar(exclude=(entry,)))
        except SpecError as error:
            found.append(SpecError(error.path.replace("exclude[0]", f"exclude[{place}]", 1), error.message))
    return found


def _try(part: Definition, found: list[SpecError], place: str = "", real_place: str = "") -> None:
    try:
        compile_definition(part, {})
    except SpecError as error:
        found.append(SpecError(error.path.replace(place, real_place, 1) if place else error.path, error.message))
