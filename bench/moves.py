"""The moves of a task by SQL alone, without HTTP: submit, claim, settle, in batches, each lane separately.

Three ways to make the same moves: `minimal`, four bare tables and the shortest
statements that still let only one reader take a row, which is the raw limit;
`statements`, this project's schema and statements; `lifecycle`, the modules
around those statements.

Each lane has one writer and one reader, so nobody waits for another, and a reader
never has to look again behind its position.
"""

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, Protocol, Self

import asyncpg
import msgspec

from bench.peers.programs.common import PAYLOAD as COMMON_PAYLOAD
from duetime.admin.first_keys import ensure_default
from duetime.database.migrate import bring_up_to_date
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.settings import PLANNER_SETTINGS
from duetime.ids import EARLIEST, just_after, make_id
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.storing import MINT_AHEAD_MS, MINT_TOLERANCE_MS
from duetime.lifecycle.submission.storing import SQL as SUBMIT_SQL
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.claim import SQL as CLAIM_SQL
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.lifecycle.tasks.onward import SQL as ONWARD_SQL
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.model.task import Kind, LaneKey, NewTask, Outcome, PriorityClass

Way = Literal["minimal", "statements", "lifecycle"]
WAYS: tuple[Way, ...] = ("minimal", "statements", "lifecycle")
_TYPE = "bench"
PAYLOAD = msgspec.json.encode(COMMON_PAYLOAD)

_BUSY = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0"
_SCHEMA = f"""
DROP SCHEMA IF EXISTS raw_limit CASCADE;
CREATE SCHEMA raw_limit;
SET search_path TO raw_limit;
CREATE TABLE task (
    id uuid PRIMARY KEY, type text NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE due (
    lane int NOT NULL, wake uuid NOT NULL, number int NOT NULL, PRIMARY KEY (lane, wake)) WITH ({_BUSY});
CREATE TABLE claim (
    task uuid PRIMARY KEY, number int NOT NULL, holder int NOT NULL, picked_at timestamptz NOT NULL DEFAULT now())
    WITH ({_BUSY});
CREATE TABLE attempt (
    task uuid NOT NULL, number int NOT NULL, outcome smallint NOT NULL, holder int NOT NULL,
    picked_at timestamptz NOT NULL, completed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (task, number));
"""
_SUBMIT = """
WITH asked AS (
    INSERT INTO task (id, type, payload)
    SELECT id, $3, payload
      FROM unnest($2::uuid[], $4::bytea[]) AS wanted (id, payload)
)
INSERT INTO due (lane, wake, number)
SELECT $1, id, 1
  FROM unnest($2::uuid[]) AS wanted (id)
"""
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT ctid AS place
      FROM due
     WHERE lane = $1
       AND wake > $2
       AND wake < $3
     ORDER BY wake
     LIMIT $4
       FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM due
     WHERE ctid = ANY (ARRAY(SELECT place FROM picked))
 RETURNING wake, number
),
held AS (
    INSERT INTO claim (task, number, holder)
    SELECT wake, number, $1
      FROM taken
)
SELECT task.id, taken.number, task.type, task.payload
  FROM taken
  JOIN task
    ON task.id = taken.wake
"""
_SETTLE = """
WITH ended AS (
    DELETE FROM claim
     USING unnest($1::uuid[], $2::int[]) AS report (task, number)
     WHERE claim.task = report.task
       AND claim.number = report.number
       AND claim.holder = $3
 RETURNING claim.*
)
INSERT INTO attempt (task, number, outcome, holder, picked_at)
SELECT task, number, 1, holder, picked_at
  FROM ended
RETURNING task
"""


class Moves(Protocol):
    """One lane: its only writer, or its only reader."""

    async def submit(self, tasks: int) -> None: ...

    async def claim_and_settle(self, room: int) -> int:
        """Move at most this many tasks from waiting to over. Return how many."""
        ...


class Minimal:
    def __init__(self, connection: asyncpg.Connection, lane: int) -> None:
        self._connection = connection
        self._lane = lane
        self._unique = itertools.count()
        self._passed = EARLIEST

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, lane: int) -> AsyncIterator[Self]:
        settings = {**PLANNER_SETTINGS, "search_path": "raw_limit"}
        connection = await asyncpg.connect(dsn, server_settings=settings, timeout=10.0, command_timeout=60.0)
        try:
            yield cls(connection, lane)
        finally:
            await connection.close(timeout=5.0)

    async def submit(self, tasks: int) -> None:
        ids = _mint(self._unique, self._lane, tasks)
        await self._connection.execute(_SUBMIT, self._lane, ids, _TYPE, [PAYLOAD] * tasks)

    async def claim_and_settle(self, room: int) -> int:
        until = just_after(_now_ms())
        rows = await self._connection.fetch(_CLAIM, self._lane, self._passed, until, room)
        if rows:
            self._passed = max(row["id"] for row in rows)
            tasks, numbers = [row["id"] for row in rows], [row["number"] for row in rows]
            await self._connection.fetch(_SETTLE, tasks, numbers, self._lane)
        return len(rows)


class Own:
    """What both of duetime's ways need: the database, the lane, and a holder for it."""

    def __init__(self, database: Database, tenant: int, lane_key: LaneKey, lane: int, holder: int) -> None:
        self._database = database
        self._tenant = tenant
        self._lane_key = lane_key
        self._lane = lane
        self._holder = holder
        self._unique = itertools.count()
        self._passed = EARLIEST

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, lane: int) -> AsyncIterator[Self]:
        database = await Database.open(dsn, size=1)
        try:
            tenant, _ = await ensure_default(database)
            key = LaneKey(tenant.id, f"limit-{lane}", PriorityClass.NORMAL, Kind.PULL)
            lane_id = await Lanes(database).ensure(key)
            holder = await Holders(database, _onward(database)).register(tenant.id, _holder_name(lane))
            yield cls(database, tenant.id, key, lane_id, holder)
        finally:
            await database.close()


