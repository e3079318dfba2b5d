"""The data path on a real database, without any loop: tests move tasks by hand."""

import itertools
import random
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime

from duetime.admin.tenants import create_tenant
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.ids import EARLIEST, just_after
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.holders.lapse import end_silent_holders, sweep_left_behind
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.backfill import Backfills
from duetime.lifecycle.schedules.changes import Schedules
from duetime.lifecycle.schedules.recurrences import Recurrences
from duetime.lifecycle.submission.batch import Submitted
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.lifecycle.tasks.onward import Dead, Onward, Wake
from duetime.lifecycle.tasks.settle import Report, Settled, Settler
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.attempt import Past
from duetime.model.task import Kind, LaneKey, LeasedTask, NewTask, Options, Outcome, PriorityClass, TaskState, make_task
from duetime.signals import Signal


class Engine:
    """Every move, in the test's own order."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.woken: list[uuid.UUID] = []
        self._wakes: list[Wake] = [self.woken.extend]
        self.partitions = Partitions(database)
        self.lanes = Lanes(database)
        #: Attempts that have ended, and dead letters.
        self.ended = Signal[Sequence[Past]]()
        self.died = Signal[Sequence[Dead]]()
        #: Holders that have ended.
        self.left = Signal[set[int]]()
        self.onward = Onward(
            database, self.partitions, self._wake, random.Random(1), on_ended=self.ended, on_dead=self.died
        )
        # Beats of a test come three seconds apart.
        self.holders = Holders(database, self.onward, monotonic=itertools.count(0.0, 3.0).__next__, on_ended=self.left)
        self.settler = Settler(database, self.holders, self.onward)
        self.submitter = Submitter(database, self.lanes, self.partitions, self._wake)
        self.steering = Steering(database, self.partitions, self._wake, on_ended=self.ended)
        self.recurrences = Recurrences(database)
        self.schedules = Schedules(database, self.partitions, self.lanes, self.steering, self.recurrences, self._wake)
        self.backfills = Backfills(database, self.partitions, self.recurrences)
        self.tenant = 0

    @classmethod
    async def open(cls, database: Database, tenant: str = "default") -> "Engine":
        engine = cls(database)
        await engine.partitions.make_ahead()
        engine.tenant = (await create_tenant(database, tenant)).id
        return engine

    def _wake(self, wakes: Iterable[uuid.UUID]) -> None:
        rows = list(wakes)
        for wake in self._wakes:
            wake(rows)

    def wake_also(self, wake: Wake) -> None:
        """Tell somebody else, too, of rows put into due."""
        self._wakes.append(wake)

    def lane_key(self, queue: str = "default", kind: Kind = Kind.PULL) -> LaneKey:
        return LaneKey(self.tenant, queue, PriorityClass.NORMAL, kind)

    def new_task(
        self,
        payload: bytes = b"{}",
        *,
        type: str = "test.task",
        queue: str = "default",
        run_at: datetime | None = None,
        delay: float | None = None,
        options: Options | None = None,
        idempotency_key: str | None = None,
        fingerprint: bytes = b"same",
        expires_at: datetime | None = None,
        labels: dict[str, str] | None = None,
    ) -> NewTask:
        return make_task(
            self.lane_key(queue),
            type,
            payload,
            run_at=run_at,
            delay=delay,
            options=options,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint,
            expires_at=expires_at,
            labels=labels,
        )

    async def submit(self, count: int = 1, **options: object) -> list[uuid.UUID]:
        tasks = [self.new_task(**options) for _ in range(count)]  # type: ignore[arg-type]
        return [submitted(each) for each in await self.submitter.submit(tasks)]

    async def claim(self, worker: str = "w", room: int = 100, queue: str = "default") -> list[LeasedTask]:
        """Claim what is due by the database's clock."""
        holder = await self.holders.register(self.tenant, worker)
        lane = await self.lanes.ensure(self.lane_key(queue))
        await self.database.read_clock()
        # A test may have moved its clock on.
        now, until = self.database.clock.now(), just_after(self.database.clock.now_ms())
        claims = await claim_due(self.database, [LaneOrder(lane, EARLIEST, [(holder, room)])], until, now)
        return [task for _, task in claims.taken.get(lane, [])]

    async def settle(
        self,
        tasks: Sequence[LeasedTask],
        outcome: Outcome = Outcome.SUCCEEDED,
        worker: str = "w",
        *,
        is_permanent: bool = False,
        retry_after: float | None = None,
        result: bytes | None = None,
    ) -> Settled:
        reports = [
            Report(task.id, task.number, outcome, is_permanent=is_permanent, retry_after=retry_after, result=result)
            for task in tasks
        ]
        return await self.settler.settle(self.tenant, worker, reports)

    async def lapse(self, worker: str = "w") -> None:
        """The worker dies, and everybody knows."""
        holder = await self.holders.register(self.tenant, worker)
        rows = await self.database.fetch("SELECT beats FROM holder WHERE id = $1", holder)
        await self.end_silent([(holder, rows[0]["beats"])])

    async def end_silent(self, silent: Sequence[tuple[int, int]]) -> set[int]:
        ended = await end_silent_holders(self.database, self.holders, silent)
        await sweep_left_behind(self.database, self.onward)
        return ended

    async def state(self, task: uuid.UUID) -> TaskState | None:
        return (await read_states(self.database, [task])).get(task)

    async def outcomes(self, task: uuid.UUID) -> list[str]:
        rows = await self.database.fetch("SELECT outcome FROM attempt WHERE task = $1 ORDER BY number", task)
        return [Outcome(row["outcome"]).word for row in rows]


def submitted(answer: object) -> uuid.UUID:
    assert isinstance(answer, Submitted), answer
    return answer.id
