"""How soon a worker's handler starts: after a submission, and after a time in the future; 20 tasks a second."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from bench.node import NodeProcess
from duetime import AsyncClient, Worker

RATE = 20
SECONDS = 15
AHEAD_SECONDS = 2.0


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder) / "node").start()
        try:
            await _measure(node)
        finally:
            node.stop()


async def _measure(node: NodeProcess) -> None:
    started: dict[int, float] = {}
    worker = Worker(node.url, node.key)

    @worker.task("lag")
    async def note(payload: int) -> None:
        started[payload] = time.time()

    working = asyncio.create_task(worker.run_async())
    async with AsyncClient(node.url, node.key) as client:
        await client.submit("lag", -1)
        while -1 not in started:
            await asyncio.sleep(0.01)
        for name, delay in (("after submission", None), ("after run_at", AHEAD_SECONDS)):
            began = await _submit(client, delay)
            while not began.keys() <= started.keys():
                await asyncio.sleep(0.05)
            _show(name, [started.pop(number) - instant for number, instant in began.items()])
    worker.stop()
    await working


async def _submit(client: AsyncClient, delay: float | None) -> dict[int, float]:
    """Submit at the rate; returns from when on each task may start."""
    began: dict[int, float] = {}

    async def submit(number: int) -> None:
        began[number] = time.time()
        task = await client.submit("lag", number, delay=delay)
        if delay is not None:
            began[number] = task.run_at.timestamp()

    submitting = []
    for number in range(RATE * SECONDS):
        submitting.append(asyncio.create_task(submit(number)))
        await asyncio.sleep(1 / RATE)
    await asyncio.gather(*submitting)
    return began


def _show(name: str, lags: list[float]) -> None:
    ordered = sorted(1000 * lag for lag in lags)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    print(f"start {name:17} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   min {ordered[0]:6.1f}   max {ordered[-1]:6.1f}")
