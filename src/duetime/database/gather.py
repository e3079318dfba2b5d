"""Gather what concurrent callers ask for into one commit, without waiting when idle.

While a commit is in progress, new parts are gathered for the next one, unless they are
enough for a commit of their own beside it.  Each caller is answered after the commit
that contains its part.  A commit that fails on its data is split until the bad part is
alone, so that one caller's bad row does not fail the others.

When more waits than a commit can hold, parts of a better rank go first; the oldest part
always goes, so that none waits for ever.  The callers bound how much waits: they look
at `backlog`.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import asyncpg
import msgspec

from duetime.busy_wait import BusyWait

Part = TypeVar("Part")
Answer = TypeVar("Answer")

#: What PostgreSQL or the driver reports about a value, not about the server.
DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.exceptions.DataError,
)


#: From this weight on, waiting parts are worth a commit beside another one.
AMPLE = 200
#: Parts of any weight are, beside a commit that takes longer than this.
LATE_SECONDS = 0.01


class Backlog(NamedTuple):
    """What waits and what is being committed."""

    #: The weight of what waits.
    weight: int
    #: The size of what waits and what is being committed.
    size: int
    #: How long the oldest waiting part has waited.
    seconds: float


class _Waiting(msgspec.Struct, Generic[Part, Answer]):
    part: Part
    done: Callable[[Answer | BaseException], None]
    weight: int
    size: int
    at: float


class Gatherer(Generic[Part, Answer]):
    def __init__(
        self,
        commit: Callable[[list[Part]], Awaitable[list[Answer]]],
        *,
        limit: int,
        at_once: Callable[[], int] = lambda: 1,
        is_evened: bool = False,
        size_limit: int = 1,
        ranks: int = 1,
        busy_wait: BusyWait | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A commit holds parts up to a weight and a size (in bytes, for example); rank 0 is the best of `ranks`.

        `at_once` says how many commits may be in progress at once; it is asked anew for each. With `is_evened`, small
        commits start as well, if as much waits as is being committed. `busy_wait` is called when work begins and ends.
        """
        self._commit = commit
        self._limit = limit
        self._at_once = at_once
        self._is_evened = is_evened
        self._size_limit = size_limit
        self._busy_wait = busy_wait
        self._monotonic = monotonic
        #: How many tasks will still look for waiting parts.
        self._committing = 0
        #: Whether one of them has not begun to.
        self._is_starting = False
        #: The weight that is being committed, and when the youngest commit began.
        self._weight_under_way = 0
        self._began_at = -math.inf
        self._waiting_weight = self._waiting_size = 0
        #: The size of what waits and of what is being committed.
        self._size = 0
        #: The waiting parts of each rank.
        self._waiting: list[deque[_Waiting[Part, Answer]]] = [deque() for _ in range(ranks)]
        self._running: set[asyncio.Task[None]] = set()

    @property
    def backlog(self) -> Backlog:
        if not self._waiting_weight:
            return Backlog(0, self._size, 0.0)
        oldest = min([queue[0].at for queue in self._waiting if queue])
        return Backlog(self._waiting_weight, self._size, self._monotonic() - oldest)

    async def add(self, part: Part, weight: int = 1, size: int = 0, rank: int = 0) -> Answer:
        """Put the part into the next commit. Return its answer after that commit.

        A cancelled caller does not withdraw its part: it may already be in a commit.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.put(part, partial(_answer, answer), weight, size, rank)
        return await answer

    def put(
        self,
        part: Part,
        done: Callable[[Answer | BaseException], None],
        weight: int = 1,
        size: int = 0,
        rank: int = 0,
    ) -> None:
        """Like `add`, for a caller that wants a callback, with its answer or with the error."""
        now = self._monotonic()
        self._waiting[rank].append(_Waiting(part, done, weight, size, now))
        self._waiting_weight += weight
        self._waiting_size += size
        self._size += size
        if not self._committing:
            if self._busy_wait is not None:
                self._busy_wait.asked()
        elif (
            # The next one takes it along.
            (self._is_starting and self._waiting_weight < AMPLE)
            or not self._is_worth_a_commit(now)
            or self._committing >= self._at_once()
        ):
            return
        self._committing += 1
        self._is_starting = True
        running = asyncio.get_running_loop().create_task(self._run())
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Wait for everything that is gathered or being committed."""
        while self._running:
            await asyncio.wait(self._running)

    def _is_worth_a_commit(self, now: float) -> bool:
        """Whether what waits may be committed beside the commits in progress.

        A commit costs about the same with one task or ten: two with half of the tasks each are best.
        """
        if self._waiting_weight >= AMPLE:
            return True
        if not self._is_evened:
            return False
        return self._waiting_weight >= self._weight_under_way or now - self._began_at > LATE_SECONDS

    async def _run(self) -> None:
        self._is_starting = False
        try:
            # If there is one task too many, it ends and leaves what waits to the others.
            while self._waiting_weight and (self._committing == 1 or self._may_go_on()):
                load, weight, size = self._next_load()
                self._weight_under_way += weight
                self._began_at = self._monotonic()
                try:
                    await self._commit_and_answer(load)
                finally:
                    self._weight_under_way -= weight
                    self._size -= size
        finally:
            self._committing -= 1
            if self._busy_wait is not None and not self._committing:
                self._busy_wait.answered()

    def _may_go_on(self) -> bool:
        """Whether to go on beside other commits. Too few parts wait for their next commit, or for more parts."""
        if self._committing > max(1, self._at_once()):
            return False
        if not self._is_evened:
            return True
        return not self._is_starting and self._is_worth_a_commit(self._monotonic())

    def _next_load(self) -> tuple[list[_Waiting[Part, Answer]], int, int]:
        """The next commit with its weight and size: the oldest part of all, then by rank, each rank in order."""
        queues = [queue for queue in self._waiting if queue]
        first = queues[0] if len(queues) == 1 else min(queues, key=_oldest)
        load = [first.popleft()]
        weight, size = load[0].weight, load[0].size
        if self._waiting_weight <= self._limit and self._waiting_size <= self._size_limit:
            weight, size = self._waiting_weight, self._waiting_size
            for queue in queues:
                load += queue
                queue.clear()
        for queue in queues:
            while queue and weight + queue[0].weight <= self._limit and size + queue[0].size <= self._size_limit:
                weight += queue[0].weight
                size += queue[0].size
                load.append(queue.popleft())
            if queue:
                # Parts of a worse rank must not overtake it.
                break
        self._waiting_weight -= weight
        self._waiting_size -= size
        return load, weight, size

    async def _commit_and_answer(self, load: list[_Waiting[Part, Answer]]) -> None:
        try:
            answers = await self._commit([each.part for each in load])
        except DATA_ERRORS as error:
            if len(load) == 1:
                _tell(load, [error])
                return
            middle = len(load) // 2
            await self._commit_and_answer(load[:middle])
            await self._commit_and_answer(load[middle:])
        except asyncio.CancelledError as error:
            _tell(load, [error] * len(load))
            raise
        except Exception as error:
            # Any other error belongs to the callers.
            _tell(load, [error] * len(load))
        else:
            if self._waiting_weight:
                # The next commit starts before these callers are answered: the database need not wait for that.
                asyncio.get_running_loop().call_soon(_tell, load, answers)
            else:
                _tell(load, answers)


def _oldest(queue: deque[_Waiting[Part, Answer]]) -> float:
    return queue[0].at


def _tell(load: list[_Waiting[Part, Answer]], answers: Iterable[Answer | BaseException]) -> None:
    for each, answer in zip(load, answers, strict=True):
        try:
            each.done(answer)
        except Exception as error:
            # One caller's failure must not affect the others.
            context = {"message": "a caller could not be answered after its commit", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


def _answer(waiting: "asyncio.Future[Answer]", answer: Answer | BaseException) -> None:
    if waiting.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        waiting.cancel()
    elif isinstance(answer, BaseException):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)
