"""The order of the list of all tasks: the newest first, by what happened.

The place of a task is its due time or, if it was cancelled or made due before that,
the time at which that was done (table `listed`).  Tasks whose place lies in the past
come first, latest first; then tasks whose time is still to come, soonest first.  So
a task that is planned for tomorrow, or was planned and is cancelled, does not stand
before what happened just now.

All pages of a list agree on what is past: the time of the first page is in the cursor.
"""

import uuid
from datetime import datetime

from duetime.clock import to_ms_rounded_up
from duetime.database.pool import Database
from duetime.ids import EARLIEST, just_after
from duetime.views.filters import TaskFilter, make_cursor, read_timed_cursor
from duetime.views.patience import Look
from duetime.views.scan import SQL, Found, Source, TenantLanes, after, fitting, read_on

#: Clocks of other nodes may be a little ahead: what they made due now does not count as future.
_AHEAD_MS = 1_000


class Newest:
    """One request for a page of this list."""

    def __init__(self, database: Database, tenant: int, wanted: TaskFilter, cursor: str | None, now: datetime | None):
        self._database = database
        self._tenant = tenant
        self._wanted = wanted
        self.position: uuid.UUID | None = None
        if cursor is not None:
            self.position, self._until_ms = read_timed_cursor(tenant, wanted, cursor)
        else:
            now_ms = database.clock.now_ms() if now is None else to_ms_rounded_up(now)
            self._until_ms = now_ms + _AHEAD_MS
        self._edge = just_after(self._until_ms)

    def cursor_at(self, position: uuid.UUID | None) -> str | None:
        return None if position is None else make_cursor(self._tenant, self._wanted, position, self._until_ms)

    async def scan(self, lanes: TenantLanes, position: uuid.UUID | None, limit: int, look: Look) -> Found:
        """The first matching tasks after the position; the edge is the position between past and future."""
        keys = fitting(await lanes.of_tenant(self._tenant), self._wanted)
        tasks: list[tuple[uuid.UUID, uuid.UUID]] = []
        if position is None or position < self._edge:
            bounds: dict[str, object] = {"earliest": self._wanted.earliest, "latest": self._wanted.latest}
            past = Source(SQL["scan_newest"], bounds)
            high = self._edge if position is None else position
            found = await read_on(self._database, keys, self._wanted, past, EARLIEST, high, limit, look)
            if found.next is not None:
                return found
            tasks, position = found.tasks, self._edge
            if len(tasks) == limit:
                return Found(tasks, position)
        coming = Source(SQL["scan_coming"], {}, is_ascending=True)
        low = max(after(position), self._wanted.earliest)
        following = await read_on(
            self._database, keys, self._wanted, coming, low, self._wanted.latest, limit - len(tasks), look
        )
        return Found(tasks + following.tasks, following.next)
