"""How fast a backlog is worked off: everything is submitted first, then the workers start.

Tasks a second from the first one begun to the last; the start of the workers does not count.
"""

from collections.abc import Sequence

from bench.peers.base import Peer
from bench.results import Run
from bench.scenarios.contract import Options, Scenario
from bench.servers import Postgres
from bench.stage import Stage


def find_variants(peer: Peer, options: Options) -> Sequence[str]:
    return ("",)


async def measure(stage: Stage, variant: str, options: Options) -> Run:
    tasks = options.tasks_of(stage.peer)
    await stage.submit(stage.peer.best_mode, tasks)
    if isinstance(stage.server, Postgres):
        await stage.server.execute("CHECKPOINT")
    async with stage.workers(is_awaited=False) as workers:
        first_at = await workers.until(1)
        meter, first = stage.meter(workers), workers.count
        last_at = await workers.until(tasks)
        cpu = meter.since(tasks - first) if first < tasks else {}
    return Run({"rate": (tasks - first) / (last_at - first_at), "tasks": tasks}, cpu)


def estimate(peer: Peer, variant: str, options: Options) -> float:
    return 8.0 if options.is_quick else 20.0


SCENARIO = Scenario("drain", "tasks a second from a backlog", find_variants, measure, estimate)
