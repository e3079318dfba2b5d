"""Time partitions of the data path: made ahead and on first use, never split.

`task`, `attempt` and `due` are partitioned by the due time inside their ids: days for
two weeks, months for a year, years beyond; `fire` in the same way by the time of the
schedule; `request_key` by hours.  A new partition takes the part of its day, month or
year that is free between its neighbours, so it never overlaps one that was made earlier
for a longer span.  The oldest partition reaches back to the beginning; retention moves
open tasks into it (`scheduler/upkeep`).
"""

import asyncio
import bisect
import uuid
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

import asyncpg

from duetime.clock import from_ms
from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.errors import Unavailable
from duetime.ids import LATEST_MS, just_before

SQL = load(__package__, "partitions.sql")
DATA_PATH = ("task", "attempt", "due")
_DAYS_AHEAD = timedelta(days=14)
_MONTHS_AHEAD = timedelta(days=365)
_AHEAD_MS = 1_000


class Partitions:
    """The partitions that this process knows; checked before each insert, mostly from memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, list[tuple[int, int]]] = {}
        #: The last range of times that was found in all of the tables.
        self._found = (1, 0)
        self._making = asyncio.Lock()

    def covers(self, table: str, first_ms: int, last_ms: int) -> bool:
        """Whether one contiguous run of known partitions holds both ends."""
        spans = self._known.get(table, [])
        place = bisect.bisect_right(spans, (first_ms, LATEST_MS)) - 1
        if place < 0:
            return False
        end = spans[place][1]
        for start, stop in spans[place + 1 :]:
            if end > last_ms or start != end:
                break
            end = stop
        return spans[place][0] <= first_ms and last_ms < end

    def are_known(self, due_ms: Collection[int]) -> bool:
        """Whether rows of these times have a partition in every table of the data path."""
        if not due_ms:
            return True
        first_ms, last_ms = min(due_ms), max(due_ms)
        if self._found[0] <= first_ms and last_ms <= self._found[1]:
            return True
        # The next callers ask for times a moment later.
        for ahead_ms in (_AHEAD_MS, 0):
            if all(self.covers(table, first_ms, last_ms + ahead_ms) for table in DATA_PATH):
                self._found = (first_ms, last_ms + ahead_ms)
                return True
        return False

    async def ensure(self, due_ms: Iterable[int]) -> None:
        """Make the partitions that rows of these times need."""
        times = sorted(set(due_ms))
        if self.are_known(times):
            return
        for moment in times:
            for table in DATA_PATH:
                if not self.covers(table, moment, moment):
                    await self._make(table, moment)

    async def ensure_requests(self, request_ms: Iterable[int]) -> None:
        for moment in set(request_ms):
            if not self.covers("request_key", moment, moment):
                await self._make("request_key", moment)

    async def ensure_fires(self, fire_ms: Iterable[int]) -> None:
        for moment in set(fire_ms):
            if not self.covers("fire", moment, moment):
                await self._make("fire", moment)

    async def make_ahead(self) -> None:
        """Make the partitions of today and the coming days, of this hour and the coming ones."""
        now_ms = self._database.clock.now_ms()
        await self.ensure(now_ms + day * 86_400_000 for day in range(4))
        await self.ensure_fires(now_ms + day * 86_400_000 for day in range(2))
        await self.ensure_requests(now_ms + hour * 3_600_000 for hour in range(-1, 4))

    async def load(self, table: str) -> list[tuple[int, int]]:
        async with self._database.connection() as connection:
            return await self._load(connection, table)

    async def _load(self, connection: asyncpg.Connection, table: str) -> list[tuple[int, int]]:
        spans = [span for _, span in await read_partitions(connection, table)]
        self._known[table], self._found = spans, (1, 0)
        return spans

    async def _make(self, table: str, moment: int) -> None:
        async with self._making:
            for _ in range(20):
                try:
                    async with self._database.connection() as connection, connection.transaction():
                        await connection.execute(SQL["lock"].sql)
                        spans = await self._load(connection, table)
                        if not self.covers(table, moment, moment):
                            if not spans and table != "request_key":
                                first, _ = _unit(table, self._database.clock.now_ms(), self._database.clock.now_ms())
                                await _create(connection, table, 0, first)
                                spans.append((0, first))
                            if not self.covers(table, moment, moment):
                                start, end = free_span(table, moment, self._database.clock.now_ms(), spans)
                                await _create(connection, table, start, end)
                    await self.load(table)
                    return
                except asyncpg.LockNotAvailableError:
                    await asyncio.sleep(0.1)
            raise Unavailable(f"a partition of {table} could not be made: its table stayed locked")


def free_span(table: str, moment: int, now_ms: int, spans: list[tuple[int, int]]) -> tuple[int, int]:
    """The part of the moment's day, month or year that no partition covers yet."""
    start, end = _unit(table, moment, now_ms)
    start = max([start, *(stop for _, stop in spans if stop <= moment)])
    end = min([end, *(begin for begin, _ in spans if begin > moment)])
    return start, end


def _unit(table: str, moment: int, now_ms: int) -> tuple[int, int]:
    at = from_ms(moment)
    ahead = timedelta(milliseconds=moment - now_ms)
    if table == "request_key":
        start = at.replace(minute=0, second=0, microsecond=0)
        end = start + timedelta(hours=1)
    elif ahead < _DAYS_AHEAD:
        start = at.replace(hour=0, minute=0, second=0, microsecond=0)
        end = start + timedelta(days=1)
    elif ahead < _MONTHS_AHEAD:
        start = datetime(at.year, at.month, 1, tzinfo=UTC)
        end = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    else:
        start, end = datetime(at.year, 1, 1, tzinfo=UTC), datetime(at.year + 1, 1, 1, tzinfo=UTC)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


def partition_name(table: str, start: int) -> str:
    return f"{table}_oldest" if start == 0 else f"{table}_{from_ms(start):%Y%m%d_%H%M%S}"


async def _create(connection: asyncpg.Connection, table: str, start: int, end: int) -> None:
    name = partition_name(table, start)
    create = SQL["create_busy" if table == "due" else "create_growing"]
    await connection.execute(create.spelled(table=table, partition=name).sql)
    await connection.execute(attaching(table, name, start, end).sql)


def attaching(table: str, partition: str, start: int, end: int) -> Statement:
    """Attach a table as the partition of this span."""
    until = str(just_before(end))
    if start == 0:
        return SQL["attach_oldest"].spelled(table=table, partition=partition, until=until)
    return SQL["attach"].spelled(table=table, partition=partition, since=str(just_before(start)), until=until)


async def read_partitions(connection: asyncpg.Connection, table: str) -> list[tuple[str, tuple[int, int]]]:
    """The partitions of a table, by name, with their spans in milliseconds, in order of time."""
    read = SQL["read_bounds"]
    rows = await connection.fetch(read.sql, *read.arguments({"table": table}))
    return sorted(((row["name"], parse_bound(row["bound"])) for row in rows), key=lambda partition: partition[1])


def parse_bound(bound: str) -> tuple[int, int]:
    """The span in milliseconds of `FOR VALUES FROM ('…') TO ('…')`."""
    lower, upper = (part.strip("() '") for part in bound.removeprefix("FOR VALUES FROM ").split(" TO "))
    return (0 if lower == "MINVALUE" else uuid.UUID(lower).int >> 80), uuid.UUID(upper).int >> 80
