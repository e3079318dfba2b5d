"""Fire schedules: from a schedule's row in due to tasks, and to its next row.

A schedule that is active has one row in `due`, in the lane of its shard.  Its
turn is read, decided in `model/firing`, and carried out by one statement for
many schedules, which takes the row under the wake that was read: of two nodes
one finds nothing.  A time that was fired is written down in `fire`, whose key
keeps it from being fired again.
"""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg

from duetime import metrics
from duetime.clock import from_ms, to_us
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import draw_bits, lane_of, make_id, make_ids
from duetime.lifecycle.submission.storing import MINT_AHEAD_MS, MINT_TOLERANCE_MS
from duetime.lifecycle.tasks.state import read_states
from duetime.model.firing import Run, Situation, Turn
from duetime.model.schedule import FireOutcome, moment_of
from duetime.model.task import TaskState
from duetime.model.template import render

SQL = load(__package__, "fire.sql")
#: How many fired tasks are remembered for the next decision: enough for those that may be open.
MAX_RECENT = 50


def pack_tasks(tasks: Sequence[uuid.UUID]) -> bytes:
    return b"".join(task.bytes for task in tasks)


def unpack_tasks(packed: bytes) -> list[uuid.UUID]:
    return [uuid.UUID(bytes=packed[place : place + 16]) for place in range(0, len(packed), 16)]


def pack_times(times: Sequence[int]) -> bytes:
    return struct.pack(f">{len(times)}q", *times)


