"""The worker processes of a run, and the file in which they count together.

Each task that a handler began is a line of 24 bytes: the milliseconds between
the time in its payload and its start, or blank when it has none.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.processes import BenchError, Child

LINE_BYTES = 24
START_SECONDS = 60.0
#: A run in which nothing was done for this long has failed.
STALL_SECONDS = 30.0
_LOOK_SECONDS = 0.005


class Workers:
    """Several processes of one command, which gets the file as its last argument."""

    def __init__(
        self,
        command: Sequence[str | Path],
        processes: int,
        *,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        cwd: Path,
    ) -> None:
        self._command = command
        self._processes = processes
        self._name = name
        self._folder = folder
        self._environment = environment
        self._cwd = cwd
        self._file = folder / f"{name}.tally"
        self._children: list[Child] = []

    def start(self) -> None:
        self._file.touch()
        for number in range(self._processes):
            child = Child(
                f"{self._name}-{number}",
                [*self._command, self._file],
                folder=self._folder,
                environment=self._environment,
                cwd=self._cwd,
            )
            self._children.append(child)

    async def until_ready(self) -> None:
        """Wait until all of them consume."""
        for child in self._children:
            await child.wait_for_line("ready", START_SECONDS)

    async def stop(self) -> None:
        try:
            await asyncio.gather(*[child.stop() for child in self._children])
        finally:
            for child in self._children:
                child.kill()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def count(self) -> int:
        """How many tasks were begun."""
        return self._file.stat().st_size // LINE_BYTES

    def lags(self) -> list[float]:
        """Milliseconds from the time in the payload to the start, sorted, of the tasks that had one."""
        return sorted(float(line) for line in self._file.read_bytes().splitlines() if line.strip())

    async def until(self, count: int, stall_seconds: float = STALL_SECONDS) -> float:
        """Wait until this many were begun. Return the epoch second at which that was seen."""
        done, deadline = -1, 0.0
        while True:
            before, done = done, self.count
            if done >= count:
                return time.time()
            if done > before:
                deadline = time.monotonic() + stall_seconds
            elif time.monotonic() > deadline:
                raise BenchError(
                    f"{done:,} of {count:,} tasks were begun, and then none for {stall_seconds:.0f} s"
                    + "".join(child.tail() for child in self._children)
                )
            for child in self._children:
                if child.poll() is not None:
                    raise child.failure()
            await asyncio.sleep(_LOOK_SECONDS)
