"""Long pieces of work take turns: one at a time, with a few rounds of the event loop between them.

A batch of a thousand tasks takes milliseconds to read, to write or to store, and
several of them come in one round.  Whoever asks for a single task would wait for
them all, in each of the rounds that an answer takes on its way from one socket to
the next; this way, for one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")

#: From here on a piece of work is long: tasks, and bytes to be read.
LONG_TASKS = 250
LONG_BYTES = 16 * 1024
#: What came in while a long piece was done goes on its way for so many rounds before the next: from a socket to
#: the call that waits for it, to the poll that is answered by it, and out.
ROUNDS_BETWEEN = 3
#: Where rounds are long by themselves, a turn comes after this time all the same.
SECONDS_BETWEEN = 0.01


class Turns:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Somebody has had a turn, and the rounds behind it are not over.
        self._is_taken = False

    async def take(self) -> None:
        """Return when it is the caller's turn: at once, or some rounds later."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._pass_on, ROUNDS_BETWEEN, self._monotonic())

    async def spread(self, items: Sequence[Item], do: Callable[[Sequence[Item]], Sequence[Done]]) -> list[Done]:
        """Do a list in pieces, each in its turn; a short one at once."""
        if len(items) <= LONG_TASKS:
            return [*do(items)]
        done: list[Done] = []
        for at in range(0, len(items), LONG_TASKS):
            await self.take()
            done += do(items[at : at + LONG_TASKS])
        return done

    def _pass_on(self, rounds: int, since: float) -> None:
        loop = asyncio.get_running_loop()
        now = self._monotonic()
        if rounds and now - since < SECONDS_BETWEEN:
            loop.call_soon(self._pass_on, rounds - 1, since)
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                # Behind the one whose turn it is now.
                loop.call_soon(self._pass_on, ROUNDS_BETWEEN, now)
                return
        self._is_taken = False
