"""Connections kept for the next call, apart for each (scheme, host, port, address).

Whoever asks names the addresses that the guard gives now, so a connection to an
address that the host no longer has is not used again.
"""

import asyncio
from collections import deque

from duetime.executor.connection import Connection
from duetime.executor.resolver import Address
from duetime.model.origin import Origin

# Shorter than the 5 s after which Node.js, Apache and uvicorn close an idle connection:
# a request that crosses with such a close fails, and costs its task an attempt.
IDLE_SECONDS = 4.0
# A server's own figure counts from its last byte, not from when that reached us.
_MARGIN_SECONDS = 1.0
_MAX_KEPT = 512


class KeptConnections:
    def __init__(self, loop: asyncio.AbstractEventLoop, idle_seconds: float) -> None:
        self._loop = loop
        self._idle_seconds = idle_seconds
        self._kept: dict[tuple[Origin, Address], deque[Connection]] = {}
        self._count = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self, origin: Origin, addresses: tuple[Address, ...]) -> tuple[Connection, Address] | None:
        """One that may be used for the next request, if there is any."""
        for address in addresses:
            kept = self._kept.get((origin, address))
            while kept:
                # The last one in was used last, so it is the least likely to have been closed.
                connection = kept.pop()
                self._count -= 1
                if connection.usable_until > self._loop.time() and connection.is_quiet():
                    return connection, address
                connection.close()
        return None

    def put_back(self, origin: Origin, address: Address, connection: Connection) -> None:
        """Keep it if it can be kept; else it is closed."""
        idle_seconds = self._idle_seconds
        promised = connection.keep_alive_seconds()
        if promised is not None:
            idle_seconds = min(idle_seconds, promised - _MARGIN_SECONDS)
        if idle_seconds <= 0 or self._count >= _MAX_KEPT or not connection.can_be_kept():
            connection.abort()
            return
        connection.usable_until = self._loop.time() + idle_seconds
        kept = self._kept.get((origin, address))
        if kept is None:
            kept = self._kept[origin, address] = deque()
        kept.append(connection)
        self._count += 1
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_seconds, self._sweep)

    def clear(self) -> None:
        """Forget all; closing them is up to whoever made them."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._kept.clear()
        self._count = 0

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        now = self._loop.time()
        for key, kept in list(self._kept.items()):
            while kept and kept[0].usable_until <= now:
                self._count -= 1
                kept.popleft().close()
            if not kept:
                del self._kept[key]
        self._sweeper = self._loop.call_later(self._idle_seconds / 2, self._sweep) if self._kept else None
