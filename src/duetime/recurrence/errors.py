"""Everything that is wrong with a definition; compiling it stops at the first error.

Each part is compiled separately, which takes longer than compiling the whole: this is only for definitions that are
refused.
"""

from msgspec.structs import replace

from duetime.recurrence.compile import compile_definition
from duetime.recurrence.exclusions import check_calendar
from duetime.recurrence.spec import Definition, ExclusionRule, NamedCalendar, Spec, SpecError
from duetime.recurrence.steps import JUDGE_STEPS, OutOfSteps, Steps, TooCostly

#: At most this many errors are reported at once.
MAXIMUM_ERRORS = 50
_HOURLY = Spec(every=3600.0)
#: An entry that is right takes at least this many steps.
_PART_STEPS = 20
_LISTS = ("cron", "calendar", "rrule", "dates", "exclude")


def find_spec_errors(definition: Definition) -> list[SpecError]:
    """What is wrong with each part, but not whether the calendars that it names exist.

    Reading of a definition that takes long stops before its end.
    """
    found: list[SpecError] = []
    steps = Steps(JUDGE_STEPS)
    bare = Definition(_HOURLY, definition.timezone, definition.dst, key=definition.key)
    _try(bare, found, steps)
    if found:
        bare = replace(bare, timezone="UTC")
    _try(Definition(_HOURLY, jitter=definition.jitter), found, steps)
    spec = definition.spec
    if spec.every is not None or spec.phase:
        _try(replace(bare, spec=Spec(every=spec.every, phase=spec.phase)), found, steps)
    for name in _LISTS:
        for place, entry in enumerate(getattr(spec, name)):
            if len(found) >= MAXIMUM_ERRORS or steps.left < _PART_STEPS:
                return found
            if isinstance(entry, ExclusionRule) and entry.calendar is not None:
                continue
            # With exclusions alone there is nothing to fire at.
            alone = replace(_HOURLY if name == "exclude" else Spec(), **{name: (entry,)})
            _try(replace(bare, spec=alone), found, steps, f"spec.{name}[0]", f"spec.{name}[{place}]")
    return found


def find_calendar_errors(calendar: NamedCalendar) -> list[SpecError]:
    """What is wrong with each exclusion of a calendar."""
    found: list[SpecError] = []
    steps = Steps(JUDGE_STEPS)
    for place, entry in enumerate(calendar.exclude):
        if len(found) >= MAXIMUM_ERRORS or steps.left < _PART_STEPS:
            break
        try:
            check_calendar(NamedCalendar(exclude=(entry,)), steps)
        except OutOfSteps:
            break
        except SpecError as error:
            found.append(SpecError(error.path.replace("exclude[0]", f"exclude[{place}]", 1), error.message))
    return found


def _try(part: Definition, found: list[SpecError], steps: Steps, place: str = "", real_place: str = "") -> None:
    try:
        steps.take(_PART_STEPS)
        compile_definition(part, {}, steps)
    except (TooCostly, OutOfSteps):
        # Other errors are found once this one is corrected.
        steps.left = 0
    except SpecError as error:
        found.append(SpecError(error.path.replace(place, real_place, 1) if place else error.path, error.message))
