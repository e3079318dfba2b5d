"""Say why a task is where it is, and what would free it.

The state comes from the rows; who could run the task comes from the node that feeds
its lane.  Every waiting reason that holds is listed; the reason that ends first comes
first.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, Protocol, assert_never

import asyncpg
import msgspec

from duetime.clock import from_ms
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import due_ms_of, lane_of
from duetime.model.attempt import REASONS, attempts_left, most_attempts
from duetime.model.confinement import Confinement
from duetime.model.duration import format_duration
from duetime.model.limits import LimitScope
from duetime.model.retry import DEFAULT_RETRY, wait_after_release
from duetime.model.task import Kind, LaneKey, TaskState
from duetime.views.attempts import attempts_of
from duetime.views.scan import TenantLanes
from duetime.views.tasks import due_at_of, lane_key, options_of, read_tasks, timeout_of

SQL = load(__package__, "explain.sql")

MAX_COUNTED = 1_000
MAX_TYPES_SHOWN = 10
MAX_WORKERS_SHOWN = 5

Reason = Literal[
    "time",
    "paused",
    "dependency",
    "suspended",
    "queue_paused",
    "cap",
    "rate_limit",
    "breaker",
    "tenant_breaker",
    "no_slot",
    "no_worker",
    "no_handler",
    "no_beats",
    "no_node",
    "position",
    "running",
    "dead",
    "over",
]


Limitation = Literal["cap", "rate_limit", "breaker", "tenant_breaker", "no_slot"]


class LaneStatus(Protocol):
    """What a feeder knows of a lane at this moment."""

    @property
    def has_holders(self) -> bool: ...
    @property
    def waiting_polls(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def is_known(self) -> bool: ...
    @property
    def limited_by(self) -> Sequence[tuple[Limitation, str, datetime | None]]:
        """What keeps the lane from being served now, and until when if that is known."""
        ...

    @property
    def workers(self) -> int:
        """How many workers there are for such a lane, whatever types they handle."""
        ...

    @property
    def handled(self) -> Sequence[str] | None:
        """The types that these workers handle; None: every type."""
        ...

    @property
    def unheard(self) -> Sequence[str]:
        """Workers that ask for such work and get none because their beats do not arrive."""
        ...


class LaneFeeder(Protocol):
    async def describe(self, lane: int) -> LaneStatus | None:
        """Describe a lane; None: no node feeds the lane's shard."""
        ...


class Waiting(msgspec.Struct, frozen=True):
    reason: Reason
    detail: str
    #: When this reason ends by itself, if it does.
    until: datetime | None = None


class Explanation(msgspec.Struct, frozen=True):
    id: uuid.UUID
    state: TaskState
    due_at: datetime
    waiting_for: list[Waiting]
    #: How many waiting tasks are before it in its lane; "1000+" if there are more than were counted.
    position: int | str | None
    what_would_free_it: str


_REMEDIES: dict[Limitation, str] = {
    "cap": "A running task under the same limit ends, or the limit is raised",
    "rate_limit": "Its turn comes at the rate of the limit; raise the rate to be quicker",
    "breaker": "The target answers again: it is probed by itself; or force the breaker closed",
    "tenant_breaker": "A probe of it succeeds, and it resumes by itself; or force the breaker `tenant` closed",
    "no_slot": "Calls that are under way end, at the latest by their timeout; a shorter one frees slots sooner",
}


