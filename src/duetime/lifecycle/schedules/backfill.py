"""Backfill a range of a schedule's times: an object of its own, with progress, a rate and cancel.

Each step makes the tasks of the next times and says how far it has come, in one
statement; a step that another node has done finds nothing.  What the tenant's
quotas leave no room for is made later: the backfill says that it waits.
"""

import asyncio
import uuid
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec
import structlog

from duetime.clock import from_ms
from duetime.database.changing import run_once
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.lifecycle.admission.room import BOUNDLESS, Room
from duetime.lifecycle.schedules.evaluations import Loops
from duetime.lifecycle.schedules.fire import Advance, Template, spawn
from duetime.lifecycle.schedules.recurrences import SQL, Recurrences
from duetime.lifecycle.schedules.stored import StoredSchedule
from duetime.lifecycle.schedules.times import key_of
from duetime.model.schedule import backfill_cause
from duetime.recurrence import PIECE_STEPS, SpecError

log = structlog.get_logger()
MAX_STEP = 1_000
_AT_ONCE = 100
#: The steps that finding the times of one backfill may take, and of all backfills of a tenant. Backfills beyond that
#: wait.
STEP_STEPS = 50_000
TENANT_STEPS = 200_000
#: To store a task takes about as long as so many steps.
TASK_STEPS = 100


class Backfill(msgspec.Struct, frozen=True):
    id: int
    from_: datetime = msgspec.field(name="from")
    to: datetime
    #: Tasks a second.
    rate: float
    state: str
    #: Tasks made so far.
    created_count: int
    #: Every time up to here is done.
    reached: datetime
    created_at: datetime
    ended_at: datetime | None
    #: Why it makes no tasks now, or why the server cancelled it; null: it is running.
    waits_for: str | None = None


