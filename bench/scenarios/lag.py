"""How soon a task starts after it was submitted, at 20 a second.

Milliseconds from just before the call that submits it to the handler's first line.
"""

from collections.abc import Sequence

from bench.peers.base import Peer
from bench.processes import BenchError
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.stage import Stage

RATE = 20
SECONDS = 15
#: Tasks without a time in them, which are not measured, because the first tasks are slower.
WARM_UP_TASKS = 20


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",)


async def measure(stage: Stage, variant: str, options: Options, seconds: int | None = None) -> Run:
    async with stage.workers() as workers:
        await stage.submit("one", WARM_UP_TASKS)
        await workers.until(WARM_UP_TASKS)
        count = await stage.lag(RATE, seconds or _seconds(options))
        await workers.until(WARM_UP_TASKS + count)
        lags = workers.lags()
    if len(lags) != count:
        raise BenchError(f"{len(lags)} tasks were begun of {count} that were submitted")
    return Run({"p50_ms": percentile(lags, 50), "p99_ms": percentile(lags, 99), "max_ms": lags[-1], "tasks": count})


def percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _seconds(options: Options) -> int:
    return 3 if options.is_quick else SECONDS


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return _seconds(options) + 6.0


SCENARIO = Scenario("lag", "milliseconds from submission to start, at 20 a second", find_variants, measure, estimate)
