"""The rows of one schedule, under its lock: who may change it, and what a change leaves in place."""

import uuid
from dataclasses import replace

import asyncpg

from duetime.database.statements import Statement
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.ids import due_ms_of, just_before, lane_of
from duetime.lifecycle.schedules.recurrences import SQL
from duetime.lifecycle.schedules.stored import NewSchedule, StoredSchedule, stored_of, template_of
from duetime.model.schedule import encode_body


class VersionConflict(Conflict):
    code, title = "version_conflict", "The schedule was changed meanwhile"


class OtherOrigin(Conflict):
    code, title = "other_origin", "The schedule belongs to another origin"


def changed_by(stored: StoredSchedule, wanted: NewSchedule, task_lane: int) -> StoredSchedule:
    """The schedule as it is to be."""
    template = template_of(wanted.task)
    return replace(
        stored,
        definition=encode_body(wanted.body),
        calendars=wanted.body.calendars(),
        task_lane=task_lane,
        task_type=template.type,
        task_payload=template.payload,
        task_options=template.options,
        task_labels=template.labels,
        expires_after=wanted.expires_after,
        origin=wanted.origin,
        source=wanted.source,
        is_paused=stored.is_paused if wanted.is_paused is None else wanted.is_paused,
        note=wanted.note if wanted.note is not None else stored.note,
    )


def check_expected(wanted: NewSchedule, stored: StoredSchedule | None) -> None:
    if wanted.expected_version is not None and wanted.expected_version != (0 if stored is None else stored.version):
        raise other_version(None if stored is None else stored.version)
    if stored is None or wanted.is_forced:
        return
    if (wanted.origin, wanted.source) != (stored.origin, stored.source):
        where = stored.origin + (f" ({stored.source})" if stored.source else "")
        raise OtherOrigin(
            f"schedule {stored.name} was made by {where}; change it there, or delete it first, or send force: true"
        )


def other_version(version: int | None) -> VersionConflict:
    if version is None:
        return VersionConflict("there is no such schedule; leave version out, or send 0")
    return VersionConflict(f"the schedule has version {version}; read it again, and send that version")


def too_many_schedules(most: int | None) -> InvalidInput:
    return InvalidInput.at(
        "name", f"a tenant has at most {most or 0:,} schedules (max_schedules); delete some, or raise the quota"
    )


async def lock(connection: asyncpg.Connection, tenant: int, name: str) -> tuple[StoredSchedule, int]:
    rows = await run(connection, SQL["lock"], tenant=tenant, name=name)
    if not rows:
        raise NotFound(f"there is no schedule {name[:80]}")
    return stored_of(rows[0]), rows[0]["now_ms"]


async def unplan(connection: asyncpg.Connection, schedule: StoredSchedule, now_ms: int) -> set[uuid.UUID]:
    """Remove tasks that are not due yet, and return them."""
    ahead = [task for task in schedule.recent if due_ms_of(task) > now_ms]
    if not ahead:
        return set()
    rows = await run(
        connection,
        SQL["unplan"],
        lanes=[lane_of(task) for task in ahead],
        tasks=ahead,
        schedule=schedule.id,
        # Jitter and catching up run a task later than its nominal time, by a few days at most.
        since=just_before(max(0, now_ms - 400 * 86_400_000)),
    )
    return {row["task"] for row in rows}


async def write(connection: asyncpg.Connection, schedule: StoredSchedule, *, step: int) -> None:
    await run(
        connection,
        SQL["change"],
        schedule=schedule.id,
        step=step,
        definition=schedule.definition,
        calendars=schedule.calendars,
        task_lane=schedule.task_lane,
        task_type=schedule.task_type,
        task_payload=schedule.task_payload,
        task_options=schedule.task_options,
        task_labels=schedule.task_labels,
        expires_after=schedule.expires_after,
        origin=schedule.origin,
        source=schedule.source,
        is_paused=schedule.is_paused,
        note=schedule.note,
    )


async def run(connection: asyncpg.Connection, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(statement.sql, *statement.arguments(parameters), timeout=10.0)
    return rows
