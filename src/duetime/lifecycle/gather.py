"""Gather what concurrent callers ask for into one commit, without waiting when idle.

While a flight is in the air, what arrives is gathered for the next one, unless
it is enough for a flight of its own beside it.  Each
caller is answered after the commit that holds its part.  A flight that fails
on its data is split until the bad part is alone, so that one caller's bad row
does not fail strangers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

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


class Gather(Generic[Part, Answer]):
    def __init__(
        self,
        fly: Callable[[list[Part]], Awaitable[list[Answer]]],
        *,
        weigh: Callable[[Part], int],
        limit: int,
        flights: int = 1,
    ) -> None:
        self._fly = fly
        self._weigh = weigh
        self._limit = limit
        self._flights = flights
        #: How many will still look for what waits.
        self._in_air = 0
        self._waiting_weight = 0
        self._waiting: deque[tuple[Part, asyncio.Future[Answer]]] = deque()
        self._flying: set[asyncio.Task[None]] = set()

    async def add(self, part: Part) -> Answer:
        """Have the part done in the next flight; returns its answer after the commit."""
        return await self.put(part)

    def put(self, part: Part) -> "asyncio.Future[Answer]":
        """The same, to be awaited later or to call back.

        A caller that is cancelled does not take its part back: it may be in the air.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, answer))
        self._waiting_weight += self._weigh(part)
        if not self._in_air or (self._in_air < self._flights and self._waiting_weight >= AMPLE):
            self._in_air += 1
            flight = asyncio.create_task(self._take_off())
            self._flying.add(flight)
            flight.add_done_callback(self._flying.discard)
        return answer

    async def close(self) -> None:
        """Wait for what is in the air or gathered."""
        while self._flying:
            await asyncio.wait(self._flying)

    async def _take_off(self) -> None:
        try:
            while self._waiting:
                await self._deliver(self._next_load())
        finally:
            self._in_air -= 1

    def _next_load(self) -> list[tuple[Part, asyncio.Future[Answer]]]:
        load = [self._waiting.popleft()]
        weight = self._weigh(load[0][0])
        while self._waiting:
            more = self._weigh(self._waiting[0][0])
            if weight + more > self._limit:
                break
            weight += more
            load.append(self._waiting.popleft())
        self._waiting_weight -= weight
        return load

    async def _deliver(self, load: list[tuple[Part, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._fly([part for part, _ in load])
        except DATA_ERRORS as error:
            if len(load) == 1:
                _fail(load, error)
                return
            middle = len(load) // 2
            await self._deliver(load[:middle])
            await self._deliver(load[middle:])
        except asyncio.CancelledError:
            for _, answer in load:
                answer.cancel()
            raise
        except Exception as error:
            # Whatever it is, it belongs to the callers, each of whom raises it.
            _fail(load, error)
        else:
            for (_, answer), value in zip(load, answers, strict=True):
                if not answer.done():
                    answer.set_result(value)


def _fail(load: list[tuple[Part, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, answer in load:
        if not answer.done():
            answer.set_exception(error)
