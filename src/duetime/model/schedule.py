"""What a schedule is: a recurrence, a template, its policies, as pure data.

`ScheduleBody` is stored as JSON and is what users read.  Durations are seconds,
times are instants.
"""

import enum
import secrets
import uuid
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Raw

from duetime.recurrence import Definition, Dst, Spec

MAX_BUFFERED = 1_000
DEFAULT_CATCHUP_WINDOW_SECONDS = 86_400.0
MIN_CATCHUP_WINDOW_SECONDS = 10.0
DEFAULT_CATCHUP_RATE = 10.0
DEFAULT_MISFIRE_THRESHOLD_SECONDS = 10.0

Origin = Literal["api", "file", "code"]


class Overlap(enum.StrEnum):
    """What to do with a fire whose turn comes while a run before it is not over."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW = "allow"


class Misfire(enum.StrEnum):
    """What to do with fires whose time passed while no node could fire them."""

    FIRE_LATEST = "fire_latest"
    FIRE_ALL = "fire_all"
    SKIP = "skip"


class FireOutcome(enum.IntEnum):
    """What became of one time of a schedule; the number is what is stored."""

    FIRED = 1
    SKIPPED = 2
    MISSED = 3
    BUFFERED = 4

    @property
    def word(self) -> str:
        return self.name.lower()


class ScheduleState(enum.StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    #: There is no next time.
    ENDED = "ended"


class ScheduleBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schedule as it is stored."""

    spec: Spec
    #: The template as the user gave it.
    task: Raw
    timezone: str = "UTC"
    dst: Dst = msgspec.field(default_factory=Dst)
    jitter: float = 0.0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = Misfire.FIRE_LATEST
    catchup_window: float = DEFAULT_CATCHUP_WINDOW_SECONDS
    catchup_rate: float = DEFAULT_CATCHUP_RATE
    pause_on_failure: bool = False
    #: A fire that is later than this is a misfire; up to it, it fires as if it were on time.
    misfire_threshold: float = DEFAULT_MISFIRE_THRESHOLD_SECONDS

    def definition(self, key: str) -> Definition:
        """The recurrence alone; `key` is what its hashed fields are computed from."""
        return Definition(
            spec=self.spec,
            timezone=self.timezone,
            dst=self.dst,
            jitter=self.jitter,
            start_at=None if self.start_at is None else _ms(self.start_at),
            end_at=None if self.end_at is None else _ms(self.end_at),
            key=key,
        )

    def calendars(self) -> list[str]:
        """The named calendars that it leaves out."""
        rules = [each for each in self.spec.exclude if not isinstance(each, str)]
        return sorted({rule.calendar for rule in rules if rule.calendar is not None})


def _ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


encode_body = msgspec.json.Encoder().encode
decode_body = msgspec.json.Decoder(ScheduleBody).decode

#: The number after the time in a key says what caused the fire: 0 is the schedule itself.
_TRIGGER = 1 << 78
_BACKFILL = 1 << 77


def moment_of(nominal_ms: int, cause: int = 0) -> uuid.UUID:
    """The key of one time of a schedule: the time, and what caused the fire."""
    return uuid.UUID(int=nominal_ms << 80 | cause)


def trigger_cause(request: uuid.UUID | None) -> int:
    """A different one for each call, but the same one for the same request."""
    return _TRIGGER | (secrets.randbits(70) if request is None else request.int & ((1 << 70) - 1))


def backfill_cause(backfill: int) -> int:
    return _BACKFILL | backfill


def cause_word(moment: uuid.UUID) -> str:
    if moment.int & _TRIGGER:
        return "trigger"
    return "backfill" if moment.int & _BACKFILL else "schedule"
