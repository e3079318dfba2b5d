"""What a node costs while it only waits: memory and CPU, empty and with a million tasks due tomorrow."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from bench.node import NodeProcess
from duetime import AsyncClient

BATCH = 5_000
IDLE_SECONDS = 20.0


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder) / "node").start()
        try:
            await _show(node, "empty")
            await _fill(node, arguments.tasks)
            await _show(node, f"{arguments.tasks:,} waiting")
            node.stop()
            node.start()
            await _show(node, "the same, started again")
        finally:
            node.stop()


async def _fill(node: NodeProcess, tasks: int) -> None:
    began = time.monotonic()
    async with AsyncClient(node.url, node.key) as client:
        batch = [{"type": "waiting", "payload": {"n": 1}, "delay": "1d"}] * BATCH

        async def submit(batches: int) -> None:
            for _ in range(batches):
                await client.submit_many(batch)

        await asyncio.gather(*[submit(tasks // BATCH // 4) for _ in range(4)])
    print(f"submitted {tasks:,} in {time.monotonic() - began:.1f} s", flush=True)


async def _show(node: NodeProcess, name: str) -> None:
    process = psutil.Process(node.pid)
    await asyncio.sleep(3.0)
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    after = process.cpu_times()
    busy = (after.user + after.system - before.user - before.system) / (time.monotonic() - began)
    print(f"{name:24} node {process.memory_info().rss / 1e6:6.1f} MB   {100 * busy:5.2f} % of a core", flush=True)
