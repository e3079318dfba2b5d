"""Submit tasks: the one way into the store, for a single task as for thousands.

    read (`api/tasks`)  what is asked for, and what shape it has (`model.task`)
    gather              what comes together shares a commit (`database/gather.py`)
    mint                ids, just before they are stored (`minting.py`)
    store               by the statement that the shape picks (`storing.py`)
    announce            hand over what somebody waits for, wake the lanes of the rest (`announcing.py`)

Every caller is answered after the commit that holds its tasks.
"""

import hashlib
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import cast

import asyncpg
import msgspec

from duetime.busy_wait import BusyWait
from duetime.clock import Monotonic
from duetime.database.gather import DATA_ERRORS, Backlog, Gatherer
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.repeating import wait_for_standbys
from duetime.errors import Conflict, DuetimeError, InvalidInput, Unavailable, Unknown
from duetime.ids import count_ids, uuid_of
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.submission.announcing import Announcer, Handed
from duetime.lifecycle.submission.batch import (
    TASK_BYTES,
    Answers,
    Batch,
    Load,
    Submission,
    Submitted,
    batch_of,
    has_time,
    rank_of,
    size_of,
)
from duetime.lifecycle.submission.earlier import SQL
from duetime.lifecycle.submission.handover import WaitingHolders
from duetime.lifecycle.submission.minting import ensure_partitions, mint
from duetime.lifecycle.submission.storing import Store
from duetime.lifecycle.tasks.onward import Wake
from duetime.long_work import LONG_TASKS, LongWork
from duetime.model.task import LaneKey, NewTask, PriorityClass

#: Batches of at most this many tasks share their commits with each other, not with larger ones.
SMALL_BATCH = 100
#: Enough to share a commit. More would only make other batches wait longer.
MAX_SMALL_ROWS_PER_COMMIT = 500
MAX_ROWS_PER_COMMIT = 1_000
#: More than one request can have, so that each request fits.
MAX_BYTES_PER_COMMIT = 32 * 1024 * 1024
#: How many commits of small batches run at once: while the database does one, the node gathers and answers for the
#: other.
SMALL_AT_ONCE = 2
#: How many commits of large batches run at once. Only one does if a small load (FEW_TASKS) was stored within
#: QUIET_SECONDS.
LARGE_AT_ONCE = 3
QUIET_SECONDS = 1.0
#: While the database stores at most this many tasks, no long piece of work begins.
FEW_TASKS = 20
#: How many refused requests one statement looks up, to find whether they were done before.
MAX_LOOKUPS = 1_000
_TRIES = 5

#: Called with the result of a batch after its commit.
Done = Callable[[Sequence[Submission] | BaseException], None]


class _RefusedError(Exception):
    """An atomic batch was refused: roll it back."""


