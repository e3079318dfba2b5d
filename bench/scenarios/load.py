"""Whether cost grows with the work: CPU per task of each part at 1, 10, 50 and 100 % of the sustained rate, and idle.

Figures: `rate` (sustained, measured just before), `idle_percent` (the node's share
of a core when there is nothing to do), `idle_polled_percent` (the same with its
workers waiting for tasks), `memory_mb` (of the node when it has just started) and
`memory_after_mb`.  Rows: for each load its rate and the CPU µs per task of each part.
"""

import asyncio
import time
from collections.abc import Sequence

from bench.crew import Workers
from bench.peers.base import Peer
from bench.producing import DRAIN_SECONDS, check, measure_full, memory_mb, node_of, producing, tally_of, tell
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.stage import Stage

#: Percent of the sustained rate; at 100 the producer keeps the workers just busy.
LOADS = (1, 10, 50, 100)
LOAD_SECONDS = 15.0
IDLE_SECONDS = 20.0
SUSTAINED_SECONDS = 15.0
QUICK_SECONDS = 3.0
#: The wait before an idle figure, so that it contains nothing of the start or of the last load.
_CALM_SECONDS = 3.0
_MARGIN_SECONDS = 60.0


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",) if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    node = node_of(stage)
    idle_percent = await _measure_idle(stage, options)
    memory = memory_mb(node.pid)
    async with stage.workers() as workers:
        idle_polled_percent = await _measure_idle(stage, options)
        rate = await measure_full(stage, workers, QUICK_SECONDS if options.is_quick else SUSTAINED_SECONDS)
        tell(f"sustained {rate:,.0f} a second; idle {idle_percent:.2f} %, polled {idle_polled_percent:.2f} %")
        rows = [await _measure_load(stage, workers, load, rate, options) for load in LOADS]
    figures = {"rate": rate, "idle_percent": idle_percent, "idle_polled_percent": idle_polled_percent}
    return Run({**figures, "memory_mb": memory, "memory_after_mb": memory_mb(node.pid)}, rows=rows)


async def _measure_idle(stage: Stage, options: Options) -> float:
    """The node's share of a core, in percent."""
    await asyncio.sleep(_CALM_SECONDS)
    meter, began = stage.meter(), time.monotonic()
    await asyncio.sleep(QUICK_SECONDS if options.is_quick else IDLE_SECONDS)
    microseconds = meter.since(1)["node"]
    return round(microseconds / 1e4 / (time.monotonic() - began), 2)


async def _measure_load(
    stage: Stage, workers: Workers, load: int, sustained: float, options: Options
) -> dict[str, float | str]:
    seconds = QUICK_SECONDS if options.is_quick else LOAD_SECONDS
    await asyncio.sleep(_CALM_SECONDS)
    words = ("full", seconds, tally_of(workers)) if load == 100 else ("steady", sustained * load / 100, seconds, 0)
    before = workers.count
    meter = stage.meter(workers)
    async with producing(stage, *words) as producer:
        await workers.until(before + 1)
        began = time.monotonic()
        produced = await producer.wait(seconds + _MARGIN_SECONDS)
        check(produced)
        await workers.until(before + produced.count, DRAIN_SECONDS)
        rate = produced.count / (time.monotonic() - began)
    cpu = meter.since(produced.count, producer=produced.cpu_seconds)
    tell(f"{load} %: {rate:,.0f} a second, CPU µs a task " + ", ".join(f"{part} {us:.0f}" for part, us in cpu.items()))
    return {"load_percent": load, "rate": round(rate, 1), **cpu}


def estimate(peer: Peer, variant: str, options: Options) -> float:
    if options.is_quick:
        return 60.0
    return 2 * IDLE_SECONDS + SUSTAINED_SECONDS + len(LOADS) * (LOAD_SECONDS + 5.0) + 20.0


SCENARIO = Scenario("load", "CPU a task at 1, 10, 50 and 100 % load, and idle", find_variants, measure, estimate, 1)
