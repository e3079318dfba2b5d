"""Submit tasks: store what was asked for, once, and answer when it is durable.

Concurrent calls share one commit.  Ids are minted from a lower bound of the
database's clock just before the statement; the statement refuses ids that have
become too old on the way, and they are minted anew.  After a broken connection
the same statement is repeated with the same ids: if nothing of it can be
stored again, it had happened.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import msgspec

from duetime.clock import from_ms, to_ms_rounded_up
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import DuetimeError, IdempotencyConflict, InvalidInput, Unavailable, Unknown
from duetime.ids import due_ms_of, make_ids
from duetime.lifecycle.gather import DATA_ERRORS, Gather
from duetime.lifecycle.lanes import Lanes
from duetime.model.task import NewTask, Options

SQL = load(__package__, "submit.sql")
#: How far behind the database's clock an id may be when it is stored.
MINT_TOLERANCE_MS = 5_000
MAX_ROWS_PER_COMMIT = 5_000
_TRIES = 5
_encode = msgspec.json.Encoder().encode


class Submitted(msgspec.Struct, frozen=True):
    id: uuid.UUID
    is_new: bool
    run_at_ms: int
    #: When a new task was made; 0 for one that was there before.
    created_at_ms: int = 0


Submission = Submitted | DuetimeError


@dataclass
class _Call:
    tasks: Sequence[NewTask]
    lanes: list[int]
    tenant: int
    request: uuid.UUID | None
    fingerprint: bytes
    ids: list[uuid.UUID] = field(default_factory=list)
    minted_ms: int = 0


class Submitter:
    """The one way into the store; every call is answered after its commit."""

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        partitions: Partitions,
        wake: Callable[[Iterable[uuid.UUID]], None],
        *,
        flights: int = 2,
        now: datetime | None = None,
    ) -> None:
        self._database = database
        self._lanes = lanes
        self._partitions = partitions
        self._wake = wake
        self._now = now
        self._gather: Gather[_Call, list[Submission]] = Gather(
            self._fly, weigh=lambda call: len(call.tasks), limit=MAX_ROWS_PER_COMMIT, flights=flights
        )

    async def submit(
        self, tasks: Sequence[NewTask], request: uuid.UUID | None = None, fingerprint: bytes = b""
    ) -> list[Submission]:
        """Store tasks of one tenant; one answer for each, in order.

        `request` names the whole call: repeated, it gives the same tasks.
        """
        if not tasks:
            return []
        find = self._lanes.find
        lanes = [find(task.lane) or await self._lanes.ensure(task.lane) for task in tasks]
        tenant = tasks[0].lane.tenant
        if request is not None:
            request = _request_of_tenant(request, tenant)
        try:
            return await self._gather.add(_Call(tasks, lanes, tenant, request, fingerprint))
        except DATA_ERRORS as error:
            raise InvalidInput(f"the database refuses this task: {error}") from error

    async def close(self) -> None:
        await self._gather.close()

    async def _fly(self, calls: list[_Call]) -> list[list[Submission]]:
        for _ in range(_TRIES):
            minted_ms = self._mint(calls)
            await self._partitions.ensure(due_ms_of(each) for call in calls for each in call.ids)
            await self._partitions.ensure_requests(due_ms_of(call.request) for call in calls if call.request)
            is_keyed = any(call.request or any(task.idempotency_key for task in call.tasks) for call in calls)
            if is_keyed:
                answers = await self._store_keyed(calls, minted_ms)
            else:
                answers = await self._store(calls, minted_ms)
            if answers is not None:
                self._wake(
                    each.id for answer in answers for each in answer if isinstance(each, Submitted) and each.is_new
                )
                return answers
        raise Unavailable("the task could not be stored: the database is too slow or its clock jumps; try again")

    def _mint(self, calls: list[_Call]) -> int:
        now_ms = self._database.clock.now_ms()
        slots = [
            (_due_ms(task, now_ms), lane) for call in calls for task, lane in zip(call.tasks, call.lanes, strict=True)
        ]
        ids = make_ids(slots)
        place = 0
        for call in calls:
            call.ids = ids[place : place + len(call.tasks)]
            call.minted_ms = now_ms
            place += len(call.tasks)
        return now_ms

    async def _store(self, calls: list[_Call], minted_ms: int) -> list[list[Submission]] | None:
        """The plain way: no keys.  None: mint anew."""
        try:
            rows = await self._database.run_with(
                SQL["submit"],
                _columns(calls) | {"now": self._now, "minted_ms": minted_ms, "tolerance_ms": MINT_TOLERANCE_MS},
            )
        except asyncpg.UniqueViolationError:
            return None
        except Unknown:
            return await self._store_again(calls, minted_ms)
        if not rows:
            return None
        return [_all_new(call) for call in calls]

    async def _store_again(self, calls: list[_Call], minted_ms: int) -> list[list[Submission]] | None:
        """Find out about a commit whose answer was lost, by doing it again."""
        answers = await self._store_keyed(calls, minted_ms, is_repeat=True)
        if answers is None:
            # Too old to be stored now: that it was not stored then is certain only if none is there.
            return await self._look_after_doubt(calls)
        return answers

    async def _look_after_doubt(self, calls: list[_Call]) -> list[list[Submission]] | None:
        ids = [each for call in calls for each in call.ids]
        rows = await self._run_known(
            "SELECT 1 FROM unnest($1::int[], $2::uuid[]) AS asked (lane, id)"
            " JOIN task ON task.lane = asked.lane AND task.id = asked.id LIMIT 1",
            [lane for call in calls for lane in call.lanes],
            ids,
        )
        return [_all_new(call) for call in calls] if rows else None

    async def _run_known(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        try:
            return await self._database.fetch(sql, *arguments)
        except Unavailable as error:
            raise Unknown("the connection broke while the task was stored; ask again with the same key") from error

    async def _store_keyed(
        self, calls: list[_Call], minted_ms: int, *, is_repeat: bool = False
    ) -> list[list[Submission]] | None:
        keys: dict[tuple[int, str], tuple[uuid.UUID, NewTask, uuid.UUID | None]] = {}
        requests: dict[uuid.UUID, _Call] = {}
        for call in calls:
            if call.request is not None and requests.setdefault(call.request, call) is not call:
                continue
            for identifier, task in zip(call.ids, call.tasks, strict=True):
                if task.idempotency_key is not None:
                    keys.setdefault((call.tenant, task.idempotency_key), (identifier, task, call.request))
        ordered = sorted(keys.items())
        asked = sorted(requests.items())
        # Of two calls under one request only the first may store its tasks.
        firsts = [call for call in calls if call.request is None or requests[call.request] is call]
        parameters = _columns(firsts) | {
            "now": self._now,
            "minted_ms": minted_ms,
            "tolerance_ms": MINT_TOLERANCE_MS,
            "request_ids": [request for request, _ in asked],
            "request_tenants": [call.tenant for _, call in asked],
            "request_fingerprints": [call.fingerprint for _, call in asked],
            "request_tasks": [b"".join(each.bytes for each in call.ids) for _, call in asked],
            "key_tenants": [tenant for (tenant, _), _ in ordered],
            "keys": [key for (_, key), _ in ordered],
            "key_tasks": [identifier for _, (identifier, _, _) in ordered],
            "key_fingerprints": [task.fingerprint for _, (_, task, _) in ordered],
            "key_ttls": [task.idempotency_ttl for _, (_, task, _) in ordered],
            "key_requests": [request for _, (_, _, request) in ordered],
            "requests": [call.request for call in firsts for _ in call.tasks],
            "is_keyed": [task.idempotency_key is not None for call in firsts for task in call.tasks],
        }
        rows = await self._run_through_doubt(parameters, is_repeat=is_repeat)
        if not rows.is_fresh:
            return None
        happened = rows.was_in_doubt and not rows.stored
        return await self._sort_out(calls, requests, rows.stored, happened)

    async def _run_through_doubt(self, parameters: dict[str, object], *, is_repeat: bool) -> "_Stored":
        was_in_doubt = is_repeat
        for attempt in range(_TRIES):
            try:
                rows = await self._database.run_with(SQL["submit_keyed"], parameters)
            except Unavailable as error:
                # Not begun is harmless by itself, but an earlier try may still be in doubt.
                if not isinstance(error, Unknown) and not was_in_doubt:
                    raise
                was_in_doubt = True
                await asyncio.sleep(0.1 * 2**attempt)
                continue
            stored = {row["id"] for row in rows if row["id"] is not None}
            return _Stored(stored, len(rows) > len(stored), was_in_doubt)
        raise Unknown("the connection to the database broke while the task was stored; ask again with the same key")

    async def _sort_out(
        self,
        calls: list[_Call],
        requests: dict[uuid.UUID, _Call],
        stored: set[uuid.UUID],
        happened: bool,
    ) -> list[list[Submission]]:
        lost_keys = [
            (call.tenant, task.idempotency_key)
            for call in calls
            for identifier, task in zip(call.ids, call.tasks, strict=True)
            if task.idempotency_key is not None and identifier not in stored
        ]
        lost_requests = [
            (call.request, call.tenant)
            for call in calls
            if call.request is not None and (requests[call.request] is not call or not stored.issuperset(call.ids))
        ]
        winners = await self._read_keys(lost_keys) if lost_keys else {}
        answered = await self._read_requests(lost_requests) if lost_requests else {}
        answers: list[list[Submission]] = []
        for call in calls:
            ids = call.ids
            is_replay = False
            if call.request is not None and (known := answered.get(call.request)):
                fingerprint, first_ids = known
                if fingerprint != call.fingerprint:
                    answers.append(
                        [
                            IdempotencyConflict("this Idempotency-Key was used for another request; make a new one")
                            for _ in ids
                        ]
                    )
                    continue
                is_replay = first_ids != ids
                ids = first_ids
            answer: list[Submission] = []
            for mine, identifier, task in zip(call.ids, ids, call.tasks, strict=True):
                if mine in stored:
                    answer.append(Submitted(mine, True, due_ms_of(mine), call.minted_ms))
                elif (winner := winners.get((call.tenant, task.idempotency_key or ""))) is not None:
                    answer.append(_of_winner(winner, task, identifier, is_replay))
                elif task.idempotency_key is None and (is_replay or happened):
                    answer.append(Submitted(identifier, not is_replay, due_ms_of(identifier), call.minted_ms))
                else:
                    # Its id is a stranger's, or its key expired between the statements: alone, once more.
                    lane = call.lanes[len(answer)]
                    answer += (await self._fly([_Call([task], [lane], call.tenant, None, b"")]))[0]
            answers.append(answer)
        return answers

    async def _read_keys(self, keys: list[tuple[int, str]]) -> dict[tuple[int, str], tuple[uuid.UUID, bytes]]:
        tenants, words = [tenant for tenant, _ in keys], [key for _, key in keys]
        rows = await self._database.run(SQL["read_keys"], tenants=tenants, keys=words)
        return {(row["tenant"], row["key"]): (row["task"], row["fingerprint"]) for row in rows}

    async def _read_requests(
        self, requests: list[tuple[uuid.UUID, int]]
    ) -> dict[uuid.UUID, tuple[bytes, list[uuid.UUID]]]:
        ids, tenants = [request for request, _ in requests], [tenant for _, tenant in requests]
        rows = await self._database.run(SQL["read_requests"], ids=ids, tenants=tenants)
        return {row["id"]: (row["fingerprint"], _cut_ids(row["tasks"])) for row in rows}


@dataclass(frozen=True)
class _Stored:
    stored: set[uuid.UUID]
    is_fresh: bool
    was_in_doubt: bool


def _all_new(call: _Call) -> list[Submission]:
    return [Submitted(identifier, True, due_ms_of(identifier), call.minted_ms) for identifier in call.ids]


def _of_winner(winner: tuple[uuid.UUID, bytes], task: NewTask, mine: uuid.UUID, is_replay: bool) -> Submission:
    identifier, fingerprint = winner
    if fingerprint != task.fingerprint:
        return IdempotencyConflict(
            f"idempotency_key {task.idempotency_key!r} already stands for another task ({identifier})"
        )
    return Submitted(identifier, identifier == mine and not is_replay, due_ms_of(identifier))


def _due_ms(task: NewTask, now_ms: int) -> int:
    if task.run_at is not None:
        return max(to_ms_rounded_up(task.run_at), now_ms)
    if task.delay:
        return now_ms + -int(-task.delay * 1000 // 1)
    return now_ms


def _columns(calls: list[_Call]) -> dict[str, object]:
    tasks = [task for call in calls for task in call.tasks]
    ids = [identifier for call in calls for identifier in call.ids]
    return {
        "lanes": [lane for call in calls for lane in call.lanes],
        "ids": ids,
        "types": [task.type for task in tasks],
        "payloads": [task.payload for task in tasks],
        "options": [encode_options(task.options) for task in tasks],
        "labels": [_encode(task.labels).decode() if task.labels else None for task in tasks],
        "run_ats": [
            task.run_at or (from_ms(due_ms_of(identifier)) if task.delay else None)
            for task, identifier in zip(tasks, ids, strict=True)
        ],
        "expires_ats": [task.expires_at for task in tasks],
    }


def encode_options(options: Options | None) -> bytes | None:
    return None if options is None else _encode(options)


def _request_of_tenant(request: uuid.UUID, tenant: int) -> uuid.UUID:
    """The request's id with its time kept and the rest bound to the tenant."""
    digest = hashlib.blake2b(request.bytes + tenant.to_bytes(4, "big"), digest_size=10).digest()
    return uuid.UUID(int=(request.int >> 80) << 80 | int.from_bytes(digest, "big"))


def _cut_ids(joined: bytes) -> list[uuid.UUID]:
    return [uuid.UUID(bytes=joined[place : place + 16]) for place in range(0, len(joined), 16)]
