"""Long pieces of work take turns: one at a time, with a few rounds of the event loop between them.

A batch of a thousand tasks takes milliseconds to read, to write or to store, and
several batches come in one round.  Without turns, a request for a single task would
wait for all of them, in each of the rounds that its answer takes on its way from one
socket to the next; with turns it waits for one.  While the database stores a single
task no long piece begins at all, within a share of the time: the answer would wait for
the end of the piece, and the database for the processor that the piece takes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")

#: A piece of work is long from this many tasks, or this many bytes to be read.
LONG_TASKS = 250
LONG_BYTES = 16 * 1024
#: The intended duration of a piece, and the first number of items, before it is known how long they take.
PIECE_SECONDS = 0.005
FIRST_ITEMS = 16
#: How many rounds of the loop run between two long pieces, so that requests that came meanwhile move on: from a socket
#: to the call that waits for it, to the poll that it answers, and out.
ROUNDS_BETWEEN = 3
#: If rounds are long by themselves, the next turn comes after this time in any case.
SECONDS_BETWEEN = 0.01
#: The share of the time for which light calls may delay turns, and the longest delay; under a millisecond it is not
#: worth it.
HELD_SHARE = 0.15
HELD_SECONDS = 0.03
LEAST_HELD_SECONDS = 0.001


class _Held:
    """One instance for all light calls, because they begin some thousand times a second."""

    __slots__ = ("_turns",)

    def __init__(self, turns: "LongWork") -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns.begin_call()

    def __exit__(self, *_: object) -> None:
        self._turns.end_call()


class LongWork:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: How many turns were asked for so far.
        self.count = 0
        #: A turn was given, and the rounds after it are not over.
        self._is_taken = False
        #: How many light calls are under way.
        self._calls = 0
        self._held = _Held(self)
        #: Since when the next turn waits for light calls, and the timer that ends this wait.
        self._held_at = 0.0
        self._held_until: asyncio.TimerHandle | None = None
        #: For how many seconds turns may still be delayed, as of `_counted_at`.
        self._left = HELD_SECONDS
        self._counted_at = monotonic()

    def held(self) -> AbstractContextManager[None]:
        """Mark a light call: no turn begins before it is over, as long as the allowed delay lasts."""
        return self._held

    def begin_call(self) -> None:
        self._calls += 1

    def end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._let_go()

    async def take(self) -> None:
        """Wait for the caller's turn, which comes at once or some rounds later."""
        self.count += 1
        if not self._is_taken and not self._calls:
            self._is_taken = True
            asyncio.get_running_loop().call_soon(self._pass_on, ROUNDS_BETWEEN, self._monotonic())
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if not self._is_taken:
            self._is_taken = True
            self._pass_on(0, self._monotonic())
        await turn

    async def give_way(self) -> None:
        """Let others be served, then wait for the caller's turn; for work that goes on for long."""
        await asyncio.sleep(0)
        await self.take()

    async def spread(self, items: Sequence[Item], do: Callable[[Sequence[Item]], Sequence[Done]]) -> list[Done]:
        """Process a list in pieces, each in its turn; a short list at once.

        One item may take a thousand times as long as another, so the size of a piece is chosen from the last pieces, to
        take a few milliseconds.
        """
        done: list[Done] = []
        at, size = 0, FIRST_ITEMS
        ends_at = LONG_TASKS if len(items) <= LONG_TASKS else 0
        while at < len(items):
            if at >= ends_at:
                await self.take()
                ends_at = at + LONG_TASKS
            began = self._monotonic()
            done += do(items[at : at + size])
            seconds = self._monotonic() - began
            at += size
            if seconds > PIECE_SECONDS / 2:
                # Take the next turn earlier, after what came in meanwhile.
                ends_at = at
            size = max(1, min(LONG_TASKS, int(size * PIECE_SECONDS / max(seconds, 1e-6))))
            if at < ends_at:
                size = min(size, ends_at - at)
        return done

    def _pass_on(self, rounds: int, since: float, *, may_hold: bool = True) -> None:
        loop = asyncio.get_running_loop()
        now = self._monotonic()
        if rounds and now - since < SECONDS_BETWEEN:
            loop.call_soon(partial(self._pass_on, rounds - 1, since, may_hold=may_hold))
            return
        if may_hold and self._calls and self._waiting and self._hold_up(now):
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                # Runs after the caller that has this turn.
                loop.call_soon(self._pass_on, ROUNDS_BETWEEN, now)
                return
        self._is_taken = False

    def _hold_up(self, now: float) -> bool:
        """Let the next turn wait for light calls; False: they have used up their share of the time."""
        self._left = min(HELD_SECONDS, self._left + HELD_SHARE * (now - self._counted_at))
        self._counted_at = now
        if self._left < LEAST_HELD_SECONDS:
            return False
        self._held_at = now
        self._held_until = asyncio.get_running_loop().call_later(self._left, self._let_go)
        return True

    def _let_go(self) -> None:
        if self._held_until is None:
            return
        self._held_until.cancel()
        self._held_until = None
        now = self._monotonic()
        self._left -= now - self._held_at
        # Each turn is delayed only once: if light calls never end, it would never come.
        asyncio.get_running_loop().call_soon(partial(self._pass_on, ROUNDS_BETWEEN, now, may_hold=False))
