"""Flow control: rate limits, unique tasks and debouncing, before submissions become tasks.

The tasks of a key form a chain.  Each is stored under an idempotency key that
names its predecessor, in the statement that stores the task. So each task has
exactly one successor on all nodes, without a lock that is held longer than a
statement.  `flow_key` is a hint of where the chain ends.  If a node dies before
it moves the hint, the next submission finds the successor by its idempotency key,
moves the hint, and completes the replacement.

A chain continues when a unique task is over or a debounced one is replaced. A
replaced task ends only after its successor is stored, so nothing gets lost.
"""

import asyncio
import hashlib
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

import asyncpg
import msgspec
import structlog

from duetime.clock import from_ms, to_ms_rounded_up
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, DuetimeError, IdempotencyConflict, InvalidInput, RateLimited, Unavailable
from duetime.ids import due_ms_of
from duetime.lifecycle.submission.batch import Submission, Submitted, widest_of
from duetime.lifecycle.submission.earlier import read_requests
from duetime.lifecycle.submission.submitter import Submitter, request_of_tenant
from duetime.lifecycle.tasks.keys import free_keys
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import Steering
from duetime.model.duration import format_duration
from duetime.model.flow import OPEN_STATES, DebounceTicket, Flow, RateTicket, UniqueTicket
from duetime.model.task import DetailedTask, NewTask, TaskState
from duetime.model.vault import is_same_fingerprint

log = structlog.get_logger()
SQL = load(__package__, "flow.sql")
UNIQUE, DEBOUNCE = 1, 2
#: The states in which a later submission can replace a task: it has not begun.
REPLACEABLE = frozenset({TaskState.SCHEDULED, TaskState.READY, TaskState.PAUSED, TaskState.BLOCKED})

_TRIES = 100
_AT_ONCE = 8
_BATCH = 1_000
#: The hint outlives the idempotency keys that lead to it, which are kept for a day.
_KEEP_SECONDS = 2 * 86_400.0
#: How long a hint is kept until it is moved, which shortens it. Longer than any task can wait.
_LINK_SECONDS = 4_000 * 86_400.0
_SAME = b"flow"


Reaches = Callable[[uuid.UUID], Awaitable[bool]]


class _Asked(NamedTuple):
    """One submission with flow control. `request` identifies only this one."""

    task: DetailedTask
    flow: Flow
    request: uuid.UUID | None
    fingerprint: bytes
    #: Whether the caller reaches the task that this one would replace. None: it reaches every task.
    reaches: "Reaches | None" = None

    @property
    def tenant(self) -> int:
        return self.task.lane.tenant

    @property
    def chain(self) -> bytes:
        """The key of submissions that must be handled one after the other."""
        ticket = self.flow.unique or self.flow.debounce
        return b"" if ticket is None else ticket.key

    def anew(self) -> "_Asked":
        """Return it with another request id for another try, because its id belongs to a task that was not stored."""
        return self if self.request is None else self._replace(request=_request_after(self.request))


class _End(NamedTuple):
    """The known end of a chain: its task, and when the first submission of its debounce period was made."""

    task: uuid.UUID | None
    first_at: datetime


