"""The connections of an `AsyncClient`: of each event loop its own, and none of another process.

A connection belongs to the loop that opened it.  A client that is used in a
second loop, after the first or beside it in another thread, has connections of
its own there.  Those of a loop are closed when it ends, by `asyncio.run` and
whatever else shuts a loop's asynchronous generators down, or by `close`.

What a forked child inherits it leaves as it is: the parent's loop, and what its
kernel watches for it, are shared with the parent, and even closing a connection
would change that.
"""

import asyncio

# The first connection would import these.  A fork at that moment, by another thread, leaves their import locks locked.
import concurrent.futures.thread  # noqa: F401
import contextlib
import encodings.idna  # noqa: F401
import os
from collections.abc import AsyncGenerator
from typing import Any

from duetime.sdk.transport.http import HttpClient
from duetime.sdk.transport.route import Route

#: Kept so that nothing of it is ever freed, and thereby closed.
_inherited: list[object] = []


class HttpClients:
    """One `HttpClient` for each loop, made when it is first needed there."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._process = os.getpid()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[HttpClient, AsyncGenerator[None]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Connections are not sent to a process that `multiprocessing` spawns: it opens its own."""
        return {**self.__dict__, "_by_loop": {}}

    def here(self) -> HttpClient:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if self._process == os.getpid() and (found := self._by_loop.get(loop)) is not None:
            return found[0]
        self._forget()
        http = HttpClient(self._route)
        guard = _close_with_loop(http)
        # As far as its yield, which it reaches without waiting: from here on the loop knows that it has to be ended.
        with contextlib.suppress(StopIteration):
            guard.asend(None).send(None)
        self._by_loop[loop] = http, guard
        return http

    async def close(self) -> None:
        """Close all connections: those of this loop before it returns, those of others as soon as they can."""
        here = asyncio.get_running_loop()
        self._forget()
        for loop in list(self._by_loop):
            http, guard = self._by_loop.pop(loop)
            if loop is here:
                await guard.aclose()
                await http.close()
            else:
                # A loop that was closed meanwhile has taken its connections along.
                with contextlib.suppress(RuntimeError):
                    asyncio.run_coroutine_threadsafe(http.close(), loop)

    def _forget(self) -> None:
        """What belongs to another process, or to a loop that is closed."""
        if self._process != os.getpid():
            _inherited.append(self._by_loop)
            self._process, self._by_loop = os.getpid(), {}
        for loop in list(self._by_loop):
            if loop.is_closed():
                self._by_loop.pop(loop, None)


async def _close_with_loop(http: HttpClient) -> AsyncGenerator[None]:
    """Waits, as generators do, to be closed when the loop ends."""
    try:
        yield
    finally:
        await http.close_idle()
