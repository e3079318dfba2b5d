"""Schedules for tests, made without the API."""

from typing import Any

from msgspec import Raw

from duetime.errors import DuetimeError
from duetime.lifecycle.schedules.changes import Put
from duetime.lifecycle.schedules.stored import NewSchedule
from duetime.model.schedule import ScheduleBody
from duetime.model.task import DetailedTask, Options
from duetime.recurrence import Spec
from engine import Engine

#: What is no part of the body.
_OUTSIDE = {"origin", "source", "is_paused", "expected_version", "is_forced", "note"}


def schedule_of(engine: Engine, name: str = "s", *, payload: bytes = b"{}", **fields: Any) -> NewSchedule:
    outside = {name: fields.pop(name) for name in _OUTSIDE & fields.keys()}
    spec = fields.pop("spec", Spec(every=60.0))
    task = DetailedTask(engine.lane_key(), "test.task", payload, options=Options(schedule=name))
    return NewSchedule(name, ScheduleBody(spec=spec, task=Raw(b"{}"), **fields), task, **outside)


async def put(engine: Engine, *schedules: NewSchedule) -> list[Put]:
    done = await engine.schedules.put(engine.tenant, schedules)
    for each in done:
        if isinstance(each, DuetimeError):
            raise each
    return [each for each in done if isinstance(each, Put)]
