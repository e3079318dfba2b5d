"""Schedules as readers see them: what is stored, with the next times, and without secrets."""

from collections.abc import Sequence

from msgspec import Raw

from duetime.api.problems import ItemProblems
from duetime.api.schedules import views
from duetime.clock import from_ms
from duetime.errors import DuetimeError
from duetime.ids import due_ms_of
from duetime.lifecycle.schedules.changes import Put
from duetime.lifecycle.schedules.stored import StoredSchedule
from duetime.model.headers import redact_body
from duetime.model.schedule import ScheduleBody, decode_body
from duetime.recurrence import PreviewLine

NEXT_FIRES = 5


def view_of(schedule: StoredSchedule) -> views.ScheduleView:
    body = decode_body(schedule.definition)
    skip = None
    if schedule.last_skip_ms is not None and schedule.last_skip_at is not None:
        skip = views.SkipView(schedule.last_skip_at, from_ms(schedule.last_skip_ms), schedule.last_skip or "")
    return views.ScheduleView(
        name=schedule.name,
        spec=body.spec,
        timezone=body.timezone,
        dst=body.dst,
        jitter=body.jitter,
        start_at=body.start_at,
        end_at=body.end_at,
        max_fires=body.max_fires,
        overlap=body.overlap,
        misfire=body.misfire,
        misfire_threshold=body.misfire_threshold,
        catchup_window=body.catchup_window,
        catchup_rate=body.catchup_rate,
        pause_on_failure=body.pause_on_failure,
        task=_redacted(body.task),
        state=schedule.state,
        note=schedule.note,
        origin=schedule.origin,
        source=schedule.source,
        version=schedule.version,
        counters=views.Counters(schedule.fired, schedule.skipped, schedule.missed, schedule.buffered),
        buffered_now=len(schedule.buffer),
        last_skip=skip,
        next_fire_time=None if schedule.next_ms is None else from_ms(schedule.next_ms),
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
    )


def fires(lines: Sequence[PreviewLine]) -> list[views.FireView]:
    return [
        views.FireView(from_ms(line.at_ms), line.local, line.reason if line.excluded else line.note, line.excluded)
        for line in lines
    ]


def next_count(schedule: StoredSchedule, body: ScheduleBody, now_ms: int) -> int:
    """How many of its next fires are shown."""
    count = NEXT_FIRES
    if body.max_fires is not None:
        # Tasks that wait for their time count as fired, but are shown.
        waiting = sum(due_ms_of(task) > now_ms for task in schedule.recent)
        count = min(count, body.max_fires - schedule.fired + waiting)
    return count


def batch_answer(names: Sequence[str], ended: Sequence[Put | DuetimeError]) -> views.ScheduleBatchAnswer:
    problems = ItemProblems()
    results = [
        views.PutResult(name, error=problems.of(each))
        if isinstance(each, DuetimeError)
        else views.PutResult(name, each.version, each.word)
        for name, each in zip(names, ended, strict=True)
    ]
    rejected = sum(each.error is not None for each in results)
    return views.ScheduleBatchAnswer(results, len(results) - rejected, rejected)


def _redacted(task: Raw) -> Raw:
    """The template with its secrets hidden: one that is older than the encryption holds them in plain text."""
    return Raw(redact_body(bytes(task)))
