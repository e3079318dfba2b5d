"""Tasks a second through the HTTP API and the SDK's workers: submitted in bulk, drained, sustained.

A no-op task with a 150-byte payload; one producer, two worker processes, one node, all on this machine.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.node import NodeProcess
from duetime import AsyncClient

TASKS = 100_000
BATCH = 1_000
PRODUCER_CONNECTIONS = 3
HANDS = 2
TIMEOUT_SECONDS = 120.0
TASK = {"to": "user@example.com", "template": "welcome", "n": 12345, "pad": "x" * 80}


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder) / "node").start()
        try:
            spent = _Spent(node)
            submitted = await _produce(node, "drain", TASKS)
            print(f"submit in bulk   {submitted:8,.0f} /s   {spent.since(TASKS)}", flush=True)
            with _Hands(node, "drain", Path(folder) / "drain") as hands:
                spent = _Spent(node, hands)
                drained = await hands.rate(TASKS)
                print(f"drain            {drained:8,.0f} /s   {spent.since(TASKS)}", flush=True)
            with _Hands(node, "sustained", Path(folder) / "sustained") as hands:
                spent = _Spent(node, hands)
                counting = asyncio.create_task(hands.rate(TASKS))
                await _produce(node, "sustained", TASKS)
                print(f"sustained        {await counting:8,.0f} /s   {spent.since(TASKS)}", flush=True)
        finally:
            node.stop()


async def _produce(node: NodeProcess, queue: str, tasks: int) -> float:
    batch = [{"type": "bench", "queue": queue, "payload": TASK}] * BATCH
    began = time.perf_counter()
    async with AsyncClient(node.url, node.key) as client:

        async def send() -> None:
            for _ in range(tasks // BATCH // PRODUCER_CONNECTIONS + 1):
                await client.submit_many(batch)

        await asyncio.gather(*[send() for _ in range(PRODUCER_CONNECTIONS)])
    return (tasks // BATCH // PRODUCER_CONNECTIONS + 1) * BATCH * PRODUCER_CONNECTIONS / (time.perf_counter() - began)


class _Spent:
    """CPU time of each part, from now on: steadier than a rate on a machine that others use too."""

    def __init__(self, node: NodeProcess, hands: "_Hands | None" = None) -> None:
        self._node = psutil.Process(node.pid)
        self._hands = [psutil.Process(pid) for pid in hands.pids] if hands else []
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        # Backends come and go; the postmaster counts those that have gone.
        servers = self._node.children(recursive=True)
        return {
            "node": _cpu([self._node]),
            "PostgreSQL": _cpu(servers),
            "workers": _cpu(self._hands),
            "producer": _cpu([psutil.Process()]),
        }

    def since(self, tasks: int) -> str:
        after = self._read()
        parts = {part: 1e6 * (after[part] - before) / tasks for part, before in self._before.items()}
        return "µs a task: " + ", ".join(f"{part} {spent:.0f}" for part, spent in parts.items() if spent >= 0.5)


def _cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes if process.is_running()]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


class _Hands:
    """Worker processes, and what they have done together."""

    def __init__(self, node: NodeProcess, queue: str, file: Path) -> None:
        self._command = [sys.executable, "-m", "bench.hands", node.url, node.key, queue, str(file)]
        self._file = file

    def __enter__(self) -> "_Hands":
        self._file.touch()
        self._processes = [subprocess.Popen(self._command) for _ in range(HANDS)]
        return self

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(40)

    async def rate(self, tasks: int) -> float:
        """Tasks a second from the first one done to the last."""
        began, deadline = None, time.monotonic() + TIMEOUT_SECONDS
        while (done := self._file.stat().st_size) < tasks:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{done:,} of {tasks:,} tasks were done within {TIMEOUT_SECONDS:.0f} s")
            if began is None and done:
                began, first = time.perf_counter(), done
            await asyncio.sleep(0.005)
        assert began is not None
        return (done - first) / (time.perf_counter() - began)