async def explain(
    database: Database,
    lanes: TenantLanes,
    feeder: LaneFeeder | None,
    tenant: int,
    task: uuid.UUID,
    *,
    now: datetime | None = None,
    within: Confinement | None = None,
) -> Explanation | None:
    """Say why the task is where it is; None if this tenant has no such task. Only types `within` are named."""
    key = await lane_key(lanes, tenant, task)
    rows = await read_tasks(database, [task], attempts=1, now=now) if key is not None else []
    if key is None or not rows:
        return None
    row, state = rows[0], TaskState(rows[0]["state"])
    lane = _Lane(key, None, True, True)
    if state in (TaskState.SCHEDULED, TaskState.RETRYING, TaskState.READY):
        lane = await _look_ahead(database, feeder, key, row)
        if within is not None and lane.handled is not None:
            lane = replace(lane, handled=[type for type in lane.handled if within.has_type(type)])
    waiting, remedy = _reasons(row, state, lane)
    due_at = due_at_of(row) if row["wake"] is not None else from_ms(due_ms_of(task))
    return Explanation(task, state, due_at, waiting, lane.position, remedy)


@dataclass(frozen=True)
class _Lane:
    """What stands between a waiting task and its holder."""

    key: LaneKey
    position: int | str | None
    has_holders: bool
    has_room: bool
    has_node: bool = True
    is_suspended: bool = False
    is_paused: bool = False
    limited_by: Sequence[tuple[Limitation, str, datetime | None]] = ()
    type: str = ""
    workers: int = 0
    #: The types that they handle; None: every type.
    handled: Sequence[str] | None = None
    #: Workers that would take it if their beats arrived, when no other worker would.
    unheard: Sequence[str] = ()


async def _look_ahead(database: Database, feeder: LaneFeeder | None, key: LaneKey, row: asyncpg.Record) -> _Lane:
    # At a gate it waits in another lane than its own.
    lane = lane_of(row["wake"])
    (seen,) = await database.run(
        SQL["look_ahead"],
        lane=lane,
        home=row["lane"],
        wake=row["wake"],
        most=MAX_COUNTED + 1,
        tenant=key.tenant,
        queue=key.queue,
        queues=int(LimitScope.QUEUE),
    )
    position = seen["ahead"] if seen["ahead"] <= MAX_COUNTED else f"{MAX_COUNTED}+"
    known = _Lane(key, position, True, True, is_suspended=seen["is_suspended"], is_paused=seen["is_paused"])
    if feeder is None:
        return known
    status = await feeder.describe(lane)
    if status is None:
        return replace(known, has_room=False, has_node=False)
    has_holders = status.has_holders or seen["is_served"]
    return replace(
        known,
        has_holders=has_holders,
        has_room=status.room > 0,
        limited_by=status.limited_by,
        type=row["type"],
        workers=status.workers,
        handled=status.handled,
        unheard=() if status.has_holders else status.unheard,
    )


def _reasons(row: asyncpg.Record, state: TaskState, lane: _Lane) -> tuple[list[Waiting], str]:
    path = f"/v1/tasks/{row['id']}"
    match state:
        case TaskState.SCHEDULED | TaskState.RETRYING:
            return _waits_for_time(row, state, path, _missing_holders(lane))
        case TaskState.READY:
            return _waits_for_holder(lane)
        case TaskState.PAUSED:
            detail = f"paused since {_at(row['held_at'])}"
            return [Waiting("paused", detail)], f"POST {path}/resume"
        case TaskState.BLOCKED:
            detail = "it waits for other tasks to succeed"
            return [Waiting("dependency", detail)], "The tasks it depends on succeed; see depends_on"
        case TaskState.RUNNING:
            return _is_running(row, path)
        case TaskState.DEAD:
            reason = row["dead_reason"] or "given up"
            detail = f"{REASONS.get(reason, reason)}; {_last_error(row)}"
            return [Waiting("dead", detail)], f"POST {path}/retry once the cause is mended, or POST /v1/dead/drop"
        case TaskState.SUCCEEDED | TaskState.CANCELLED | TaskState.EXPIRED:
            ran = f"attempt {row['number']}" if attempts_of(row) else "before it ran"
            detail = f"{state} at {_at(row['completed_at'])}, {ran}"
            return [Waiting("over", detail)], "Nothing: it is over. Submit a new task to do it again"
        case _:
            assert_never(state)


