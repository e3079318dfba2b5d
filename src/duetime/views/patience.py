"""How long a request may look for what matches its filter, and how many requests look at the same time.

Most filters lead to an index, or match at once.  A filter that matches next to
nothing has to be tried on every row of its source: that is done in pieces of
bounded size.  After the first, small pieces a request waits for its turn: one piece
at a time in this process, one request of a tenant at a time, so that a tenant that
searches much neither keeps the database busy nor makes others wait.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import TypeVar
from weakref import WeakValueDictionary

#: The most rows that a request may read before it has to wait for its turn; also the size of its first piece after
#: that.
FIRST_ROWS = 2_000
MOST_ROWS = 20_000
#: The most time that a piece takes, about.
PIECE_SECONDS = 0.1

Rows = TypeVar("Rows")


class Patience:
    """What the requests of one process share, and how long each of them may look."""

    def __init__(
        self,
        *,
        found_seconds: float = 1.0,
        empty_seconds: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
        reading: "Callable[[int], AbstractAsyncContextManager[None]]" = lambda tenant: nullcontext(),
    ) -> None:
        #: How long a request may look to fill a page that has something.
        self.found_seconds = found_seconds
        #: How long it may look for the first match.
        self.empty_seconds = empty_seconds
        self.monotonic = monotonic
        #: Reserves memory in which a tenant reads what was found, which may be large.
        self.reading = reading
        self._room = asyncio.Lock()
        self._tenants: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def begin(self, tenant: int) -> "Look":
        return Look(self, tenant)

    @asynccontextmanager
    async def turn(self, tenant: int) -> AsyncIterator[None]:
        """Wait for the turn. TimeoutError: it did not come within the time of a whole search."""
        async with AsyncExitStack() as held:
            async with asyncio.timeout(self.empty_seconds):
                await held.enter_async_context(self._tenants.setdefault(tenant, asyncio.Lock()))
                await held.enter_async_context(self._room)
            yield


class Look:
    """One request's search."""

    def __init__(self, patience: Patience, tenant: int) -> None:
        self._patience = patience
        self._tenant = tenant
        self._began_at = patience.monotonic()
        #: How many rows it may have read so far.
        self.rows = 0
        #: How many rows the next piece should read.
        self.piece = FIRST_ROWS
        #: Whether it waited for its turn in vain.
        self._gave_up = False

    def reading(self) -> AbstractAsyncContextManager[None]:
        """The context in which to read what was found, which is as large as an answer."""
        return self._patience.reading(self._tenant)

    def is_over(self, *, has_found: bool) -> bool:
        """Whether its time is up: earlier if there is something to answer with."""
        limit = self._patience.found_seconds if has_found else self._patience.empty_seconds
        return self._gave_up or self._patience.monotonic() - self._began_at >= limit

    async def read(self, rows: int, run: Callable[[], Awaitable[Rows]]) -> Rows | None:
        """Read a piece of this many rows, as soon as it is this request's turn. None: too many others search."""
        if not self.rows or self.rows + rows <= FIRST_ROWS:
            self.rows += rows
            return await run()
        try:
            async with self._patience.turn(self._tenant):
                began_at = self._patience.monotonic()
                answer = await run()
                took = self._patience.monotonic() - began_at
        except TimeoutError:
            self._gave_up = True
            return None
        self.rows += rows
        self.piece = max(FIRST_ROWS, min(MOST_ROWS, self.piece * 2 if took < PIECE_SECONDS / 2 else self.piece // 2))
        return answer
