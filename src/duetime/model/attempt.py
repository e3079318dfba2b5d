"""What a task does after an attempt has ended: pure rules, no I/O.

Failures count against the task's retries.  Crashes (a holder died while it ran the
attempt) count against a separate budget.  Releases (as far as its holder ever said,
the attempt never ran) count against neither: after a few of them the task waits,
longer each time.  An attempt that its holder gives back itself counts against
nothing, whether it had begun or not.
"""

import random
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from duetime.model.retry import DEFAULT_RETRY, MOST_RELEASES, wait_after_release
from duetime.model.task import Options, Outcome, TaskState, Waiting

#: After this many crashes a task is given up whatever ran beside it: its holders may not run suspects one at a time.
MOST_SHARED_CRASHES = 10
#: A task, and the number of its attempt.
Attempt = tuple[uuid.UUID, int]
_DEFAULTS = Options()
_ENDED = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})


class Past(NamedTuple):
    """An attempt that no longer runs."""

    task: uuid.UUID
    number: int
    #: It was claimed, and given back before anybody began it.
    never_began: bool = False


@dataclass(frozen=True)
class Over:
    """The attempt is final: the task is over."""


@dataclass(frozen=True)
class Again:
    """The task waits for its next attempt."""

    wait_seconds: float
    waiting: Waiting


@dataclass(frozen=True)
class Bury:
    """The task is a dead letter."""

    reason: str


Next = Over | Again | Bury


@dataclass(frozen=True)
class Ended:
    """How an attempt ended, as its holder reported it or as its holder's death shows."""

    outcome: Outcome
    is_permanent: bool = False
    retry_after: float | None = None
    #: The holder itself gives it back: it has not died or forgotten it, so there is no danger of a loop.
    is_certain: bool = False
    #: A holder that stops gives it back although it had begun it.
    has_begun: bool = False
    #: Another task that its holder ran when it died had been lost in as many crashes or more.
    has_rivals: bool = False


def what_follows(
    ended: Ended,
    waiting: Waiting,
    options: Options | None,
    *,
    first_picked_at: datetime,
    now: datetime,
    chance: random.Random,
) -> tuple[Outcome, Next]:
    """The outcome to write down, and what the task does next."""
    options = options or _DEFAULTS
    once_only = options.delivery == "at_most_once"
    following = Waiting(waiting.number + 1, waiting.failures, waiting.crashes, waiting.releases)
    match ended.outcome:
        case Outcome.SUCCEEDED | Outcome.CANCELLED | Outcome.EXPIRED:
            return ended.outcome, Over()
        case Outcome.SNOOZED:
            return Outcome.SNOOZED, Again(ended.retry_after or 0.0, following)
        case Outcome.FAILED:
            failures = waiting.failures + 1
            retry = options.retry or DEFAULT_RETRY
            if ended.is_permanent:
                return Outcome.FAILED, Bury("permanent")
            if once_only:
                return Outcome.FAILED, Bury("at_most_once")
            if failures >= retry.max_attempts:
                return Outcome.FAILED, Bury("attempts")
            wait = retry.wait(failures, chance) if ended.retry_after is None else ended.retry_after
            if retry.max_retry_duration is not None and now + timedelta(seconds=wait) > first_picked_at + timedelta(
                seconds=retry.max_retry_duration
            ):
                return Outcome.FAILED, Bury("retry_duration")
            return Outcome.FAILED, Again(wait, Waiting(following.number, failures, waiting.crashes, waiting.releases))
        case Outcome.LAPSED:
            if once_only:
                return Outcome.UNKNOWN, Bury("unknown")
            crashes = waiting.crashes + 1
            # Which task is to blame for repeated crashes shows when the suspects run one at a time.
            is_excused = ended.has_rivals and waiting.crashes > 0 and crashes < MOST_SHARED_CRASHES
            if crashes >= (options.retry or DEFAULT_RETRY).max_crashes and not is_excused:
                return Outcome.LAPSED, Bury("crashes")
            return Outcome.LAPSED, Again(0.0, Waiting(following.number, waiting.failures, crashes, waiting.releases))
        case Outcome.RELEASED:
            if once_only and (ended.has_begun or not ended.is_certain):
                return Outcome.UNKNOWN, Bury("unknown")
            if ended.is_certain:
                return Outcome.RELEASED, Again(ended.retry_after or 0.0, following)
            releases = min(waiting.releases + 1, MOST_RELEASES)
            again = Waiting(following.number, waiting.failures, waiting.crashes, releases)
            return Outcome.RELEASED, Again(wait_after_release(releases), again)
        case Outcome.UNKNOWN:
            return Outcome.UNKNOWN, Bury("unknown")
        case _:
            assert_never(ended.outcome)


def most_attempts(options: Options) -> int:
    """How many failed attempts make the task a dead letter."""
    return 1 if options.delivery == "at_most_once" else (options.retry or DEFAULT_RETRY).max_attempts


def attempts_left(state: TaskState, failures: int | None, options: Options) -> int:
    """How many attempts the task has after the running one, if none of them is snoozed, lost or given back."""
    if failures is None or state in _ENDED:
        return 0
    return max(0, most_attempts(options) - failures - (state is TaskState.RUNNING))


#: Why a task is a dead letter, for people. Releases no longer make a task one.
REASONS = {
    "permanent": "its last failure was permanent",
    "attempts": "its attempts are used up",
    "retry_duration": "its time for retries is over",
    "at_most_once": "it failed, and its delivery is at most once",
    "crashes": "its holders died while they ran it",
    "releases": "it was handed out again and again without being run",
    "unknown": "its holder died or stopped, and its delivery is at most once: nobody knows whether it ran",
}
