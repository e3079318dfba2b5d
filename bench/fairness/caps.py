"""5: a queue of which five may run at once, on three processes, while processes and workers are killed and stopped."""

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil

from bench.fairness.guarded import TYPE
from bench.fairness.outcome import Options, Outcome, say
from bench.fairness.place import Place, open_place
from bench.plots import Line, Panel, draw_lines
from bench.processes import BenchError, Child

CAP = 5
QUEUE = "q"
WORKERS = 3
PROCESSES = 3
TASK_SECONDS = 0.1
#: Longer than it takes until the attempts of a silent holder lapse.
STOP_SECONDS = 15.0
DRAIN_SECONDS = 180.0
#: Succeeded, failed, snoozed: outcomes that a holder reports itself. Every other outcome is the database's decision
#: that it holds the task no longer.
REPORTED = (1, 2, 3)
METHOD = f"""The queue `{QUEUE}` has a strict `max_running` of {CAP} (`PUT /v1/queues/{QUEUE}`) on `duetime up
--processes {PROCESSES}`. Each of {WORKERS} worker processes has room for 20. Every few seconds a node process or a
worker gets kill -9, or a worker is stopped for {STOP_SECONDS:.0f} s (SIGSTOP), which is longer than a holder may be
silent. Each worker writes down when an attempt begins and ends. An attempt counts from its beginning until its end. If
its worker was killed, it has no end of its own, and counts until it has lapsed according to the database. A worker that
was stopped does not know that its attempt has lapsed, and goes on when it wakes. No limit can prevent that, so such
attempts are listed separately."""


@dataclass(frozen=True)
class Held:
    """One attempt, from the worker's journal and the database."""

    began_at: float
    #: The time that counts: its end, or its lapse.
    over_at: float
    #: When its handler really ended, if it did.
    ended_at: float | None

    @property
    def is_overrun(self) -> bool:
        return self.ended_at is not None and self.ended_at > self.over_at


async def run(options: Options) -> Outcome:
    outcome = Outcome(5, "Five at once on three processes, under kills", METHOD)
    async with open_place(options.processes or PROCESSES) as place:
        await _measure(place, outcome, 30.0 if options.is_quick else 90.0)
    return outcome


async def _measure(place: Place, outcome: Outcome, seconds: float) -> None:
    await place.call("PUT", f"/v1/queues/{QUEUE}", {"limits": {"max_running": CAP, "strict": True}})
    crew = Crew(place, await place.make_key("default"))
    for _ in range(WORKERS):
        await crew.add()
    count = int(CAP / TASK_SECONDS * seconds * 0.7)
    task: dict[str, object] = {
        "type": TYPE,
        "queue": QUEUE,
        "payload": {"seconds": TASK_SECONDS},
        "retry": {"max_attempts": 50, "min_backoff": 0.1, "max_backoff": 1.0},
    }
    await place.flood("default", task, count).wait(60.0)
    say(f"{count:,} tasks; kills for {seconds:.0f} s")
    await _trouble(place, crew, seconds)
    async with place.database() as database:
        await _drain(database, count)
        rows = await database.fetch(
            "SELECT task::text, number, outcome, extract(epoch FROM picked_at)::float8 AS picked_at, "
            "extract(epoch FROM completed_at)::float8 AS completed_at FROM duetime.attempt"
        )
    held = _join(crew.journals, rows)
    claims = [Held(row["picked_at"], row["completed_at"], None) for row in rows if row["picked_at"] is not None]
    overruns = [each for each in held if each.is_overrun]
    outcome.ask("most attempts at once, by the workers' journals", _most_at_once(held), "", most=CAP)
    outcome.ask("most attempts at once, by the database's history", _most_at_once(claims), "", most=CAP)
    outcome.tell("attempts", len(rows))
    outcome.tell("attempts that lapsed or were released", sum(row["outcome"] not in REPORTED for row in rows))
    outcome.tell("node processes killed", crew.node_kills)
    outcome.tell("workers killed", crew.worker_kills)
    outcome.tell("workers stopped", crew.stops)
    outcome.tell("attempts that went on after that (stopped workers)", len(overruns))
    in_fact = [Held(each.began_at, each.ended_at or each.over_at, each.ended_at) for each in held]
    outcome.tell("most handlers at once, those counted too", _most_at_once(in_fact))
    outcome.plots.append(("caps", "Attempts at once under kills", _draw(held)))


