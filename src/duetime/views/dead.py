"""Dead letters: which tasks were given up, why, and with which last error.

Lists are in order of the tasks' due time, latest first, which is the order of
the key; every error and the payload are in the task itself.
"""

import uuid
from datetime import datetime

import msgspec
from msgspec import Raw

from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput
from duetime.ids import lane_of
from duetime.model.task import TaskState
from duetime.views.attempts import attempt_view
from duetime.views.filters import DEFAULT_LIMIT, Page, TaskFilter, check_limit, read_cursor
from duetime.views.patience import Patience
from duetime.views.scan import Found, TenantLanes, check_time, next_cursor, scan, task_ids

SQL = load(__package__, "dead.sql")


class DeadView(msgspec.Struct, frozen=True):
    id: uuid.UUID
    tenant: str
    type: str
    queue: str
    priority: str
    state: TaskState
    labels: Raw
    run_at: datetime
    created_at: datetime
    reason: str
    died_at: datetime
    #: How many attempts there were.
    attempts: int
    #: The error of the last attempt.
    worker: str | None
    status: int | None
    error: Raw | None


async def list_dead(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    tenant_name: str,
    wanted: TaskFilter,
    cursor: str | None = None,
    limit: int = DEFAULT_LIMIT,
    *,
    patience: Patience | None = None,
) -> Page[DeadView]:
    """A page of dead letters, latest due time first."""
    check_limit(limit)
    wanted = _dead_only(wanted)
    look = (patience or Patience()).begin(tenant)
    position = None if cursor is None else read_cursor(tenant, wanted, cursor)
    while True:
        found = await scan(database, lanes, tenant, wanted, position, limit, look)
        async with look.reading():
            items, position = await _read_found(database, lanes, tenant, tenant_name, found)
        following = next_cursor(tenant, wanted, position)
        if items or following is None:
            return Page(items, following)
        # Nothing was found yet, or what was found has been redriven or dropped in between.
        check_time(look, following)


async def _read_found(
    database: Database, lanes: TenantLanes, tenant: int, tenant_name: str, found: Found
) -> tuple[list[DeadView], uuid.UUID | None]:
    """Those that are dead now, and the position after them."""
    if not found.tasks:
        return [], found.next
    keys = await lanes.of_tenant(tenant)
    ids = [task for _, task in found.tasks]
    lanes_of_ids = [lane_of(task) for task in ids]
    rows, has_more = cut_page(
        await database.run(SQL["read_dead"], lanes=lanes_of_ids, ids=ids, bytes=PAGE_BYTES), len(ids)
    )
    items = []
    for row in rows:
        key = keys[row["lane"]]
        last = attempt_view(row["number"], None, row["worker"], None, None, None, row["detail"])
        items.append(
            DeadView(
                id=row["id"],
                tenant=tenant_name,
                type=row["type"],
                queue=key.queue,
                priority=key.priority.word,
                state=TaskState.DEAD,
                labels=Raw((row["labels"] or "{}").encode()),
                run_at=row["run_at"],
                created_at=row["created_at"],
                reason=row["reason"],
                died_at=row["died_at"],
                attempts=row["number"],
                worker=last.worker,
                status=last.status,
                error=last.error,
            )
        )
    return items, found.tasks[rows[-1]["place"] - 1][0] if has_more else found.next


async def dead_ids(
    database: Database,
    lanes: TenantLanes,
    tenant: int,
    wanted: TaskFilter,
    cursor: str | None,
    limit: int,
    *,
    patience: Patience | None = None,
) -> tuple[list[uuid.UUID], str | None]:
    """Ids of up to `limit` dead letters for a redrive or drop by filter, and the cursor to go on from."""
    return await task_ids(database, lanes, tenant, _dead_only(wanted), cursor, limit, patience=patience)


def _dead_only(wanted: TaskFilter) -> TaskFilter:
    if wanted.state not in (None, TaskState.DEAD):
        raise InvalidInput.at("state", "dead letters are all dead; leave it out")
    return msgspec.structs.replace(wanted, state=TaskState.DEAD)
