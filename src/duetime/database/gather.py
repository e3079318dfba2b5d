"""Gather what concurrent callers ask for into one commit, without waiting when idle.

While a commit is in progress, what arrives is gathered for the next one, unless
it is enough for a commit of its own beside it.  Each caller is told after the
commit that holds its part.  A commit that fails on its data is split until the
bad part is alone, so that one caller's bad row does not fail strangers.

When more waits than a commit can hold, parts of a better rank go first; the
oldest part always goes, so that none waits for ever.  How much waits is bounded
by whoever puts parts in, who looks at `backlog`.
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

from duetime.wakeful import Wakeful

Part = TypeVar("Part")
Answer = TypeVar("Answer")

#: What PostgreSQL or the driver say about a value, not about the server.
DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.exceptions.DataError,
)


#: From this weight on, what waits is worth a commit beside another one.
AMPLE = 200
#: Anything is, beside a commit that is not done after this time.
LATE_SECONDS = 0.01


class Backlog(NamedTuple):
    """What waits and what is being committed."""

    #: Of what waits.
    weight: int
    #: Of both.
    size: int
    #: Since the oldest that waits was put in.
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
        busy_wait: Wakeful | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A commit holds parts up to a weight and a size (in bytes, say); rank 0 is the best of `ranks`.

        `at_once` says how many commits may be in progress at once; it is asked anew for each.  With `is_evened`
        also small ones, if as much waits as is being committed.  `busy_wait` is told when work begins and ends.
        """
        self._commit = commit
        self._limit = limit
        self._at_once = at_once
        self._is_evened = is_evened
        self._size_limit = size_limit
        self._busy_wait = busy_wait
        self._monotonic = monotonic
        #: How many tasks will still look for what waits.
        self._committing = 0
        #: One of them has not begun to.
        self._is_starting = False
        #: Weight of what is being committed, and when the youngest commit began.
        self._weight_under_way = 0
        self._began_at = -math.inf
        self._waiting_weight = self._waiting_size = 0
        #: Of what waits and of what is being committed.
        self._size = 0
        #: By rank.
        self._waiting: list[deque[_Waiting[Part, Answer]]] = [deque() for _ in range(ranks)]
        self._running: set[asyncio.Task[None]] = set()

    @property
    def backlog(self) -> Backlog:
        if not self._waiting_weight:
            return Backlog(0, self._size, 0.0)
        oldest = min([queue[0].at for queue in self._waiting if queue])
        return Backlog(self._waiting_weight, self._size, self._monotonic() - oldest)

    async def add(self, part: Part, weight: int = 1, size: int = 0, rank: int = 0) -> Answer:
        """Have the part done in the next commit; returns its answer after that.

        A caller that is cancelled does not take its part back: it may be in a commit.
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
        """The same for a caller that wants to be called back, with its answer or with what went wrong."""
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
        """Wait for what is being committed or gathered."""
        while self._running:
            await asyncio.wait(self._running)

    def _is_worth_a_commit(self, now: float) -> bool:
        """Whether what waits may be committed beside what is being committed.

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
            # One too many leaves what waits to the others.
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
        """Beside others; what is not enough for a commit goes with the next of theirs, or with who comes next."""
        if self._committing > max(1, self._at_once()):
            return False
        if not self._is_evened:
            return True
        return not self._is_starting and self._is_worth_a_commit(self._monotonic())

    def _next_load(self) -> tuple[list[_Waiting[Part, Answer]], int, int]:
        """What goes next, with its weight and size: the oldest of all, then by rank, each in order."""
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
                # What is worse does not overtake it.
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
            # Whatever it is, it belongs to the callers.
            _tell(load, [error] * len(load))
        else:
            if self._waiting_weight:
                # The next ones are on their way before these are answered: the database need not wait for that.
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
            # One caller's failure is not the others'.
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