def _waits_for_time(
    row: asyncpg.Record, state: TaskState, path: str, missing: Sequence[tuple[Waiting, str]]
) -> tuple[list[Waiting], str]:
    due_at = from_ms(due_ms_of(row["wake"]))
    detail = f"{_attempt(row, row['number'])} is due at {_at(due_at)}"
    if state is TaskState.RETRYING:
        detail = f"{_history(row)}; {detail}; {_last_error(row)}"
    if wait_after_release(row["releases"] or 0):
        detail = f"{_releases(row)}; {detail}"
    detail += _end_of_retries(row, due_at)
    remedy = f"It becomes ready at {_at(due_at)}; POST {path}/run-now to run it at once"
    waiting = [Waiting("time", detail, due_at)]
    for reason, mend in missing:
        waiting.append(reason)
        remedy += f". {mend}"
    return waiting, remedy


def _waits_for_holder(lane: _Lane) -> tuple[list[Waiting], str]:
    some = "1 task is" if lane.position == 1 else f"{lane.position} tasks are"
    ahead = f"{some} before it in its lane" if lane.position else "it is next in its lane"
    missing = _missing_holders(lane)
    if missing:
        (reason, remedy), *_ = missing
        return [reason, Waiting("position", ahead)], remedy
    who = "the executors" if lane.key.kind is Kind.PUSH else f"the workers of queue '{lane.key.queue}'"
    if not lane.has_room:
        ahead += f"; {who} have no room at this moment"
        return [Waiting("position", ahead)], "A running task ends, or more workers or a higher concurrency take it"
    return [Waiting("position", ahead)], f"Nothing is in its way: {who} take it in order"


def _missing_holders(lane: _Lane) -> list[tuple[Waiting, str]]:
    """The reason and its remedy, if nobody is there to feed this lane or to run its tasks, or nobody may."""
    if lane.is_suspended:
        detail = "its tenant is suspended: nothing of it runs"
        return [(Waiting("suspended", detail), "An admin sets the tenant's state to active again")]
    if lane.is_paused:
        detail = f"its queue '{lane.key.queue}' is paused"
        return [(Waiting("queue_paused", detail), f"PUT /v1/queues/{lane.key.queue} with state active")]
    if lane.workers and lane.handled is not None and lane.type not in lane.handled:
        return [_missing_handler(lane, lane.handled)]
    if lane.limited_by:
        return [(Waiting(reason, detail, until), _REMEDIES[reason]) for reason, detail, until in lane.limited_by]
    if not lane.has_node:
        detail = "no node feeds its shard at this moment"
        return [(Waiting("no_node", detail), "Another node takes the shard over within seconds; else start one")]
    if lane.unheard:
        return [_missing_beats(lane)]
    if lane.has_holders:
        return []
    if lane.key.kind is Kind.PUSH:
        return [(Waiting("no_worker", "no executor is running"), "Start a node with the executor role")]
    tags = f" with tags {', '.join(lane.key.requires)}" if lane.key.requires else ""
    detail = f"no connected worker asks for queue '{lane.key.queue}'{tags}"
    return [(Waiting("no_worker", detail), f"Start a worker for queue '{lane.key.queue}'{tags}")]


def _attempt(row: asyncpg.Record, number: int) -> str:
    """The number of the attempt, and how many may fail: a snoozed one, for example, does not count."""
    most, place = most_attempts(options_of(row)), row["failures"] + 1
    if number == place:
        return f"attempt {number} of {most}"
    return f"attempt {number} (number {place} of {most} that may fail)"


def _history(row: asyncpg.Record) -> str:
    parts = []
    most = (options_of(row).retry or DEFAULT_RETRY).max_crashes
    budget = f" (with {most} it is a dead letter)"
    for verb, count, end in (("failed", row["failures"], ""), ("was lost with its holder", row["crashes"], budget)):
        if count:
            parts.append(f"{verb} {'once' if count == 1 else f'{count} times'}{end}")
    return f"it {' and '.join(parts)}"


