"""How many tasks a second one producer submits: one by one, twenty at a time, in bulk.

No worker runs during this.  duetime's figures are those of the SDK; single requests
are also sent by wrk (`one wrk`, `twenty wrk`), which uses so little CPU time itself
that the figure is the server's.  A request is answered after its commit.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import Peer
from bench.peers.programs.common import PAYLOAD, TWENTY
from bench.processes import BenchError, run_program
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.servers import find_program
from bench.stage import Stage

#: Enough for some seconds: a few hundred to a few thousand single requests are committed in a second.
COUNTS = {"one": 3_000, "twenty": 8_000}
#: In bulk, this many times the count for draining, which would be submitted in half a second and so measure mostly the
#: start.
BULK_TIMES = 4
#: A run shorter than this measures mostly its start, and is repeated with more tasks.
LEAST_SECONDS = 1.0
ENOUGH_SECONDS = 3.0
WRK_SECONDS = 5
_WRK = " wrk"
_SCRIPT = Path(__file__).with_name("submit.lua")


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    by_wrk = tuple(f"{mode}{_WRK}" for mode in ("one", "twenty")) if peer.language == "duetime" else ()
    return (*peer.modes, *by_wrk)


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    if variant.endswith(_WRK):
        return await _measure_by_wrk(stage, variant.removesuffix(_WRK), options)
    count = _count(stage.peer, variant, options)
    meter = stage.meter()
    submitted = await stage.submit(variant, count)
    if submitted.seconds < LEAST_SECONDS and not (options.is_quick or options.tasks):
        meter = stage.meter()
        submitted = await stage.submit(variant, math.ceil(count * ENOUGH_SECONDS / submitted.seconds))
    cpu = meter.since(submitted.count, producer=submitted.cpu_seconds)
    return Run({"rate": submitted.rate, "tasks": submitted.count}, cpu)


async def _measure_by_wrk(stage: Stage, mode: str, options: Options) -> Run:
    wrk = await find_program("wrk", "wrk", stage.folder)
    connections = TWENTY if mode == "twenty" else 1
    body = json.dumps({"type": "bench", "payload": PAYLOAD})
    words = [f"-c{connections}", "-t1", f"-d{_wrk_seconds(options)}s", "--script", str(_SCRIPT)]
    meter = stage.meter()
    ended = await run_program(
        "wrk",
        [wrk, *words, f"{stage.environment['BENCH_URL']}/v1/tasks"],
        folder=stage.folder,
        environment={**stage.environment, "BENCH_BODY": body},
        seconds=WRK_SECONDS + 30.0,
    )
    told = json.loads(ended.output.strip().splitlines()[-1])
    if told["errors"]:
        raise BenchError(f"wrk had {told['errors']} errors in {told['requests']} requests")
    cpu = meter.since(told["requests"], wrk=ended.cpu_seconds)
    figures = {"rate": told["requests"] / told["seconds"], "tasks": told["requests"]}
    return Run({**figures, "p50_ms": told["p50_ms"], "p99_ms": told["p99_ms"]}, cpu)


def _count(peer: Peer, mode: str, options: Options) -> int:
    if mode not in COUNTS:
        return options.tasks_of(peer) * (1 if options.is_quick or options.tasks else BULK_TIMES)
    return COUNTS[mode] // 10 if options.is_quick else COUNTS[mode]


def _wrk_seconds(options: Options) -> int:
    return 1 if options.is_quick else WRK_SECONDS


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 5.0 if options.is_quick else 10.0


SCENARIO = Scenario(
    "submit", "tasks a second submitted: one by one, 20 in flight, in bulk", find_variants, measure, estimate
)
