"""How many tasks a second are submitted and run: one producer submits in bulk while the workers work.

Tasks divided by the seconds from the first submission to the last task begun.  duetime
is measured with the idempotency keys that its SDK gives to every call, and once
without any (`no keys`).
"""

import asyncio
from collections.abc import Sequence

from bench.crew import Workers
from bench.peers.base import Peer
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.stage import Stage, Submitted

NO_KEYS = "no keys"


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("", NO_KEYS) if peer.language == "duetime" else ("",)


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    tasks = options.tasks_of(stage.peer)
    mode = "bulk-bare" if variant == NO_KEYS else stage.peer.best_mode
    async with stage.workers() as workers:
        meter = stage.meter(workers)
        rate, submitted = await produce_and_consume(stage, workers, mode, tasks)
        cpu = meter.since(tasks, producer=submitted.cpu_seconds)
    return Run({"rate": rate, "submit_rate": submitted.rate, "tasks": tasks}, cpu)


async def produce_and_consume(stage: Stage, workers: Workers, mode: str, tasks: int) -> tuple[float, Submitted]:
    """Tasks a second, from the first submission to the last task begun; and what the producer did."""
    before = workers.count
    async with asyncio.TaskGroup() as group:
        producing = group.create_task(stage.submit(mode, tasks))
        working = group.create_task(workers.until(before + tasks))
    submitted = producing.result()
    return tasks / (working.result() - submitted.began_at), submitted


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 8.0 if options.is_quick else 20.0


SCENARIO = Scenario(
    "sustained", "tasks a second from a producer through the workers, both at once", find_variants, measure, estimate
)
