"""The statements that fire schedules, on tables in memory, each under its name in the SQL files."""

import uuid
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from duetime.clock import from_us, to_us
from duetime.ids import lane_of
from duetime.model.firing import AHEAD_MS
from duetime.model.schedule import FireOutcome, Misfire, Overlap, ScheduleBody
from duetime.model.task import Waiting
from duetime.recurrence import Spec
from simulation.rows import record_of
from simulation.statements import DataPath, Rows
from simulation.tables import Broken, Task, Transaction

_DUE = record_of(
    *(
        "lane",
        "wake",
        "schedule",
        "next_ms",
        "fired",
        "recent",
        "buffer",
        "tenant",
        "name",
        "version",
        "definition",
    ),
    *("calendars", "task_lane", "size", "payload"),
)
_RUN = record_of("task", "ended_at", "died_at")
_MADE = record_of("schedule", "task")
_SWEPT = record_of("last", "seen", "healed")
_SHARD = record_of("shard")
_TEMPLATE = b"{}"


@dataclass(frozen=True)
class Schedule:
    id: int
    tenant: int
    every: float
    definition: bytes
    task_lane: int

    @property
    def pseudo_task(self) -> uuid.UUID:
        return uuid.UUID(int=self.id)


@dataclass(frozen=True)
class State:
    """Where a schedule stands; each turn leaves a new row."""

    wake: uuid.UUID | None
    next_ms: int | None
    recent: bytes
    buffer: bytes
    fired: int = 0


@dataclass(frozen=True)
class Noted:
    """What became of a time, and for how many times the line stands."""

    outcome: int
    task: uuid.UUID | None
    times: int