def _releases(row: asyncpg.Record) -> str:
    """What happened to a task that waits because nobody began it."""
    workers = [attempt.worker for attempt in attempts_of(row) if attempt.worker is not None]
    last = f", last to {workers[-1]}" if workers else ""
    return f"it was handed out {row['releases']} times and never begun{last}: see that its worker's beats arrive"


def _end_of_retries(row: asyncpg.Record, due_at: datetime) -> str:
    """When the task will be given up if all its attempts fail at once, by the waits of its policy."""
    options = options_of(row)
    retry = options.retry or DEFAULT_RETRY
    if attempts_left(TaskState.RETRYING, row["failures"], options) < 2:
        return ""
    given_up_at = due_at + timedelta(seconds=retry.waits_after(row["failures"]))
    told = f"; if every attempt fails, it is a dead letter at about {given_up_at:%Y-%m-%dT%H:%MZ}"
    if retry.max_retry_duration is not None:
        told += f", or {format_duration(retry.max_retry_duration)} after its first attempt if that is earlier"
    return told


def _missing_handler(lane: _Lane, handled: Sequence[str]) -> tuple[Waiting, str]:
    shown = ", ".join(handled[:MAX_TYPES_SHOWN]) or "other types"
    more = f" and {len(handled) - MAX_TYPES_SHOWN} more" if len(handled) > MAX_TYPES_SHOWN else ""
    there = "the one worker that is" if lane.workers == 1 else f"none of the {lane.workers} workers that are"
    handles = "does not handle" if lane.workers == 1 else "handles"
    detail = (
        f"{there} there for queue '{lane.key.queue}' {handles} type '{lane.type}'; "
        f"{'it handles' if lane.workers == 1 else 'they handle'} {shown}{more}"
    )
    remedy = f"Start a worker for queue '{lane.key.queue}' that has a handler for '{lane.type}'"
    return Waiting("no_handler", detail), remedy


def _missing_beats(lane: _Lane) -> tuple[Waiting, str]:
    """Why a worker that was given work and has not beaten since gets nothing, and the remedy."""
    shown = ", ".join(lane.unheard[:MAX_WORKERS_SHOWN])
    more = f" and {len(lane.unheard) - MAX_WORKERS_SHOWN} more" if len(lane.unheard) > MAX_WORKERS_SHOWN else ""
    detail = (
        f"the polls of {shown}{more} for queue '{lane.key.queue}' arrive, but no beats: "
        "a worker that was given work and does not beat gets no more"
    )
    remedy = "Let POST /v1/workers/beat through from where the worker runs"
    return Waiting("no_beats", detail), f"{remedy}, or start another worker for queue '{lane.key.queue}'"


def _is_running(row: asyncpg.Record, path: str) -> tuple[list[Waiting], str]:
    options = options_of(row)
    seconds = options.target.timeout if options.target is not None else None
    since = row["started_at"] or row["picked_at"]
    ends_at = since + timedelta(seconds=seconds if seconds is not None else timeout_of(options))
    what = "runs at" if row["is_started"] else "was handed to"
    detail = f"{_attempt(row, row['claim_number'])} {what} {row['worker'] or 'a holder'} since {_at(since)}"
    remedy = f"It ends, or its timeout ends it at {_at(ends_at)}; POST {path}/cancel to stop it"
    return [Waiting("running", detail, ends_at)], remedy


class _Error(msgspec.Struct):
    message: str = ""


def _last_error(row: asyncpg.Record) -> str:
    ended = [attempt for attempt in attempts_of(row) if attempt.outcome is not None]
    if not ended:
        return "no attempt was made"
    last = ended[-1]
    if last.error is None:
        return f"the last attempt: {last.outcome}"
    message = msgspec.json.decode(last.error, type=_Error).message
    return f"the last error: {message}" if message else f"the last attempt: {last.outcome}"


def _at(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
