"""The recurrence engine: from a definition to the instants it fires at, without I/O.

A definition is data; `compile_definition` makes a `Recurrence` of it or raises a
`SpecError` that says where it is wrong.  Instants are Unix milliseconds.
"""

from duetime.recurrence.compile import compile_definition
from duetime.recurrence.errors import find_calendar_errors, find_spec_errors
from duetime.recurrence.exclusions import check_calendar
from duetime.recurrence.recurrence import Recurrence
from duetime.recurrence.spec import (
    CalendarEntry,
    Definition,
    Dst,
    Exclusion,
    ExclusionRule,
    Fire,
    NamedCalendar,
    PreviewLine,
    Spec,
    SpecError,
)
from duetime.recurrence.zones import LATEST_YEAR

__all__ = [
    "LATEST_YEAR",
    "CalendarEntry",
    "Definition",
    "Dst",
    "Exclusion",
    "ExclusionRule",
    "Fire",
    "NamedCalendar",
    "PreviewLine",
    "Recurrence",
    "Spec",
    "SpecError",
    "check_calendar",
    "compile_definition",
    "find_calendar_errors",
    "find_spec_errors",
]
