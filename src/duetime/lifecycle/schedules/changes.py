"""Make, change, pause, resume and delete schedules.

Every change locks the schedule's state, so that nobody fires it meanwhile, and
moves its row in `due` in the same transaction.  A change never fires the past
and never skips the next time: tasks that were made ahead of their time and are
not due yet are unmade, and made anew by what the schedule says now.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import asyncpg

from duetime.admin.quotas import read_quotas
from duetime.database.changing import changing, run_once, run_once_with
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import DuetimeError, NotFound, TooComplex, Unavailable
from duetime.ids import draw_bits, make_id
from duetime.lifecycle.admission.room import BOUNDLESS, Room
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.schedules.fire import pack_tasks, pack_times
from duetime.lifecycle.schedules.recurrences import SQL, Recurrences
from duetime.lifecycle.schedules.rows import (
    OtherOrigin,
    VersionConflict,
    changed_by,
    check_expected,
    lock,
    other_version,
    run,
    too_many_schedules,
    unplan,
    write,
)
from duetime.lifecycle.schedules.stored import (
    NewColumns,
    NewSchedule,
    StoredSchedule,
    first_fire,
    never_fires,
    stored_of,
)
from duetime.lifecycle.schedules.times import ScheduleTimes, key_of
from duetime.lifecycle.schedules.trigger import trigger
from duetime.lifecycle.submission.storing import MINT_TOLERANCE_MS
from duetime.lifecycle.tasks.onward import Wake
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.firing import AHEAD_MS
from duetime.model.schedule import ScheduleBody
from duetime.model.task import TaskState
from duetime.recurrence import Recurrence

__all__ = ["OtherOrigin", "Put", "Schedules", "VersionConflict", "key_of"]

_TRIES = 5
_MOST_CANCELLED = 10_000
#: How many schedules of a batch are compared or evaluated before other work gets its turn.
_MADE_AT_ONCE = 100
_OPEN = (TaskState.SCHEDULED, TaskState.READY, TaskState.RUNNING, TaskState.RETRYING, TaskState.PAUSED)

#: Raises if the caller may not change an existing schedule.
Check = Callable[[StoredSchedule], None]
PutWord = Literal["created", "changed", "unchanged"]


@dataclass(frozen=True)
class Put:
    word: PutWord
    version: int


class Schedules(ScheduleTimes):
    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        lanes: Lanes,
        steering: Steering,
        recurrences: Recurrences,
        wake: Wake,
        room: Room = BOUNDLESS,
    ) -> None:
        super().__init__(database, recurrences)
        self._room = room
        self._partitions = partitions
        self._lanes = lanes
        self._steering = steering
        self._wake = wake

    # Reading

    def tenant_name(self, tenant: int) -> str | int:
        """What log lines call a tenant."""
        return self._lanes.tenant_name(tenant)

    # Making and changing

    async def put(
        self, tenant: int, wanted: Sequence[NewSchedule], *, is_trial: bool = False, check: Check | None = None
    ) -> list[Put | DuetimeError]:
        """Create or replace schedules; one answer for each, in order. Names must be distinct. A trial changes nothing.

        `check` judges each existing schedule before it is replaced.
        """
        rows = await self._database.run(SQL["find"], tenant=tenant, names=[each.name for each in wanted])
        known: dict[str, StoredSchedule] = {}
        for place, row in enumerate(rows):
            await _pause(place)
            known[row["name"]] = stored_of(row)
        answers: dict[str, Put | DuetimeError] = {}
        new: list[NewSchedule] = []
        for each in wanted:
            try:
                if each.name not in known:
                    check_expected(each, None)
                    new.append(each)
                elif check is not None:
                    check(known[each.name])
            except DuetimeError as error:
                answers[each.name] = error
        for place, each in enumerate(wanted):
            await _pause(place)
            stored = known.get(each.name)
            if stored is not None and each.name not in answers and self._is_unchanged(each, stored):
                answers[each.name] = Put("unchanged", stored.version)
        most = (await read_quotas(self._database, tenant)).max_schedules if new else None
        if is_trial:
            room = await self.room_left(tenant, most, len(new))
            for each in wanted:
                if each.name not in answers:
                    answers[each.name] = await self._judge(tenant, each, known.get(each.name))
            for each in [each for each in new if isinstance(answers[each.name], Put)][room:]:
                answers[each.name] = too_many_schedules(most)
            return [answers[each.name] for each in wanted]
        created = await self._create(tenant, new, most, answers)
        for each in wanted:
            if each.name not in answers:
                # It existed before, or somebody else has just made it.
                answers[each.name] = created.get(each.name) or await self._change_or_say(tenant, each, check)
        return [answers[each.name] for each in wanted]

    async def _create(
        self, tenant: int, new: list[NewSchedule], most: int | None, answers: dict[str, Put | DuetimeError]
    ) -> dict[str, Put]:
        if not new:
            return {}
        [row] = await self._database.run(SQL["read_shard"], tenant=tenant)
        lane = row["shard"]
        for _ in range(_TRIES):
            columns = NewColumns(self._database.clock.now_ms(), lane)
            for place, each in enumerate(new):
                await _pause(place)
                try:
                    recurrence = await self.compile(tenant, each.name, each.body)
                    await self.first_fire(tenant, each.body, recurrence, columns.now_ms)
                    task_lane = self._lanes.find(each.task.lane) or await self._lanes.ensure(each.task.lane)
                    columns.add(each, recurrence, task_lane)
                except DuetimeError as error:
                    answers[each.name] = error
            new = columns.schedules
            if not new:
                return {}
            ids = [row["id"] for row in await self._database.run(SQL["read_ids"], count=len(new))]
            await self._partitions.ensure(columns.times_ms)
            rows = await run_once_with(
                self._database,
                SQL["create"],
                {
                    **columns.arrays,
                    "ids": ids,
                    "tenant": tenant,
                    "lane": lane,
                    "now": None,
                    "minted_ms": columns.now_ms,
                    "tolerance_ms": MINT_TOLERANCE_MS,
                    "most": most,
                },
            )
            made = {row["id"] for row in rows if row["id"] is not None}
            [held] = [row["held"] for row in rows if row["held"] is not None]
            room = len(new) if most is None else max(0, most - held)
            if room < len(new) and not made and await run_once(self._database, SQL["recount"], tenant=tenant):
                continue
            for each in new[room:]:
                answers[each.name] = too_many_schedules(most)
            if made or not room:
                self._wake(columns.wakes)
                return {each.name: Put("created", 1) for each, id in zip(new, ids, strict=True) if id in made}
            if await self._database.run(SQL["find"], tenant=tenant, names=[each.name for each in new]):
                return {}
        raise Unavailable("the schedule could not be stored: the database is too slow or its clock jumps; try again")

    def _is_unchanged(self, wanted: NewSchedule, stored: StoredSchedule) -> bool:
        """Whether there is nothing to do. What cannot be told without the database is done under the lock."""
        lane = self._lanes.find(wanted.task.lane)
        try:
            check_expected(wanted, stored)
        except DuetimeError:
            return False
        return lane is not None and changed_by(stored, wanted, lane) == stored

    async def _judge(self, tenant: int, wanted: NewSchedule, stored: StoredSchedule | None) -> Put | DuetimeError:
        """What putting it would do."""
        try:
            check_expected(wanted, stored)
            recurrence = await self.compile(tenant, wanted.name, wanted.body)
            await self.first_fire(tenant, wanted.body, recurrence, self._database.clock.now_ms())
        except DuetimeError as error:
            return error
        return Put("created", 1) if stored is None else Put("changed", stored.version + 1)

    async def _change_or_say(self, tenant: int, wanted: NewSchedule, check: Check | None) -> Put | DuetimeError:
        try:
            return await self._change(tenant, wanted, check)
        except Unavailable:
            raise
        except DuetimeError as error:
            return error

    async def _change(self, tenant: int, wanted: NewSchedule, check: Check | None) -> Put:
        task_lane = self._lanes.find(wanted.task.lane) or await self._lanes.ensure(wanted.task.lane)
        recurrence = await self.compile(tenant, wanted.name, wanted.body)
        await self._prepare(tenant, wanted.body, recurrence)
        async with changing(self._database) as connection:
            stored, now_ms = await lock(connection, tenant, wanted.name)
            if check is not None:
                check(stored)
            check_expected(wanted, stored)
            changed = changed_by(stored, wanted, task_lane)
            if changed == stored:
                return Put("unchanged", stored.version)
            if not changed.is_paused and first_fire(wanted.body, recurrence, now_ms) is None:
                raise never_fires()
            await write(connection, changed, step=1)
            wakes = await self._replan(connection, changed, wanted.body, recurrence, now_ms)
        self._wake(wakes)
        return Put("changed", stored.version + 1)

    async def pause(self, tenant: int, name: str, note: str | None) -> StoredSchedule:
        """Fire no more, not even what was made ahead. Pausing again changes the note."""
        return await self._steer(tenant, name, note, is_paused=True)

    async def resume(self, tenant: int, name: str, note: str | None = None) -> StoredSchedule:
        """Continue with the next time. Times that passed in the meantime are not made up for."""
        return await self._steer(tenant, name, note, is_paused=False)

    async def _steer(self, tenant: int, name: str, note: str | None, *, is_paused: bool) -> StoredSchedule:
        for _ in range(_TRIES):
            seen = await self.find(tenant, name)
            body, recurrence = (None, None) if is_paused else await self._foresee(seen)
            states = await read_states(self._database, seen.recent)
            over = {task for task in seen.recent if states.get(task) not in _OPEN}
            wakes: list[uuid.UUID] = []
            async with changing(self._database) as connection:
                stored, now_ms = await lock(connection, tenant, name)
                if not is_paused and (stored.id, stored.version) != (seen.id, seen.version):
                    continue
                changed = replace(stored, is_paused=is_paused, note=note)
                if changed != stored:
                    await write(connection, changed, step=0)
                if stored.is_paused != is_paused:
                    # A run that failed for good does not pause it again.
                    changed = replace(changed, recent=[task for task in changed.recent if task not in over])
                    wakes = await self._replan(connection, changed, body, recurrence, now_ms)
            self._wake(wakes)
            return await self.find(tenant, name)
        raise _changes_too_often()

    async def replan(self, tenant: int, name: str) -> None:
        """What the schedule leaves out has changed: find its next time anew."""
        for _ in range(_TRIES):
            seen = await self.find(tenant, name)
            body, recurrence = await self._foresee(seen)
            async with changing(self._database) as connection:
                stored, now_ms = await lock(connection, tenant, name)
                if (stored.id, stored.version) != (seen.id, seen.version):
                    continue
                wakes = await self._replan(connection, stored, body, recurrence, now_ms)
            self._wake(wakes)
            return
        raise _changes_too_often()

    # Do not wait for a second connection while one is held: many such callers would wait for each other.

    async def _foresee(self, schedule: StoredSchedule) -> tuple[ScheduleBody, Recurrence]:
        """Read what a change of the schedule needs beside its row, before the row is locked."""
        body, recurrence = await self.recurrence(schedule)
        await self._prepare(schedule.tenant, body, recurrence)
        return body, recurrence

    async def _prepare(self, tenant: int, body: ScheduleBody, recurrence: Recurrence) -> None:
        """Make the partition of the next turn."""
        now_ms = self._database.clock.now_ms()
        fire = await self.first_fire(tenant, body, recurrence, now_ms)
        if fire is not None:
            await self._partitions.ensure([max(fire.at_ms - AHEAD_MS, now_ms)])

    async def replan_users_of(self, tenant: int, calendar: str) -> int:
        """Recalculate every schedule that leaves this calendar out. Return how many."""
        after, count = "", 0
        while names := await self.users_of(tenant, calendar, 500, after):
            after = names[-1]
            for name in names:
                try:
                    await self.replan(tenant, name)
                except NotFound:
                    continue
                except TooComplex as error:
                    # It was right with the calendar's earlier entries.
                    await self.pause(tenant, name, f"paused: {error.detail}")
                count += 1
        return count

    async def _replan(
        self,
        connection: asyncpg.Connection,
        schedule: StoredSchedule,
        body: ScheduleBody | None,
        recurrence: Recurrence | None,
        now_ms: int,
    ) -> list[uuid.UUID]:
        """Move the row in `due` to its new place. The transaction holds the lock."""
        unmade = await unplan(connection, schedule, now_ms)
        fire = None
        if not schedule.is_paused and body is not None and recurrence is not None:
            fire = first_fire(body, recurrence, now_ms)
            if body.max_fires is not None and schedule.fired - len(unmade) >= body.max_fires:
                fire = None
        wake = next_ms = None
        if fire is not None:
            next_ms = fire.nominal_ms
            wake_ms = max(fire.at_ms - AHEAD_MS, now_ms)
            await self._partitions.ensure([wake_ms])
            wake = make_id(wake_ms, draw_bits(42), schedule.lane)
        recent = [task for task in schedule.recent if task not in unmade]
        if body is not None and body.spec.after is not None and recent and not schedule.is_paused:
            # Its next time is counted from the end of the current run.
            next_ms = None
        await run(
            connection,
            SQL["move"],
            schedule=schedule.id,
            lane=schedule.lane,
            wake=schedule.wake,
            next_wake=wake,
            next_ms=next_ms,
            unfired=len(unmade),
            recent=pack_tasks(recent),
            buffer=b"" if schedule.is_paused else pack_times(schedule.buffer),
        )
        return [] if wake is None else [wake]

    async def delete(
        self,
        tenant: int,
        name: str,
        *,
        expected_version: int | None = None,
        cancels: bool = False,
        reached: Callable[[Sequence[uuid.UUID]], Awaitable[Collection[uuid.UUID]]] | None = None,
    ) -> int:
        """Delete the schedule and its next fires; with `cancels` its open tasks too. Return how many.

        `reached` says which of the tasks may be cancelled; None: all.
        """
        async with changing(self._database) as connection:
            await run(connection, SQL["lock_tenant"], tenant=tenant)
            stored, now_ms = await lock(connection, tenant, name)
            if expected_version is not None and expected_version != stored.version:
                raise other_version(stored.version)
            await unplan(connection, stored, now_ms)
            await run(connection, SQL["delete"], schedule=stored.id, lane=stored.lane, wake=stored.wake)
        if not cancels:
            return 0
        rows = await self._database.run(SQL["read_tasks"], schedule=stored.id, most=_MOST_CANCELLED)
        tasks = [row["task"] for row in rows]
        if reached is not None:
            tasks = list(await reached(tasks))
        states = await read_states(self._database, tasks)
        verdicts = await self._steering.cancel(
            [task for task in tasks if states.get(task) in _OPEN], f"schedule {name} was deleted"
        )
        return sum(verdict.changed for verdict in verdicts.values())

    async def trigger(
        self, tenant: int, name: str, as_of_ms: int | None, request: uuid.UUID | None = None
    ) -> tuple[uuid.UUID, int]:
        """Make a run at once, beside the schedule's own. Return its task, and the time that it stands for.

        `request` names the call: if it is repeated, it returns the same run.
        """
        stored = await self.find(tenant, name)
        task, nominal_ms, is_new = await trigger(
            self._database, self._partitions, self._room, stored, as_of_ms, request
        )
        if is_new:
            self._wake([task])
        return task, nominal_ms


async def _pause(place: int) -> None:
    """Let other work have its turn, now and then within a batch."""
    if place % _MADE_AT_ONCE == _MADE_AT_ONCE - 1:
        await asyncio.sleep(0)


def _changes_too_often() -> Unavailable:
    return Unavailable("the schedule is being changed by others all the time; try again")
