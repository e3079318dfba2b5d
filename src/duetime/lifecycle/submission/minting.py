"""Mint the ids of new tasks, and make sure that their partitions exist.

Ids are minted from a lower bound of the database's clock just before the
statement, which refuses ids that are too old or in the future.
"""

from duetime.clock import to_us
from duetime.database.partitions import Partitions
from duetime.ids import due_ms_of, make_ids, make_row
from duetime.lifecycle.submission.batch import Batch, Load
from duetime.model.task import NewTask, TimedTask


def mint(load: Load, now_ms: int) -> None:
    """Give every task its id."""
    batches, lanes = load.batches, load.lanes
    load.moments_ms = (now_ms,)
    if not load.is_untimed:
        dues = _due_ms_of(batches, now_ms)
        load.moments_ms = set(dues)
        load.ids = make_ids([*zip(dues, lanes, strict=True)])
    elif load.has_one_lane:
        load.ids = make_row(now_ms, lanes[0], len(lanes))
    else:
        load.ids = make_ids([(now_ms, lane) for lane in lanes])
    if len(batches) == len(lanes):
        for batch, identifier in zip(batches, load.ids, strict=True):
            batch.ids, batch.minted_ms = [identifier], now_ms
        return
    end = 0
    for batch in batches:
        begin, end = end, end + len(batch.tasks)
        batch.ids, batch.minted_ms = load.ids[begin:end], now_ms


async def ensure_partitions(partitions: Partitions, load: Load) -> None:
    """Make sure that the partitions of the minted ids exist."""
    if not partitions.are_known(load.moments_ms):
        await partitions.ensure(load.moments_ms)
    if load.requests:
        await partitions.ensure_requests([due_ms_of(request) for request in load.requests])


def _due_ms_of(batches: list[Batch], now_ms: int) -> list[int]:
    """Return when each task is due."""
    dues: list[int] = []
    for batch in batches:
        if batch.is_untimed:
            dues += [now_ms] * len(batch.tasks)
            continue
        batch.run_us = [_run_us_of(task, now_ms) for task in batch.tasks]
        # Rounded up, so that no task is early.
        dues += [now_ms if us is None else max(-(-us // 1000), now_ms) for us in batch.run_us]
    return dues


def _run_us_of(task: NewTask, now_ms: int) -> int | None:
    """Return when the task was asked to run, in microseconds since 1970. None: now."""
    if not isinstance(task, TimedTask):
        return None
    if task.run_at is not None:
        return to_us(task.run_at)
    return 1000 * (now_ms + -int(-task.delay * 1000 // 1)) if task.delay else None
