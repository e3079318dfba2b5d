"""Tasks as users see them: one with all its attempts, or a page of a list.

One statement over all tables reads a whole task, so its state, its attempts and its
next time belong together.  A list first finds ids (`views/scan`), then reads those
tasks; a task that has left the wanted state in between is left out.  A page is cut
where its payloads would pass a few megabytes, and the next page goes on from there.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg
import msgspec
from msgspec import Raw

from duetime.clock import from_ms
from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import due_ms_of, lane_of
from duetime.model.attempt import attempts_left
from duetime.model.headers import shown_headers
from duetime.model.retry import DEFAULT_RETRY, RetryPolicy
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, LaneKey, Options, Target, TaskState
from duetime.views.attempts import AttemptView, attempt_view, attempts_of, count_omitted, reason_of
from duetime.views.filters import DEFAULT_LIMIT, Page, TaskFilter, check_limit, read_cursor
from duetime.views.newest import Newest
from duetime.views.patience import Patience
from duetime.views.scan import Found, TenantLanes, check_time, next_cursor, scan

SQL = load(__package__, "tasks.sql")

#: The most attempts shown with one task, and with each task of a list: the latest ones.
MAX_ATTEMPTS = 1_000
MAX_ATTEMPTS_IN_LIST = 20
#: Of these, only the latest that together stay within these bytes are shown, and one more.
ATTEMPT_BYTES = 1024 * 1024
ATTEMPT_BYTES_IN_LIST = 256 * 1024

#: Lanes are positive 32-bit integers in the database; an id may claim to have a higher one.
_LANES_END = 1 << 31


class TargetView(msgspec.Struct, frozen=True):
    url: str
    method: str
    #: Secret headers have `***` for their value.
    headers: dict[str, str]
    secret_headers: list[str]
    timeout: float | None
    retry_on: list[int]


class RetryView(msgspec.Struct, frozen=True):
    """The policy in force, defaults filled in; durations in seconds."""

    max_attempts: int
    min_backoff: float
    max_backoff: float
    max_doublings: int
    max_retry_duration: float | None
    max_crashes: int


class TaskView(msgspec.Struct, frozen=True):
    id: uuid.UUID
    tenant: str
    type: str
    queue: str
    priority: str
    state: TaskState
    payload: Raw
    labels: Raw
    #: When it is to run: the time of its submission or, if it was rescheduled, the new time.
    run_at: datetime
    #: The time of its submission, if it was rescheduled.
    first_run_at: datetime | None
    created_at: datetime
    expires_at: datetime | None
    schedule: str | None
    result: Raw | None
    attempts: list[AttemptView]
    #: The time of the next attempt, while it waits for one; if it is due already, this is in the past.
    next_run_at: datetime | None
    #: How many of `retry.max_attempts` attempts may still be made, without the running one.
    attempts_left: int
    sla: float | None
    sla_met: bool | None
    target: TargetView | None
    retry: RetryView
    timeout: float
    delivery: str
    requires: list[str]
    idempotency_key: str | None
    concurrency_key: str | None
    rate_key: str | None
    dead_reason: str | None
    died_at: datetime | None
    #: When it was over, and the reason if one was given; null until then, and for a dead letter.
    ended_at: datetime | None
    end_reason: str | None
    #: How many earlier attempts are not among `attempts`; absent if there are none.
    attempts_omitted: int | msgspec.UnsetType = msgspec.UNSET
    #: Only in the answer to a submission that replaced a waiting task.
    replaces: uuid.UUID | msgspec.UnsetType = msgspec.UNSET


OVER = frozenset({TaskState.SUCCEEDED, TaskState.CANCELLED, TaskState.EXPIRED})
_decode_options = msgspec.json.Decoder(Options).decode


async def get_task(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    tenant_name: str,
    task: uuid.UUID,
    *,
    now: datetime | None = None,
) -> TaskView | None:
    """The whole task; None if this tenant has no such task."""
    key = await lane_key(lanes, tenant, task)
    if key is None:
        return None
    rows = await read_tasks(database, [task], attempts=MAX_ATTEMPTS, attempt_bytes=ATTEMPT_BYTES, now=now)
    return view_of(rows[0], key, tenant_name) if rows else None


async def list_attempts(
    database: Database, lanes: TenantLanes, tenant: int, task: uuid.UUID, after: int, limit: int
) -> Page[AttemptView] | None:
    """The attempts of a task after this number, in order, the running one last; None: the tenant has no such task."""
    check_limit(limit)
    if await lane_key(lanes, tenant, task) is None or not await read_types(database, [task]):
        return None
    rows, has_more = cut_page(
        await database.run(
            SQL["read_attempts"],
            lane=lane_of(task),
            task=task,
            after=after,
            limit=limit + 1,
            bytes=PAGE_BYTES,
        ),
        limit,
    )
    items = [
        attempt_view(
            row["number"],
            row["outcome"],
            row["worker"],
            row["picked_at"],
            row["started_at"],
            row["completed_at"],
            row["detail"],
        )
        for row in rows
    ]
    return Page(items, str(items[-1].number) if has_more else None)


async def list_tasks(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    tenant_name: str,
    wanted: TaskFilter,
    cursor: str | None = None,
    limit: int = DEFAULT_LIMIT,
    *,
    now: datetime | None = None,
    patience: Patience | None = None,
) -> Page[TaskView]:
    """A page of tasks: soonest first for `scheduled` and `ready`, latest due time first for the other states.

    Without a state, the newest first, by what happened (`views/newest`); for one schedule, the latest fire time first.
    """
    check_limit(limit)
    look = (patience or Patience()).begin(tenant)
    newest = Newest(database, tenant, wanted, cursor, now) if wanted.state is wanted.schedule is None else None
    if newest is not None:
        position = newest.position
    else:
        position = None if cursor is None else read_cursor(tenant, wanted, cursor)
    while True:
        if newest is not None:
            found = await newest.scan(lanes, position, limit, look)
        else:
            found = await scan(database, lanes, tenant, wanted, position, limit, look, now=now)
        async with look.reading():
            items, position = await _read_found(database, lanes, tenant, tenant_name, wanted, found, now)
        following = newest.cursor_at(position) if newest is not None else next_cursor(tenant, wanted, position)
        if items or following is None:
            return Page(items, following)
        # Nothing was found yet, or what was found has left the state in between.
        check_time(look, following)


async def _read_found(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    tenant_name: str,
    wanted: TaskFilter,
    found: Found,
    now: datetime | None,
) -> tuple[list[TaskView], uuid.UUID | None]:
    """The tasks as they are now, and the position after them."""
    if not found.tasks:
        return [], found.next
    keys = await lanes.of_tenant(tenant)
    rows = await read_tasks(
        database,
        [task for _, task in found.tasks],
        attempts=MAX_ATTEMPTS_IN_LIST,
        attempt_bytes=ATTEMPT_BYTES_IN_LIST,
        now=now,
    )
    items: list[TaskView] = []
    for row in rows:
        if row["is_cut"]:
            return items, found.tasks[row["place"] - 2][0]
        if wanted.state is None or wanted.state == row["state"]:
            items.append(view_of(row, keys[row["lane"]], tenant_name))
    return items, found.next


async def lane_key(lanes: TenantLanes, tenant: int, task: uuid.UUID) -> LaneKey | None:
    """The lane of an id, if the lane is one of this tenant's."""
    lane = lane_of(task)
    key = await lanes.resolve(lane) if lane < _LANES_END else None
    return key if key is not None and key.tenant == tenant else None


