"""Submit tasks: store what was asked for, once, and answer when it is durable.

Concurrent calls share one commit (`storing`).  Ids are minted from a lower bound
of the database's clock just before the statement.  A task that somebody waits for
is handed over; of the others their lanes are told.
"""

import asyncio
import hashlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime

import asyncpg
import msgspec

from duetime import metrics
from duetime.clock import Monotonic
from duetime.database.gather import DATA_ERRORS, Backlog, Gather
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.repeating import wait_for_standbys
from duetime.errors import Conflict, DuetimeError, InvalidInput, Unavailable, Unknown
from duetime.ids import count_ids, due_ms_of, make_ids, make_row, uuid_of
from duetime.lifecycle.admission.pressure import rank_of, size_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.handover import Desk, Seats, lease
from duetime.lifecycle.submission.rows import run_us_of
from duetime.lifecycle.submission.singles import FEW_TASKS, FLIGHTS, Done, Singles
from duetime.lifecycle.submission.storing import MINT_TOLERANCE_MS, Answers, Store
from duetime.lifecycle.submission.winners import SQL, AllNew, Call, Submission, Submitted
from duetime.lifecycle.tasks.onward import Wake
from duetime.model.task import LaneKey, LeasedTask, NewTask, PriorityClass
from duetime.turns import LONG_TASKS, Turns

#: Enough to share a commit; more would only make others wait for it longer.
MAX_ROWS_PER_COMMIT = 1_000
#: More than one request can have, so that each fits.
MAX_BYTES_PER_COMMIT = 32 * 1024 * 1024
#: Of refused requests that are looked up in one statement: whether they were done before.
MAX_LOOKUPS = 1_000
#: Calls of up to so many tasks share their commits with each other, not with larger ones.
LIGHT_TASKS = 100
#: Commits of large calls that are made at once; only one, if something as small as that was stored within this time.
BULK_FLIGHTS = 3
QUIET_SECONDS = 1.0
_TRIES = 5

__all__ = ["MINT_TOLERANCE_MS", "SQL", "AllNew", "Submission", "Submitted", "Submitter", "request_of_tenant"]


class _RefusedError(Exception):
    """An atomic call was refused: roll it back."""


