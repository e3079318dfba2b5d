"""Schedules as requests define them and as the database stores them."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import asyncpg
import msgspec

from duetime.errors import InvalidInput
from duetime.ids import draw_bits, make_id
from duetime.lifecycle.schedules.evaluations import refusal_of
from duetime.lifecycle.schedules.fire import Template, unpack_tasks, unpack_times
from duetime.model.firing import AHEAD_MS
from duetime.model.schedule import Origin, ScheduleBody, ScheduleState, encode_body
from duetime.model.task import DetailedTask
from duetime.recurrence import Fire, Recurrence, SpecError


@dataclass(frozen=True)
class NewSchedule:
    """A validated request for a schedule."""

    name: str
    body: ScheduleBody
    #: What its tasks are made from; times and keys are not used.
    task: DetailedTask
    expires_after: float | None = None
    origin: Origin = "api"
    source: str = ""
    #: None: unchanged, or active if it is new.
    is_paused: bool | None = None
    note: str | None = None
    #: The version that is replaced; 0: it must not exist yet.
    expected_version: int | None = None
    is_forced: bool = False


@dataclass(frozen=True)
class StoredSchedule:
    id: int
    tenant: int
    name: str
    version: int
    definition: bytes
    calendars: list[str]
    task_lane: int
    task_payload: bytes
    origin: str
    source: str
    is_paused: bool
    note: str | None
    created_at: datetime
    updated_at: datetime
    lane: int
    wake: uuid.UUID | None
    next_ms: int | None
    fired: int
    skipped: int
    missed: int
    buffered: int
    recent: list[uuid.UUID]
    buffer: tuple[int, ...]
    last_skip_ms: int | None
    last_skip_at: datetime | None
    last_skip: str | None
    task_options: bytes | None
    task_labels: str | None
    task_type: str
    expires_after: float | None

    @property
    def state(self) -> ScheduleState:
        if self.is_paused:
            return ScheduleState.PAUSED
        return ScheduleState.ENDED if self.wake is None else ScheduleState.ACTIVE

    def template(self) -> Template:
        payload = self.task_payload if b"{{" in self.task_payload else None
        return Template(self.id, self.name, self.task_lane, payload)


def first_fire(body: ScheduleBody, recurrence: Recurrence, now_ms: int) -> Fire | None:
    """The first fire that has not come yet; one that jitter still delays counts.

    Raises TooComplex if that takes too long to find.
    """
    try:
        return _find_first(body, recurrence, now_ms)
    except SpecError as error:
        raise refusal_of(error) from error


def _find_first(body: ScheduleBody, recurrence: Recurrence, now_ms: int) -> Fire | None:
    if body.spec.after is not None:
        start_ms = recurrence_start_ms(body)
        return Fire(max(now_ms, start_ms), max(now_ms, start_ms)) if not _is_past_end(body, now_ms) else None
    if body.jitter:
        last = recurrence.previous(now_ms + 1)
        if last is not None and last.at_ms > now_ms:
            return last
    return recurrence.next(now_ms)


def recurrence_start_ms(body: ScheduleBody) -> int:
    return 0 if body.start_at is None else int(body.start_at.timestamp() * 1000)


def _is_past_end(body: ScheduleBody, now_ms: int) -> bool:
    return body.end_at is not None and max(now_ms, recurrence_start_ms(body)) >= body.end_at.timestamp() * 1000


def never_fires() -> InvalidInput:
    return InvalidInput.at("spec", "has no time left at which it fires; look at it with POST /v1/schedules/preview")


class TaskColumns(NamedTuple):
    """The template as it is stored."""

    type: str
    payload: bytes
    options: bytes | None
    labels: str | None


def template_of(task: DetailedTask) -> TaskColumns:
    options = None if task.options is None else msgspec.json.encode(task.options)
    return TaskColumns(task.type, task.payload, options, _labels_text(task.labels))


def _labels_text(labels: dict[str, str] | None) -> str | None:
    """As PostgreSQL writes it, so that what was stored compares equal."""
    return None if not labels else msgspec.json.encode(dict(sorted(labels.items()))).decode()


def stored_of(row: asyncpg.Record) -> StoredSchedule:
    fields = {name: row[name] for name in StoredSchedule.__dataclass_fields__}
    labels = fields["task_labels"]
    return StoredSchedule(
        **{
            **fields,
            "recent": unpack_tasks(fields["recent"]),
            "buffer": unpack_times(fields["buffer"]),
            "task_labels": None if labels is None else _labels_text(msgspec.json.decode(labels)),
        }
    )


_COLUMNS = (
    *("names", "definitions", "calendars", "task_lanes", "task_types", "task_payloads", "task_options"),
    *("task_labels", "expires_afters", "origins", "sources", "are_paused", "notes", "wakes", "next_times"),
)


class NewColumns:
    """The arrays of schedules that are to be made."""

    def __init__(self, now_ms: int, lane: int) -> None:
        self.now_ms = now_ms
        self._lane = lane
        self.schedules: list[NewSchedule] = []
        self.times_ms: set[int] = set()
        self.arrays: dict[str, list[object]] = {name: [] for name in _COLUMNS}

    @property
    def wakes(self) -> list[uuid.UUID]:
        return [wake for wake in self.arrays["wakes"] if isinstance(wake, uuid.UUID)]

    def add(self, each: NewSchedule, recurrence: Recurrence, task_lane: int) -> None:
        is_paused = bool(each.is_paused)
        fire = first_fire(each.body, recurrence, self.now_ms)
        if fire is None and not is_paused:
            raise never_fires()
        wake = next_ms = None
        if fire is not None and not is_paused:
            next_ms = fire.nominal_ms
            wake_ms = max(fire.at_ms - AHEAD_MS, self.now_ms)
            self.times_ms.add(wake_ms)
            wake = make_id(wake_ms, draw_bits(42), self._lane)
        self.schedules.append(each)
        task = template_of(each.task)
        values = (
            each.name,
            encode_body(each.body),
            "|".join(each.body.calendars()),
            task_lane,
            *task,
            each.expires_after,
            each.origin,
            each.source,
            is_paused,
            each.note,
            wake,
            next_ms,
        )
        for name, value in zip(_COLUMNS, values, strict=True):
            self.arrays[name].append(value)
