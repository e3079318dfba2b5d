"""What a worker logs about its attempts, through the standard logging of the program that it runs in.

One line for each step, by the logger `duetime.worker`: the start of an attempt (debug), a success or a snooze (info),
a failure that may be tried again (warning), a final failure (error), failures with their traceback.  Each record
has the fields of `fields_of` for programs that write JSON.  A disabled level costs only the check whether it is
enabled, so the callers check that first.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType

from duetime.sdk.errors import HandlerSignal
from duetime.sdk.worker.context import Held
from duetime.sdk.worker.handlers import cause_of
from duetime.sdk.worker.protocol import Settlement

logger = logging.getLogger("duetime.worker")

#: Called for each task, so bound here to save a call.
logs_starts = partial(logger.isEnabledFor, logging.DEBUG)
logs_successes = partial(logger.isEnabledFor, logging.INFO)

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def started(held: Held) -> None:
    logger.debug("%s started", name_of(held), extra=fields_of(held))


def ended(held: Held, settlement: Settlement) -> None:
    """Log that the attempt is over for this worker. Called once, with the settlement that is reported."""
    extra = fields_of(held, settlement)
    name, seconds = name_of(held), extra["duration"] or 0.0
    match settlement.outcome:
        case "succeeded":
            logger.info("%s succeeded in %.3f s", name, seconds, extra=extra)
        case "snoozed":
            logger.info("%s snoozed for %g s after %.3f s", name, settlement.retry_after, seconds, extra=extra)
        case "released":
            logger.info("%s was given back", name, extra=extra)
        case "failed":
            error, message = settlement.error, ""
            if error is not None:
                message = error.message
            if error is not None and error.kind == "permanent":
                level, what = logging.ERROR, "for good"
            elif settlement.retry_after is None:
                level, what = logging.WARNING, "and is tried again if it has attempts left"
            else:
                level, what = logging.WARNING, f"and is tried again in {settlement.retry_after:g} s"
            logger.log(
                level,
                "%s failed after %.3f s, %s: %s",
                name,
                seconds,
                what,
                message,
                extra=extra,
                exc_info=_exc_info_of(held.error),
            )


def died(batch: Sequence[Held], dead: Iterable[str]) -> None:
    """Log which tasks are dead letters now. A permanent failure was logged as final when it happened."""
    ids = set(dead)
    for held in batch:
        settlement = held.settlement
        if held.task.id in ids and settlement is not None and settlement.error is not None:
            error = settlement.error
            if error.kind != "permanent":
                # The exception object no longer exists. The report has its traceback as text.
                extra = fields_of(held, settlement) | {"exception": error.detail}
                logger.error(
                    "%s was the last one; the task is a dead letter: %s", name_of(held), error.message, extra=extra
                )


def name_of(held: Held) -> str:
    """Describe the attempt for people."""
    task = held.task
    return f"task {task.id} ({task.type}) attempt {task.attempt}"


def fields_of(held: Held, settlement: Settlement | None = None) -> dict[str, object]:
    """Describe the attempt for programs: the extra fields of the log record."""
    task = held.task
    outcome = duration = None
    if settlement is not None:
        outcome = settlement.outcome
        if settlement.started_at is not None and settlement.completed_at is not None:
            # By the wall clock, which may have been set back meanwhile.
            duration = max(0, settlement.completed_at - settlement.started_at) / 1e6
    return {
        "task": task.id,
        "type": task.type,
        "queue": task.queue,
        "attempt": task.attempt,
        "outcome": outcome,
        "duration": duration,
    }


def _exc_info_of(error: BaseException | None) -> _ExcInfo | None:
    """Return the exception to show: for a signal, its cause. The worker's own first frame is left out."""
    shown = cause_of(error) if isinstance(error, HandlerSignal) else error
    if shown is None:
        return None
    frames = shown.__traceback__
    if shown is error and frames is not None:
        frames = frames.tb_next
    return type(shown), shown, frames
