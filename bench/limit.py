"""The raw limit: what this machine's PostgreSQL moves by SQL alone, and how far duetime's statements stay below it.

The ways to move are in `moves`.  Movers are processes of their own (`python -m
bench.limit WAY ROLE LANES TASKS BATCH FILE`, the address in BENCH_DSN) with one
connection for each lane: they say "ready", wait until the file exists, move their
tasks of each lane, and answer with when they began and ended, and their CPU time.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvloop

from bench.moves import OPEN, Moves, Way
from bench.processes import Child

Role = Literal["produce", "consume"]
BATCH = 1_000
START_SECONDS = 30.0
TIMEOUT_SECONDS = 90.0
_EMPTY_SECONDS = 0.002


@dataclass(frozen=True)
class Crew:
    """One mover process: its role and its lanes."""

    role: Role
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Moved:
    """How fast tasks were moved, and what the movers themselves spent on each."""

    tasks: int
    rate: float
    client_us: float


LANES = 2
ONE_PRODUCER = (Crew("produce", (0,)),)
#: How lanes are divided among processes, a connection for each lane. Which division is faster depends on the move and
#: on the other load of the machine, so both are measured and the higher figure is the limit.
LAYOUTS: dict[str, tuple[tuple[int, ...], ...]] = {"one process": ((0, 1),), "two processes": ((0,), (1,))}


def crews_of(layout: str, *roles: Role) -> tuple[Crew, ...]:
    """The movers of these roles in a layout."""
    return tuple(Crew(role, lanes) for role in roles for lanes in LAYOUTS[layout])


async def move(
    dsn: str, way: Way, crews: Sequence[Crew], tasks_per_lane: int, *, folder: Path, batch: int = BATCH
) -> Moved:
    """Let these movers work at the same time; the rate counts the tasks of all lanes."""
    start = folder / "start"
    start.unlink(missing_ok=True)
    children: list[Child] = []
    try:
        for place, crew in enumerate(crews):
            lanes = ",".join(map(str, crew.lanes))
            words = ["-m", "bench.limit", way, crew.role, lanes, str(tasks_per_lane), str(batch), str(start)]
            children.append(
                Child(
                    f"mover-{place}",
                    [sys.executable, *words],
                    folder=folder,
                    environment={"BENCH_DSN": dsn},
                    cwd=Path(__file__).parents[1],
                )
            )
        for child in children:
            await child.wait_for_line("ready", START_SECONDS)
        start.touch()
        answers = [json.loads((await child.wait(TIMEOUT_SECONDS)).output.splitlines()[-1]) for child in children]
    finally:
        for child in children:
            child.kill()
    seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    tasks = tasks_per_lane * len({lane for crew in crews for lane in crew.lanes})
    return Moved(tasks, tasks / seconds, 1e6 * sum(answer["cpu"] for answer in answers) / tasks)


async def _work(way: Way, role: Role, lanes: Sequence[int], tasks: int, batch: int, start: str) -> None:
    async with AsyncExitStack() as stack:
        moves: list[Moves] = [
            await stack.enter_async_context(OPEN[way](os.environ["BENCH_DSN"], lane)) for lane in lanes
        ]
        print("ready", flush=True)
        while not _exists(start):
            await asyncio.sleep(_EMPTY_SECONDS)
        began, cpu = time.monotonic(), time.process_time()
        step = _produce if role == "produce" else _consume
        await asyncio.gather(*[step(each, tasks, batch) for each in moves])
        print(json.dumps({"began": began, "ended": time.monotonic(), "cpu": time.process_time() - cpu}), flush=True)


def _exists(file: str) -> bool:
    return os.path.exists(file)


async def _produce(moves: Moves, tasks: int, batch: int) -> None:
    for start in range(0, tasks, batch):
        await moves.submit(min(batch, tasks - start))


async def _consume(moves: Moves, tasks: int, batch: int) -> None:
    while tasks:
        moved = await moves.claim_and_settle(batch)
        tasks -= moved
        if not moved:
            await asyncio.sleep(_EMPTY_SECONDS)


def main(way: Way, role: Role, lanes: str, tasks: str, batch: str, start: str) -> None:
    uvloop.run(_work(way, role, [int(lane) for lane in lanes.split(",")], int(tasks), int(batch), start))


if __name__ == "__main__":
    main(*sys.argv[1:7])  # type: ignore[arg-type]
