"""What must hold of the data path, checked on a live database without stopping it.

All of one check is read in one snapshot, under locks that only keep partitions
from being dropped meanwhile, so what it finds is wrong and not merely in
motion.  A deep check reads every row; one that is not deep reads some thousand
tasks by index, whatever the size of the database, and may miss something.
"""

import uuid

import asyncpg
import msgspec

from duetime.database.partitions import read_partitions
from duetime.database.pool import Database
from duetime.database.statements import Statement, load
from duetime.errors import Unavailable
from duetime.ids import just_after, just_before

SQL = load(__package__, "invariants.sql")

#: How many lanes, and how many tasks of all of them, a check that is not deep reads.
_SOME_LANES = 100
_SOME_TASKS = 5_000
_SOME_ROWS = 1_000
_LIMIT_SECONDS = 15.0
_DEEP_LIMIT_SECONDS = 6 * 3600.0

#: Each rule as the sentence that says it is broken.
RULES = {
    "two_places": "a task is in more than one of due, claim, held and dead",
    "open_and_over": "a task has a final attempt and is still in due, claim, held or dead",
    "nowhere": "a task is lost: it is not in due, claim, held or dead, and has no final attempt",
    "after_final": "a task was tried again after a final attempt",
    "numbering": "a task's attempts are not numbered 1, 2, 3 …, each once",
    "next_number": "a task's next attempt does not have the number after its last one",
    "no_task": "a task is open and its own row is gone",
    "wrong_lane": "a row is in another lane than its task's id says",
    "no_lane": "a task is in a lane that does not exist, so nobody runs it",
    "no_lane_to_fire": "a schedule makes its tasks in a lane that does not exist",
    "no_tenant": "a lane belongs to a tenant that does not exist",
    "no_holder": "a running task's holder does not exist",
    "left_behind": "a running task is with a holder that ended long ago",
    "wrong_key": "an idempotency key stands for a task that is not there or not its own",
    "no_turn": "an active schedule has no row in due, so it would never fire",
    "paused_turn": "a paused schedule has a row in due",
    "turn_twice": "a row in due belongs to no schedule, or is a second one",
    "key_twice": "two tasks were made under one idempotency key",
}


class Violation(msgspec.Struct, frozen=True):
    """A rule that does not hold: how often, and one task to look at."""

    rule: str
    count: int
    example: str

    @property
    def sentence(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        return f"{RULES[self.rule]} ({times}, for example {self.example})"


async def check_invariants(database: Database, *, deep: bool) -> list[Violation]:
    """Every rule that is broken; an empty list if all is well."""
    limit = _DEEP_LIMIT_SECONDS if deep else _LIMIT_SECONDS
    # A transaction on a connection of its own: while it lasts, only this caller uses the connection.
    async with database.connection() as connection:
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(SQL["begin"].spelled(limit=f"{limit:g}s").sql)
                if deep:
                    await connection.execute(SQL["allow_all_plans"].sql)
                return await _Check(connection, limit + 5.0).run(deep)
        except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError) as error:
            raise Unavailable(f"the invariants could not be checked within {limit:g} s: {error}") from error


class _Check:
    def __init__(self, connection: asyncpg.Connection, limit: float) -> None:
        self._connection = connection
        self._limit = limit

    async def run(self, deep: bool) -> list[Violation]:
        kept_from = await self._read_kept_from()
        if deep:
            broken = await self._fetch(SQL["judge_all"], kept_from=kept_from)
            broken += await self._fetch(SQL["judge_keys_twice"])
        else:
            lanes, tasks = await self._pick()
            broken = await self._fetch(SQL["judge_some"], kept_from=kept_from, lanes=lanes, tasks=tasks)
        most = None if deep else _SOME_ROWS
        broken += await self._fetch(SQL["judge_claims"], most=most)
        broken += await self._fetch(SQL["judge_lanes"], most=most)
        broken += await self._fetch(SQL["judge_keys"], most=most, kept_from=kept_from)
        broken += await self._fetch(SQL["judge_schedules"], most=most)
        broken += await self._fetch(SQL["judge_turns"], most=most)
        found = [Violation(row["rule"], row["tasks"], row["example"]) for row in broken]
        return sorted(found, key=lambda violation: list(RULES).index(violation.rule))

    async def _read_kept_from(self) -> uuid.UUID:
        """Before this time only open tasks still have all of their rows: the oldest partitions hold nothing else."""
        ends = [0]
        for table in ("task", "attempt"):
            ends += [end for _, (start, end) in await read_partitions(self._connection, table) if start == 0]
        return just_before(max(ends))

    async def _pick(self) -> tuple[list[int], list[uuid.UUID]]:
        (counted,) = await self._fetch(SQL["count_lanes"], most=_SOME_LANES)
        rows = await self._fetch(
            SQL["pick"],
            lanes=_SOME_LANES,
            each=_SOME_TASKS // max(1, counted["lanes"]),
            until=just_after(counted["now_ms"]),
            most=_SOME_ROWS,
        )
        return [row["lane"] for row in rows], [row["task"] for row in rows]

    async def _fetch(self, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._connection.fetch(
            statement.sql, *statement.arguments(parameters), timeout=self._limit
        )
        return rows
