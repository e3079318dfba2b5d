"""Look-ups of host names that are under way, and the callers that wait for one.

Callers of one tenant that ask for the same host share a look-up.  A tenant may
have a limited number at once, and its other hosts wait in a line of that tenant:
names that no server answers for delay only their own tenant.  Tenants share no
look-up, so neither its wait nor its failure passes to another tenant.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
Place = tuple[int, str]


class Lookups(Generic[Answer]):
    """`look_up` must end by itself within a bounded time."""

    def __init__(self, look_up: Callable[[int, str], Coroutine[None, None, Answer]], per_tenant: int) -> None:
        self._look_up = look_up
        self._per_tenant = per_tenant
        self._running: dict[Place, asyncio.Task[Answer]] = {}
        self._counts: dict[int, int] = {}
        #: By tenant, in order: the futures on which the callers of each host wait.
        self._lines: dict[int, dict[str, set[asyncio.Future[asyncio.Task[Answer]]]]] = {}

    def begin(self, tenant: int, host: str) -> asyncio.Task[Answer] | None:
        """The look-up of a host; None if the tenant has no room for another one now."""
        running = self._running.get((tenant, host))
        if running is None and self._counts.get(tenant, 0) < self._per_tenant:
            running = self._start(tenant, host)
        return running

    async def turn(self, tenant: int, host: str) -> asyncio.Task[Answer]:
        """Wait until the tenant has room for the look-up of a host, and return it; cancel this to leave the line."""
        running = self.begin(tenant, host)
        if running is not None:
            return running
        line = self._lines.setdefault(tenant, {})
        waiting = line.setdefault(host, set())
        begun: asyncio.Future[asyncio.Task[Answer]] = asyncio.get_running_loop().create_future()
        waiting.add(begun)
        try:
            return await begun
        finally:
            waiting.discard(begun)
            if not waiting and line.get(host) is waiting:
                del line[host]
                if not line:
                    self._lines.pop(tenant, None)

    def close(self) -> None:
        for line in self._lines.values():
            for waiting in line.values():
                for begun in waiting:
                    begun.cancel()
        self._lines.clear()
        for running in list(self._running.values()):
            running.cancel()

    def _start(self, tenant: int, host: str) -> asyncio.Task[Answer]:
        running = asyncio.get_running_loop().create_task(self._look_up(tenant, host))
        self._running[tenant, host] = running
        self._counts[tenant] = self._counts.get(tenant, 0) + 1
        running.add_done_callback(functools.partial(self._ended, tenant, host))
        return running

    def _ended(self, tenant: int, host: str, ended: asyncio.Task[Answer]) -> None:
        del self._running[tenant, host]
        if not ended.cancelled():
            # This marks the exception as seen: every caller may have gone away by now.
            ended.exception()
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        line = self._lines.get(tenant)
        if line is None:
            return
        following = next(iter(line))
        waiting = line.pop(following)
        if not line:
            del self._lines[tenant]
        running = self._start(tenant, following)
        for begun in waiting:
            if not begun.done():
                begun.set_result(running)
