"""Long pieces of work take turns: one in each round of the event loop.

A batch of a thousand tasks takes milliseconds to read, to write or to store, and
several of them come in one round.  Whoever asks for a single task would wait for
them all, in every round that its request needs; this way, for one.
"""

import asyncio
from collections import deque

#: From here on a piece of work is long: tasks, and bytes to be read.
LONG_TASKS = 50
LONG_BYTES = 16 * 1024


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: This round has had its long piece.
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
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                # Behind the one whose turn it is now, and so in the round after it.
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._is_taken = False
