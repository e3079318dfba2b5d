"""Schedules as users see them."""

import uuid
from datetime import datetime
from typing import Literal

import asyncpg
from msgspec import UNSET, Raw, Struct, UnsetType

from duetime.api.problems import Problem
from duetime.clock import from_ms
from duetime.lifecycle.schedules.backfill import Backfill
from duetime.model.schedule import FireOutcome, Misfire, Overlap, ScheduleState, cause_word
from duetime.model.task import TaskState
from duetime.recurrence import Dst, Exclusion, Spec
from duetime.views.runs import RunEnd, why_early


class FireView(Struct):
    """One time: when, in local time as well, and what a clock change or an exclusion did to it."""

    at: datetime
    local: str
    note: str | None
    excluded: bool = False


class PreviewView(Struct):
    words: str
    fires: list[FireView]


class Counters(Struct):
    """How many times had which outcome, since the schedule was made."""

    fired: int
    skipped: int
    missed: int
    buffered: int


class SkipView(Struct):
    at: datetime
    fire_time: datetime
    reason: str


class ScheduleView(Struct):
    name: str
    spec: Spec
    timezone: str
    dst: Dst
    jitter: float
    start_at: datetime | None
    end_at: datetime | None
    max_fires: int | None
    overlap: Overlap
    misfire: Misfire
    misfire_threshold: float
    catchup_window: float
    catchup_rate: float
    pause_on_failure: bool
    task: Raw
    state: ScheduleState
    note: str | None
    origin: str
    source: str
    version: int
    counters: Counters
    #: Times that wait for the run before them.
    buffered_now: int
    last_skip: SkipView | None
    next_fire_time: datetime | None
    created_at: datetime
    updated_at: datetime
    #: Lists leave these two out.
    words: str | UnsetType = UNSET
    next_fires: list[FireView] | UnsetType = UNSET


class SchedulePage(Struct):
    """Some schedules, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[ScheduleView]
    next: str | None


class PutResult(Struct, omit_defaults=True):
    """The result for one schedule of a batch: its version and what was done, or why it was refused."""

    name: str
    version: int | None = None
    result: Literal["created", "changed", "unchanged"] | None = None
    error: Problem | None = None


class ScheduleBatchAnswer(Struct):
    results: list[PutResult]
    accepted: int
    rejected: int


class DeletedView(Struct):
    name: str
    #: Open tasks that were cancelled with it.
    cancelled: int


class TriggeredView(Struct):
    task: uuid.UUID
    fire_time: datetime


class RunView(Struct):
    """One time of a schedule, and what became of it.

    `at` is when that was decided: up to two seconds before the time, because tasks are made ahead.
    """

    fire_time: datetime
    at: datetime
    cause: str
    outcome: str
    reason: str | None
    task: uuid.UUID | None
    #: The state of the task; null if there is none, or it is past its retention.
    state: TaskState | None
    #: When the task was over; one that ended before its fire time has a `reason`.
    ended_at: datetime | None


class RunPage(Struct):
    items: list[RunView]
    next: str | None


class BackfillPage(Struct):
    items: list[Backfill]
    next: str | None


class CalendarView(Struct):
    name: str
    dates: list[Exclusion]
    version: int
    updated_at: datetime


class CalendarPage(Struct):
    """Some calendars, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[CalendarView]
    next: str | None


class CalendarPut(Struct):
    name: str
    version: int
    #: How many schedules had their next time computed anew.
    replanned: int


def run_view(row: asyncpg.Record, state: TaskState | None, end: RunEnd | None) -> RunView:
    fire_time = from_ms(row["moment"].int >> 80)
    return RunView(
        fire_time=fire_time,
        at=row["at"],
        cause=cause_word(row["moment"]),
        outcome=FireOutcome(row["outcome"]).word,
        reason=row["reason"] or (None if end is None else end.reason or why_early(end, fire_time, state)),
        task=row["task"],
        state=state,
        ended_at=None if end is None else end.at,
    )