class Crew:
    """Worker processes that are started and stopped, and which of them were killed."""

    def __init__(self, place: Place, key: str) -> None:
        self._place = place
        self._key = key
        self.workers: list[Child] = []
        self.journals: list[Path] = []
        self.node_kills = self.worker_kills = self.stops = 0

    async def add(self) -> None:
        name = f"guarded-{len(self.journals)}"
        journal = self._place.folder / f"{name}.journal"
        self.journals.append(journal)
        words = (journal, self._place.node.url, self._key, QUEUE)
        self.workers.append(await self._place.start_program("guarded", *words, name=name))

    async def replace(self, worker: Child) -> None:
        worker.kill()
        self.workers.remove(worker)
        self.worker_kills += 1
        await self.add()

    def kill_node(self, chance: random.Random) -> None:
        """Kill one of the processes behind the port; its supervisor starts another one."""
        children = [
            child
            for child in psutil.Process(self._place.node.pid).children(recursive=True)
            if "duetime.child" in child.cmdline()
        ]
        if children:
            chance.choice(children).kill()
            self.node_kills += 1


async def _trouble(place: Place, crew: Crew, seconds: float) -> None:
    """A kill or a stop every few seconds, the same for each run."""
    chance = random.Random(5)
    deadline = time.monotonic() + seconds
    waking: list[asyncio.Task[None]] = []
    turn = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(chance.uniform(2.0, 4.0))
        free = [worker for worker in crew.workers if worker.poll() is None]
        match turn % 3:
            case 0:
                crew.kill_node(chance)
            case 1:
                await crew.replace(free[0])
            case _ if not any(not task.done() for task in waking):
                stopped = free[-1]
                os.kill(stopped.pid, signal.SIGSTOP)
                crew.stops += 1
                waking.append(asyncio.create_task(_wake(stopped)))
        turn += 1
    await asyncio.gather(*waking)


async def _wake(worker: Child) -> None:
    await asyncio.sleep(STOP_SECONDS)
    if worker.poll() is None:
        os.kill(worker.pid, signal.SIGCONT)


async def _drain(database: asyncpg.Connection, count: int) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while (done := await database.fetchval("SELECT count(*) FROM duetime.attempt WHERE final")) < count:
        if time.monotonic() > deadline:
            raise BenchError(f"{done:,} of {count:,} tasks came to their end")
        await asyncio.sleep(0.5)


def _join(journals: list[Path], rows: list[asyncpg.Record]) -> list[Held]:
    """Each attempt that began: until it ended, or until the database counted it as over."""
    over = {(row["task"], row["number"]): row for row in rows}
    began: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for journal in journals:
        if journal.exists():
            for line in journal.read_text().splitlines():
                word, task, number, at = line.split()
                (began if word == "b" else ended)[task, int(number)] = float(at)
    held = []
    for attempt, began_at in began.items():
        row, ended_at = over.get(attempt), ended.get(attempt)
        is_taken = row is not None and row["outcome"] not in REPORTED
        if ended_at is None and row is None:
            raise BenchError(f"attempt {attempt[1]} of task {attempt[0]} has no end")
        ends = [ended_at] if ended_at is not None else []
        if row is not None and (is_taken or ended_at is None):
            ends.append(row["completed_at"])
        held.append(Held(began_at, min(ends), ended_at))
    return held


def _most_at_once(held: list[Held]) -> int:
    moments = sorted([(each.over_at, -1) for each in held] + [(each.began_at, 1) for each in held])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def _draw(held: list[Held]) -> str:
    first = min(each.began_at for each in held)
    span = int(max(each.over_at for each in held) - first) + 1
    # Counted ten times a second; the highest count of each second is shown.
    points = []
    for second in range(span):
        looks = [first + second + look / 10 for look in range(10)]
        points.append((float(second), float(max(sum(h.began_at <= at < h.over_at for h in held) for at in looks))))
    panel = Panel(
        "attempts at once", "most in each second", [Line("running", points)], level=(float(CAP), "max_running")
    )
    subtitle = "three node processes and three workers, killed and stopped in turn"
    return draw_lines("Attempts at once under kills", subtitle, "s", [panel])
