"""What the executor knows of one attempt in its hands."""

import asyncio
import enum
from dataclasses import dataclass
from datetime import datetime

from duetime.executor.http import HttpCall
from duetime.executor.slots import Host, Place
from duetime.executor.target_health import TargetHealth
from duetime.model.task import LeasedTask

_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0


class Phase(enum.Enum):
    WAITING = enum.auto()  # in the line of its host
    ANNOUNCING = enum.auto()  # has its place; a beat must say so first
    CALLING = enum.auto()
    ENDING = enum.auto()  # its end is not acknowledged yet
    OVER = enum.auto()


@dataclass(frozen=True)
class GiveBack:
    """The attempt was not begun and goes back, to wait for so long."""

    delay_seconds: float


@dataclass(slots=True, eq=False)
class Held:
    task: LeasedTask
    host: Host
    #: Time of the loop after which its call may not begin before a beat has confirmed it.
    begin_by: float
    phase: Phase = Phase.WAITING
    #: The slot that it holds.
    place: Place | None = None
    is_started: bool = False
    started_at: datetime | None = None
    #: What to cancel to break it off: its call, or before that the task that gets its secret.
    call: HttpCall | asyncio.Task[None] | None = None
    #: The secret headers that its call carries.
    opened: dict[str, str] | None = None
    #: What its answer says of the target, and whether that was told.
    health: TargetHealth | None = None
    is_told: bool = False


def backoff_of(task: LeasedTask) -> float:
    """Seconds until a task whose host is busy is tried again: longer each time it was given back."""
    given_back = task.number - 1 - task.failures - task.crashes - task.releases
    return min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(max(given_back, 0), 10), _LONGEST_BACKOFF_SECONDS)
