"""Gather what concurrent callers ask for into one commit, without waiting when idle.

While a flight is in the air, what arrives is gathered for the next one, unless
it is enough for a flight of its own beside it.  Each caller is answered after
the commit that holds its part.  A flight that fails on its data is split until the
bad part is alone, so that one caller's bad row does not fail strangers.

When more waits than a flight can hold, parts of a better rank go first; the
oldest part always goes, so that none waits for ever.  How much waits is bounded
by whoever puts parts in, who looks at `backlog`.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import asyncpg

Part = TypeVar("Part")
Answer = TypeVar("Answer")

#: What PostgreSQL or the driver say about a value, not about the server.
DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.exceptions.DataError,
)


#: From this weight on a flight beside another one is worth a commit of its own.
AMPLE = 200
#: So is any, beside one that has not landed after this time.
LATE_SECONDS = 0.01


class Backlog(NamedTuple):
    """What waits and what is in the air."""

    #: Of what waits.
    weight: int
    #: Of both.
    size: int
    #: Since the oldest that waits was put in.
    seconds: float


@dataclass(slots=True)
class _Waiting(Generic[Part, Answer]):
    part: Part
    answer: "asyncio.Future[Answer]"
    weight: int
    size: int
    at: float


class Gather(Generic[Part, Answer]):
    def __init__(
        self,
        fly: Callable[[list[Part]], Awaitable[list[Answer]]],
        *,
        weigh: Callable[[Part], int],
        limit: int,
        flights: Callable[[], int] = lambda: 1,
        is_even: bool = False,
        measure: Callable[[Part], int] = lambda _: 0,
        size_limit: int = 1,
        rank: Callable[[Part], int] = lambda _: 0,
        ranks: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A flight holds parts up to a weight and a size (in bytes, say); rank 0 is the best of `ranks`.

        `flights` may be in the air at once; asked anew for each.  With `is_even` also small ones,
        if as much waits as is in the air.
        """
        self._fly = fly
        self._weigh = weigh
        self._limit = limit
        self._flights = flights
        self._is_even = is_even
        self._measure = measure
        self._size_limit = size_limit
        self._rank = rank
        self._monotonic = monotonic
        #: How many will still look for what waits, and one of them has not begun to.
        self._in_air = 0
        self._is_boarding = False
        #: Of what is in the air, and since when the youngest flight is.
        self._weight_in_air = 0
        self._took_off_at = -math.inf
        self._waiting_weight = 0
        self._size = 0
        #: By rank.
        self._waiting: list[deque[_Waiting[Part, Answer]]] = [deque() for _ in range(ranks)]
        self._flying: set[asyncio.Task[None]] = set()

    @property
    def backlog(self) -> Backlog:
        if not self._waiting_weight:
            return Backlog(0, self._size, 0.0)
        now = oldest = self._monotonic()
        for queue in self._waiting:
            if queue and queue[0].at < oldest:
                oldest = queue[0].at
        return Backlog(self._waiting_weight, self._size, now - oldest)

    async def add(self, part: Part) -> Answer:
        """Have the part done in the next flight; returns its answer after the commit."""
        return await self.put(part)

    def put(self, part: Part) -> "asyncio.Future[Answer]":
        """The same, to be awaited later or to call back.

        A caller that is cancelled does not take its part back: it may be in the air.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(part, answer, self._weigh(part), self._measure(part), self._monotonic())
        self._waiting[self._rank(part)].append(waiting)
        self._waiting_weight += waiting.weight
        self._size += waiting.size
        if not self._in_air or (self._is_worth_a_flight(waiting.at) and self._in_air < self._flights()):
            self._in_air += 1
            self._is_boarding = True
            flight = asyncio.create_task(self._take_off())
            self._flying.add(flight)
            flight.add_done_callback(self._flying.discard)
        return answer

    async def close(self) -> None:
        """Wait for what is in the air or gathered."""
        while self._flying:
            await asyncio.wait(self._flying)

    def _is_worth_a_flight(self, now: float) -> bool:
        """Whether what waits may fly beside what is in the air."""
        if self._waiting_weight >= AMPLE:
            return True
        if not self._is_even or self._is_boarding:
            return False
        return self._waiting_weight >= self._weight_in_air or now - self._took_off_at > LATE_SECONDS

    async def _take_off(self) -> None:
        self._is_boarding = False
        try:
            # One too many leaves what waits to the others.
            while any(self._waiting) and self._in_air <= max(1, self._flights()):
                if self._is_even and self._in_air > 1 and not self._is_worth_a_flight(self._monotonic()):
                    # The other takes it along when it lands, or who comes next makes it enough.
                    break
                load = self._next_load()
                weight = sum([each.weight for each in load])
                self._weight_in_air += weight
                self._took_off_at = self._monotonic()
                try:
                    await self._deliver(load)
                finally:
                    self._weight_in_air -= weight
                    self._size -= sum([each.size for each in load])
        finally:
            self._in_air -= 1

    def _next_load(self) -> list[_Waiting[Part, Answer]]:
        # The oldest of all, whatever its rank; then by rank, each in order.
        first = min((queue for queue in self._waiting if queue), key=lambda queue: queue[0].at)
        load = [first.popleft()]
        weight, size = load[0].weight, load[0].size
        for queue in self._waiting:
            while queue and weight + queue[0].weight <= self._limit and size + queue[0].size <= self._size_limit:
                weight += queue[0].weight
                size += queue[0].size
                load.append(queue.popleft())
            if queue:
                # What is worse does not overtake it.
                break
        self._waiting_weight -= weight
        return load

    async def _deliver(self, load: list[_Waiting[Part, Answer]]) -> None:
        try:
            answers = await self._fly([each.part for each in load])
        except DATA_ERRORS as error:
            if len(load) == 1:
                _fail(load, error)
                return
            middle = len(load) // 2
            await self._deliver(load[:middle])
            await self._deliver(load[middle:])
        except asyncio.CancelledError:
            for each in load:
                each.answer.cancel()
            raise
        except Exception as error:
            # Whatever it is, it belongs to the callers, each of whom raises it.
            _fail(load, error)
        else:
            for each, value in zip(load, answers, strict=True):
                if not each.answer.done():
                    each.answer.set_result(value)


def _fail(load: list[_Waiting[Part, Answer]], error: Exception) -> None:
    for each in load:
        if not each.answer.done():
            each.answer.set_exception(error)
