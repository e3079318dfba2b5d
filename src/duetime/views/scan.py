"""Find the tasks that match a filter, in order, within a bounded time.

Every state has one source, the table that holds it, and every source is in due
order within a lane only.  A scan reads a part of each lane and merges the parts up
to the nearest place where a lane was cut, because only up to there all lanes are
known.  It reads on in lanes that hold the others back, with growing parts, until the
page is full or the time is up (`views/patience`).  A page may then be short, and
says where to go on; it is never empty before the end.  If nothing was found in that
time, `SearchIncomplete` says where to go on.

What a scan returns was true when it was read.  Code that shows a task reads it
anew, in one statement (`views/tasks`).
"""

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol, assert_never

import asyncpg

from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.errors import SearchIncomplete
from duetime.ids import EARLIEST, LATEST, due_ms_of
from duetime.lifecycle.tasks.state import read_states
from duetime.model.task import LaneKey, Outcome, TaskState
from duetime.views.filters import TaskFilter, check_limit, make_cursor, read_cursor
from duetime.views.patience import Look, Patience

SQL = load(__package__, "scan.sql")

MAX_IDS = 10_000

_PAUSED, _BLOCKED = 1, 2
#: Stands for the lane if a source is not divided into lanes.
_ONE_STREAM = 0


class TenantLanes(Protocol):
    """What the views need to know about lanes: which tenant a lane belongs to, and which lanes a tenant has."""

    async def resolve(self, lane: int) -> LaneKey | None: ...

    async def of_tenant(self, tenant: int) -> Mapping[int, LaneKey]: ...


@dataclass(frozen=True)
class Found:
    """Matching tasks with their positions, in order; `next` is where the following page begins."""

    tasks: list[tuple[uuid.UUID, uuid.UUID]]
    next: uuid.UUID | None


@dataclass(frozen=True)
class Source:
    """The statement that reads a state, its own parameters, and the order of its rows."""

    statement: Statement
    parameters: dict[str, object]
    is_ascending: bool = False


def source_of(state: TaskState | None, now: datetime | None) -> Source:
    match state:
        case None:
            return Source(SQL["scan_task"], {})
        case TaskState.SCHEDULED | TaskState.READY:
            return Source(SQL["scan_due"], {"state": state.value, "now": now}, is_ascending=True)
        case TaskState.RETRYING:
            return Source(SQL["scan_retrying"], {"now": now})
        case TaskState.RUNNING:
            return Source(SQL["scan_claim"], {})
        case TaskState.PAUSED:
            return Source(SQL["scan_held"], {"reason": _PAUSED})
        case TaskState.BLOCKED:
            return Source(SQL["scan_held"], {"reason": _BLOCKED})
        case TaskState.DEAD:
            return Source(SQL["scan_dead"], {})
        case TaskState.SUCCEEDED:
            return Source(SQL["scan_attempt"], {"outcome": int(Outcome.SUCCEEDED)})
        case TaskState.CANCELLED:
            return Source(SQL["scan_attempt"], {"outcome": int(Outcome.CANCELLED)})
        case TaskState.EXPIRED:
            return Source(SQL["scan_attempt"], {"outcome": int(Outcome.EXPIRED)})
        case _:
            assert_never(state)


async def task_ids(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    wanted: TaskFilter,
    cursor: str | None,
    limit: int,
    *,
    except_ms: int | None = None,
    now: datetime | None = None,
    patience: Patience | None = None,
) -> tuple[list[uuid.UUID], str | None]:
    """Ids of up to `limit` matching tasks, for a verb by filter, and the cursor to go on from.

    `except_ms` leaves out scheduled tasks that wait for exactly that time: a verb that
    moves tasks to that time would otherwise find them again.
    """
    check_limit(limit, MAX_IDS)
    look = (patience or Patience()).begin(tenant)
    position = None if cursor is None else read_cursor(tenant, wanted, cursor)
    while True:
        found = await scan(database, lanes, tenant, wanted, position, limit, look, now=now)
        ids = [task for _, task in found.tasks]
        if wanted.schedule is not None and wanted.state is not None:
            states = await read_states(database, ids, now=now)
            ids = [task for task in ids if states.get(task) is wanted.state]
        elif except_ms is not None and wanted.state is TaskState.SCHEDULED:
            ids = [task for position, task in found.tasks if due_ms_of(position) != except_ms]
        following = next_cursor(tenant, wanted, found.next)
        if ids or following is None:
            return ids, following
        check_time(look, following)
        position = found.next


def next_cursor(tenant: int, wanted: TaskFilter, position: uuid.UUID | None) -> str | None:
    return None if position is None else make_cursor(tenant, wanted, position)


def check_time(look: Look, following: str) -> None:
    """Decide whether to look on from there, when nothing has been found so far."""
    if look.is_over(has_found=False):
        raise SearchIncomplete(look.rows, following)


async def scan(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    wanted: TaskFilter,
    position: uuid.UUID | None,
    limit: int,
    look: Look,
    *,
    now: datetime | None = None,
) -> Found:
    """The first matching tasks after the position, over all lanes that fit: at most `limit`.

    None with a `next` says that the time is up (`check_time`).
    """
    keys = await lanes.of_tenant(tenant)
    if wanted.schedule is not None:
        return await _scan_schedule(database, keys, tenant, wanted, position, limit, look)
    source = source_of(wanted.state, now)
    low, high = wanted.earliest, wanted.latest
    if position is not None:
        if source.is_ascending:
            low = max(low, after(position))
        else:
            high = min(high, position)
    return await read_on(database, fitting(keys, wanted), wanted, source, low, high, limit, look)


