"""Plain tasks that come one by one take a short way into the store.

Plain is what is due now and has nothing but its type, its payload and its lane,
and maybe the key of its request: nearly all that is submitted alone.  They are
gathered as in `gather`, stored as all others are, and each caller is called back
after the commit that holds its task.  What does not go well the first time goes
the long way (`submit`), which knows what to do about it.
"""

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Protocol

import asyncpg

from duetime import metrics
from duetime.database.arrays import same, sparse
from duetime.database.gather import DATA_ERRORS, LATE_SECONDS, Backlog
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.errors import Unknown
from duetime.ids import due_ms_of, make_ids
from duetime.lifecycle.admission.pressure import TASK_BYTES
from duetime.lifecycle.submission.handover import Desk, Seats, lease
from duetime.lifecycle.submission.storing import times_of
from duetime.lifecycle.submission.winners import SQL, Call, Submission, Submitted
from duetime.lifecycle.tasks.onward import Wake
from duetime.model.task import LeasedTask, NewTask, PriorityClass
from duetime.turns import LONG_TASKS, Turns
from duetime.wakeful import Wakeful

#: That share a commit: 32 MB, if each is as large as it may be.
MAX_SINGLES = 500
#: Commits that are made at once: while the database makes one, the node gathers and answers for the other.
FLIGHTS = 2
#: While the database stores as few as these, no long piece of work begins.
FEW_TASKS = 20

_SUBMIT = SQL["submit"]
_SUBMIT_PLAIN = SQL["submit_plain"]
_SUBMIT_ONE = SQL["submit_one"]
_SUBMIT_KEYED = SQL["submit_keyed"]
_SUBMIT_PLAIN_KEYED = SQL["submit_plain_keyed"]
#: What a statement for more than plain tasks takes beside.
_NOTHING_MORE: dict[str, object] = dict.fromkeys(("options", "labels", "run_us", "expires_ats"))
_NO_KEYS: dict[str, object] = dict.fromkeys(
    set(_SUBMIT_KEYED.parameters) - set(_SUBMIT_PLAIN_KEYED.parameters) - {"holders"}
)
_NONE_LOST: frozenset[uuid.UUID] = frozenset()

#: Told what came of a submission, after its commit.
Done = Callable[[Submission | BaseException], None]


class Single:
    __slots__ = ("at", "done", "fingerprint", "lane", "request", "task")

    def __init__(
        self, task: NewTask, lane: int, done: Done, at: float, request: uuid.UUID | None, fingerprint: bytes
    ) -> None:
        self.task = task
        self.lane = lane
        self.done = done
        self.at = at
        self.request = request
        self.fingerprint = fingerprint


class Again(Protocol):
    """The long way: `in_doubt` is what may have been stored."""

    async def __call__(self, calls: list[Call], *, in_doubt: bool) -> list[Sequence[Submission] | BaseException]: ...


