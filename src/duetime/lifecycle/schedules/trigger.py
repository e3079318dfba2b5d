"""Trigger a schedule: a run at once, beside its own turns."""

import uuid

from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.ids import due_ms_of
from duetime.lifecycle.admission.room import Room
from duetime.lifecycle.schedules.fire import spawn
from duetime.lifecycle.schedules.recurrences import SQL
from duetime.lifecycle.schedules.stored import StoredSchedule
from duetime.model.schedule import moment_of, trigger_cause

_TRIES = 5


async def trigger(
    database: Database,
    partitions: Partitions,
    room: Room,
    schedule: StoredSchedule,
    as_of_ms: int | None,
    request: uuid.UUID | None,
) -> tuple[uuid.UUID, int, bool]:
    """The task of the run, the time that it stands for, and whether it is new.

    A request that made a run before gets that run, whatever the quotas say now.
    """
    cause = trigger_cause(request)
    granted = await room.make_room(schedule.tenant, [len(schedule.task_payload)])
    unused = granted.most
    try:
        for _ in range(_TRIES):
            now_ms = database.clock.now_ms()
            called_ms = now_ms if request is None else due_ms_of(request)
            nominal_ms = called_ms if as_of_ms is None else as_of_ms
            if granted.refusal is None:
                times = [(nominal_ms, nominal_ms, now_ms)]
                tasks = await spawn(database, partitions, schedule.template(), times, cause)
                if tasks:
                    unused = 0
                    return tasks[0], nominal_ms, True
            moment = moment_of(nominal_ms, cause)
            rows = await database.run(SQL["read_run"], schedule=schedule.id, moment=moment)
            if rows:
                return rows[0]["task"], nominal_ms, False
            if granted.refusal is not None:
                raise granted.refusal
            # Its id is too far from the database's time: the clock has jumped.
            await database.read_clock()
    finally:
        room.give_back(schedule.tenant, unused)
    raise Unavailable("the task could not be stored: the database is too slow or its clock jumps; try again")
