"""The recurrence engine: from a definition to the instants it fires at, without I/O.

A definition is data; `compile_definition` makes a `Recurrence` of it or raises a
`SpecError` that says where it is wrong.  Instants are Unix milliseconds.
"""

from duetime.recurrence.compile import calendar_errors, compile_definition, compile_in_pieces
from duetime.recurrence.errors import MAXIMUM_ERRORS, find_calendar_errors, find_spec_errors
from duetime.recurrence.exclusions import ExclusionSet, check_calendar, compile_calendar_in_pieces
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
from duetime.recurrence.steps import PIECE_STEPS, SEARCH_STEPS, UNLIMITED, Steps, TooCostly, finish
from duetime.recurrence.zones import LATEST_YEAR

__all__ = [
    "LATEST_YEAR",
    "MAXIMUM_ERRORS",
    "PIECE_STEPS",
    "SEARCH_STEPS",
    "UNLIMITED",
    "CalendarEntry",
    "Definition",
    "Dst",
    "Exclusion",
    "ExclusionRule",
    "ExclusionSet",
    "Fire",
    "NamedCalendar",
    "PreviewLine",
    "Recurrence",
    "Spec",
    "SpecError",
    "Steps",
    "TooCostly",
    "calendar_errors",
    "check_calendar",
    "compile_calendar_in_pieces",
    "compile_definition",
    "compile_in_pieces",
    "find_calendar_errors",
    "find_spec_errors",
    "finish",
]
