"""Services that start in order and stop in reverse, and their background work, which is watched.

A loop repeats a step, which does one bounded piece of work and returns the delay
before the next; the loop owns time, jitter, backoff and stopping.  A step that fails
is logged and tried again later.  Background work that dies is reported and started
again after a pause; it ends only when it is stopped.  Errands are done once: those
that fail are reported.
"""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from duetime import metrics
from duetime.errors import Unavailable
from duetime.watchdog import describe_by

log = structlog.get_logger()
_LONGEST_BACKOFF_SECONDS = 5.0
#: Work that has run for this long since it died counts as healthy again.
_WELL_SECONDS = 5.0


def calm_collector() -> None:
    """Make Python's cycle collector run less often, and skip objects that stay anyway.

    A batch of a thousand tasks is some ten thousand objects without a cycle among them: at the
    usual threshold of 700 the collector took a tenth of a busy node's time to find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class Background:
    """Work that runs until it is stopped; when it dies it is reported, and started again after a pause."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """`run` returns only when the work is over for good: its owner told it to stop, or it is cancelled."""
        self.name = name
        self._run = run
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._died_at: float | None = None

    @property
    def trouble(self) -> str | None:
        """What is wrong with it, for the readiness check of the node."""
        if self._died_at is None or time.monotonic() - self._died_at > _WELL_SECONDS:
            return None
        return f"the node has to start its work anew: {self.name}"

    def start(self) -> None:
        self._running = asyncio.create_task(self._keep(), name=self.name)

    async def stop(self, deadline_seconds: float = 5.0) -> None:
        """Let it end within the deadline."""
        self._stopped.set()
        if self._running is not None:
            done, _ = await asyncio.wait([self._running], timeout=deadline_seconds)
            if not done:
                self._running.cancel()
                await asyncio.wait([self._running], timeout=1.0)

    def cancel(self) -> None:
        """End it now."""
        self._stopped.set()
        if self._running is not None:
            self._running.cancel()

    async def ended(self) -> None:
        """Wait until it is over."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _keep(self) -> None:
        deaths = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            error: BaseException
            try:
                await self._run()
                return
            except asyncio.CancelledError as cancelled:
                current = asyncio.current_task()
                if self._stopped.is_set() or current is None or current.cancelling():
                    raise
                # Only what it waited for was cancelled, not the work itself.
                error = cancelled
            except Exception as failure:
                error = failure
            self._died_at = time.monotonic()
            deaths = 1 if self._died_at - began > _WELL_SECONDS else deaths + 1
            metrics.BACKGROUND_FAILURES.labels(self.name).inc()
            log.error("background work died and is started again", work=self.name, deaths=deaths, exc_info=error)
            await self._pause(_backoff(deaths))

    async def _pause(self, seconds: float) -> None:
        """Wait this long; a stop ends the wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return


class Loop(Background):
    """Repeats `step` until it is stopped; a stop ends the wait between steps."""

    def __init__(self, name: str, step: Callable[[], Awaitable[timedelta]], *, jitter: float = 0.1) -> None:
        super().__init__(name, self._repeat)
        self._step = step
        self._jitter = jitter

    async def _repeat(self) -> None:
        failures = 0
        while not self._stopped.is_set():
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
            if delay > 0 and not self._stopped.is_set():
                await self._pause(delay * random.uniform(1 - self._jitter, 1 + self._jitter))


describe_by(Loop._repeat.__code__, lambda variables: (f"loop {variables['self'].name}", None))


class Errands:
    """Work that is started and not awaited; failures are reported."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        errand = asyncio.create_task(work, name=self._name)
        self._begun.add(errand)
        errand.add_done_callback(self._ended)

    async def finish(self) -> None:
        """Wait until all of them are done."""
        while self._begun:
            await asyncio.wait(self._begun)

    def cancel(self) -> None:
        for errand in self._begun:
            errand.cancel()

    def _ended(self, errand: asyncio.Task[None]) -> None:
        self._begun.discard(errand)
        if not errand.cancelled() and (error := errand.exception()) is not None:
            metrics.BACKGROUND_FAILURES.labels(self._name).inc()
            log.error("background work failed", work=self._name, exc_info=error)


@dataclass(frozen=True)
class Service:
    """Something to start, to stop, or both."""

    name: str
    start: Callable[[], Awaitable[object]] | None = None
    stop: Callable[[], Awaitable[object]] | None = None


class Services:
    """Starts services in order, and stops those that were started in reverse order, whatever fails meanwhile."""

    def __init__(self, services: Sequence[Service | Background]) -> None:
        self._services = services
        self._started: list[Service | Background] = []

    async def start(self) -> None:
        for each in self._services:
            self._started.append(each)
            if isinstance(each, Background):
                each.start()
            elif each.start is not None:
                await each.start()

    async def stop(self) -> None:
        """Every service is stopped, even if stopping the one before failed."""
        while self._started:
            each = self._started.pop()
            try:
                if each.stop is not None:
                    await each.stop()
            except Exception:
                metrics.BACKGROUND_FAILURES.labels(each.name).inc()
                log.exception("a service could not be stopped", service=each.name)


def _backoff(failures: int) -> float:
    # The number of doublings is capped too: after an hour without a database 2.0 ** failures would overflow.
    return min(0.1 * 2.0 ** min(failures, 10), _LONGEST_BACKOFF_SECONDS)
