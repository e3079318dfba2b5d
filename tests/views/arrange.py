"""Tasks put straight into the tables, in whatever state a test needs."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from duetime.admin.tenants import Tenant, create_tenant
from duetime.clock import from_ms
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.ids import make_id
from duetime.lifecycle.lanes import Lanes
from duetime.model.task import Kind, LaneKey, Options, Outcome, PriorityClass

MINUTE = 60_000
PAUSED, BLOCKED = 1, 2


@dataclass
class World:
    """One database with two tenants, at a moment that stands still."""

    database: Database
    lanes: Lanes
    partitions: Partitions
    tenant: Tenant
    stranger: Tenant
    now_ms: int
    unique: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    async def make(cls, database: Database) -> "World":
        tenant = await create_tenant(database, "acme")
        stranger = await create_tenant(database, "stranger")
        world = cls(database, Lanes(database), Partitions(database), tenant, stranger, database.clock.now_ms())
        await world.partitions.ensure([world.now_ms])
        return world

    @property
    def now(self) -> datetime:
        return from_ms(self.now_ms)

    async def lane(
        self,
        queue: str = "email",
        priority: PriorityClass = PriorityClass.NORMAL,
        kind: Kind = Kind.PULL,
        requires: tuple[str, ...] = (),
        tenant: int | None = None,
    ) -> int:
        return await self.lanes.ensure(LaneKey(tenant or self.tenant.id, queue, priority, kind, requires))

    async def asked(
        self,
        due_in: int = 0,
        *,
        lane: int | None = None,
        type: str = "email.send",
        labels: dict[str, str] | None = None,
        options: Options | None = None,
        payload: bytes = b'{"to": "a"}',
    ) -> uuid.UUID:
        """A task row alone, due that many milliseconds from now."""
        lane = lane if lane is not None else await self.lane()
        due_ms = self.now_ms + due_in
        await self.partitions.ensure([due_ms])
        task = make_id(due_ms, next(self.unique), lane)
        await self.database.execute(
            "INSERT INTO task (lane, id, type, payload, options, labels, run_at, created_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            lane,
            task,
            type,
            payload,
            msgspec.json.encode(options) if options else None,
            msgspec.json.encode(labels).decode() if labels else None,
            from_ms(due_ms),
            self.now,
        )
        return task

    async def reschedule(self, task: uuid.UUID, run_at: datetime) -> None:
        """The note of a new time alone."""
        await self.database.execute(
            "INSERT INTO rescheduled (lane, task, run_at) VALUES ($1, $2, $3)", task.int & 0xFFFFFFFF, task, run_at
        )

    async def waiting(
        self,
        due_in: int = 0,
        *,
        wake_in: int | None = None,
        failures: int = 0,
        crashes: int = 0,
        releases: int = 0,
        number: int = 1,
        **asked: object,
    ) -> uuid.UUID:
        task = await self.asked(due_in, **asked)  # type: ignore[arg-type]
        wake = task
        if wake_in is not None:
            await self.partitions.ensure([self.now_ms + wake_in])
            wake = make_id(self.now_ms + wake_in, next(self.unique), task.int & 0xFFFFFFFF)
        await self.database.execute(
            "INSERT INTO due (lane, wake, task, number, failures, crashes, releases)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            task.int & 0xFFFFFFFF,
            wake,
            task,
            number,
            failures,
            crashes,
            releases,
        )
        return task

    async def holder(self, name: str = "worker-1", running: tuple[uuid.UUID, ...] = ()) -> int:
        rows = await self.database.fetch(
            "INSERT INTO holder (tenant, name, running) VALUES ($1, $2, $3) RETURNING id",
            self.tenant.id,
            name,
            list(running),
        )
        holder: int = rows[0]["id"]
        return holder

    async def running(self, due_in: int = 0, *, holder: int, number: int = 1, **asked: object) -> uuid.UUID:
        task = await self.asked(due_in, **asked)  # type: ignore[arg-type]
        await self.database.execute(
            "INSERT INTO claim (lane, task, number, failures, crashes, releases, holder, picked_at)"
            " VALUES ($1, $2, $3, 0, 0, 0, $4, $5)",
            task.int & 0xFFFFFFFF,
            task,
            number,
            holder,
            self.now,
        )
        return task

    async def held(self, due_in: int = 0, *, reason: int = PAUSED, **asked: object) -> uuid.UUID:
        task = await self.asked(due_in, **asked)  # type: ignore[arg-type]
        await self.database.execute(
            "INSERT INTO held (lane, task, wake, number, failures, crashes, releases, reason, held_at)"
            " VALUES ($1, $2, $2, 1, 0, 0, 0, $3, $4)",
            task.int & 0xFFFFFFFF,
            task,
            reason,
            self.now,
        )
        return task

    async def attempt(
        self,
        task: uuid.UUID,
        number: int,
        outcome: Outcome,
        *,
        final: bool = False,
        holder: int | None = None,
        detail: bytes | None = None,
        result: bytes | None = None,
        completed_in: int = 0,
    ) -> None:
        await self.database.execute(
            "INSERT INTO attempt (lane, task, number, outcome, final, holder, picked_at, started_at, completed_at,"
            " detail, result) VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10)",
            task.int & 0xFFFFFFFF,
            task,
            number,
            int(outcome),
            final,
            holder,
            self.now,
            from_ms(self.now_ms + completed_in),
            detail,
            result,
        )

    async def over(self, due_in: int = 0, *, outcome: Outcome = Outcome.SUCCEEDED, **asked: object) -> uuid.UUID:
        task = await self.asked(due_in, **asked)  # type: ignore[arg-type]
        await self.attempt(task, 1, outcome, final=True, result=b'{"sent": true}')
        return task

    async def dead(self, due_in: int = 0, *, reason: str = "attempts used up", **asked: object) -> uuid.UUID:
        task = await self.asked(due_in, **asked)  # type: ignore[arg-type]
        await self.attempt(
            task, 1, Outcome.FAILED, detail=b'{"error": {"message": "no such host", "kind": "transient"}}'
        )
        await self.database.execute(
            "INSERT INTO dead (lane, task, number, reason, died_at) VALUES ($1, $2, 1, $3, $4)",
            task.int & 0xFFFFFFFF,
            task,
            reason,
            self.now,
        )
        return task

    async def crowd(self, lane: int, count: int) -> None:
        """Many waiting tasks of one type, a millisecond apart from the next one on."""
        await self.partitions.ensure([self.now_ms, self.now_ms + count])
        await self.database.execute(
            "WITH made AS (INSERT INTO task (lane, id, type, payload, run_at)"
            "              SELECT $1, mint_wake($2::bigint + place, $1, place), 'common', 'null', clock_timestamp()"
            "                FROM generate_series(1, $3::int) AS place RETURNING lane, id)"
            " INSERT INTO due (lane, wake, task, number) SELECT lane, id, id, 1 FROM made",
            lane,
            self.now_ms,
            count,
            timeout=120.0,
        )

    async def history(self, lane: int, count: int) -> None:
        """Many tasks of one type that succeeded, a millisecond apart, up to now."""
        await self.partitions.ensure([self.now_ms, self.now_ms - count])
        await self.database.execute(
            "WITH made AS (INSERT INTO task (lane, id, type, payload, run_at)"
            "              SELECT $1, mint_wake($2::bigint - place, $1, place), 'common', 'null', clock_timestamp()"
            "                FROM generate_series(1, $3::int) AS place RETURNING lane, id)"
            " INSERT INTO attempt (lane, task, number, outcome, final) SELECT lane, id, 1, 1, true FROM made",
            lane,
            self.now_ms,
            count,
            timeout=120.0,
        )
