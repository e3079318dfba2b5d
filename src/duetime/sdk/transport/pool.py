"""Connections of plain code to one server: kept for the next request, and never shared with a forked process.

Two processes that write to one connection read each other's answers.  So every
request asks for the connections of its own process: a forked child finds none,
and opens its own.  It drops what it inherited by closing the descriptors, which
sends nothing: the parent's connections, TLS too, go on as if nothing had happened.

No lock is shared either.  One that another thread holds at the moment of a fork
stays locked for ever in the child, so nothing here, and nothing that runs when
the connections are dropped or the process ends, takes a lock.
"""

# The first connection would import it.  A fork at that moment, by another thread, leaves its import lock locked.
import encodings.idna  # noqa: F401
import os
import time
import weakref
from collections import deque
from typing import Any

from duetime.http1.blocking import BlockingConnection
from duetime.http1.messages import Bounds, UnansweredError, idle_seconds
from duetime.sdk.calls.call import Answer
from duetime.sdk.transport.dial import dial
from duetime.sdk.transport.route import CONNECT_SECONDS, IDLE_SECONDS, MAX_BYTES, Route, may_be_repeated

#: The idle connections of a process, the most recently used one on the right.  Single operations on a deque are
#: atomic.
_Kept = deque[BlockingConnection]


class Pool:
    """Connections for one base URL. Safe to share between threads, and to use on both sides of a fork."""

    def __init__(
        self,
        route: Route,
        *,
        max_kept: int,
        connect_seconds: float = CONNECT_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._route = route
        self._max_kept = max_kept
        self._connect_seconds = connect_seconds
        self._bounds = Bounds(kept_bytes=max_bytes, read_bytes=max_bytes)
        #: Idle connections by process id: of this process and, until it needs its own, of the process that it was
        #: forked from.
        self._kept: dict[int, _Kept] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A process that `multiprocessing` spawns gets no connections: it opens its own."""
        return {**self.__dict__, "_kept": {}}

    def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float, idempotency_key: str | None = None
    ) -> Answer:
        """Return the whole answer with any status. Raises ExchangeError, or ApiError for a too large one."""
        content = self._route.write(method, path, body, idempotency_key)
        deadline = time.monotonic() + timeout
        kept = self._kept.get(os.getpid())
        if kept is None:
            kept = self._begin()
        connection = _take(kept) or self._dial(deadline)
        try:
            connection.exchange(content, deadline)
        except UnansweredError:
            if not may_be_repeated(method, connection.exchanges):
                raise
            connection = self._dial(deadline)
            connection.exchange(content, deadline)
        try:
            return self._route.read(connection)
        finally:
            self._put_back(kept, connection)

    def close(self) -> None:
        """Close idle connections now, and those in use when their request is over. The next request opens a new one."""
        for process in list(self._kept):
            if (kept := self._kept.pop(process, None)) is not None:
                _close(kept)

    def _begin(self) -> _Kept:
        """Set up the idle connections of a process that has none yet."""
        process = os.getpid()
        for other in list(self._kept):
            if other != process and (inherited := self._kept.pop(other, None)) is not None:
                _close(inherited)
        begun: _Kept = deque()
        # If two threads come here first at the same time, both get the same object.
        kept = self._kept.setdefault(process, begun)
        if kept is begun:
            weakref.finalize(self, _close, kept)
        return kept

    def _dial(self, deadline: float) -> BlockingConnection:
        connect_by = min(deadline, time.monotonic() + self._connect_seconds)
        return dial(self._route, connect_by, self._bounds)

    def _put_back(self, kept: _Kept, connection: BlockingConnection) -> None:
        seconds = idle_seconds(connection.fields, IDLE_SECONDS)
        is_current = self._kept.get(os.getpid()) is kept
        # Threads that return connections at the same time may exceed the limit, which does no harm.
        if not is_current or seconds <= 0 or not connection.can_follow or len(kept) >= self._max_kept:
            connection.close()
            return
        connection.usable_until = time.monotonic() + seconds
        kept.append(connection)


def _take(kept: _Kept) -> BlockingConnection | None:
    """Return a connection that can be used for the next request, if there is one."""
    while kept:
        try:
            connection = kept.pop()
        except IndexError:
            break  # Another thread took the last one.
        if connection.usable_until > time.monotonic() and connection.is_quiet():
            return connection
        connection.close()
    return None


def _close(kept: _Kept) -> None:
    while kept:
        try:
            kept.pop().close()
        except IndexError:
            break
