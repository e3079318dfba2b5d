"""The connections of an `AsyncClient`: each event loop has its own, and none is shared with another process.

A connection belongs to the loop that opened it.  A client that is used in a
second loop, after the first or at the same time in another thread, has separate
connections there.  The connections of a loop are closed by `close`, or when the
loop ends: by `asyncio.run` or other code that shuts down its asynchronous generators.

A forked child does not touch what it inherits: the parent's loop, and what its
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

#: Kept so that none of it is ever freed and thereby closed.
_inherited: list[object] = []


class HttpClients:
    """One `HttpClient` for each loop, created when the loop first needs it."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._process = os.getpid()
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[HttpClient, AsyncGenerator[None]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A process that `multiprocessing` spawns gets no connections: it opens its own."""
        return {**self.__dict__, "_by_loop": {}}

    def here(self) -> HttpClient:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        if self._process == os.getpid() and (found := self._by_loop.get(loop)) is not None:
            return found[0]
        self._forget()
        http = HttpClient(self._route)
        guard = _close_with_loop(http)
        # Run the generator to its yield, which it reaches without waiting. From then on the loop knows that it has to
        # end it.
        with contextlib.suppress(StopIteration):
            guard.asend(None).send(None)
        self._by_loop[loop] = http, guard
        return http

    async def close(self) -> None:
        """Close all connections: those of this loop before it returns, those of other loops as soon as they can."""
        here = asyncio.get_running_loop()
        self._forget()
        for loop in list(self._by_loop):
            http, guard = self._by_loop.pop(loop)
            if loop is here:
                await guard.aclose()
                await http.close()
            else:
                # If a loop was closed meanwhile, its connections are closed too.
                with contextlib.suppress(RuntimeError):
                    asyncio.run_coroutine_threadsafe(http.close(), loop)

    def _forget(self) -> None:
        """Forget the clients of another process or of a closed loop."""
        if self._process != os.getpid():
            _inherited.append(self._by_loop)
            self._process, self._by_loop = os.getpid(), {}
        for loop in list(self._by_loop):
            if loop.is_closed():
                self._by_loop.pop(loop, None)


async def _close_with_loop(http: HttpClient) -> AsyncGenerator[None]:
    """A generator that waits until the loop closes it at its end."""
    try:
        yield
    finally:
        await http.close_idle()
