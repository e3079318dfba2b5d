"""What the moves of a task cost by SQL alone: the raw limit of the machine, and how duetime's layers stay below it.

Variants: `minimal` (four bare tables; THE limit), `statements` (duetime's schema and
statements), `lifecycle` (the modules around them).  The difference between two of them
is the cost of the upper one, and the difference between `lifecycle` and the scenarios
of duetime is the cost of HTTP, the scheduler and the SDK.  duetime's node is stopped.

Figures, in tasks a second: `one` (submitted one by one on one connection), `bulk`,
`drain` (claim and settle), `sustained` (all at once); each is the higher one of two
ways to divide the work among processes.  Rows: everything that was measured, with the
CPU µs per task of the movers (`client`) and of PostgreSQL (`server`).
"""

from collections.abc import Sequence

from bench.limit import BATCH, LANES, LAYOUTS, ONE_PRODUCER, Crew, crews_of, move
from bench.moves import WAYS, Way, prepare
from bench.peers.base import Peer
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.servers import Postgres
from bench.stage import Stage

TASKS = 100_000
ONE_BY_ONE_TASKS = 3_000


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return WAYS if peer.language == "duetime" else ()


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    way: Way = next(each for each in WAYS if each == variant)
    tasks = (options.tasks or TASKS) // (10 if options.is_quick else 1)
    per_lane = max(BATCH, tasks // LANES)
    stage.stop_node()
    bench = _Bench(stage, way)
    for layout in LAYOUTS:
        await bench.clear()
        await bench.measure("bulk", layout, crews_of(layout, "produce"), per_lane)
        # The tasks that were submitted in bulk are drained.
        await bench.measure("drain", layout, crews_of(layout, "consume"), per_lane)
        await bench.clear()
        await bench.measure("sustained", layout, crews_of(layout, "produce", "consume"), per_lane)
    await bench.clear()
    await bench.measure("one", "", ONE_PRODUCER, ONE_BY_ONE_TASKS // (10 if options.is_quick else 1), batch=1)
    return bench.run


class _Bench:
    def __init__(self, stage: Stage, way: Way) -> None:
        assert isinstance(stage.server, Postgres)
        self._stage = stage
        self._server = stage.server
        self._way = way
        self.run = Run(figures={}, rows=[])

    async def clear(self) -> None:
        await self._server.clear()
        await prepare(self._server.dsn, self._way, LANES)

    async def measure(self, name: str, layout: str, crews: Sequence[Crew], count: int, batch: int = BATCH) -> None:
        await self._server.execute("CHECKPOINT")
        meter = self._stage.meter()
        moved = await move(self._server.dsn, self._way, crews, count, folder=self._stage.folder, batch=batch)
        spent = {"client": round(moved.client_us, 1), "server": meter.since(moved.tasks)["server"]}
        self.run.rows.append({"move": name, "layout": layout, "rate": round(moved.rate), **spent})
        self.run.figures[name] = max(moved.rate, self.run.figures.get(name, 0.0))


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 20.0 if options.is_quick else 40.0


SCENARIO = Scenario("limit", "the same moves by SQL alone, without HTTP", find_variants, measure, estimate)
