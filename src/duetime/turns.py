"""Long pieces of work take turns: one at a time, with a few rounds of the event loop between them.

A batch of a thousand tasks takes milliseconds to read, to write or to store, and
several of them come in one round.  Whoever asks for a single task would wait for
them all, in each of the rounds that an answer takes on its way from one socket to
the next; this way, for one.  While the database stores a single task no long piece
begins at all, within a share of the time: the answer would wait for its end, and the
database for the processor that it takes.
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

#: From here on a piece of work is long: tasks, and bytes to be read.
LONG_TASKS = 250
LONG_BYTES = 16 * 1024
#: A piece should take so long; so many items are done before anybody knows how long they take.
PIECE_SECONDS = 0.005
FIRST_ITEMS = 16
#: What came in while a long piece was done goes on its way for so many rounds before the next: from a socket to
#: the call that waits for it, to the poll that is answered by it, and out.
ROUNDS_BETWEEN = 3
#: Where rounds are long by themselves, a turn comes after this time all the same.
SECONDS_BETWEEN = 0.01
#: So much of the time may turns be held up by light calls, and so long at once; below a millisecond it is not worth it.
HELD_SHARE = 0.15
HELD_SECONDS = 0.03
LEAST_HELD_SECONDS = 0.001


class _Held:
    """One for all light calls, because each is made and counted some thousand times a second."""

    __slots__ = ("_turns",)

    def __init__(self, turns: "Turns") -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns.begin_call()

    def __exit__(self, *_: object) -> None:
        self._turns.end_call()


class Turns:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: How many turns were asked for so far.
        self.count = 0
        #: Somebody has had a turn, and the rounds behind it are not over.
        self._is_taken = False
        #: Light calls under way.
        self._calls = 0
        self._held = _Held(self)
        #: The next turn waits for them since then, until this timer at the latest.
        self._held_at = 0.0
        self._held_until: asyncio.TimerHandle | None = None
        #: For so many seconds turns may be held up, counted at that time.
        self._left = HELD_SECONDS
        self._counted_at = monotonic()

    def held(self) -> AbstractContextManager[None]:
        """A light call: no turn begins before it is over, as long as there is time for that."""
        return self._held

    def begin_call(self) -> None:
        self._calls += 1

    def end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._let_go()

    async def take(self) -> None:
        """Return when it is the caller's turn: at once, or some rounds later."""
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
        """Let others be served, and return when it is the caller's turn: for what goes on and on."""
        await asyncio.sleep(0)
        await self.take()

    async def spread(self, items: Sequence[Item], do: Callable[[Sequence[Item]], Sequence[Done]]) -> list[Done]:
        """Do a list in pieces, each in its turn; a short one at once.

        Items may be a thousand times as much work as others: a piece is as many as the last ones let expect to be
        done in a few milliseconds.
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
                # The next ones are looked at anew, behind what came in meanwhile.
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
                # Behind the one whose turn it is now.
                loop.call_soon(self._pass_on, ROUNDS_BETWEEN, now)
                return
        self._is_taken = False

    def _hold_up(self, now: float) -> bool:
        """Let the next turn wait for light calls; False: they had their share of the time."""
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
        # Each turn is held up once: where light calls never end, it would never come.
        asyncio.get_running_loop().call_soon(partial(self._pass_on, ROUNDS_BETWEEN, now, may_hold=False))
