"""Lapse: end holders that fell silent, and let what they held go on.

Ending a holder repeats its counter as a condition, so a beat that arrives in
between saves it.  What an ended holder left behind is then moved onward: an
attempt that it had said it started costs the crash budget; one that it never
said so is released; what is found of a holder that signed off costs nothing.
The second step can be repeated by anyone, so a node that
dies between the two loses nothing.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from duetime import metrics
from duetime.database.pool import Database
from duetime.lifecycle.holders.holders import SQL, Holders, ends_left_behind
from duetime.lifecycle.tasks.onward import Onward

_BATCH = 1_000
#: How long after a holder's end a claim for it can still be committed: no longer than a statement may take.
LOOKBACK = timedelta(minutes=10)


async def end_silent_holders(database: Database, holders: Holders, silent: Sequence[tuple[int, int]]) -> set[int]:
    """End holders (id, counter) whose counter has not moved. Return those that were still silent."""
    if not silent:
        return set()
    rows = await database.run(
        SQL["end_silent"], ids=[holder for holder, _ in silent], beats=[beats for _, beats in silent]
    )
    ended = {row["id"] for row in rows}
    holders.forget(ended)
    return ended


async def sweep_left_behind(database: Database, onward: Onward, lookback: timedelta = LOOKBACK) -> int:
    """Move onward what ended holders left behind. Return how many attempts."""
    swept = 0
    while True:
        rows = await database.run(SQL["read_left_behind"], lookback=lookback, batch=_BATCH)
        ends = ends_left_behind(rows, are_all=len(rows) < _BATCH)
        moved = await onward.move(ends)
        metrics.count_settled(Counter(end.ended.outcome.word for _, end in ends if (end.task, end.number) in moved))
        swept += len(moved)
        if len(rows) < _BATCH:
            return swept
