"""What the executor knows of an attempt that it holds."""

import asyncio
import enum
from dataclasses import dataclass
from datetime import datetime

from duetime.executor.http import HttpCall
from duetime.executor.slots import Host, Slot
from duetime.executor.target_health import TargetHealth
from duetime.model.task import LeasedTask

_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0


class Phase(enum.Enum):
    WAITING = enum.auto()  # waits in the line of its host
    ANNOUNCING = enum.auto()  # has its slot, but a beat must announce it first
    CALLING = enum.auto()
    ENDING = enum.auto()  # its end is not acknowledged yet
    OVER = enum.auto()


@dataclass(frozen=True)
class GiveBack:
    """Release an attempt that was not begun; it waits for this delay."""

    delay_seconds: float


@dataclass(slots=True, eq=False)
class Held:
    task: LeasedTask
    host: Host
    #: The loop's time after which its call may begin only when a beat has confirmed it.
    begin_by: float
    phase: Phase = Phase.WAITING
    #: What it holds while its call may be under way.
    slot: Slot | None = None
    is_started: bool = False
    started_at: datetime | None = None
    #: What to cancel to stop it: its call, or before that the task that reads its secret.
    call: HttpCall | asyncio.Task[None] | None = None
    #: The secret headers that its call carries.
    opened: dict[str, str] | None = None
    #: What its answer says of the target, and whether that was reported.
    health: TargetHealth | None = None
    is_told: bool = False


def backoff_of(task: LeasedTask) -> float:
    """Seconds until a task whose host is busy is tried again: longer each time it was released."""
    given_back = task.number - 1 - task.failures - task.crashes - task.releases
    return min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(max(given_back, 0), 10), _LONGEST_BACKOFF_SECONDS)
