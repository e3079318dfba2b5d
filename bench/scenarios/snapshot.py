"""Ten minutes of full load beside a reader that holds an old snapshot, the node restarted in minute 8.

Rows that are deleted during that time cannot be removed, so a statement that reads `due`
from its start reads everything that ever waited.  Figures: `rate_before` (sustained,
without the reader), `rate_last` (in the last minute), `last_percent` of the former,
`most_entries_per_task` (index entries of `due` read for each task claimed, in the
worst minute) and `entries_per_task_before`, `errors`.  Rows: for each minute the rate and the entries.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import asyncpg

from bench.crew import Workers
from bench.peers.base import Peer
from bench.producing import measure_full, minutes, node_of, producing, tally_of, tell
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.servers import Postgres
from bench.stage import Stage
from bench.stolen import Stolen

MINUTES = 10
MINUTE_SECONDS = 60.0
#: At the beginning of this minute.
RESTART_MINUTE = 8
SUSTAINED_SECONDS = 30.0
QUICK_SECONDS = 5.0
_MARGIN_SECONDS = 60.0

# Partitions are named due_*; rows inserted into claim are tasks claimed.
_COUNTERS = r"""
SELECT (SELECT COALESCE(sum(idx_tup_read), 0)::bigint
          FROM pg_stat_user_indexes
         WHERE schemaname = 'duetime' AND relname LIKE 'due\_%') AS entries,
       (SELECT n_tup_ins
          FROM pg_stat_user_tables
         WHERE schemaname = 'duetime' AND relname = 'claim') AS claimed
"""


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",) if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    assert isinstance(stage.server, Postgres)
    seconds = QUICK_SECONDS if options.is_quick else MINUTE_SECONDS
    async with stage.workers() as workers, _connect(stage.server.dsn) as looking:
        counters = await _Counters.read(looking)
        rate_before = await measure_full(stage, workers, QUICK_SECONDS if options.is_quick else SUSTAINED_SECONDS)
        entries_before = (await _Counters.read(looking)).entries_per_task_since(counters)
        tell(f"before the snapshot is held: {rate_before:,.0f} a second, {entries_before} entries a task")
        async with (
            _hold_snapshot(stage.server.dsn),
            producing(stage, "full", MINUTES * seconds + _MARGIN_SECONDS, tally_of(workers)) as producer,
        ):
            await workers.until(workers.count + 1)
            rows = [row async for row in _watch(stage, workers, looking, seconds)]
            produced = await producer.end()
    last = float(rows[-1]["rate"])
    figures = {
        "rate_before": rate_before,
        "rate_last": last,
        "last_percent": 100 * last / rate_before,
        "entries_per_task_before": entries_before,
        "most_entries_per_task": max(float(row["entries_per_task"]) for row in rows),
        "errors": produced.errors,
    }
    return Run(figures, rows=rows)


@dataclass(frozen=True)
class _Counters:
    """The counters of the database so far."""

    entries: int
    claimed: int

    @classmethod
    async def read(cls, connection: asyncpg.Connection) -> Self:
        row = await connection.fetchrow(_COUNTERS)
        return cls(row["entries"], row["claimed"])

    def entries_per_task_since(self, before: "_Counters") -> float:
        return round((self.entries - before.entries) / max(1, self.claimed - before.claimed), 2)


async def _watch(
    stage: Stage, workers: Workers, looking: asyncpg.Connection, seconds: float
) -> AsyncIterator[dict[str, float | str]]:
    done, done_at, counters = workers.count, time.monotonic(), await _Counters.read(looking)
    stolen = Stolen()
    async for minute in minutes(MINUTES, seconds):
        done_before, before_at, before = done, done_at, counters
        done, done_at, counters = workers.count, time.monotonic(), await _Counters.read(looking)
        row: dict[str, float | str] = {
            "minute": minute,
            "rate": round((done - done_before) / (done_at - before_at), 1),
            "claimed": counters.claimed - before.claimed,
            "entries_per_task": counters.entries_per_task_since(before),
            "stolen_percent": stolen.percent(),
        }
        tell(", ".join(f"{name} {value:,}" for name, value in row.items()))
        yield row
        if minute + 1 == RESTART_MINUTE:
            tell("the node is restarted")
            # At the same address, where workers and producer look for it.
            await stage.restart_node("--port", str(node_of(stage).port))


@asynccontextmanager
async def _connect(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn, timeout=10.0, command_timeout=60.0)
    try:
        yield connection
    finally:
        await connection.close(timeout=5.0)


@asynccontextmanager
async def _hold_snapshot(dsn: str) -> AsyncIterator[None]:
    """A transaction that keeps seeing the state at its beginning."""
    async with _connect(dsn) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("SELECT count(*) FROM duetime.claim")
        yield


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 75.0 if options.is_quick else MINUTES * MINUTE_SECONDS + SUSTAINED_SECONDS + 30.0


SCENARIO = Scenario(
    "snapshot", "10 minutes beside a reader that holds an old snapshot", find_variants, measure, estimate, 1
)