class FlowControl:
    """`Submitter.submit` for tasks of any kind. Tasks without flow control are passed on directly."""

    def __init__(self, database: Database, submitter: Submitter, steering: Steering) -> None:
        self._database = database
        self._submitter = submitter
        self._steering = steering
        #: Handling a key one by one in this process avoids lost races. Between nodes the chain decides.
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()

    async def submit(
        self,
        tasks: Sequence[NewTask],
        request: uuid.UUID | None = None,
        fingerprint: bytes = b"",
        *,
        is_atomic: bool = False,
        reaches: Reaches | None = None,
    ) -> Sequence[Submission]:
        """Store tasks of one tenant. Return one answer for each, in order.

        `reaches` decides whether a debounced task may replace a given task. None: every task may be replaced.
        """
        if widest_of(map(type, tasks)) is not DetailedTask or not any(map(flow_of, tasks)):
            return await self._submitter.submit(tasks, request, fingerprint, is_atomic=is_atomic)
        if is_atomic:
            return [_not_atomic(task) for task in tasks]
        answers: dict[int, Submission] = {}
        plain = [place for place, task in enumerate(tasks) if flow_of(task) is None]
        if plain:
            # If types change before a request is repeated, it counts as another request.
            of_plain = hashlib.blake2b(fingerprint + repr(plain).encode(), digest_size=16).digest()
            stored = await self._submitter.submit([tasks[place] for place in plain], request, of_plain)
            if isinstance(stored[0], IdempotencyConflict) and all(each is stored[0] for each in stored):
                return [stored[0]] * len(tasks)
            answers |= zip(plain, stored, strict=True)
        asked = {
            place: _Asked(task, task.flow, _request_at(request, place, len(tasks)), fingerprint, reaches)
            for place, task in enumerate(tasks)
            if isinstance(task, DetailedTask) and task.flow is not None
        }
        await self._submit_all(asked, answers)
        return [answers[place] for place in range(len(tasks))]

    async def _submit_all(self, asked: dict[int, _Asked], answers: dict[int, Submission]) -> None:
        await self._recall(asked, answers)
        counted: dict[tuple[int, bytes], list[int]] = {}
        chains: dict[bytes, list[int]] = {}
        for place, each in asked.items():
            if each.chain:
                chains.setdefault(each.chain, []).append(place)
            elif each.flow.rate is not None:
                counted.setdefault((each.tenant, each.flow.rate.key), []).append(place)
        room = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(places: list[int]) -> None:
            async with room, self._turns.setdefault(asked[places[0]].chain, asyncio.Lock()):
                for place in places:
                    answers[place] = await self._submit_chained(asked[place])

        admitted = await self._admit_known(asked, counted)
        for places in counted.values():
            granted, refusal = await self._take_rate(asked[places[0]], len(places))
            admitted += places[:granted]
            answers |= dict.fromkeys(places[granted:], refusal)
        stored, _ = await asyncio.gather(
            asyncio.gather(*(self._submit_alone(asked[place]) for place in admitted)),
            asyncio.gather(*map(in_turn, chains.values())),
        )
        answers |= zip(admitted, stored, strict=True)

    async def _recall(self, asked: dict[int, _Asked], answers: dict[int, Submission]) -> None:
        """Answer repeated requests. The others get the first of their ids that is free."""
        pending = {place: each.request for place, each in asked.items() if each.request is not None}
        while pending:
            tenant = next(iter(asked.values())).tenant
            named = {place: request_of_tenant(request, tenant) for place, request in pending.items()}
            known = await read_requests(self._database.run_with, [(request, tenant) for request in named.values()])
            states = await read_states(self._database, [ids[0] for _, ids in known.values()])
            taken: dict[int, uuid.UUID] = {}
            for place, request in pending.items():
                fingerprint, ids = known.get(named[place], (b"", []))
                if not ids:
                    asked[place] = asked[place]._replace(request=request)
                elif not is_same_fingerprint(fingerprint, asked[place].fingerprint):
                    answers[place] = IdempotencyConflict(
                        "this Idempotency-Key was used for another request; make a new one"
                    )
                    del asked[place]
                elif ids[0] in states:
                    answers[place] = Submitted(ids[0], False, due_ms_of(ids[0]))
                    del asked[place]
                else:
                    taken[place] = _request_after(request)
            pending = taken

    async def _admit_known(self, asked: dict[int, _Asked], counted: dict[tuple[int, bytes], list[int]]) -> list[int]:
        """A submission with a known idempotency key is not new, so it does not count toward the rate."""
        places = [place for each in counted.values() for place in each]
        keys = {place: key for place in places if (key := asked[place].task.idempotency_key) is not None}
        if not keys:
            return []
        tenant = asked[places[0]].tenant
        rows = await self._database.run(SQL["read_known"], tenant=tenant, keys=sorted(set(keys.values())))
        ended = [(tenant, row["key"]) for row in rows if row["has_ended"]]
        held = await free_keys(self._database.run_with, ended) if ended else set()
        known = {row["key"] for row in rows if not row["has_ended"] or (tenant, row["key"]) in held}
        admitted = {place for place, key in keys.items() if key in known}
        for rate, each in [*counted.items()]:
            counted[rate] = [place for place in each if place not in admitted]
            if not counted[rate]:
                del counted[rate]
        return sorted(admitted)

    async def _submit_alone(self, asked: _Asked) -> Submission:
        [answer] = await self._submitter.submit([asked.task], asked.request, asked.fingerprint)
        return answer

    async def _submit_chained(self, asked: _Asked) -> Submission:
        if asked.flow.unique is not None:
            return await self._submit_unique(asked, asked.flow.unique)
        assert asked.flow.debounce is not None
        if asked.flow.rate is not None:
            granted, refusal = await self._take_rate(asked, 1)
            if not granted:
                return refusal
        return await self._submit_debounced(asked, asked.flow.debounce)

    async def _take_rate(self, asked: _Asked, count: int) -> tuple[int, RateLimited]:
        """Return how many of `count` submissions are accepted, and the error for the others."""
        ticket = asked.flow.rate
        assert ticket is not None
        step = ticket.period / ticket.limit
        [row] = await self._database.run(
            SQL["take_rate"],
            tenant=asked.tenant,
            key=ticket.key,
            asked=count,
            limit=ticket.limit,
            step=step,
            period=ticket.period,
        )
        return row["granted"], _refusal(asked.task.type, ticket, max(row["wait"], 0.001))

    async def _submit_unique(self, asked: _Asked, ticket: UniqueTicket) -> Submission:
        end = await self._find_end(asked.tenant, UNIQUE, ticket.key)
        has_paid = asked.flow.rate is None
        for _ in range(_TRIES):
            if end.task is not None and await self._holds(end.task, end.first_at, ticket):
                return Submitted(end.task, False, due_ms_of(end.task))
            if not has_paid:
                granted, refusal = await self._take_rate(asked, 1)
                if not granted:
                    return refusal
                has_paid = True
            name = _link(UNIQUE, ticket.key, end.task)
            answer = await self._store(asked, asked.task, name)
            if isinstance(answer, DuetimeError):
                return answer
            now = self._database.clock.now()
            following = _End(answer.id, from_ms(answer.created_at_ms) if answer.created_at_ms else now)
            keep = _KEEP_SECONDS + (ticket.period or 0.0)
            holds_over = not set(OPEN_STATES).issuperset(ticket.states)
            await self._advance(asked.tenant, UNIQUE, ticket.key, end, following, name, keep, holds_over)
            if answer.is_new:
                return answer
            known = await self._find_end(asked.tenant, UNIQUE, ticket.key)
            end = following if known.task in (None, end.task) else known
            asked = asked.anew()
        raise Unavailable("the tasks of this unique key change all the time; ask again")

    async def _holds(self, task: uuid.UUID, first_at: datetime, ticket: UniqueTicket) -> bool:
        state = (await read_states(self._database, [task])).get(task)
        if state is None:
            return False
        is_recent = ticket.period is not None and self._database.clock.now() < first_at + timedelta(
            seconds=ticket.period
        )
        return is_recent or state in ticket.states

    async def _submit_debounced(self, asked: _Asked, ticket: DebounceTicket) -> Submission:
        end = await self._find_end(asked.tenant, DEBOUNCE, ticket.key)
        for _ in range(_TRIES):
            now = self._database.clock.now()
            waits = end.task is not None and await self._can_be_replaced(end.task)
            if waits and end.task is not None and asked.reaches is not None and not await asked.reaches(end.task):
                return Conflict("a task that this API key does not reach waits under this debounce key")
            first_at = end.first_at if waits else now
            run_at = now + timedelta(seconds=ticket.period)
            if ticket.timeout is not None:
                run_at = max(now, min(run_at, first_at + timedelta(seconds=ticket.timeout)))
            name = _link(DEBOUNCE, ticket.key, end.task)
            delayed = msgspec.structs.replace(asked.task, run_at=from_ms(to_ms_rounded_up(run_at)))
            answer = await self._store(asked, delayed, name)
            if isinstance(answer, DuetimeError):
                return answer
            following = _End(answer.id, first_at)
            await self._advance(asked.tenant, DEBOUNCE, ticket.key, end, following, name, _KEEP_SECONDS, False)
            was_replaced = waits and end.task is not None and await self._replace(end.task, answer.id)
            if answer.is_new:
                return msgspec.structs.replace(answer, replaces=end.task) if was_replaced else answer
            known = await self._find_end(asked.tenant, DEBOUNCE, ticket.key)
            end = following if known.task in (None, end.task) else known
            asked = asked.anew()
        raise Unavailable("the tasks of this debounce key change all the time; ask again")

    async def _can_be_replaced(self, task: uuid.UUID) -> bool:
        return (await read_states(self._database, [task])).get(task) in REPLACEABLE

    async def _replace(self, task: uuid.UUID, by: uuid.UUID) -> bool:
        """End a waiting task. Return whether it was ended: a task that has started meanwhile continues."""
        try:
            # A running task can be cancelled, but not paused.
            state = (await self._steering.pause([task]))[task].state
            if state in REPLACEABLE:
                state = (await self._steering.cancel([task], f"replaced by task {by}"))[task].state
            return state is TaskState.CANCELLED
        except Unavailable as error:
            # Its successor is stored, so the request is fulfilled.
            log.warning("a debounced task could not be ended, and may run as well", task=str(task), error=error.detail)
            return False

    async def _find_end(self, tenant: int, kind: int, key: bytes) -> _End:
        rows = await self._database.run(SQL["read_key"], tenant=tenant, kind=kind, key=key)
        return _End(rows[0]["task"], rows[0]["first_at"]) if rows else _End(None, self._database.clock.now())

    async def _store(self, asked: _Asked, task: DetailedTask, name: str) -> Submission:
        """Store the task as the successor that the link names, or find the existing successor."""
        linked = msgspec.structs.replace(
            task, idempotency_key=name, idempotency_ttl=_LINK_SECONDS, fingerprint=_SAME, flow=None
        )
        [answer] = await self._submitter.submit([linked], asked.request, asked.fingerprint)
        return answer

    async def _advance(
        self,
        tenant: int,
        kind: int,
        key: bytes,
        end: _End,
        following: _End,
        name: str,
        keep: float,
        holds_over: bool,
    ) -> None:
        try:
            await self._database.run(
                SQL["advance_key"],
                tenant=tenant,
                kind=kind,
                key=key,
                before=end.task,
                task=following.task,
                first_at=following.first_at,
                holds_over=holds_over,
                keep=keep,
                name=name,
            )
        except Unavailable as error:
            # The task is stored. The next submission finds it by its link.
            log.warning("a flow key could not be moved on", task=str(following.task), error=error.detail)