async def _scan_schedule(
    database: Database,
    keys: Mapping[int, LaneKey],
    tenant: int,
    wanted: TaskFilter,
    position: uuid.UUID | None,
    limit: int,
    look: Look,
) -> Found:
    """What a schedule made, in any state: its fires lead to its tasks."""
    rows = await database.run(SQL["find_schedule"], tenant=tenant, name=wanted.schedule)
    if not rows:
        return Found([], None)
    bounds = {"earliest": wanted.earliest, "latest": wanted.latest}
    source = Source(SQL["scan_fire"], {"schedule": rows[0]["id"], "fitting": fitting(keys, wanted), **bounds})
    return await read_on(database, [_ONE_STREAM], wanted, source, EARLIEST, position or LATEST, limit, look)


async def read_on(
    database: Database,
    lanes: Sequence[int],
    wanted: TaskFilter,
    source: Source,
    low: uuid.UUID,
    high: uuid.UUID,
    limit: int,
    look: Look,
) -> Found:
    """The first matching tasks of a source between two positions, as far as the time allows."""
    merged = _Merge(source.is_ascending, limit, dict.fromkeys(lanes, (low, high)))
    growth = 1
    while spans := merged.to_read():
        share = max(1, min((limit + 1) * growth, max(look.piece, limit + 1) // len(spans)))
        arguments = source.statement.arguments(
            {
                "lanes": list(spans),
                "lows": [span[0] for span in spans.values()],
                "highs": [span[1] for span in spans.values()],
                "share": share,
                "type": wanted.type,
                "types": wanted.type_likes,
                "labels": wanted.labels_json,
                **source.parameters,
            }
        )
        rows = await look.read(share * len(spans), partial(database.fetch, source.statement.sql, *arguments))
        growth *= 4
        if rows is None:
            # It may be that nothing of this source was read yet.
            return merged.found() if merged.cut is not None else Found([], _before(source, low, high))
        merged.add(rows, spans)
        found = merged.found()
        if found.next is None or len(found.tasks) == limit or look.is_over(has_found=bool(found.tasks)):
            return found
    return merged.found()


def _before(source: Source, low: uuid.UUID, high: uuid.UUID) -> uuid.UUID:
    """The position after which everything between the two comes."""
    return uuid.UUID(int=max(low.int - 1, 0)) if source.is_ascending else high


class _Merge:
    """Merges rows of several lanes into one order, valid up to the nearest cut."""

    def __init__(self, is_ascending: bool, limit: int, spans: dict[int, tuple[uuid.UUID, uuid.UUID]]) -> None:
        self._is_ascending = is_ascending
        self._limit = limit
        #: The parts that were not read yet of the lanes that have more.
        self._spans = spans
        #: Where each of them was cut; empty: nothing was read.
        self._cuts: dict[int, uuid.UUID] = {}
        self._matches: list[tuple[uuid.UUID, uuid.UUID]] = []

    def to_read(self) -> dict[int, tuple[uuid.UUID, uuid.UUID]]:
        """The lanes to read on: at first all, then those whose cuts hold the others back."""
        if not self._cuts:
            return dict(self._spans)
        nearest = sorted(self._cuts, key=self._cuts.__getitem__, reverse=not self._is_ascending)
        return {lane: self._spans[lane] for lane in nearest[: (len(nearest) + 1) // 2]}

    def add(self, rows: Iterable[asyncpg.Record], spans: Mapping[int, tuple[uuid.UUID, uuid.UUID]]) -> None:
        """Add what was read of these lanes."""
        cuts: dict[int, uuid.UUID] = {}
        for row in rows:
            if row["is_match"]:
                self._matches.append((row["position"], row["task"]))
            if row["is_cut"]:
                cuts[row["lane"]] = row["position"]
        for lane, (low, high) in spans.items():
            cut = cuts.get(lane)
            if cut is None:
                del self._spans[lane]
                self._cuts.pop(lane, None)
                continue
            self._spans[lane] = (after(cut), high) if self._is_ascending else (low, cut)
            self._cuts[lane] = cut
        self._matches.sort(reverse=not self._is_ascending)

    @property
    def cut(self) -> uuid.UUID | None:
        """The position up to which all lanes are known; None: to the end."""
        nearest = min if self._is_ascending else max
        return nearest(self._cuts.values(), default=None)

    def found(self) -> Found:
        """The tasks that are certain so far; `next` is None if that is all."""
        cut = self.cut
        # One task more than the page is looked for: its presence is the "next" link.
        settled = self._matches if cut is None else self._matches[: self._count_up_to(cut)]
        if len(settled) > self._limit:
            page = settled[: self._limit]
            return Found(page, page[-1][0])
        return Found(list(settled), cut)

    def _count_up_to(self, cut: uuid.UUID) -> int:
        if self._is_ascending:
            return bisect_right(self._matches, cut, key=lambda match: match[0])
        return bisect_right(self._matches, -cut.int, key=lambda match: -match[0].int)


def fitting(lanes: Mapping[int, LaneKey], wanted: TaskFilter) -> list[int]:
    """The lanes in which such tasks may be; none if the caller's key does not reach the wanted type."""
    within = wanted.within
    if within is not None and wanted.type is not None and not within.has_type(wanted.type):
        return []
    queues = {key.queue for key in lanes.values()}
    if wanted.queue is not None:
        queues &= {wanted.queue}
    if within is not None:
        queues = {queue for queue in queues if within.has_queue(queue)}
    return [
        lane
        for lane, key in lanes.items()
        if key.queue in queues and (wanted.priority is None or key.priority == wanted.priority)
    ]


def after(position: uuid.UUID) -> uuid.UUID:
    """The smallest number above this one."""
    return uuid.UUID(int=min(position.int + 1, (1 << 128) - 1))