class Singles:
    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        wake: Wake,
        again: Again,
        *,
        desk: Desk | None,
        turns: Turns,
        now: datetime | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._wake = wake
        self._again = again
        self._desk = desk
        self._turns = turns
        self._now = now
        self._monotonic = monotonic
        self._wakeful = Wakeful(monotonic)
        #: When few tasks were stored last.
        self.few_at = -math.inf
        #: By priority.
        self._waiting: list[deque[Single]] = [deque() for _ in PriorityClass]
        self._count = 0
        #: Of what waits and what is in the air.
        self._size = 0
        self._flying: set[asyncio.Task[None]] = set()
        #: A flight is about to take what waits.
        self._is_boarding = False
        #: Tasks in the air, and since when the youngest flight is.
        self._in_air = 0
        self._took_off_at = -math.inf

    @property
    def backlog(self) -> Backlog:
        if not self._count:
            return Backlog(0, self._size, 0.0)
        oldest = min([queue[0].at for queue in self._waiting if queue])
        return Backlog(self._count, self._size, self._monotonic() - oldest)

    async def add(self, task: NewTask, lane: int) -> Submission:
        """Have the task stored; returns after its commit."""
        answer: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()

        def done(submission: Submission | BaseException) -> None:
            if answer.done():
                return
            if isinstance(submission, BaseException):
                answer.set_exception(submission)
            else:
                answer.set_result(submission)

        self.put(task, lane, done)
        return await answer

    def put(
        self, task: NewTask, lane: int, done: Done, request: uuid.UUID | None = None, fingerprint: bytes = b""
    ) -> None:
        """The same, for who wants to be called back; `request` is bound to its tenant."""
        now = self._monotonic()
        self._waiting[task.lane.priority].append(Single(task, lane, done, now, request, fingerprint))
        self._count += 1
        self._size += len(task.payload) + TASK_BYTES
        if not self._flying:
            self._wakeful.asked()
        if not self._is_boarding and len(self._flying) < FLIGHTS and self._is_worth_a_flight(now):
            self._is_boarding = True
            self._flying.add(asyncio.get_running_loop().create_task(self._take_off()))

    async def close(self) -> None:
        """Wait for what is in the air or gathered."""
        while self._flying:
            await asyncio.wait(self._flying)

    def _is_worth_a_flight(self, now: float) -> bool:
        """A flight costs about the same with one task or ten: two with half of the tasks each are best."""
        return self._count >= self._in_air or now - self._took_off_at > LATE_SECONDS

    async def _take_off(self) -> None:
        self._is_boarding = False
        try:
            while self._count and self._is_worth_a_flight(self._monotonic()):
                load = self._next_load()
                try:
                    await self._deliver(load)
                finally:
                    self._size -= sum([len(each.task.payload) for each in load]) + TASK_BYTES * len(load)
        finally:
            self._flying.discard(asyncio.current_task())
            if not self._flying:
                self._wakeful.answered()

    def _next_load(self) -> list[Single]:
        """The oldest of all, then by priority, each in order."""
        first = min([queue for queue in self._waiting if queue], key=lambda queue: queue[0].at)
        load = [first.popleft()]
        for queue in self._waiting:
            while queue and len(load) < MAX_SINGLES:
                load.append(queue.popleft())
        self._count -= len(load)
        return load

    async def _deliver(self, load: list[Single]) -> None:
        self._in_air += len(load)
        self._took_off_at = self._monotonic()
        try:
            try:
                answers = await self._fly(load)
            finally:
                self._in_air -= len(load)
        except asyncio.CancelledError as error:
            self._tell(load, [error] * len(load))
            raise
        except Exception as error:
            # Whatever it is, it belongs to the callers.
            self._tell(load, [error] * len(load))
        else:
            if self._count:
                # The next ones are on their way before these are answered: the database need not wait for that.
                asyncio.get_running_loop().call_soon(self._tell, load, answers)
            else:
                self._tell(load, answers)

    async def _fly(self, load: list[Single]) -> list[Submission | BaseException]:
        if len(load) <= FEW_TASKS:
            self.few_at = self._monotonic()
        elif len(load) > LONG_TASKS:
            await self._turns.take()
        with self._turns.held() if len(load) <= FEW_TASKS else nullcontext():
            now_ms = self._database.clock.now_ms()
            if not self._partitions.are_known((now_ms,)):
                await self._partitions.ensure({now_ms})
            requests = [each.request for each in load if each.request is not None]
            if requests:
                if len(set(requests)) < len(requests):
                    return await self._go_the_long_way(load, None, now_ms, in_doubt=False)
                await self._partitions.ensure_requests([due_ms_of(request) for request in requests])
            lanes = [each.lane for each in load]
            ids = make_ids([(now_ms, lane) for lane in lanes])
            seats = None if self._desk is None else self._desk.reserve({lane: lanes.count(lane) for lane in set(lanes)})
            handed: dict[int, list[LeasedTask]] = {}
            lost: Collection[uuid.UUID] | None
            try:
                lost = await self._store(load, lanes, ids, now_ms, seats, bool(requests))
                if lost is not None:
                    self._spread(load, ids, seats, handed, lost)
            except Unknown:
                return await self._go_the_long_way(load, ids, now_ms, in_doubt=True)
            except (asyncpg.UniqueViolationError, *DATA_ERRORS):
                lost = None
            finally:
                if seats is not None and self._desk is not None:
                    self._desk.hand_over(seats, handed)
        if lost is None:
            return await self._go_the_long_way(load, ids, now_ms, in_doubt=False)
        answers: list[Submission | BaseException] = [Submitted(each, True, now_ms, now_ms) for each in ids]
        if lost:
            places = [place for place, identifier in enumerate(ids) if identifier in lost]
            told = await self._go_the_long_way([load[place] for place in places], None, now_ms, in_doubt=False)
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer
        return answers

    async def _store(
        self,
        load: list[Single],
        lanes: list[int],
        ids: list[uuid.UUID],
        now_ms: int,
        seats: Seats | None,
        has_requests: bool,
    ) -> Collection[uuid.UUID] | None:
        """What was not stored because its request was there before; None: the ids were too old."""
        if len(load) == 1 and seats is None and not has_requests:
            return await self._store_one(load[0], ids[0], now_ms)
        holders = None
        all_types = [each.task.type for each in load]
        if seats is not None:
            holders = sparse([seats.take(*each) for each in zip(lanes, ids, all_types, strict=True)])
        lanes_given, lane = same(lanes)
        types, type = same(all_types)
        parameters: dict[str, object] = {
            "lanes": lanes_given,
            "lane": lane,
            "ids": ids,
            "types": types,
            "type": type,
            "payloads": [each.task.payload for each in load],
            **times_of(now_ms, self._now),
        }
        if has_requests:
            parameters |= _request_columns(load, ids)
        if holders is None:
            statement = _SUBMIT_PLAIN_KEYED if has_requests else _SUBMIT_PLAIN
        elif has_requests:
            statement = _SUBMIT_KEYED
            parameters |= _NO_KEYS | {"holders": holders}
        else:
            statement = _SUBMIT
            parameters |= _NOTHING_MORE | {"holders": holders}
        asked = self._database.clock.ask()
        rows = await self._database.run_with(statement, parameters)
        if not rows:
            return None
        if self._now is None:
            self._database.clock.hear(asked, rows[0]["at"])
        if seats is not None:
            seats.picked_at = rows[0]["at"]
        if not has_requests or rows[0]["ids"] is None:
            return _NONE_LOST
        return set(ids) - set(rows[0]["ids"])

    async def _store_one(self, single: Single, identifier: uuid.UUID, now_ms: int) -> Collection[uuid.UUID] | None:
        """One task alone, by the lightest statement."""
        parameters = {
            "lane": single.lane,
            "id": identifier,
            "type": single.task.type,
            "payload": single.task.payload,
            **times_of(now_ms, self._now),
        }
        rows = await self._database.run_with(_SUBMIT_ONE, parameters)
        return _NONE_LOST if rows else None

    def _spread(
        self,
        load: list[Single],
        ids: list[uuid.UUID],
        seats: Seats | None,
        handed: dict[int, list[LeasedTask]],
        lost: Collection[uuid.UUID],
    ) -> None:
        """Who gets what; of the rest, lanes are woken by their first."""
        metrics.TASKS_OF_CALLS.inc(len(ids) - len(lost))
        if lost:
            stored = [(each, identifier) for each, identifier in zip(load, ids, strict=True) if identifier not in lost]
            load, ids = [each for each, _ in stored], [identifier for _, identifier in stored]
        first: dict[int, uuid.UUID] = {}
        if seats is None or seats.picked_at is None:
            # Ids count upwards.
            for each, identifier in zip(load, ids, strict=True):
                first.setdefault(each.lane, identifier)
        else:
            for each, identifier in zip(load, ids, strict=True):
                if identifier not in seats.taken:
                    first.setdefault(each.lane, identifier)
                    continue
                number, holder = seats.taken[identifier]
                leased = lease(each.task, identifier, each.lane, holder, seats.picked_at)
                handed.setdefault(number, []).append(leased)
            metrics.HANDED_OVER.inc(sum([len(leased) for leased in handed.values()]))
        if first:
            self._wake(first.values())

    async def _go_the_long_way(
        self, load: list[Single], ids: list[uuid.UUID] | None, minted_ms: int, *, in_doubt: bool
    ) -> list[Submission | BaseException]:
        """With the ids that they may be stored under, if there are any."""
        calls = [Call([each.task], [each.lane], each.task.lane.tenant, each.request, each.fingerprint) for each in load]
        for call, identifier in zip(calls, ids or (), strict=ids is not None):
            call.ids, call.minted_ms = [identifier], minted_ms
        answers = await self._again(calls, in_doubt=in_doubt)
        return [each if isinstance(each, BaseException) else each[0] for each in answers]

    def _tell(self, load: list[Single], answers: Iterable[Submission | BaseException]) -> None:
        for each, answer in zip(load, answers, strict=True):
            try:
                each.done(answer)
            except Exception as error:
                # One caller's failure is not the others'.
                context = {"message": "a submission could not be answered", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


def _request_columns(load: list[Single], ids: list[uuid.UUID]) -> dict[str, object]:
    """The requests in order, and for each task the place of its own; PostgreSQL counts them from 1."""
    # No two requests are the same, so nothing else is compared.
    asked = sorted(
        [(each.request, each, identifier) for each, identifier in zip(load, ids, strict=True) if each.request]
    )
    places = {request: place for place, (request, _, _) in enumerate(asked, 1)}
    return {
        "request_ids": [request for request, _, _ in asked],
        "request_tenants": [each.task.lane.tenant for _, each, _ in asked],
        "request_fingerprints": [each.fingerprint for _, each, _ in asked],
        "request_tasks": [identifier.bytes for _, _, identifier in asked],
        "requests": [places[each.request] if each.request else None for each in load],
    }
