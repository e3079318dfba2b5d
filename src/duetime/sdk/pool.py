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
import queue
from collections import deque
from collections.abc import Mapping
from typing import Any

import urllib3
from urllib3.util import parse_url


class _Idle(queue.LifoQueue[Any]):
    """The idle connections of a pool, the one that was used last first; without a lock.

    The steps of a deque are atomic by themselves.  Threads that come at the same
    time may keep one connection more than there is room for, which does no harm.
    """

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._connections: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if len(self._connections) >= self.maxsize:
            raise queue.Full
        self._connections.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self._connections.pop()
        except IndexError:
            raise queue.Empty from None

    def qsize(self) -> int:
        return len(self._connections)


class _PlainPool(urllib3.HTTPConnectionPool):
    QueueCls = _Idle


class _TlsPool(urllib3.HTTPSConnectionPool):
    QueueCls = _Idle


class Pool:
    """For one base URL; safe to share between threads, and to use on both sides of a fork."""

    def __init__(
        self, url: str, *, maxsize: int, timeout: urllib3.Timeout, headers: Mapping[str, str] | None = None
    ) -> None:
        parts = parse_url(url)
        self._kind = _TlsPool if parts.scheme == "https" else _PlainPool
        self._host, self._port = parts.host or "", parts.port
        self._prefix = (parts.path or "").rstrip("/")
        self._maxsize, self._timeout, self._headers = maxsize, timeout, headers
        #: By process id: that of this process, and until it needs one, that of the process it was forked from.
        self._pools: dict[int, urllib3.HTTPConnectionPool] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Connections are not sent to a process that `multiprocessing` spawns: it opens its own."""
        return {**self.__dict__, "_pools": {}}

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: urllib3.Timeout | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The whole answer, whatever its status; raises urllib3's HTTPError."""
        pool = self._pools.get(os.getpid()) or self._open()
        return pool.request(
            method, self._prefix + path, body=body, headers=headers, redirect=False, timeout=timeout or self._timeout
        )

    def close(self) -> None:
        """Close what is idle, and what is in use when its request is over; the next request opens anew."""
        for process in list(self._pools):
            if (pool := self._pools.pop(process, None)) is not None:
                pool.close()

    def _open(self) -> urllib3.HTTPConnectionPool:
        opened = self._kind(
            self._host, self._port, timeout=self._timeout, maxsize=self._maxsize, headers=self._headers, retries=False
        )
        process = os.getpid()
        for other in list(self._pools):
            if other != process:
                self._pools.pop(other, None)
        # Of two threads that are the first here, both get the same.
        return self._pools.setdefault(process, opened)