class Submitter:
    """Stores tasks. Every caller is answered after the commit."""

    def __init__(
        self,
        database: Database,
        lanes: Lanes,
        partitions: Partitions,
        wake: Wake,
        *,
        holders: WaitingHolders | None = None,
        turns: LongWork | None = None,
        now: datetime | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._turns = turns or LongWork()
        self._monotonic = monotonic
        self._database = database
        self._lanes = lanes
        self._partitions = partitions
        self._store = Store(database, now)
        self._announcer = Announcer(wake, holders)
        #: Tenants that are spread over several shards, and the number of shards.
        self._spread_of: Mapping[int, int] = {}
        self._turn = 0
        #: When a small load was stored last.
        self._few_at = -math.inf
        self._large = self._make_gatherer(MAX_ROWS_PER_COMMIT, self._count_large_at_once)
        #: Separate from the large batches, so that a single task does not wait for the thousands of another caller.
        self._small = self._make_gatherer(
            MAX_SMALL_ROWS_PER_COMMIT, lambda: SMALL_AT_ONCE, is_evened=True, busy_wait=BusyWait(monotonic)
        )
        self._lookups: Gatherer[tuple[uuid.UUID, int], int | None] = Gatherer(
            self._count_of_requests, limit=MAX_LOOKUPS, monotonic=monotonic
        )

    def rule(self, spread: Mapping[int, int]) -> None:
        """Set the tenants that are spread from now on, and over how many shards each."""
        self._spread_of = spread

    def _make_gatherer(
        self, limit: int, at_once: Callable[[], int], *, is_evened: bool = False, busy_wait: BusyWait | None = None
    ) -> Gatherer[Batch, Sequence[Submission]]:
        return Gatherer(
            self._commit,
            limit=limit,
            at_once=at_once,
            is_evened=is_evened,
            size_limit=MAX_BYTES_PER_COMMIT,
            ranks=len(PriorityClass),
            busy_wait=busy_wait,
            monotonic=self._monotonic,
        )

    def _count_large_at_once(self) -> int:
        """Allow only one beside small batches: more would take the processors that small batches need."""
        return LARGE_AT_ONCE if self._monotonic() - self._few_at > QUIET_SECONDS else 1

    @property
    def backlog(self) -> Backlog:
        """The tasks that wait to be stored."""
        small, large = self._small.backlog, self._large.backlog
        return Backlog(small.weight + large.weight, small.size + large.size, max(small.seconds, large.seconds))

    async def submit(
        self,
        tasks: Sequence[NewTask],
        request: uuid.UUID | None = None,
        fingerprint: bytes = b"",
        *,
        is_atomic: bool = False,
    ) -> Sequence[Submission]:
        """Store tasks of one tenant. Return one answer for each, in order.

        `request` identifies the whole batch: repeated, it returns the same tasks.  An atomic batch
        stores nothing if any of its tasks is refused.
        """
        if not tasks:
            return []
        find = self._lanes.find
        tenant = tasks[0].lane.tenant
        keys = self._spread_out(tasks) if tenant in self._spread_of else [task.lane for task in tasks]
        numbers = {key: find(key) or await self._lanes.ensure(key) for key in dict.fromkeys(keys)}
        lanes = [*numbers.values()] * len(keys) if len(numbers) == 1 else [numbers[key] for key in keys]
        if request is not None:
            request = request_of_tenant(request, tenant)
        batch = batch_of(tasks, lanes, tenant, request, fingerprint)
        try:
            if is_atomic and batch.keys:
                return await self._submit_alone(batch)
            gatherer = self._small if len(tasks) <= SMALL_BATCH else self._large
            return await gatherer.add(batch, len(tasks), size_of(tasks), rank_of(tasks, lanes))
        except DATA_ERRORS as error:
            raise InvalidInput(f"the database refuses this task: {error}") from error

    def find_lane(self, task: NewTask) -> int | None:
        """Return the lane of a task that is submitted now. None: the lane does not exist yet, so await `submit`."""
        return self._lanes.find(task.lane if task.lane.tenant not in self._spread_of else self._spread_out([task])[0])

    def submit_soon(
        self, task: NewTask, lane: int, done: Done, request: uuid.UUID | None = None, fingerprint: bytes = b""
    ) -> None:
        """Submit one task for a caller that knows its lane, and call it back."""
        shape, key = type(task), task.lane
        if request is not None:
            request = request_of_tenant(request, key.tenant)
        is_untimed = shape is NewTask or not has_time(task)
        batch = Batch([task], [lane], key.tenant, request, fingerprint, shape, is_untimed)
        self._small.put(batch, done, 1, len(task.payload) + TASK_BYTES, key.priority)

    def _spread_out(self, tasks: Sequence[NewTask]) -> list[LaneKey]:
        """Choose in turn between the lanes of a tenant that is spread over several shards."""
        parts, turn = self._spread_of[tasks[0].lane.tenant], self._turn
        self._turn += len(tasks)
        return [msgspec.structs.replace(task.lane, part=(turn + place) % parts) for place, task in enumerate(tasks)]

    async def count_of_request(self, request: uuid.UUID, tenant: int) -> int | None:
        """Return how many tasks a request stored when it was first made. None: it is new."""
        return await self._lookups.add((request_of_tenant(request, tenant), tenant))

    async def _count_of_requests(self, named: list[tuple[uuid.UUID, int]]) -> list[int | None]:
        ids, tenants = [request for request, _ in named], [tenant for _, tenant in named]
        rows = await self._database.run(SQL["read_requests"], ids=ids, tenants=tenants)
        known = {row["id"]: count_ids(row["tasks"]) for row in rows}
        return [known.get(request) for request in ids]

    async def close(self) -> None:
        await self._small.close()
        await self._large.close()
        await self._lookups.close()

    async def _commit(self, batches: list[Batch]) -> list[Sequence[Submission]]:
        load = Load(batches)
        count = len(load.tasks)
        is_few = count <= FEW_TASKS
        if is_few:
            self._few_at = self._monotonic()
        with self._turns.held() if is_few else nullcontext():
            for _ in range(_TRIES):
                if count > LONG_TASKS:
                    await self._turns.take()
                minted_ms = self._database.clock.now_ms()
                mint(load, minted_ms)
                if load.requests or not self._partitions.are_known(load.moments_ms):
                    await ensure_partitions(self._partitions, load)
                answers = await self._store_and_announce(load, minted_ms)
                if load.is_stored:
                    return cast(list[Sequence[Submission]], answers)
                if answers is not None:
                    return await self._complete(load, answers)
                # Usually the database's clock has jumped.
                await self._database.read_clock()
        raise Unavailable("the task could not be stored: the database is too slow or its clock jumps; try again")

    async def _store_and_announce(self, load: Load, minted_ms: int) -> Answers | None:
        """Hand over tasks that were stored for a waiting holder, and wake the lanes of the others."""
        reservation = self._announcer.reserve(load)
        handed: Handed = {}
        try:
            answers = await self._store.store(load, minted_ms, reservation)
            if answers is not None:
                handed = self._announcer.announce(load, answers, reservation)
        finally:
            if reservation is not None:
                self._announcer.hand_over(reservation, handed)
        return answers

    async def _complete(self, load: Load, answers: Answers) -> list[Sequence[Submission]]:
        """Return the answers when tasks that had to be tried once more have theirs."""
        complete: list[Sequence[Submission]] = []
        for batch, answer in zip(load.batches, answers, strict=True):
            known = [each for each in answer if each is not None]
            if len(known) < len(answer):
                places = [place for place, each in enumerate(answer) if each is None]
                tasks, lanes = [batch.tasks[place] for place in places], [batch.lanes[place] for place in places]
                [tried] = await self._commit([batch_of(tasks, lanes, batch.tenant)])
                for place, each in zip(places, tried, strict=True):
                    known.insert(place, each)
            complete.append(known)
        return complete

    async def _submit_alone(self, batch: Batch) -> Sequence[Submission]:
        """Store all or nothing, in a separate transaction. It is rolled back if a key belongs to another task."""
        load = Load([batch])
        answer: Sequence[Submission | None] | None = None
        for _ in range(_TRIES):
            minted_ms = await self.prepare(load)
            try:
                async with self._database.connection() as connection, connection.transaction():
                    stored = await self.store_in(connection, load, minted_ms)
                    if stored is not None:
                        [answer] = stored
                    if answer is None or None in answer or any(isinstance(each, DuetimeError) for each in answer):
                        raise _RefusedError
            except _RefusedError:
                if answer is not None and None not in answer:
                    return _refused(answer)
                await self.free_keys(load)
                if stored is None:
                    await self._database.read_clock()
                continue
            except asyncpg.UniqueViolationError:
                # One of our ids existed already: mint new ids.
                continue
            except Unknown:
                # Every task has the request or its own key, or the caller cannot repeat the request safely anyway.
                [complete] = await self._commit([batch])
                return complete
            self.announce(load, [answer])
            if not all(isinstance(each, Submitted) and each.is_new for each in answer):
                await wait_for_standbys(self._database)
            [complete] = await self._complete(load, [answer])
            return complete
        raise Unavailable("the tasks could not be stored: the database is too slow or its clock jumps; try again")

    async def prepare(self, load: Load) -> int:
        """Mint ids. Return the time of it, which `store_in` needs."""
        minted_ms = self._database.clock.now_ms()
        mint(load, minted_ms)
        await ensure_partitions(self._partitions, load)
        return minted_ms

    async def store_in(self, connection: asyncpg.Connection, load: Load, minted_ms: int) -> Answers | None:
        """Store prepared tasks in the caller's transaction. None: mint new ids.  After its commit, call `announce`."""
        return await self._store.store_in(connection, load, minted_ms)

    async def free_keys(self, load: Load) -> None:
        """Call this before `store_in` is tried again in another transaction."""
        await self._store.free_keys(load)

    def announce(self, load: Load, answers: Answers) -> None:
        """Wake the lanes of stored tasks."""
        self._announcer.announce(load, answers)


def _refused(answer: Sequence[Submission | None]) -> Sequence[Submission]:
    """Return the refusals, and tell the other tasks that they were not stored because of them."""
    return [
        each if isinstance(each, DuetimeError) else Conflict("not stored: another task of the batch was refused")
        for each in answer
    ]


def request_of_tenant(request: uuid.UUID, tenant: int) -> uuid.UUID:
    """Return the request's id with its time kept and the rest bound to the tenant."""
    digest = hashlib.blake2b(request.bytes + tenant.to_bytes(4, "big"), digest_size=10).digest()
    return uuid_of((request.int >> 80) << 80 | int.from_bytes(digest, "big"))