def unpack_times(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(packed) // 8}q", packed)


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose turn it is, as it was read."""

    id: int
    lane: int
    wake: uuid.UUID
    tenant: int
    name: str
    version: int
    definition: bytes
    calendars: list[str]
    task_lane: int
    #: Of the template's payload.
    size: int
    #: The template's payload, if it has fields to be filled in.
    payload: bytes | None
    next_ms: int | None
    fired: int
    buffer: tuple[int, ...]
    recent: list[uuid.UUID]


@dataclass(frozen=True)
class DueSchedules:
    schedules: list[DueSchedule]
    #: Rows that belong to no schedule.
    orphans: list[uuid.UUID]
    #: There may be more.
    is_full: bool

    def last_of_lanes(self) -> dict[int, uuid.UUID]:
        """Up to where each lane was read in which there was something."""
        wakes = sorted([*(schedule.wake for schedule in self.schedules), *self.orphans])
        return {lane_of(wake): wake for wake in wakes}


async def read_due(database: Database, since: dict[int, uuid.UUID], until: uuid.UUID, batch: int) -> DueSchedules:
    """The schedules of these lanes that are due, the longest due first."""
    rows = await database.run(SQL["read_due"], lanes=list(since), since=list(since.values()), until=until, batch=batch)
    known = [_due_of(row) for row in rows if row["name"] is not None]
    orphans = [row["wake"] for row in rows if row["name"] is None]
    return DueSchedules(known, orphans, len(rows) == batch)


def _due_of(row: asyncpg.Record) -> DueSchedule:
    return DueSchedule(
        row["schedule"],
        row["lane"],
        row["wake"],
        row["tenant"],
        row["name"],
        row["version"],
        row["definition"],
        row["calendars"],
        row["task_lane"],
        row["size"],
        row["payload"],
        row["next_ms"],
        row["fired"],
        unpack_times(row["buffer"]),
        unpack_tasks(row["recent"]),
    )


async def read_situations(
    database: Database, schedules: Sequence[DueSchedule], *, now: datetime | None = None
) -> dict[int, Situation]:
    """For each schedule, the states of the tasks that it made last."""
    tasks = [task for schedule in schedules for task in schedule.recent]
    states: dict[uuid.UUID, TaskState] = {}
    ended: dict[uuid.UUID, int] = {}
    if tasks:
        states = await read_states(database, tasks, now=now)
        rows = await database.run(SQL["read_runs"], lanes=[lane_of(task) for task in tasks], tasks=tasks)
        for row in rows:
            at = row["ended_at"] or row["died_at"]
            if at is not None:
                ended[row["task"]] = to_us(at) // 1000
    return {
        schedule.id: Situation(
            schedule.next_ms,
            schedule.fired,
            schedule.buffer,
            tuple(Run(task, states.get(task), ended.get(task)) for task in schedule.recent),
        )
        for schedule in schedules
    }


@dataclass
class Fired:
    """The result of a batch: which turns were taken, and which tasks were made."""

    schedules: set[int] = field(default_factory=set)
    tasks: list[uuid.UUID] = field(default_factory=list)
    #: The rows of the next turns.
    wakes: list[uuid.UUID] = field(default_factory=list)


async def fire(
    database: Database,
    partitions: Partitions,
    turns: Sequence[tuple[DueSchedule, Situation, Turn]],
    *,
    now: datetime | None = None,
) -> Fired:
    """Carry out the turns. A turn that is missing in the answer was taken already, or its schedule is being changed."""
    if not turns:
        return Fired()
    minted_ms = database.clock.now_ms()
    columns = _Columns(minted_ms)
    for schedule, situation, turn in sorted(turns, key=lambda each: each[0].id):
        columns.add(schedule, situation, turn)
    await partitions.ensure(columns.times_ms)
    await partitions.ensure_fires(columns.moments_ms)
    rows = await database.run_with(
        SQL["fire"],
        {**columns.arrays, "now": now, "minted_ms": minted_ms, "tolerance_ms": MINT_TOLERANCE_MS},
    )
    moved = {row["schedule"] for row in rows if row["schedule"] is not None}
    tasks = [row["task"] for row in rows if row["task"] is not None]
    metrics.TASKS_OF_SCHEDULES.inc(len(tasks))
    metrics.FIRES_REFUSED.inc(sum(turn.refused for schedule, _, turn in turns if schedule.id in moved))
    return Fired(
        moved,
        tasks,
        [wake for schedule, wake in columns.next_wakes.items() if schedule in moved],
    )


_SCHEDULE_COLUMNS = (
    *("schedules", "lanes", "wakes", "next_wakes", "next_times"),
    *("recents", "buffers", "skip_times", "skip_reasons"),
)
_FIRE_COLUMNS = ("fire_schedules", "moments", "times", "tasks", "outcomes", "reasons", "payloads", "run_ats")


class _Columns:
    """The statement's arrays, filled schedule by schedule."""

    def __init__(self, minted_ms: int) -> None:
        self._minted_ms = minted_ms
        self.times_ms: set[int] = set()
        self.moments_ms: set[int] = set()
        self.next_wakes: dict[int, uuid.UUID] = {}
        self.arrays: dict[str, list[object]] = {name: [] for name in _SCHEDULE_COLUMNS + _FIRE_COLUMNS}

    def add(self, schedule: DueSchedule, situation: Situation, turn: Turn) -> None:
        slots = [(max(planned.due_ms, self._minted_ms), schedule.task_lane) for planned in turn.planned]
        tasks = make_ids(slots)
        self.times_ms.update(due_ms for due_ms, _ in slots)
        for planned, task in zip(turn.planned, tasks, strict=True):
            payload = schedule.payload
            if payload is not None:
                payload = render(payload, schedule.name, planned.nominal_ms, planned.run_at_ms, task)
            made = (task, payload, planned.run_at_ms)
            self._note(schedule, planned.nominal_ms, FireOutcome.FIRED, planned.reason, made)
        for noted in turn.noted:
            self._note(schedule, noted.nominal_ms, noted.outcome, noted.reason, times=noted.times)
        wake = None
        if turn.wake_ms is not None:
            wake_ms = max(turn.wake_ms, self._minted_ms)
            wake = make_id(wake_ms, draw_bits(42), schedule.lane)
            self.times_ms.add(wake_ms)
            self.next_wakes[schedule.id] = wake
        cancelled = set(turn.cancel)
        still_open = [run.task for run in situation.runs if run.is_open and run.task not in cancelled]
        recent = [*still_open, *tasks] or [run.task for run in situation.runs][-1:]
        skip = turn.skipped[-1] if turn.skipped else None
        values = (
            schedule.id,
            schedule.lane,
            schedule.wake,
            wake,
            turn.next_ms,
            pack_tasks(recent[-MAX_RECENT:]),
            pack_times(turn.buffer),
            None if skip is None else skip.nominal_ms,
            None if skip is None else skip.reason,
        )
        for name, value in zip(_SCHEDULE_COLUMNS, values, strict=True):
            self.arrays[name].append(value)

    def _note(
        self,
        schedule: DueSchedule,
        nominal_ms: int,
        outcome: FireOutcome,
        reason: str | None,
        made: tuple[uuid.UUID, bytes | None, int] | None = None,
        times: int = 1,
    ) -> None:
        """The line of one or more times, with the task (id, payload, run at) that was made for it."""
        self.moments_ms.add(nominal_ms)
        task, payload, run_at_ms = made if made is not None else (None, None, None)
        run_at = None if run_at_ms is None else from_ms(run_at_ms)
        values = (schedule.id, moment_of(nominal_ms), times, task, int(outcome), reason, payload, run_at)
        for name, value in zip(_FIRE_COLUMNS, values, strict=True):
            self.arrays[name].append(value)


@dataclass(frozen=True)
class Template:
    """What a task of a schedule is made from, beside the schedule's own row."""

    schedule: int
    name: str
    task_lane: int
    #: As in `DueSchedule`.
    payload: bytes | None


@dataclass(frozen=True)
class Advance:
    """How far a backfill goes in this step, from the place that was read."""

    backfill: int
    expected_ms: int
    reached_ms: int
    is_done: bool


async def spawn(
    database: Database,
    partitions: Partitions,
    template: Template,
    times: Sequence[tuple[int, int, int]],
    cause: int,
    advance: Advance | None = None,
    *,
    now: datetime | None = None,
) -> list[uuid.UUID]:
    """Make tasks for (nominal, run at, due) times, beside the schedule's own turns. Return those that were made."""
    minted_ms = database.clock.now_ms()
    tasks = make_ids([(max(due_ms, minted_ms), template.task_lane) for _, _, due_ms in times])
    await partitions.ensure({max(due_ms, minted_ms) for _, _, due_ms in times} | {minted_ms})
    await partitions.ensure_fires({nominal_ms for nominal_ms, _, _ in times})
    payloads = [
        None if template.payload is None else render(template.payload, template.name, nominal_ms, run_at_ms, task)
        for (nominal_ms, run_at_ms, _), task in zip(times, tasks, strict=True)
    ]
    rows = await database.run(
        SQL["spawn"],
        now=now,
        minted_ms=minted_ms,
        tolerance_ms=MINT_TOLERANCE_MS,
        ahead_ms=MINT_AHEAD_MS,
        schedule=template.schedule,
        moments=[moment_of(nominal_ms, cause) for nominal_ms, _, _ in times],
        tasks=tasks,
        payloads=payloads,
        run_ats=[from_ms(run_at_ms) for _, run_at_ms, _ in times],
        backfill=None if advance is None else advance.backfill,
        expected_ms=None if advance is None else advance.expected_ms,
        reached_ms=None if advance is None else advance.reached_ms,
        is_done=advance is not None and advance.is_done,
    )
    metrics.TASKS_OF_SCHEDULES.inc(len(rows))
    return [row["task"] for row in rows]
