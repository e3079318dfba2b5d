"""Find the tasks that match a filter, in order, reading a bounded number of rows.

Every state has one source, the table that holds it, and every source is in due
order within a lane only.  A scan reads a share of each lane and merges them as
far as they are all known: up to the nearest place where a lane was cut.  Lanes
that were cut are read on, with a growing share, until the page is full or the
budget is spent; the page is then short, and still tells where to go on.

What a scan returns was true when it was read.  Whoever shows a task reads it
anew, in one statement (`views/tasks`).
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, assert_never

import asyncpg

from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.ids import due_ms_of
from duetime.model.task import LaneKey, Outcome, TaskState
from duetime.views.filters import TaskFilter, check_limit, make_cursor, read_cursor

SQL = load(__package__, "scan.sql")

#: Rows that one page may read (or one more than there are lanes, if that is more).
SCAN_ROWS = 2_000
MAX_IDS = 10_000

_PAUSED, _BLOCKED = 1, 2


class TenantLanes(Protocol):
    """What the views need of the lanes: whose a lane is, and which ones a tenant has."""

    async def resolve(self, lane: int) -> LaneKey | None: ...

    async def of_tenant(self, tenant: int) -> Mapping[int, LaneKey]: ...


@dataclass(frozen=True)
class Found:
    """Matching tasks with their positions, in order; `next` is where the following page begins."""

    tasks: list[tuple[uuid.UUID, uuid.UUID]]
    next: uuid.UUID | None


@dataclass(frozen=True)
class Source:
    """The statement that holds a state, its own parameters, and the order it gives."""

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
) -> tuple[list[uuid.UUID], str | None]:
    """Ids of up to `limit` matching tasks, for a verb by filter, and the cursor to go on from.

    `except_ms` leaves out scheduled tasks that wait for exactly that time: a
    verb that moves tasks there would otherwise meet them again.
    """
    check_limit(limit, MAX_IDS)
    found = await scan(database, lanes, tenant, wanted, cursor, limit, budget=max(SCAN_ROWS, limit + 1), now=now)
    ids = [task for _, task in found.tasks]
    if except_ms is not None and wanted.state is TaskState.SCHEDULED:
        ids = [task for position, task in found.tasks if due_ms_of(position) != except_ms]
    return ids, next_cursor(tenant, wanted, found.next)


def next_cursor(tenant: int, wanted: TaskFilter, position: uuid.UUID | None) -> str | None:
    return None if position is None else make_cursor(tenant, wanted, position)


async def scan(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    wanted: TaskFilter,
    cursor: str | None,
    limit: int,
    *,
    budget: int = SCAN_ROWS,
    now: datetime | None = None,
) -> Found:
    """The first `limit` matching tasks behind the cursor, over all lanes that fit."""
    source = source_of(wanted.state, now)
    low, high = wanted.earliest, wanted.latest
    if cursor is not None:
        position = read_cursor(tenant, wanted, cursor)
        if source.is_ascending:
            low = max(low, _after(position))
        else:
            high = min(high, position)
    open_lanes = dict.fromkeys(_fitting(await lanes.of_tenant(tenant), wanted), (low, high))
    merged = _Merge(source.is_ascending, limit)
    growth = 1
    while open_lanes and budget > 0 and not merged.is_full:
        share = max(1, min((limit + 1) * growth, budget // len(open_lanes)))
        arguments = source.statement.arguments(
            {
                "lanes": list(open_lanes),
                "lows": [span[0] for span in open_lanes.values()],
                "highs": [span[1] for span in open_lanes.values()],
                "share": share,
                "type": wanted.type,
                "labels": wanted.labels_json,
                **source.parameters,
            }
        )
        rows = await database.fetch(source.statement.sql, *arguments)
        budget -= len(rows)
        growth *= 4
        open_lanes = merged.add(rows, share, open_lanes)
    return merged.found()


class _Merge:
    """Rows of several lanes in one order, valid up to the nearest cut."""

    def __init__(self, is_ascending: bool, limit: int) -> None:
        self._is_ascending = is_ascending
        self._limit = limit
        self._matches: list[tuple[uuid.UUID, uuid.UUID]] = []
        self._cut: uuid.UUID | None = None

    def add(
        self, rows: Iterable[asyncpg.Record], share: int, spans: Mapping[int, tuple[uuid.UUID, uuid.UUID]]
    ) -> dict[int, tuple[uuid.UUID, uuid.UUID]]:
        """Take what was read of the open lanes; returns those that have more, from where on."""
        by_lane: dict[int, list[uuid.UUID]] = {}
        for row in rows:
            by_lane.setdefault(row["lane"], []).append(row["position"])
            if row["is_match"]:
                self._matches.append((row["position"], row["task"]))
        furthest, nearest = (max, min) if self._is_ascending else (min, max)
        ends = {lane: furthest(positions) for lane, positions in by_lane.items() if len(positions) >= share}
        self._cut = nearest(ends.values(), default=None)
        self._matches.sort(reverse=not self._is_ascending)
        if self._is_ascending:
            return {lane: (_after(end), spans[lane][1]) for lane, end in ends.items()}
        return {lane: (spans[lane][0], end) for lane, end in ends.items()}

    @property
    def is_full(self) -> bool:
        return len(self._settled()) > self._limit

    def found(self) -> Found:
        settled = self._settled()
        if len(settled) > self._limit:
            # One more than the page was found: its presence is the "next" link.
            page = settled[: self._limit]
            return Found(page, page[-1][0])
        return Found(settled, self._cut)

    def _settled(self) -> list[tuple[uuid.UUID, uuid.UUID]]:
        cut = self._cut
        if cut is None:
            return self._matches
        if self._is_ascending:
            return [match for match in self._matches if match[0] <= cut]
        return [match for match in self._matches if match[0] >= cut]


def _fitting(lanes: Mapping[int, LaneKey], wanted: TaskFilter) -> list[int]:
    return [
        lane
        for lane, key in lanes.items()
        if (wanted.queue is None or key.queue == wanted.queue)
        and (wanted.priority is None or key.priority == wanted.priority)
    ]


def _after(position: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=min(position.int + 1, (1 << 128) - 1))