class Submitter:
    """The one way into the store; every call is answered after its commit."""

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        partitions: Partitions,
        wake: Wake,
        *,
        desk: Desk | None = None,
        turns: Turns | None = None,
        now: datetime | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._turns = turns or Turns()
        self._monotonic = monotonic
        self._desk = desk
        self._database = database
        self._lanes = lanes
        self._partitions = partitions
        self._wake = wake
        self._store = Store(database, now)
        self.singles = Singles(
            database,
            partitions,
            wake,
            self._store_again,
            desk=desk,
            turns=self._turns,
            now=now,
            monotonic=monotonic,
        )
        #: Tenants that are spread, and over how many shards.
        self._spread_of: Mapping[int, int] = {}
        self._turn = 0
        self._bulk = self._make_gather(self._count_bulk_flights)
        #: Beside it, so that a single task does not wait for somebody's thousands.
        self._light = self._make_gather(lambda: FLIGHTS, is_even=True)
        #: When few tasks were stored last.
        self._few_at = -math.inf
        self._lookups: Gather[tuple[uuid.UUID, int], int | None] = Gather(
            self._count_of_requests, weigh=lambda _: 1, limit=MAX_LOOKUPS, monotonic=monotonic
        )

    def rule(self, spread: Mapping[int, int]) -> None:
        """These tenants are spread from now on, over so many shards, and no others."""
        self._spread_of = spread

    def _count_bulk_flights(self) -> int:
        """One beside small calls, which would wait for the processors that more of them take."""
        few_at = max(self._few_at, self.singles.few_at)
        return BULK_FLIGHTS if self._monotonic() - few_at > QUIET_SECONDS else 1

    def _make_gather(self, flights: Callable[[], int], *, is_even: bool = False) -> Gather[Call, Sequence[Submission]]:
        return Gather(
            self._fly,
            weigh=lambda call: len(call.tasks),
            limit=MAX_ROWS_PER_COMMIT,
            flights=flights,
            is_even=is_even,
            measure=size_of,
            size_limit=MAX_BYTES_PER_COMMIT,
            rank=rank_of,
            ranks=len(PriorityClass),
            monotonic=self._monotonic,
        )

    def _gather_for(self, weight: int) -> Gather[Call, Sequence[Submission]]:
        return self._light if weight <= LIGHT_TASKS else self._bulk

    @property
    def backlog(self) -> Backlog:
        """What waits to be stored."""
        parts = (self.singles.backlog, self._light.backlog, self._bulk.backlog)
        weight, size = sum([part.weight for part in parts]), sum([part.size for part in parts])
        return Backlog(weight, size, max([part.seconds for part in parts]))

    async def submit(
        self,
        tasks: Sequence[NewTask],
        request: uuid.UUID | None = None,
        fingerprint: bytes = b"",
        *,
        is_atomic: bool = False,
    ) -> Sequence[Submission]:
        """Store tasks of one tenant; one answer for each, in order.

        `request` names the whole call: repeated, it gives the same tasks.  An atomic call
        stores nothing if any of its tasks is refused.
        """
        if not tasks:
            return []
        find = self._lanes.find
        tenant = tasks[0].lane.tenant
        keys = self._spread_out(tasks) if tenant in self._spread_of else [task.lane for task in tasks]
        numbers = {key: find(key) or await self._lanes.ensure(key) for key in set(keys)}
        lanes = [*numbers.values()] * len(keys) if len(numbers) == 1 else [numbers[key] for key in keys]
        if request is not None:
            request = request_of_tenant(request, tenant)
        call = Call(tasks, lanes, tenant, request, fingerprint)
        try:
            if len(tasks) == 1 and request is None and tasks[0].is_plain:
                return [await self.singles.add(tasks[0], lanes[0])]
            if is_atomic and any(task.idempotency_key is not None for task in tasks):
                return await self._submit_alone(call)
            return await self._gather_for(len(tasks)).add(call)
        except DATA_ERRORS as error:
            raise InvalidInput(f"the database refuses this task: {error}") from error

    def find_lane(self, task: NewTask) -> int | None:
        """Where a task that is submitted now would go; None: there is no such lane yet, so await `submit`."""
        return self._lanes.find(task.lane if task.lane.tenant not in self._spread_of else self._spread_out([task])[0])

    def submit_soon(
        self, task: NewTask, lane: int, done: Done, request: uuid.UUID | None = None, fingerprint: bytes = b""
    ) -> None:
        """One task, for a caller that knows its lane and wants to be called back."""
        tenant = task.lane.tenant
        if request is not None:
            request = request_of_tenant(request, tenant)
        if task.is_plain:
            self.singles.put(task, lane, done, request, fingerprint)
            return
        answer = self._light.put(Call([task], [lane], tenant, request, fingerprint))
        answer.add_done_callback(lambda answer: done(_one_of(answer)))

    def _spread_out(self, tasks: Sequence[NewTask]) -> list[LaneKey]:
        """The lanes of a tenant that is spread over several shards, in turn."""
        parts, turn = self._spread_of[tasks[0].lane.tenant], self._turn
        self._turn += len(tasks)
        return [msgspec.structs.replace(task.lane, part=(turn + place) % parts) for place, task in enumerate(tasks)]

    async def count_of_request(self, request: uuid.UUID, tenant: int) -> int | None:
        """How many tasks a request stored when it was first made; None: it is new."""
        return await self._lookups.add((request_of_tenant(request, tenant), tenant))

    async def _count_of_requests(self, named: list[tuple[uuid.UUID, int]]) -> list[int | None]:
        ids, tenants = [request for request, _ in named], [tenant for _, tenant in named]
        rows = await self._database.run(SQL["read_requests"], ids=ids, tenants=tenants)
        known = {row["id"]: count_ids(row["tasks"]) for row in rows}
        return [known.get(request) for request in ids]

    async def close(self) -> None:
        await self.singles.close()
        await self._light.close()
        await self._bulk.close()
        await self._lookups.close()

    async def _fly(self, calls: list[Call]) -> list[Sequence[Submission]]:
        weight = sum([len(call.tasks) for call in calls])
        if weight <= FEW_TASKS:
            self._few_at = self._monotonic()
        with self._turns.held() if weight <= FEW_TASKS else nullcontext():
            for _ in range(_TRIES):
                if weight > LONG_TASKS:
                    await self._turns.take()
                minted_ms = await self.prepare(calls)
                answers = await self._store_and_wake(calls, minted_ms)
                if answers is not None:
                    return await self._answered(calls, answers)
                # Mostly the database's clock has jumped.
                await self._database.read_clock()
        raise Unavailable("the task could not be stored: the database is too slow or its clock jumps; try again")

    async def _store_again(self, calls: list[Call], *, in_doubt: bool) -> list[Sequence[Submission] | BaseException]:
        """Singles whose first try came to nothing, or whose answer was lost."""
        if in_doubt:
            answers = await self._store.store_keyed(calls, calls[0].minted_ms, None, is_repeat=True)
            if answers is not None:
                self.announce(calls, answers)
                return [*await self._answered(calls, answers)]
        return await asyncio.gather(*[self._light.add(call) for call in calls], return_exceptions=True)

    async def _store_and_wake(self, calls: list[Call], minted_ms: int) -> Answers | None:
        """Store; what was stored for a waiting holder is handed over, the rest wakes its lane."""
        seats = self._reserve(calls)
        handed: dict[int, list[LeasedTask]] = {}
        try:
            answers = await self._store.store(calls, minted_ms, seats)
            if answers is not None:
                self._spread(calls, answers, seats, handed)
        finally:
            if seats is not None and self._desk is not None:
                self._desk.hand_over(seats, handed)
        return answers

    def _reserve(self, calls: list[Call]) -> Seats | None:
        if self._desk is None:
            return None
        wanted: dict[int, int] = {}
        for call in calls:
            if call.is_even:
                wanted[call.lanes[0]] = wanted.get(call.lanes[0], 0) + len(call.tasks)
                continue
            for task, lane in zip(call.tasks, call.lanes, strict=True):
                if task.run_at is None and not task.delay:
                    wanted[lane] = wanted.get(lane, 0) + 1
        return self._desk.reserve(wanted) if wanted else None

    def _spread(
        self,
        calls: list[Call],
        answers: Answers,
        seats: Seats | None,
        handed: dict[int, list[LeasedTask]],
    ) -> None:
        """Who gets what, and which lanes have something new: each is woken by its first."""
        picked_at = None if seats is None else seats.picked_at
        taken = {} if seats is None or picked_at is None else seats.taken
        first: dict[int, uuid.UUID] = {}
        stored = 0
        for call, answer in zip(calls, answers, strict=True):
            if call.is_of_one_lane and call.is_stored and not taken:
                # Those that are even count upwards.
                lane, identifier = call.lanes[0], call.ids[0] if call.is_even else min(call.ids)
                first[lane] = min(first.get(lane, identifier), identifier)
                stored += len(call.ids)
                continue
            for task, lane, each in zip(call.tasks, call.lanes, answer, strict=True):
                if not isinstance(each, Submitted) or not each.is_new:
                    continue
                stored += 1
                identifier = each.id
                if identifier in taken:
                    number, holder = taken[identifier]
                    assert picked_at is not None
                    handed.setdefault(number, []).append(lease(task, identifier, lane, holder, picked_at))
                elif lane not in first or identifier < first[lane]:
                    first[lane] = identifier
        if first:
            self._wake(first.values())
        metrics.TASKS_OF_CALLS.inc(stored)
        if handed:
            metrics.HANDED_OVER.inc(sum(len(tasks) for tasks in handed.values()))

    async def _answered(self, calls: list[Call], answers: Answers) -> list[Sequence[Submission]]:
        """The answers, once what had to be tried once more has its own."""
        complete: list[Sequence[Submission]] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, AllNew):
                complete.append(answer)
                continue
            known = [each for each in answer if each is not None]
            if len(known) < len(answer):
                places = [place for place, each in enumerate(answer) if each is None]
                tasks, lanes = [call.tasks[place] for place in places], [call.lanes[place] for place in places]
                [tried] = await self._fly([Call(tasks, lanes, call.tenant, None, b"")])
                for place, each in zip(places, tried, strict=True):
                    known.insert(place, each)
            complete.append(known)
        return complete

    async def prepare(self, calls: list[Call]) -> int:
        """Mint ids, and make sure that there are partitions for them."""
        now_ms = self._database.clock.now_ms()
        slots: list[tuple[int, int]] = []
        moments: set[int] = set()
        for call in calls:
            if call.is_even:
                moments.add(now_ms)
                slots += [(now_ms, call.lanes[0])] * len(call.tasks)
                continue
            call.run_us = [run_us_of(task, now_ms) for task in call.tasks]
            # Rounded up: nothing is early.
            dues = [now_ms if us is None else max(-(-us // 1000), now_ms) for us in call.run_us]
            moments.update(dues)
            slots += zip(dues, call.lanes, strict=True)
        is_row = len(calls) == 1 and calls[0].is_even
        ids = make_row(now_ms, calls[0].lanes[0], len(calls[0].tasks)) if is_row else make_ids(slots)
        place = 0
        for call in calls:
            call.ids = ids[place : place + len(call.tasks)]
            call.minted_ms = now_ms
            place += len(call.tasks)
        if not self._partitions.are_known(moments):
            await self._partitions.ensure(moments)
        if any(call.request for call in calls):
            await self._partitions.ensure_requests(due_ms_of(call.request) for call in calls if call.request)
        return now_ms

    async def _submit_alone(self, call: Call) -> Sequence[Submission]:
        """All or nothing: in a transaction of its own, rolled back if a key stands for something else."""
        answer: Sequence[Submission | None] | None = None
        for _ in range(_TRIES):
            minted_ms = await self.prepare([call])
            try:
                async with self._database.connection() as connection, connection.transaction():
                    stored = await self.store_in(connection, [call], minted_ms)
                    if stored is not None:
                        [answer] = stored
                    if answer is None or None in answer or any(isinstance(each, DuetimeError) for each in answer):
                        raise _RefusedError
            except _RefusedError:
                if answer is not None and None not in answer:
                    return _refused(answer)
                await self.free_keys([call])
                if stored is None:
                    await self._database.read_clock()
                continue
            except asyncpg.UniqueViolationError:
                # An id of ours was there already: mint anew.
                continue
            except Unknown:
                # Every task has the request or a key of its own, or the caller cannot ask again safely anyway.
                [complete] = await self._fly([call])
                return complete
            self.announce([call], [answer])
            if not isinstance(answer, AllNew) and not all(
                isinstance(each, Submitted) and each.is_new for each in answer
            ):
                await wait_for_standbys(self._database)
            [complete] = await self._answered([call], [answer])
            return complete
        raise Unavailable("the tasks could not be stored: the database is too slow or its clock jumps; try again")

    async def store_in(self, connection: asyncpg.Connection, calls: list[Call], minted_ms: int) -> Answers | None:
        """Store in the caller's transaction what was prepared; None: mint anew.  After its commit, `announce` it."""
        return await self._store.store_in(connection, calls, minted_ms)

    async def free_keys(self, calls: list[Call]) -> None:
        """Before `store_in` is tried again in another transaction."""
        await self._store.free_keys(calls)

    def announce(self, calls: list[Call], answers: Answers) -> None:
        """Wake the lanes of what was stored."""
        self._spread(calls, answers, None, {})


def _one_of(answer: "asyncio.Future[Sequence[Submission]]") -> Submission | BaseException:
    if answer.cancelled():
        return Unavailable("the task was not stored: the node is stopping; ask again")
    return answer.exception() or answer.result()[0]


def _refused(answer: Sequence[Submission | None]) -> Sequence[Submission]:
    """The refusals, and for the others that they were not stored because of them."""
    return [
        each if isinstance(each, DuetimeError) else Conflict("not stored: another task of the batch was refused")
        for each in answer
    ]


def request_of_tenant(request: uuid.UUID, tenant: int) -> uuid.UUID:
    """The request's id with its time kept and the rest bound to the tenant."""
    digest = hashlib.blake2b(request.bytes + tenant.to_bytes(4, "big"), digest_size=10).digest()
    return uuid_of((request.int >> 80) << 80 | int.from_bytes(digest, "big"))
