"""Fifteen minutes at 60 % of the sustained rate: does lag stay low, memory flat, and everything right?

Tasks are due one after the other, a second after they were submitted; a lag is
the time from then to the handler's start.  Figures: `sustained_rate` (measured
just before, as `sustained` does, the median of three), `rate`, `worst_p99_ms` (of
the minutes), `within_5s_percent`, `early`, `memory_first_mb` and `memory_last_mb`
(of the node, after the first and the last minute), `errors` (submissions that
failed, attempts that did not succeed, tasks that never began).  Rows: the same for
each minute, and the share of the processors' time that others had in it.
"""

import statistics
from collections.abc import Sequence

import asyncpg

from bench.peers.base import Peer
from bench.producing import DRAIN_SECONDS, Lags, Produced, memory_mb, minutes, node_of, producing, tell
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.scenarios.lag import percentile
from bench.scenarios.sustained import produce_and_consume
from bench.servers import Postgres
from bench.stage import Stage
from bench.stolen import Stolen

MINUTES = 15
MINUTE_SECONDS = 60.0
RUNS = 3
SHARE = 0.6
AHEAD_SECONDS = 1.0
LATE_MS = 5_000.0
QUICK_MINUTES = 3
QUICK_SECONDS = 4.0

_NOT_SUCCEEDED = "SELECT count(*) FROM duetime.attempt WHERE outcome <> 1"


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",) if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    count, seconds = (QUICK_MINUTES, QUICK_SECONDS) if options.is_quick else (MINUTES, MINUTE_SECONDS)
    rows: list[dict[str, float | str]] = []
    late = early = 0

    def look() -> list[float]:
        nonlocal late, early
        lags = reader.read()
        late += sum(lag > LATE_MS for lag in lags)
        early += sum(lag < 0 for lag in lags)
        return lags

    async with stage.workers() as workers:
        tasks = options.tasks_of(stage.peer)
        rates = [(await produce_and_consume(stage, workers, stage.peer.best_mode, tasks))[0] for _ in range(RUNS)]
        sustained = statistics.median(rates)
        rate = SHARE * sustained
        tell(f"sustained {sustained:,.0f} a second; {count} minutes of {seconds:.0f} s at {rate:,.0f}")
        before = workers.count
        meter, reader, stolen = stage.meter(workers), Lags(workers), Stolen()
        async with producing(stage, "steady", rate, count * seconds, AHEAD_SECONDS) as producer:
            await workers.until(before + 1)
            async for minute in minutes(count, seconds):
                memory = memory_mb(node_of(stage).pid)
                rows.append(
                    {"minute": minute, "memory_mb": memory, "stolen_percent": stolen.percent(), **_describe(look())}
                )
                tell(", ".join(f"{name} {value:,}" for name, value in rows[-1].items()))
            produced = await producer.end()
            await workers.until(before + produced.count, DRAIN_SECONDS)
        cpu = meter.since(produced.count, producer=produced.cpu_seconds)
        look()
        begun = workers.count - before
    figures = {
        "sustained_rate": sustained,
        "rate": produced.count / (count * seconds),
        "worst_p99_ms": max(float(row["p99_ms"]) for row in rows),
        "within_5s_percent": 100 * (1 - late / produced.count),
        "early": early,
        "memory_first_mb": float(rows[0]["memory_mb"]),
        "memory_last_mb": float(rows[-1]["memory_mb"]),
        "errors": await _count_errors(stage, produced, begun),
    }
    return Run(figures, cpu, rows)


def _describe(lags: Sequence[float]) -> dict[str, float | str]:
    if not lags:
        return {"tasks": 0, "p50_ms": float("inf"), "p99_ms": float("inf"), "max_ms": float("inf")}
    figures = {"p50_ms": percentile(lags, 50), "p99_ms": percentile(lags, 99), "max_ms": lags[-1]}
    within = 100 * sum(lag <= LATE_MS for lag in lags) / len(lags)
    return {"tasks": len(lags), **{name: round(lag, 2) for name, lag in figures.items()}, "within_5s_percent": within}


async def _count_errors(stage: Stage, produced: Produced, begun: int) -> int:
    assert isinstance(stage.server, Postgres)
    connection = await asyncpg.connect(stage.server.dsn, timeout=10.0, command_timeout=120.0)
    try:
        not_succeeded = int(await connection.fetchval(_NOT_SUCCEEDED))
    finally:
        await connection.close(timeout=5.0)
    return produced.errors + not_succeeded + abs(produced.count - begun)


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 40.0 if options.is_quick else MINUTES * MINUTE_SECONDS + RUNS * 8.0 + 30.0


SCENARIO = Scenario("soak", "15 minutes at 60 % load: lag, memory, errors", find_variants, measure, estimate, 1)
