"""What waiting tasks cost: throughput and lag with ten million of them in the store, and without.

Variants: `tomorrow` (due from tomorrow on, over a week; submitted through the API)
and `today` (due later today, so in the same partitions as the work; written by SQL,
the rows that submit would write, in `task` and `due`).  All wait in the same lane
that the measured tasks go through.

"Without" is an empty database on the same server, measured in turns with the full
one: a p99 of an idle machine differs by half from one quarter of an hour to the next.
Sustained, drain, lag and burst are measured as in their own scenarios (lag for longer,
because its p99 needs more tasks), the medians of three, on a node that has just started.
After the fill the server is vacuumed and has nothing to do.

Figures: `sustained_empty`, `sustained_waiting`, `sustained_percent` and so on (`drain`,
`p50_ms`, `p99_ms`, `burst_last_ms`; for milliseconds the percentage is empty divided by
waiting, so that more is better everywhere), `memory_empty_mb`, `memory_filled_mb` (of the
node that took them in), `memory_waiting_mb` (of one that has just started with them),
`tasks`, `fill_rate`.
"""

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Sequence
from functools import partial

import asyncpg
import msgspec

from bench.peers.base import Peer
from bench.peers.programs.common import PAYLOAD
from bench.peers.programs.duetime import TYPE
from bench.processes import BenchError
from bench.producing import check, memory_mb, node_of, producing, tell
from bench.results import Run
from bench.scenarios import burst, drain, lag, sustained
from bench.scenarios.contract import Options, Scenario
from bench.servers import DATABASE, EMPTY_DATABASE, Postgres
from bench.stage import Stage
from bench.stolen import MORE_RUNS, Stolen, measure_undisturbed
from duetime.database.partitions import Partitions
from duetime.database.pool import Database

TASKS = 10_000_000
QUICK_TASKS = 100_000
REPEATS = 3
LAG_SECONDS = 40
DAY_SECONDS = 86_400
SPREAD_SECONDS = 7 * DAY_SECONDS
#: Tasks that are due today must still wait when the run ends.
RUN_SECONDS = 1_800
IDLE_SECONDS = 5.0
FILL_SECONDS = 1_800.0
#: The most time for vacuum and analyse of what was filled in.
CALM_SECONDS = 600.0
_PROGRESS_SECONDS = 10.0
_SQL_BATCH = 50_000

_LANE = "SELECT id FROM duetime.lane WHERE queue = 'default' AND class = 2 AND kind = 0 AND requires = '{}'"
# Random times between two, as in the fill by the API; ids as submit makes them.
_FILL = """
WITH minted AS MATERIALIZED (
    SELECT mint_wake(at_ms, $1, random_salt()) AS id, to_timestamp(at_ms / 1000.0) AS at
      FROM (SELECT $4::bigint + floor(random() * ($5::bigint - $4::bigint))::bigint AS at_ms
              FROM generate_series(1, $6::int)) AS chosen
),
asked AS (
    INSERT INTO task (lane, id, type, payload, run_at, created_at)
    SELECT $1, id, $2, $3, at, clock_timestamp()
      FROM minted
)
INSERT INTO due (lane, wake, task, number)
SELECT $1, id, id, 1
  FROM minted
"""
_WAITING = "SELECT count(*) FROM duetime.due"
_IS_CALM = "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("tomorrow", "today") if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    tasks = options.tasks or (QUICK_TASKS if options.is_quick else TASKS)
    options = dataclasses.replace(options, tasks=None)
    memory_empty = await _read_memory(stage)
    # The first tasks make their lane.
    await sustained.measure(stage, "", options)
    node = stage.node
    assert node is not None
    await asyncio.to_thread(node.allow, max_waiting=100 * TASKS)
    began = time.monotonic()
    await _fill(stage, variant, tasks)
    fill_rate = tasks / (time.monotonic() - began)
    memory_filled = await _read_memory(stage)
    await _calm_down(stage, tasks)
    await _postgres(stage).add_empty()
    await stage.restart_node()
    memory_waiting = await _read_memory(stage)
    empty, waiting = await _compare(stage, options)
    figures = {"tasks": float(tasks), "fill_rate": fill_rate, "memory_empty_mb": memory_empty}
    figures |= {"memory_filled_mb": memory_filled, "memory_waiting_mb": memory_waiting}
    for name in empty:
        ratio = empty[name] / waiting[name] if name.endswith("_ms") else waiting[name] / empty[name]
        figures |= {f"{name}_empty": empty[name], f"{name}_waiting": waiting[name], f"{name}_percent": 100 * ratio}
    return Run(figures)


async def _compare(stage: Stage, options: Options) -> tuple[dict[str, float], dict[str, float]]:
    """The medians of the scenarios' own figures, without and with waiting tasks."""
    seen: dict[str, list[dict[str, float]]] = {EMPTY_DATABASE: [], DATABASE: []}
    stolen = Stolen()
    for round in range(1 if options.is_quick else REPEATS):
        # The one that is first in this round is last in the next.
        for database in (EMPTY_DATABASE, DATABASE) if round % 2 == 0 else (DATABASE, EMPTY_DATABASE):
            _postgres(stage).database = database
            await stage.restart_node()
            seen[database].append(await _measure_all(stage, options, stolen))
            tell(f"{'waiting' if database == DATABASE else 'empty'}: {_words(seen[database][-1])}")
    empty, waiting = (
        {name: statistics.median([each[name] for each in runs]) for name in runs[0]} for runs in seen.values()
    )
    return empty, waiting


