"""Connections kept for the next request, by what they lead to.

A connection is not used again after its time, or when the other side has
closed it or sent something since.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from duetime.http1.connection import Connection
from duetime.http1.messages import idle_seconds

Key = TypeVar("Key", bound=Hashable)


class KeptConnections(Generic[Key]):
    def __init__(self, loop: asyncio.AbstractEventLoop, idle_seconds: float, max_kept: int) -> None:
        self._loop = loop
        self._idle_seconds = idle_seconds
        self._max_kept = max_kept
        self._kept: dict[Key, deque[Connection]] = {}
        self._count = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self, key: Key) -> Connection | None:
        """Take a connection that may be used for the next request, if there is one."""
        kept = self._kept.get(key)
        while kept:
            # The last one in was used last, so it is the least likely to have been closed.
            connection = kept.pop()
            self._count -= 1
            if connection.usable_until > self._loop.time() and connection.is_quiet():
                return connection
            connection.close()
        return None

    def put_back(self, key: Key, connection: Connection) -> None:
        """Keep the connection if it may be used again; else close it."""
        seconds = idle_seconds(connection.fields, self._idle_seconds)
        if seconds <= 0 or self._count >= self._max_kept or not connection.can_be_kept():
            connection.abort()
            return
        connection.usable_until = self._loop.time() + seconds
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = deque()
        kept.append(connection)
        self._count += 1
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_seconds, self._sweep)

    def clear(self) -> list[Connection]:
        """Forget all connections; closing them is up to their maker."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        forgotten = [connection for kept in self._kept.values() for connection in kept]
        self._kept.clear()
        self._count = 0
        return forgotten

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        now = self._loop.time()
        for key, kept in list(self._kept.items()):
            while kept and kept[0].usable_until <= now:
                self._count -= 1
                kept.popleft().close()
            if not kept:
                del self._kept[key]
        self._sweeper = self._loop.call_later(self._idle_seconds / 2, self._sweep) if self._kept else None