class Backfills:
    def __init__(
        self, database: Database, partitions: Partitions, recurrences: Recurrences, room: Room = BOUNDLESS
    ) -> None:
        self._room = room
        self._database = database
        self._partitions = partitions
        self._recurrences = recurrences
        self._loop = Loops()

    async def start(
        self, schedule: StoredSchedule, from_ms: int, to_ms: int, rate: float, request: uuid.UUID | None = None
    ) -> Backfill:
        """Begin a backfill. `request` names the call: if it is repeated, it returns the same backfill."""
        if to_ms <= from_ms:
            raise InvalidInput.at("to", "must be later than `from`")
        if to_ms > self._database.clock.now_ms():
            raise InvalidInput.at("to", "must not lie in the future: the schedule itself will fire then")
        rows = await run_once(
            self._database,
            SQL["make_backfill"],
            schedule=schedule.id,
            tenant=schedule.tenant,
            lane=schedule.lane,
            from_ms=from_ms,
            to_ms=to_ms,
            rate=rate,
            request=request,
        )
        if not rows:
            rows = await self._database.run(SQL["read_backfills"], schedule=schedule.id, id=None, request=request)
        return _view(rows[0])

    async def of(self, schedule: StoredSchedule, backfill: int | None = None) -> Sequence[Backfill]:
        rows = await self._database.run(SQL["read_backfills"], schedule=schedule.id, id=backfill, request=None)
        return [_view(row) for row in rows]

    async def find(self, schedule: StoredSchedule, backfill: int) -> Backfill:
        found = await self.of(schedule, backfill) if 0 < backfill < 1 << 63 else []
        if not found:
            raise NotFound(f"schedule {schedule.name} has no backfill {backfill}")
        return found[0]

    async def cancel(self, schedule: StoredSchedule, backfill: int) -> Backfill:
        """Make no more tasks. Tasks that were made stay."""
        rows = await run_once(self._database, SQL["cancel_backfill"], schedule=schedule.id, id=backfill)
        found = await self.find(schedule, backfill)
        if not rows and found.state == "done":
            raise Conflict(f"backfill {backfill} is done: all its tasks were made")
        return found

    async def step(self, lanes: Sequence[int], seconds: float) -> list[uuid.UUID]:
        """Continue the backfills of these lanes by what they may make in this time; returns the new tasks."""
        tasks: list[uuid.UUID] = []
        spent: dict[int, int] = {}
        for row in await self._database.run(SQL["read_running_backfills"], lanes=list(lanes), limit=_AT_ONCE):
            before = spent.get(row["tenant"], 0)
            if before <= TENANT_STEPS:
                read_steps = self._loop.steps
                made, steps = await self._go_on(row, seconds)
                tasks += made
                spent[row["tenant"]] = before + steps + self._loop.steps - read_steps + len(made) * TASK_STEPS
        return tasks

    async def _go_on(self, row: asyncpg.Record, seconds: float) -> tuple[list[uuid.UUID], int]:
        """The tasks that were made, and the steps that finding their times took."""
        try:
            _, recurrence = await self._recurrences.of(
                row["tenant"],
                (row["schedule"], row["version"]),
                key_of(row["tenant"], row["name"]),
                row["definition"],
                row["calendars"],
                self._loop,
            )
        except SpecError as error:
            log.warning("a backfill waits: its schedule cannot be read", schedule=row["name"], error=str(error))
            await self._say_why(row, str(error))
            return [], 0
        now_ms = self._database.clock.now_ms()
        at_once = max(1.0, row["rate"] * seconds)
        # What it may have made by now, so that a rate below one, or an extra step, does not exceed it.
        elapsed = max(0.0, now_ms / 1000 - row["created_at"].timestamp())
        allowed = int(at_once + elapsed * row["rate"]) - row["created"]
        most = min(MAX_STEP, int(at_once), allowed)
        if most < 1:
            return [], 0
        step_ms = 1000.0 / row["rate"]
        times: list[tuple[int, int, int]] = []
        first_spent = recurrence.spent
        piece = steps = 0
        is_cut = False
        try:
            for fire in recurrence.between(row["reached_ms"] + 1, row["to_ms"]):
                if len(times) == most:
                    break
                times.append((fire.nominal_ms, fire.nominal_ms, now_ms + int(len(times) * step_ms)))
                steps = recurrence.spent - first_spent
                if is_cut := steps > STEP_STEPS:
                    break
                if steps - piece > PIECE_STEPS:
                    piece = steps
                    await asyncio.sleep(0)
        except SpecError as error:
            steps = recurrence.spent - first_spent
            if not times:
                await self._give_up(row, str(error))
                return [], steps
            # The tasks before it are made first.
            is_cut = True
        granted = await self._room.make_room(row["tenant"], [row["size"]] * len(times))
        if granted.refusal is not None and not granted.most:
            await self._say_why(row, granted.refusal.reason)
            return [], steps
        is_done = len(times) < most and not is_cut and granted.refusal is None
        times = times[: granted.most]
        reached_ms = row["to_ms"] - 1 if is_done else times[-1][0]
        advance = Advance(row["id"], row["reached_ms"], reached_ms, is_done)
        template = Template(row["schedule"], row["name"], row["task_lane"], row["payload"])
        cause = backfill_cause(row["id"])
        tasks = await spawn(self._database, self._partitions, template, times, cause, advance)
        self._room.give_back(row["tenant"], len(times) - len(tasks))
        return tasks, steps

    async def _give_up(self, row: asyncpg.Record, why: str) -> None:
        """Its next time cannot be found, now or later."""
        log.error("a backfill was cancelled", schedule=row["name"], reason=why)
        await run_once(self._database, SQL["give_up_backfill"], id=row["id"], why=f"cancelled: {why}")

    async def _say_why(self, row: asyncpg.Record, why: str) -> None:
        if row["waits_for"] != why:
            await self._database.run(SQL["note_backfill_waits"], id=row["id"], why=why)


def _view(row: asyncpg.Record) -> Backfill:
    return Backfill(
        row["id"],
        from_ms(row["from_ms"]),
        from_ms(row["to_ms"]),
        row["rate"],
        row["state"],
        row["created"],
        from_ms(max(0, row["reached_ms"])),
        row["created_at"],
        row["ended_at"],
        row["waits_for"],
    )