async def _measure_all(stage: Stage, options: Options, stolen: Stolen) -> dict[str, float]:
    """Run every scenario once."""
    seen: dict[str, float] = {}
    lag_seconds = None if options.is_quick else LAG_SECONDS
    for measure, figures in (
        (sustained.measure, {"rate": "sustained"}),
        (drain.measure, {"rate": "drain"}),
        (partial(lag.measure, seconds=lag_seconds), {"p50_ms": "p50_ms", "p99_ms": "p99_ms"}),
        (burst.measure, {"last_ms": "burst_last_ms", "early": "burst_early"}),
    ):
        more_runs = 0 if options.is_quick else MORE_RUNS
        run = await measure_undisturbed(partial(measure, stage, "", options), stolen, more_runs, tell)
        seen |= {shown: run.figures[figure] for figure, shown in figures.items()}
    if seen.pop("burst_early"):
        raise BenchError("tasks began before they were due")
    return seen


async def _fill(stage: Stage, variant: str, tasks: int) -> None:
    now = time.time()
    if variant == "tomorrow":
        first = now + DAY_SECONDS
        filling = _fill_by_api(stage, tasks, first, first + SPREAD_SECONDS)
    else:
        # Partitions are days of UTC.
        end = (now // DAY_SECONDS + 1) * DAY_SECONDS
        if now + 1.2 * RUN_SECONDS > end:
            raise BenchError("too little is left of the day (UTC) for tasks that are due later today: run it tomorrow")
        filling = _fill_by_sql(stage, tasks, now + RUN_SECONDS, end)
    async with asyncio.TaskGroup() as group:
        telling = group.create_task(_tell_progress(stage, tasks))
        await filling
        telling.cancel()


async def _fill_by_api(stage: Stage, tasks: int, first: float, last: float) -> None:
    async with producing(stage, "fill", tasks, first, last) as producer:
        check(await producer.wait(FILL_SECONDS))


async def _fill_by_sql(stage: Stage, tasks: int, first: float, last: float) -> None:
    database = await Database.open(_dsn(stage), size=2)
    try:
        await Partitions(database).ensure(int(at * 1000) for at in (first, last - 1))
        lane = (await database.fetch(_LANE))[0]["id"]
        left = iter(range(0, tasks, _SQL_BATCH))

        async def fill() -> None:
            for start in left:
                size = min(_SQL_BATCH, tasks - start)
                payload = msgspec.json.encode(PAYLOAD)
                times = int(first * 1000), int(last * 1000)
                await database.execute(_FILL, lane, TYPE, payload, *times, size, timeout=60.0)

        await asyncio.gather(fill(), fill())
    finally:
        await database.close()


async def _tell_progress(stage: Stage, tasks: int) -> None:
    connection = await asyncpg.connect(_dsn(stage), timeout=10.0, command_timeout=60.0)
    try:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            # The statistics give the number of rows: counting the table would disturb the measurement.
            stored = await connection.fetchval(
                "SELECT COALESCE(sum(n_live_tup), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'due\\_%'"
            )
            if stored:
                left = (tasks - stored) / stored * (time.monotonic() - began)
                tell(f"{stored:,} of {tasks:,} tasks are waiting, {max(0.0, left):.0f} s left")
    finally:
        await connection.close(timeout=5.0)


async def _calm_down(stage: Stage, tasks: int) -> None:
    """Let the server vacuum the rows that were filled in, and check that they are there."""
    connection = await asyncpg.connect(_dsn(stage), timeout=10.0, command_timeout=CALM_SECONDS)
    try:
        if (waiting := await connection.fetchval(_WAITING)) != tasks:
            raise BenchError(f"{waiting:,} tasks are waiting, not {tasks:,}")
        deadline = time.monotonic() + CALM_SECONDS
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute("CHECKPOINT")
        while not await connection.fetchval(_IS_CALM) and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
    finally:
        await connection.close(timeout=5.0)


async def _read_memory(stage: Stage) -> float:
    await asyncio.sleep(IDLE_SECONDS)
    return memory_mb(node_of(stage).pid)


def _postgres(stage: Stage) -> Postgres:
    assert isinstance(stage.server, Postgres)
    return stage.server


def _dsn(stage: Stage) -> str:
    return _postgres(stage).dsn


def _words(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())


def estimate(peer: Peer, variant: str, options: Options) -> float:
    if options.is_quick:
        return 90.0
    fill_rate = 25_000 if variant == "tomorrow" else 60_000
    return 2 * REPEATS * (45.0 + LAG_SECONDS) + (options.tasks or TASKS) / fill_rate + 120.0


SCENARIO = Scenario(
    "waiting", "throughput and lag with 10 million waiting tasks, and memory", find_variants, measure, estimate, 1
)
