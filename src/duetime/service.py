"""Loops that repeat a step, and services that start, are watched, and stop in order.

A step does one bounded piece of work and returns the delay before the next;
the loop owns time, jitter, backoff and stopping.  A step that fails is logged
and tried again later: a loop ends only when it is stopped.
"""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from duetime.errors import Unavailable
from duetime.watchdog import describe_by

log = structlog.get_logger()
_LONGEST_BACKOFF_SECONDS = 5.0


def calm_collector() -> None:
    """Let Python's collector of cycles look less often, and not at what stays anyway.

    A batch of a thousand tasks is some ten thousand objects without a cycle among them: at the
    usual threshold of 700 the collector took a tenth of a busy node's time to find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class Loop:
    """Repeats `step` until it is stopped, which cuts the wait short."""

    def __init__(self, name: str, step: Callable[[], Awaitable[timedelta]], *, jitter: float = 0.1) -> None:
        self.name = name
        self._step = step
        self._jitter = jitter
        self._stopped = asyncio.Event()
        self._is_stopping = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name=self.name)

    async def stop(self, deadline_seconds: float = 5.0) -> None:
        """Let the step under way finish, within the deadline."""
        self._is_stopping = True
        self._stopped.set()
        if self._running is not None:
            done, _ = await asyncio.wait([self._running], timeout=deadline_seconds)
            if not done:
                self._running.cancel()
                await asyncio.wait([self._running], timeout=1.0)

    async def _run(self) -> None:
        failures = 0
        while not self._is_stopping:
            try:
                delay = (await self._step()).total_seconds()
                failures = 0
            except Unavailable as error:
                failures += 1
                delay = _backoff(failures)
                if failures in (1, 5) or failures % 20 == 0:
                    log.warning("step waits for the database", loop=self.name, failures=failures, error=str(error))
            except Exception:
                failures += 1
                delay = _backoff(failures)
                log.exception("step failed", loop=self.name, failures=failures)
            if delay > 0 and not self._is_stopping:
                await self._pause(delay * random.uniform(1 - self._jitter, 1 + self._jitter))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return


describe_by(Loop._run.__code__, lambda variables: (f"loop {variables['self'].name}", None))


def _backoff(failures: int) -> float:
    # The number of doublings is capped too: after an hour without a database 2.0 ** failures would overflow.
    return min(0.1 * 2.0 ** min(failures, 10), _LONGEST_BACKOFF_SECONDS)