class Statements(Own):
    async def submit(self, tasks: int) -> None:
        # Arrays with only NULL or only one value are left out, as submit does.
        await self._database.run(
            SUBMIT_SQL["submit"],
            lanes=None,
            lane=self._lane,
            ids=_mint(self._unique, self._lane, tasks),
            types=None,
            type=_TYPE,
            payloads=[PAYLOAD] * tasks,
            options=None,
            labels=None,
            run_us=None,
            expires_ats=None,
            holders=None,
            minted_ms=_now_ms(),
            tolerance_ms=MINT_TOLERANCE_MS,
            ahead_ms=MINT_AHEAD_MS,
            now=None,
        )

    async def claim_and_settle(self, room: int) -> int:
        rows = await self._database.run(
            CLAIM_SQL["claim_due"],
            lanes=[self._lane],
            hints=[self._passed],
            rooms=[room],
            slots=[0],
            until=just_after(now_ms := _now_ms()),
            now_ms=now_ms,
            holders=[self._holder] * room,
            now=None,
        )
        taken = [row for row in rows if row["task"] is not None]
        if taken:
            # A task's first wake is its id.
            self._passed = taken[-1]["task"]
            now = [_now_ms() * 1000] * len(taken)
            await self._database.run(
                ONWARD_SQL["end_succeeded"],
                lanes=None,
                lane=self._lane,
                tasks=[row["task"] for row in taken],
                numbers=None,
                number=1,
                holders=None,
                holder=self._holder,
                started_us=now,
                completed_us=now,
                results=None,
                details=None,
            )
        return len(taken)


class Lifecycle(Own):
    def __init__(self, database: Database, tenant: int, lane_key: LaneKey, lane: int, holder: int) -> None:
        super().__init__(database, tenant, lane_key, lane, holder)
        onward = _onward(database)
        self._submitter = Submitter(database, Lanes(database), Partitions(database), _wake_nobody)
        self._settler = Settler(database, Holders(database, onward), onward)
        self._name = _holder_name(int(lane_key.queue.rsplit("-", 1)[1]))

    async def submit(self, tasks: int) -> None:
        await self._submitter.submit([NewTask(self._lane_key, _TYPE, PAYLOAD) for _ in range(tasks)])

    async def claim_and_settle(self, room: int) -> int:
        order = LaneOrder(self._lane, self._passed, [(self._holder, room)])
        claims = await claim_due(self._database, [order], just_after(_now_ms()))
        taken = claims.taken.get(self._lane, [])
        if taken:
            self._passed = taken[-1][0]
            now = _now_ms() * 1000
            reports = [
                Report(task.id, task.number, Outcome.SUCCEEDED, started_us=now, completed_us=now) for _, task in taken
            ]
            settled = await self._settler.settle(self._tenant, self._name, reports)
            if settled.lost:
                raise RuntimeError(f"{len(settled.lost)} attempts were lost")
        return len(taken)


OPEN: dict[Way, Callable[[str, int], AbstractAsyncContextManager[Moves]]] = {
    "minimal": Minimal.open,
    "statements": Statements.open,
    "lifecycle": Lifecycle.open,
}


async def prepare(dsn: str, way: Way, lanes: int) -> None:
    """Make the tables, empty, and everything that the movers share."""
    if way == "minimal":
        connection = await asyncpg.connect(dsn, timeout=10.0, command_timeout=60.0)
        try:
            await connection.execute(_SCHEMA)
        finally:
            await connection.close(timeout=5.0)
        return
    await bring_up_to_date(dsn)
    database = await Database.open(dsn, size=2)
    try:
        await Partitions(database).make_ahead()
        for lane in range(lanes):
            async with Own.open(dsn, lane):
                pass
    finally:
        await database.close()


def _mint(unique: "itertools.count[int]", lane: int, tasks: int) -> list[uuid.UUID]:
    """Makes ids that only grow, for one writer, even within a millisecond."""
    now_ms = _now_ms()
    return [make_id(now_ms, next(unique), lane) for _ in range(tasks)]


def _now_ms() -> int:
    # Database and movers are on one machine, so they have one clock.
    return time.time_ns() // 1_000_000


def _onward(database: Database) -> Onward:
    return Onward(database, Partitions(database), _wake_nobody)


def _wake_nobody(wakes: object) -> None:
    """Do nothing: the readers look by themselves."""


def _holder_name(lane: int) -> str:
    return f"limit-{lane}"
