"""Many tasks due at the same instant: how many start too early, and how late the last one starts.

All are submitted before that instant, which comes five seconds after the
producer's start; a peer that needs longer to submit them gets more time.
"""

import math
import time
from collections.abc import Sequence

from bench.peers.base import Peer
from bench.processes import BenchError
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.scenarios.lag import percentile
from bench.stage import Stage

TASKS = 2_000
#: How many seconds ahead to try, one after the other; all submissions must be complete when the instant comes.
AHEAD_SECONDS = (5, 15, 45)


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",) if peer.has_future else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    count = TASKS // 10 if options.is_quick else TASKS
    for ahead in AHEAD_SECONDS:
        async with stage.workers() as workers:
            # A whole second, because some APIs take no fractions; so none has to round.
            at = math.ceil(time.time()) + ahead
            submitted = await stage.burst(count, at)
            has_been_in_time = submitted.began_at + submitted.seconds < at
            await workers.until(count)
            lags = workers.lags()
        if has_been_in_time:
            if len(lags) != count:
                raise BenchError(f"{len(lags)} tasks were begun of {count} that were submitted")
            early = sum(lag < 0 for lag in lags)
            figures = {"early": float(early), "last_ms": lags[-1], "p50_ms": percentile(lags, 50), "first_ms": lags[0]}
            return Run({**figures, "tasks": count})
    raise BenchError(f"{count:,} tasks were not submitted within {ahead} s")


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return AHEAD_SECONDS[0] + 6.0


SCENARIO = Scenario(
    "burst", "2,000 tasks due in one instant: too early, and the last start", find_variants, measure, estimate
)
