"""Turns of schedules that the database refuses: what causes it, and when they are tried again.

An error in a schedule's own data pauses the schedule, but only if the database accepts
the tasks of others.  Every other error counts as the database's: a missing right, a
trigger that raises, a full disk.  Such turns stay where they are and are tried again;
the misfire policy then decides about late times.  One line in the log reports it, and
the metric counts it.
"""

import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import asyncpg
import structlog

from duetime import metrics
from duetime.clock import Monotonic
from duetime.errors import Unavailable, Unknown
from duetime.telemetry import Sparing

log = structlog.get_logger()
#: A schedule that fails alone, while no other fired for comparison, is paused after this time.
ALONE_SECONDS = 60.0
LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.5, 5.0
#: A batch is split no further when this many statements have failed and none has succeeded: halving 500 turns down to
#: the first of them takes nine.
MOST_FAILURES = 20
_SAY_EVERY_SECONDS = 60.0
#: The most schedules that are held back; beyond it, the oldest are tried again sooner.
_MOST_HELD = 10_000
#: Errors of a statement that the pool attributes to the database: it is full, or two statements conflicted.
_REFUSED = (asyncpg.InsufficientResourcesError, asyncpg.TransactionRollbackError)

Part = TypeVar("Part")


class TurnsRefused(Unavailable):
    """The database refuses every turn: firing waits."""


async def try_apart(
    parts: Sequence[Part], attempt: Callable[[list[Part]], Awaitable[None]]
) -> list[tuple[Part, Exception]]:
    """Try all parts at once, and refused ones in halves, until each refused part is alone; returns these."""
    refused: list[tuple[Part, Exception]] = []
    waiting = [list(parts)] if parts else []
    failures, has_succeeded, last = 0, False, None
    while waiting:
        some = waiting.pop()
        if last is not None and failures >= MOST_FAILURES and not has_succeeded:
            refused += [(part, last) for part in some]
            continue
        try:
            await attempt(some)
            has_succeeded = True
        except (asyncpg.PostgresError, Unavailable) as error:
            if not _is_refusal(error):
                raise
            failures, last = failures + 1, error
            if len(some) == 1:
                refused.append((some[0], error))
                continue
            if failures == 1:
                # Shuffle, so that a few bad parts do not keep the same good ones waiting each time.
                random.shuffle(some)
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return refused


class Refusals:
    """The schedules whose turns were refused."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        #: By schedule: since when it is refused, how often it was, and when it is tried again.
        self._held: dict[int, tuple[float, int, float]] = {}
        #: When a task of a schedule was last stored.
        self._stored_at = float("-inf")
        self._is_refusing = False
        self._said = Sparing(1, monotonic, _SAY_EVERY_SECONDS)

    def now(self) -> float:
        return self._monotonic()

    def is_held(self, schedule: int) -> bool:
        """Whether it was refused, and its next try has not come yet."""
        held = self._held.get(schedule)
        return held is not None and self._monotonic() < held[2]

    def fired(self, schedules: Iterable[int], *, has_tasks: bool) -> None:
        """Note schedules that had their turn; only a turn with tasks shows that the database accepts tasks."""
        for schedule in schedules:
            self._held.pop(schedule, None)
        if has_tasks:
            self._stored_at = self._monotonic()
            if self._is_refusing:
                self._is_refusing = False
                log.info("the database takes the tasks of schedules again")

    def judge(self, refused: Sequence[tuple[int, Exception]], began_at: float, *, are_all: bool) -> set[int]:
        """The schedules to pause; the others are held back for a while.

        Raises `TurnsRefused` if these are all that were tried since then, and more than one.
        """
        if not refused:
            return set()
        own = {schedule for schedule, error in refused if is_about_data(error) and self._is_alone(schedule, began_at)}
        others = [(schedule, error) for schedule, error in refused if schedule not in own]
        if others:
            self._say(others)
        if are_all and not own and len(others) > 1:
            raise TurnsRefused(_sentence(others[0][1]))
        for schedule, _ in others:
            self._hold(schedule)
        for schedule in own:
            self._held.pop(schedule, None)
        return own

    def _is_alone(self, schedule: int, began_at: float) -> bool:
        """Whether the database accepted tasks of others meanwhile, or has refused this schedule for long."""
        since = self._held.get(schedule, (began_at, 0, 0.0))[0]
        return self._stored_at >= since or self._monotonic() - since >= ALONE_SECONDS

    def _hold(self, schedule: int) -> None:
        now = self._monotonic()
        since, times, _ = self._held.pop(schedule, (now, 0, 0.0))
        wait = min(LEAST_WAIT_SECONDS * 2.0 ** min(times, 10), MOST_WAIT_SECONDS)
        self._held[schedule] = (since, times + 1, now + wait)
        if len(self._held) > _MOST_HELD:
            del self._held[next(iter(self._held))]

    def _say(self, refused: Sequence[tuple[int, Exception]]) -> None:
        self._is_refusing = True
        for _, error in refused:
            metrics.TURNS_REFUSED.labels(sqlstate_of(error)).inc()
        if (left_out := self._said.take()) is not None:
            error = refused[0][1]
            log.error(
                "the database refuses the tasks of schedules; they are tried again",
                schedules=len(refused),
                sqlstate=sqlstate_of(error),
                error=_sentence(error),
                left_out=left_out,
            )


def reason_of(error: Exception) -> str:
    """Why a schedule is paused."""
    return f"paused: the database refuses its tasks: {_sentence(error)}"


def is_about_data(error: Exception) -> bool:
    """Whether the error concerns values of a row, and not the table."""
    if isinstance(error, asyncpg.UniqueViolationError):
        # The next try makes new ids.
        return False
    if isinstance(error, asyncpg.CheckViolationError):
        # Without a constraint's name it means that there is no partition.
        return bool(getattr(error, "constraint_name", None))
    return isinstance(
        error, (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
    )


def sqlstate_of(error: Exception) -> str:
    cause = error if isinstance(error, asyncpg.PostgresError) else error.__cause__
    return str(getattr(cause, "sqlstate", None) or "none")


def _is_refusal(error: Exception) -> bool:
    """Whether the database has answered with a refusal."""
    if isinstance(error, asyncpg.PostgresError):
        return True
    return not isinstance(error, Unknown) and isinstance(error.__cause__, _REFUSED)


def _sentence(error: Exception) -> str:
    """The message without the lines that show the row."""
    return str(error).partition("\n")[0]