async def retire_flow(database: Database, now: datetime) -> None:
    """Delete keys whose task is over or gone, and rates that are not used."""
    while rows := await database.run(SQL["read_expired"], now=now, batch=_BATCH):
        states = await read_states(database, [row["task"] for row in rows])
        needed: list[asyncpg.Record] = []
        old: list[asyncpg.Record] = []
        for row in sorted(rows, key=lambda row: (row["tenant"], row["kind"], row["key"])):
            state = states.get(row["task"])
            is_needed = state in OPEN_STATES or (state is not None and row["holds_over"])
            (needed if is_needed else old).append(row)
        await database.run_with(SQL["keep_keys"], {**_columns(needed), "now": now})
        await database.run_with(SQL["drop_keys"], _columns(old))
    while len(await database.run(SQL["drop_rates"], now=now, batch=_BATCH)) == _BATCH:
        pass


def _columns(rows: Sequence[asyncpg.Record]) -> dict[str, object]:
    return {f"{name}s": [row[name] for row in rows] for name in ("tenant", "kind", "key", "task")}


def _link(kind: int, key: bytes, before: uuid.UUID | None) -> str:
    """Return the idempotency key of a task's successor. It is not printable, so no client can have it."""
    return f"\x01{kind}:{key.hex()}:{before or ''}"


