"""What a recurrence is made of, and what it answers, as plain data.

A definition is what a user writes.  Nothing here computes anything: a value of these
types may still be wrong, and only `compile_definition` finds that out.  Definitions
are immutable and hashable, so that what is derived from them can be cached by value.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec


class SpecError(Exception):
    """A definition cannot be used: which part is wrong, and what to do about it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.message = path, message


class Problem(ValueError):
    """What is wrong with a piece of text; a caller that knows where the text is makes a SpecError of it."""


class Dst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with local times that a clock change leaves out (gap) or repeats (overlap)."""

    gap: Literal["skip", "shift"] = "shift"
    overlap: Literal["first", "last", "both"] = "first"


FieldText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "cron-field"})]
CronText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "cron"})]
DayText = Annotated[str, msgspec.Meta(extra_json_schema={"format": "local-date"})]


class CalendarEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cron field each; a date must match all of them, day and weekday included."""

    year: FieldText | Annotated[int, msgspec.Meta(ge=1970, le=2199)] | None = None
    month: FieldText | Annotated[int, msgspec.Meta(ge=1, le=12)] | None = None
    day: FieldText | Annotated[int, msgspec.Meta(ge=1, le=31)] | None = None
    weekday: FieldText | Annotated[int, msgspec.Meta(ge=0, le=7)] | None = None
    hour: FieldText | Annotated[int, msgspec.Meta(ge=0, le=23)] | None = None
    minute: FieldText | Annotated[int, msgspec.Meta(ge=0, le=59)] | None = None
    second: FieldText | Annotated[int, msgspec.Meta(ge=0, le=59)] | None = None


class ExclusionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Either `from` with `to`, or `cron`, or `calendar`."""

    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    cron: CronText | None = None
    calendar: str | None = None


# A plain text is one whole local day: "2027-12-24".
Exclusion = DayText | ExclusionRule


class NamedCalendar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Times that many schedules leave out, read in the zone of each schedule; it names no other calendar."""

    dates: tuple[str, ...] = ()
    exclude: tuple[Exclusion, ...] = ()


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The union of its sources, minus its exclusions; `after` cannot be combined with other sources."""

    cron: tuple[str, ...] = ()
    every: float | None = None
    phase: float = 0
    after: float | None = None
    rrule: tuple[str, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()
    dates: tuple[str, ...] = ()
    exclude: tuple[Exclusion, ...] = ()


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A spec with its zone and bounds; `key` is what `H` and jitter are hashed from."""

    spec: Spec
    timezone: str = "UTC"
    dst: Dst = msgspec.field(default_factory=Dst)
    jitter: float = 0
    start_at: int | None = None
    end_at: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Fire:
    """One time to run: the time that the definition says, and the real time after jitter."""

    nominal_ms: int
    at_ms: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class PreviewLine:
    """One line of a preview; an excluded line says what excluded it, and does not fire."""

    at_ms: int
    nominal_ms: int
    local: str
    note: str | None = None
    excluded: bool = False
    reason: str | None = None