async def read_types(database: Database, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """The types of those tasks that exist."""
    rows = await database.run(SQL["read_types"], lanes=[lane_of(task) for task in ids], ids=list(ids))
    return {row["id"]: row["type"] for row in rows}


async def read_tasks(
    database: Database,
    ids: Sequence[uuid.UUID],
    *,
    attempts: int,
    attempt_bytes: int = ATTEMPT_BYTES_IN_LIST,
    now: datetime | None = None,
) -> list[asyncpg.Record]:
    """Rows of `read_tasks`, in the order of the ids; an id without a task has no row."""
    rows = await database.run(
        SQL["read_tasks"],
        lanes=[lane_of(task) for task in ids],
        ids=list(ids),
        attempts=attempts,
        attempt_bytes=attempt_bytes,
        bytes=PAGE_BYTES,
        now=now,
    )
    # A task that is in no table has a history that is being dropped.
    return [row for row in rows if row["state"] is not None]


def view_of(row: asyncpg.Record, key: LaneKey, tenant_name: str) -> TaskView:
    state = TaskState(row["state"])
    options = options_of(row)
    retry = options.retry or DEFAULT_RETRY
    return TaskView(
        id=row["id"],
        tenant=tenant_name,
        type=row["type"],
        queue=key.queue,
        priority=key.priority.word,
        state=state,
        payload=Raw(row["payload"] or b"null"),
        labels=Raw((row["labels"] or "{}").encode()),
        run_at=row["run_at"],
        first_run_at=row["first_run_at"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        schedule=options.schedule,
        result=Raw(row["result"]) if row["result"] else None,
        attempts=attempts_of(row),
        next_run_at=due_at_of(row) if row["wake"] is not None else None,
        attempts_left=attempts_left(state, row["failures"], options),
        sla=options.sla,
        sla_met=_is_sla_met(row, state, options.sla),
        target=target_view(options.target),
        retry=retry_view(retry),
        timeout=timeout_of(options),
        delivery=options.delivery,
        requires=list(key.requires),
        idempotency_key=options.idempotency_key,
        concurrency_key=options.concurrency_key,
        rate_key=options.rate_key,
        dead_reason=row["dead_reason"],
        died_at=row["died_at"],
        ended_at=row["completed_at"] if state in OVER else None,
        end_reason=_end_reason(row) if state in OVER else None,
        attempts_omitted=count_omitted(row) or msgspec.UNSET,
    )


def due_at_of(row: asyncpg.Record) -> datetime:
    """When the next attempt of a task that waits may begin.

    A task that is parked at a gate gets a new wake. Before its first attempt, its own time says since when it is due.
    """
    wakes_at = from_ms(due_ms_of(row["wake"]))
    is_parked = lane_of(row["wake"]) != row["lane"]
    return min(wakes_at, row["run_at"]) if is_parked and row["number"] == 1 else wakes_at


def options_of(row: asyncpg.Record) -> Options:
    return _decode_options(row["options"]) if row["options"] else Options()


def timeout_of(options: Options) -> float:
    return options.timeout if options.timeout is not None else DEFAULT_TIMEOUT_SECONDS


def _end_reason(row: asyncpg.Record) -> str | None:
    return reason_of(row["attempts"][0][6]) if row["attempts"] else None


def _is_sla_met(row: asyncpg.Record, state: TaskState, sla: float | None) -> bool | None:
    """Whether it was done within `sla` seconds of its time; None while that is undecided, or if it was cancelled."""
    if sla is None or state is TaskState.CANCELLED:
        return None
    promised_at: datetime = row["run_at"] + timedelta(seconds=sla)
    if state is TaskState.SUCCEEDED:
        return bool(row["completed_at"] <= promised_at)
    if state in (TaskState.DEAD, TaskState.EXPIRED) or row["now"] > promised_at:
        return False
    return None


def target_view(target: Target | None) -> TargetView | None:
    if target is None:
        return None
    headers, secret = shown_headers(target)
    return TargetView(target.url, target.method, headers, secret, target.timeout, target.retry_on)


def retry_view(retry: RetryPolicy) -> RetryView:
    return RetryView(**msgspec.structs.asdict(retry))
