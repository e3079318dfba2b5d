"""A few connections that are lent to one caller at a time, and given back without a switch of tasks.

Nearly every use of a connection is one statement, so lending and giving back are plain
calls.  A pool that resets sessions and watches them in tasks of its own took a tenth of
a busy node's time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import asyncpg

Connect = Callable[[float], Awaitable[asyncpg.Connection]]


class Connections:
    def __init__(self, connect: Connect, size: int) -> None:
        self._connect = connect
        self.size = size
        #: How many connections are open, being opened, or being closed.
        self._count = 0
        self._idle: list[asyncpg.Connection] = []
        self._lent: set[asyncpg.Connection] = set()
        #: Connections that are lent out and will be closed when they come back (`discard_all`).
        self._discarded: set[asyncpg.Connection] = set()
        #: Connections that have run the frequent statements (`warm_one`).
        self._warm: set[asyncpg.Connection] = set()
        #: Each waiting caller gets a connection, or None: there is room for a new one.
        self._waiting: deque[asyncio.Future[asyncpg.Connection | None]] = deque()
        self._is_closed = False
        self._why_closed: Callable[[], Exception] = _closed

    async def take(self, timeout: float) -> asyncpg.Connection:
        """Take a connection that was open a moment ago. TimeoutError: none became free in time."""
        if self._is_closed:
            raise self._why_closed()
        # Waiting callers are served before new ones.
        if not self._waiting:
            connection = self._take_idle()
            if connection is not None:
                return connection
            if self._count < self.size:
                return await self._add(timeout)
        return await self._wait(timeout)

    def give_back(self, connection: asyncpg.Connection) -> None:
        self._lent.discard(connection)
        if connection in self._discarded:
            self._discarded.discard(connection)
            connection.terminate()
        if connection.is_closed():
            self._count -= 1
            self._pass_on(None)
        elif self._is_closed:
            connection.terminate()
        elif not self._pass_on(connection):
            self._idle.append(connection)

    def discard_all(self) -> None:
        """Do not use any of the open connections again: their server refuses writes."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()
            self._count -= 1
        self._discarded |= self._lent

    async def warm_one(self, warm: Callable[[asyncpg.Connection], Awaitable[object]], timeout: float) -> bool:
        """Prepare one more connection for work, and open it if necessary. False: all that may be open are prepared."""
        self._warm &= self._lent.union(self._idle)
        cold = next((connection for connection in self._idle if connection not in self._warm), None)
        if self._is_closed or (cold is None and self._count >= self.size):
            return False
        if cold is None:
            connection = await self._add(timeout)
        else:
            connection = cold
            self._idle.remove(connection)
            self._lent.add(connection)
        try:
            await warm(connection)
            self._warm.add(connection)
        finally:
            self.give_back(connection)
        return True

    def cut(self, why: Callable[[], Exception]) -> None:
        """Close all connections at once, also those at work; new callers get this error."""
        self._why_closed = why
        self._turn_away()
        for connection in (*self._idle, *self._lent):
            connection.terminate()

    async def close(self, timeout: float) -> None:
        """Close idle connections politely, the others at once."""
        self._turn_away()
        closing = [asyncio.ensure_future(connection.close(timeout=timeout)) for connection in self._idle]
        if closing:
            await asyncio.wait(closing, timeout=timeout + 1.0)
        for connection in (*self._idle, *self._lent):
            connection.terminate()
        for task in closing:
            if task.done() and not task.cancelled():
                # The polite close fails if the server is gone; read the error so that it is not reported.
                task.exception()
        self._idle.clear()

    def _turn_away(self) -> None:
        self._is_closed = True
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(self._why_closed())

    def _take_idle(self) -> asyncpg.Connection | None:
        while self._idle:
            # The connection given back last is the most likely to be warm.
            connection = self._idle.pop()
            if not connection.is_closed():
                self._lent.add(connection)
                return connection
            self._count -= 1
        return None

    async def _add(self, timeout: float) -> asyncpg.Connection:
        self._count += 1
        try:
            connection = await self._connect(timeout)
        except BaseException:
            self._count -= 1
            self._pass_on(None)
            raise
        self._lent.add(connection)
        return connection

    async def _wait(self, timeout: float) -> asyncpg.Connection:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        waiting: asyncio.Future[asyncpg.Connection | None] = loop.create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout_at(until):
                connection = await waiting
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                # It was given something at the very moment when it gave up.
                given = waiting.result()
                if given is None:
                    self._pass_on(None)
                else:
                    self.give_back(given)
            raise
        if connection is None:
            return self._take_idle() or await self._add(until - loop.time())
        if connection.is_closed():
            self._count -= 1
            return await self._add(until - loop.time())
        self._lent.add(connection)
        return connection

    def _pass_on(self, connection: asyncpg.Connection | None) -> bool:
        """Give a connection, or room for one, to the first caller that still waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False


def _closed() -> Exception:
    error: Exception = asyncpg.InterfaceError("the connections are closed")
    return error
