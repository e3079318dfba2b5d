"""A storm: tasks are submitted and run while everything that can die is killed with -9.

The killer's order comes from a seed.  When it strikes is told by progress, not
by the clock: a slow machine sees the same storm, only slower.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from duetime import AsyncClient
from faults.journal import Reader
from faults.processes import ServeProcess, TargetProcess, WorkerProcess, kill_postgres
from nodes import NodeProcess

BATCH = 125
#: So many are submitted and not begun at the most: submissions go on until the storm is nearly over.
MOST_WAITING = 1_500
RETRY = {"max_attempts": 12, "min_backoff": 0.1, "max_backoff": 1.0}


@dataclass
class Storm:
    folder: Path
    node: NodeProcess
    second: ServeProcess
    workers: list[WorkerProcess]
    target: TargetProcess
    count: int
    kills: dict[str, int]
    seed: int
    #: What was acknowledged: the task's id by its place in the order of submission.
    acknowledged: dict[int, str] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    journal: Reader = field(default_factory=Reader)

    async def run(self) -> None:
        """Submit everything under the killer's hands; returns when both are done."""
        batches = iter(range(0, self.count, BATCH))
        async with asyncio.TaskGroup() as group:
            for url in (self.node.url, self.second.url) * 2:
                group.create_task(self._submit(url, batches))
            group.create_task(self._kill())

    def look(self) -> int:
        """How many tasks have been begun, by the holders' own logs."""
        self.journal.read(self.target.journal, *(worker.journal for worker in self.workers))
        return len(self.journal.tasks)

    async def _submit(self, url: str, batches: Iterator[int]) -> None:
        async with AsyncClient(url, self.node.key, retry_for=240.0) as client:
            for first in batches:
                while len(self.acknowledged) - self.look() > MOST_WAITING:
                    await asyncio.sleep(0.05)
                places = range(first, min(first + BATCH, self.count))
                if first // BATCH % 4 == 3:
                    tasks = await asyncio.gather(*[client.submit(**self._task(place)) for place in places])
                    ids: list[str | None] = [task.id for task in tasks]
                else:
                    ids = (await client.submit_many([self._task(place) for place in places])).ids
                for place, identifier in zip(places, ids, strict=True):
                    assert identifier is not None, f"task {place} was refused"
                    self.acknowledged[place] = identifier

    def _task(self, place: int) -> dict[str, object]:
        """One half is pushed, of the other one half to async and one half to plain handlers."""
        payload: dict[str, object] = {"place": place}
        if place % 125 in (0, 1):
            # Long enough to be named in a beat: these are the ones that lapse.
            payload["seconds"] = 4
        elif place % 20 in (6, 7):
            payload["fails"] = "early"
        elif place % 20 in (16, 17):
            payload["fails"] = "late"
        task: dict[str, object] = {"type": "fault.call", "payload": payload, "retry": RETRY, "queue": "push"}
        if place % 2 == 0:
            task["target"] = {"url": self.target.url}
        elif place % 4 == 1:
            task |= {"type": "fault.async", "queue": "async"}
        else:
            task |= {"type": "fault.plain", "queue": "plain"}
        if place % 10 == 5:
            task["delay"] = 1.5
        return task

    async def _kill(self) -> None:
        chance = random.Random(self.seed)
        order = [kind for kind, times in self.kills.items() for _ in range(times)]
        chance.shuffle(order)
        for turn, kind in enumerate(order):
            step = 0.9 / len(order)
            wanted = int(self.count * (0.03 + step * (turn + 0.8 * chance.random())))
            while self.look() < wanted:
                await asyncio.sleep(0.02)
            await self._strike(kind, chance)
            self.killed[kind] += 1

    async def _strike(self, kind: str, chance: random.Random) -> None:
        match kind:
            case "node":
                self.node.kill()
                await asyncio.to_thread(self.node.start)
            case "second node":
                self.second.kill()
                await asyncio.to_thread(self.second.start)
            case "worker":
                worker = chance.choice(self.workers)
                worker.kill()
                worker.start()
            case "PostgreSQL":
                await asyncio.to_thread(kill_postgres, self.node)
            case _:
                raise AssertionError(kind)


def show(rows: dict[str, object]) -> str:
    width = max(len(name) for name in rows)
    return "\n".join(f"  {name.ljust(width)}  {value:>9}" for name, value in rows.items())


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