def _request_at(request: uuid.UUID | None, place: int, count: int) -> uuid.UUID | None:
    """Return the request id of one item of a request."""
    return request if request is None or count == 1 else _renamed(request, place.to_bytes(4, "big"))


def _request_after(request: uuid.UUID) -> uuid.UUID:
    """Return the next request id if this one is taken but its task was not stored."""
    return _renamed(request, b"after")


def _renamed(request: uuid.UUID, salt: bytes) -> uuid.UUID:
    """Return another id with the same time, by which requests are stored."""
    digest = hashlib.blake2b(request.bytes + salt, digest_size=10).digest()
    return uuid.UUID(int=(request.int >> 80) << 80 | int.from_bytes(digest, "big"))


def flow_of(task: NewTask) -> Flow | None:
    return task.flow if isinstance(task, DetailedTask) else None


def _not_atomic(task: NewTask) -> Submission:
    if flow_of(task) is None:
        return Conflict("not stored: another task of the batch was refused")
    return InvalidInput("an atomic batch cannot have tasks that are rate limited, debounced or unique")


def _refusal(type: str, ticket: RateTicket, wait: float) -> RateLimited:
    return RateLimited(
        f"{type} takes {ticket.limit:,} submissions of this key in {format_duration(ticket.period)};"
        f" there is room again in {format_duration(math.ceil(wait))}",
        retry_after=wait,
    )
