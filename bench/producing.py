"""Loads that last: a producer of `bench.pace` beside a stage's workers, and what is read in the meantime."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.crew import LINE_BYTES, Workers
from bench.node import NodeProcess
from bench.processes import BenchError, Child
from bench.stage import Stage

#: How long tasks that are submitted and not yet done may take after a producer has ended.
DRAIN_SECONDS = 60.0
_END_SECONDS = 60.0
_WARM_UP_SECONDS = 3.0
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Produced:
    """What a producer did in all; `errors` counts refused tasks and calls that were given up."""

    count: int
    errors: int
    error: str
    cpu_seconds: float


class Producer:
    """One process of `bench.pace`."""

    def __init__(self, child: Child) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait(self, seconds: float) -> Produced:
        """Wait until it ends by itself."""
        ended = await self._child.wait(seconds)
        answer = json.loads(ended.output.splitlines()[-1])
        return Produced(answer["count"], answer["errors"], answer["error"], answer["cpu_seconds"])

    async def end(self) -> Produced:
        """Let it finish what it has begun, and begin nothing more."""
        if self._child.poll() is None:
            os.kill(self._child.pid, signal.SIGTERM)
        return await self.wait(_END_SECONDS)


@asynccontextmanager
async def producing(stage: Stage, *words: object) -> AsyncIterator[Producer]:
    """A producer that submits from now on; it is always gone at the end."""
    command = [sys.executable, "-m", "bench.pace", *map(str, words)]
    name = f"pace-{time.monotonic_ns()}"
    child = Child(name, command, folder=stage.folder, environment=stage.environment, cwd=_ROOT)
    try:
        yield Producer(child)
    finally:
        child.kill()


async def measure_full(stage: Stage, workers: Workers, seconds: float) -> float:
    """The sustained rate with a producer that keeps a bounded backlog; no task is left waiting."""
    before = workers.count
    async with producing(stage, "full", seconds + _END_SECONDS, tally_of(workers)) as producer:
        await workers.until(before + 1)
        await asyncio.sleep(min(_WARM_UP_SECONDS, seconds / 4))
        first, first_at = workers.count, time.monotonic()
        await asyncio.sleep(seconds)
        rate = (workers.count - first) / (time.monotonic() - first_at)
        produced = await producer.end()
        check(produced)
        await workers.until(before + produced.count, DRAIN_SECONDS)
    return rate


def check(produced: Produced) -> None:
    if produced.errors:
        raise BenchError(f"{produced.errors} submissions failed: {produced.error}")


def tally_of(workers: Workers) -> Path:
    """The file in which the workers count."""
    return workers._file


class Lags:
    """Reads the lags that workers note from now on, a part at a time."""

    def __init__(self, workers: Workers) -> None:
        self._file = tally_of(workers)
        self._place = workers.count * LINE_BYTES

    def read(self) -> list[float]:
        """Milliseconds, sorted, of the tasks that were begun since the last call."""
        with self._file.open("rb") as file:
            file.seek(self._place)
            data = file.read()
        # Several processes append whole lines; the last line may still be incomplete.
        data = data[: len(data) // LINE_BYTES * LINE_BYTES]
        self._place += len(data)
        return sorted(map(float, data.split()))


def node_of(stage: Stage) -> NodeProcess:
    assert stage.node is not None
    return stage.node


def memory_mb(pid: int) -> float:
    """The memory of a process (RSS)."""
    return round(float(psutil.Process(pid).memory_info().rss) / 1e6, 1)


async def minutes(count: int, seconds: float) -> AsyncIterator[int]:
    """1, 2, … each at the end of its minute, counted from now; a late step does not delay the next one."""
    began = time.monotonic()
    for minute in range(1, count + 1):
        await asyncio.sleep(began + minute * seconds - time.monotonic())
        yield minute


def tell(line: str) -> None:
    """Print progress within a run."""
    print(f"    {line}", file=sys.stderr, flush=True)
