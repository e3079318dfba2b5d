"""The worker processes of `duetime bench`, as seen by the command that started them."""

import asyncio
import os
import sys
import time
from types import TracebackType
from typing import Self

import msgspec

from duetime.cli.bench.worker import Told
from duetime.cli.connect import Refused
from duetime.errors import DuetimeError, UsageError

_STOP_SECONDS = 10.0
#: Workers report what they have done at least every tenth of a second.
_QUIET_SECONDS = 0.3

_decode = msgspec.json.Decoder(Told).decode


class Hands:
    """Worker processes, and what they have reported so far: `async with Hands(…) as hands`."""

    def __init__(self, url: str, key: str, queue: str, count: int) -> None:
        # The key is in the environment of the process: everybody can read a command line.
        self._environment = {**os.environ, "DUETIME_URL": url, "DUETIME_KEY": key}
        self._queue = queue
        self.count = count
        #: Number of a task → when its handler began.
        self.starts: dict[int, float] = {}
        self._told: dict[int, Told] = {}
        self._failure: DuetimeError | None = None
        self._processes: list[asyncio.subprocess.Process] = []
        self._listening: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._is_stopping = False

    async def __aenter__(self) -> Self:
        try:
            for place in range(self.count):
                process = await self._start()
                self._processes.append(process)
                self._listening.append(asyncio.create_task(self._listen(place, process)))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def done(self) -> int:
        return sum(told.done for told in self._told.values())

    def cpu(self) -> float:
        """Return the CPU seconds of all worker processes."""
        return sum(told.cpu for told in self._told.values())

    async def wait_for(self, done: int, seconds: float) -> bool:
        """Wait until this many tasks are done, or the time is over. Raises the error that ended a worker."""
        ends_at = time.monotonic() + seconds
        while self.done < done:
            left = ends_at - time.monotonic()
            if left <= 0:
                return False
            await self.news(left)
        return True

    async def quiet(self, seconds: float) -> None:
        """Wait until no more tasks are done, or the time is over."""
        ends_at = time.monotonic() + seconds
        before = -1
        while self.done > before and time.monotonic() < ends_at:
            before = self.done
            await asyncio.sleep(_QUIET_SECONDS)

    async def news(self, seconds: float) -> None:
        """Wait until one of them reports something, or the time is over."""
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        if self._failure is not None:
            raise self._failure

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "duetime.cli.bench.worker",
            self._queue,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
            # Only the command handles Ctrl-C, and then stops its workers.
            start_new_session=True,
        )

    async def _listen(self, place: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = self._told[place] = _decode(line)
            self.starts.update(told.starts)
            if told.error is not None:
                self._failure = (UsageError if told.is_forbidden else Refused)(told.error)
            self._news.set()
        code = await process.wait()
        if not self._is_stopping and self._failure is None:
            self._failure = Refused(f"a worker process of the measurement ended with exit code {code}")
        self._news.set()

    async def _stop(self) -> None:
        """Ask them to stop by closing their input. After a time limit they are killed."""
        self._is_stopping = True
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.gather(*self._listening)
        except TimeoutError:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
        finally:
            for task in self._listening:
                task.cancel()