class Scheduling(DataPath):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.schedules: dict[int, Schedule] = {}
        self.state: dict[int, State] = self.tables.setdefault("schedule_state", {})
        #: By schedule and the time in milliseconds.
        self.fires: dict[tuple[int, int], Noted] = self.tables.setdefault("fire", {})
        #: No schedule has another turn.
        self.schedules_end = False

    def add_schedule(self, tenant: int, every: float, overlap: Overlap, shard: int, task_lane: int) -> None:
        """An interval that makes up for every time that was missed."""
        id = len(self.schedules) + 1
        body = ScheduleBody(
            Spec(every=every),
            msgspec.Raw(b"{}"),
            overlap=overlap,
            misfire=Misfire.FIRE_ALL,
        )
        schedule = Schedule(id, tenant, every, msgspec.json.encode(body), task_lane)
        self.schedules[id] = schedule
        transaction = self.open_transaction()
        next_ms = -(-self.now_ms() // int(every * 1000)) * int(every * 1000)
        wake = self.mint(max(next_ms - AHEAD_MS, self.now_ms()), shard)
        self.put(transaction, "schedule_state", id, State(wake, next_ms, b"", b""))
        self.put_due(transaction, schedule.pseudo_task, wake, Waiting(1))
        self.commit(transaction)

    def changes_read_shards(self, transaction: Transaction) -> Rows:
        return [
            _SHARD([shard]) for shard in sorted({lane_of(state.wake) for state in self.state.values() if state.wake})
        ]

    def read_running_backfills(self, transaction: Transaction, **_: Any) -> Rows:
        return []

    def read_due(
        self,
        transaction: Transaction,
        lanes: list[int],
        since: list[uuid.UUID],
        until: uuid.UUID,
        batch: int,
    ) -> Rows:
        rows = []
        for lane, first in zip(lanes, since, strict=True):
            wakes = self.lanes[lane]
            for wake in wakes[bisect_left(wakes, first) : bisect_left(wakes, until)]:
                schedule = self.schedules[self.due[wake].task.int]
                state = self.state[schedule.id]
                if state.wake != wake:
                    raise Broken(f"{wake} is not the turn of schedule {schedule.id}, which is {state.wake}")
                rows.append(
                    _DUE(
                        [
                            *(
                                lane,
                                wake,
                                schedule.id,
                                state.next_ms,
                                state.fired,
                                state.recent,
                                state.buffer,
                            ),
                            *(
                                schedule.tenant,
                                f"schedule-{schedule.id}",
                                1,
                                schedule.definition,
                                [],
                            ),
                            *(schedule.task_lane, len(_TEMPLATE), None),
                        ]
                    )
                )
        return sorted(rows, key=lambda row: row["wake"])[:batch]

    def fire_read_runs(self, transaction: Transaction, lanes: list[int], tasks: list[uuid.UUID]) -> Rows:
        return [
            _RUN(
                [
                    task,
                    transaction.at if task in self.over or task in self.dead else None,
                    None,
                ]
            )
            for task in tasks
        ]

    def fire(self, transaction: Transaction, **asked: Any) -> Rows:
        if transaction.at_ms > asked["minted_ms"] + asked["tolerance_ms"]:
            return []
        turns = (
            "schedules",
            "lanes",
            "wakes",
            "next_wakes",
            "next_times",
            "recents",
            "buffers",
        )
        moving: dict[int, State] = {}
        for id, _, wake, next_wake, next_ms, recent, buffer in zip(*(asked[name] for name in turns), strict=True):
            state = self.state[id]
            if self.is_locked("schedule_state", id) or (state.wake != wake and not self.faults.fires_again):
                continue
            self.take(transaction, "schedule_state", id)
            if state.wake is not None:
                self.take(transaction, "due", state.wake)
            if self.schedules_end:
                next_wake = None
            if next_wake is not None:
                self.put_due(transaction, self.schedules[id].pseudo_task, next_wake, Waiting(1))
            moving[id] = State(next_wake, next_ms, recent, buffer, state.fired)
        rows = [_MADE([id, None]) for id in moving]
        lines = ("fire_schedules", "moments", "times", "tasks", "outcomes", "run_ats")
        for id, moment, times, task, outcome, run_at in zip(*(asked[name] for name in lines), strict=True):
            if id not in moving or not self._note_fire(
                transaction, (id, moment.int >> 80), Noted(outcome, task, times)
            ):
                continue
            if outcome == FireOutcome.FIRED:
                moving[id] = replace(moving[id], fired=moving[id].fired + times)
            if task is not None:
                self._check_once((id, moment.int >> 80))
                self.put(
                    transaction,
                    "task",
                    task,
                    Task(task, "work", _TEMPLATE, None, to_us(run_at), None),
                )
                self.put_due(transaction, task, task, Waiting(1))
                rows.append(_MADE([None, task]))
        for id, state in moving.items():
            self.put(transaction, "schedule_state", id, state)
        return rows

    def _check_once(self, time: tuple[int, int]) -> None:
        known = self.fires.get(time)
        if known is not None and known.task is not None:
            raise Broken(f"the time {time[1]} of schedule {time[0]} is fired again, after {known.task}")

    def _note_fire(self, transaction: Transaction, time: tuple[int, int], noted: Noted) -> bool:
        """Whether the time had no line yet, or was put aside and is fired now."""
        known = self.fires.get(time)
        if known is not None:
            if self.faults.fires_again:
                return True
            if known.outcome != FireOutcome.BUFFERED or noted.task is None:
                return False
            self.take(transaction, "fire", time)
        return self.put(transaction, "fire", time, noted)

    def sweep(self, transaction: Transaction, after: int, batch: int) -> Rows:
        seen = [id for id in sorted(self.state) if id > after][:batch]
        for id in seen:
            wake = self.state[id].wake
            if wake is not None and wake not in self.due and not self.is_locked("schedule_state", id):
                raise Broken(f"schedule {id} has lost its turn, {wake}")
        return [_SWEPT([seen[-1] if seen else None, len(seen), []])]

    def check_fires(self) -> None:
        """Every time of each schedule was seen to, and none twice."""
        for id, schedule in self.schedules.items():
            step_ms = int(schedule.every * 1000)
            times = {ms: noted for (of, ms), noted in self.fires.items() if of == id}
            if not times:
                raise Broken(f"schedule {id} never had its turn")
            expected = (max(times) - min(times)) // step_ms + 1
            seen = sum(noted.times for noted in times.values())
            if seen != expected:
                raise Broken(
                    f"schedule {id} had {expected} times since {from_us(min(times) * 1000)}, and saw to {seen}"
                )
