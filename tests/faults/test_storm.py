"""Thousands of tasks through workers and HTTP targets while node, worker, executor and PostgreSQL are killed with -9.

The executor lives in its node: each kill of a node is one of an executor with
calls in flight.  The first node brings PostgreSQL, which dies with it; the
second one is killed beside a database that lives on.

A task may be caught by kills three times and be dead by its crash budget: that
is its stated end, and it is redriven until it succeeds.
"""

import asyncio
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

import services
from depth import far
from duetime import AsyncClient
from duetime.admin.invariants import check_invariants
from duetime.database.pool import Database
from duetime.ids import due_ms_of
from duetime.model.task import Outcome
from faults.processes import ServeProcess, TargetProcess, WorkerProcess, embedded_url
from faults.storm import Stopwatch, Storm, show
from nodes import NodeProcess
from services import Server

#: Kills come by progress: so many tasks that some hundreds are begun between two of them.
COUNT = far(5_000, 20_000)
KILLS = {"node": 3, "second node": 3, "worker": 6, "PostgreSQL": 4}
HARD_LIMIT_SECONDS = 600.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


@pytest.fixture
async def effects_url(postgres_server: Server) -> AsyncIterator[str]:
    """The handlers' own database, on a server that nobody kills."""
    name = postgres_server.make_database("template0")
    url = postgres_server.url_of(name)
    connection = await asyncpg.connect(url)
    # No key: a second effect of one task would be a second row.
    await connection.execute("CREATE TABLE effect (task text NOT NULL, worker text NOT NULL)")
    await connection.close()
    yield url
    postgres_server.drop_database(name)


@pytest.fixture
async def storm(folder: Path, effects_url: str) -> AsyncIterator[Storm]:
    seed = int(os.environ.get("DUETIME_FAULT_SEED", random.randrange(1 << 32)))
    settings = folder / "settings.toml"
    # All pushed tasks go to one host: no more calls at a time than it may have.
    settings.write_text("executor_calls = 64\n")
    node = NodeProcess(folder / "node", arguments=("--node-name", "first", "--config", str(settings))).start()
    second = ServeProcess(folder, "second", embedded_url(node), "--config", str(settings))
    second.start()
    async with AsyncClient(node.url, node.key) as client:
        target = TargetProcess(folder, await client.signing_secret(), effects_url)
    target.start()
    workers = [
        WorkerProcess(folder, f"worker-{place}", url, node.key, "async,plain", effects_url)
        for place, url in enumerate((node.url, node.url, second.url))
    ]
    for worker in workers:
        worker.start()
    yield Storm(folder, node, second, workers, target, COUNT, KILLS, seed)
    for process in (*workers, second, node):
        if process.is_running:
            process.stop()
    target.kill()


async def test_thousands_of_tasks_survive_kills_of_everything(
    storm: Storm, effects_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Stopwatch()
    with capsys.disabled():
        print(f"\n  seed {storm.seed} (DUETIME_FAULT_SEED={storm.seed} repeats the order of kills)")

    async with asyncio.timeout(HARD_LIMIT_SECONDS):
        await storm.run()
        stormy_seconds = watch.seconds
        database = await Database.open(embedded_url(storm.node), size=2)
        try:
            redriven = await settle_down(storm, database)
            seconds = watch.seconds
            attempts = await read_attempts(database)
            taken_away = await read_released_by_the_living(database)
            stored = {str(row["id"]) for row in await database.fetch("SELECT id FROM task", timeout=60.0)}
            violations = await check_invariants(database, deep=True)
        finally:
            await database.close()
    storm.look()
    effects = await read_effects(effects_url)

    starts = {start.attempt: start for start in storm.journal.starts}
    outcomes = Counter(outcome for outcome, _ in attempts.values())
    ended = [task for (task, _), (outcome, final) in attempts.items() if final and outcome is Outcome.SUCCEEDED]
    acknowledged = set(storm.acknowledged.values())
    lapsed = {attempt for attempt, (outcome, _) in attempts.items() if outcome is Outcome.LAPSED}
    announced = lapsed - set(starts)
    rows: dict[str, object] = {
        "submitted": len(storm.acknowledged),
        "settled": len(ended),
        "lost": len(acknowledged - set(ended)),
        "attempts": len(attempts),
        "repeated": len(attempts) - len(stored),
        **{f"  {outcome.word}": outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
        "dead and redriven": ", ".join(f"{reason} {count}" for reason, count in redriven.items()) or 0,
        "starts in the holders' logs": len(storm.journal.starts),
        "started and then released": sum(
            outcome is Outcome.RELEASED and attempt in starts for attempt, (outcome, _) in attempts.items()
        ),
        "  of a holder that lived on": len(taken_away & set(starts)),
        "announced and not begun": len(announced),
        "effects": len(effects),
        **{f"kills -9 of {kind}": count for kind, count in storm.killed.items()},
        "kills -9 of an executor": storm.killed["node"] + storm.killed["second node"],
        "seconds until the last kill": round(stormy_seconds, 1),
        "seconds": round(seconds, 1),
    }
    with capsys.disabled():
        print(show(rows))

    assert len(acknowledged) == COUNT
    assert stored == acknowledged, "exactly what was acknowledged is there"
    assert sorted(ended) == sorted(acknowledged), "every task has exactly one final attempt, and it succeeded"
    twice = [attempt for attempt, count in Counter(s.attempt for s in storm.journal.starts).items() if count > 1]
    assert twice == [], [(attempt, storm.journal.attempts(attempt[0])) for attempt in twice]
    assert set(starts) <= set(attempts), "what was started is written down"
    not_run = [a for a, (outcome, _) in attempts.items() if outcome in (Outcome.SUCCEEDED, Outcome.FAILED)]
    assert set(not_run) <= set(starts), "nobody reports what it did not run"
    assert [attempt for attempt in announced if not is_recovered(attempt, attempts)] == [], (
        "an attempt in no holder's log costs no budget"
    )
    early = [s for s in storm.journal.starts if s.at_ns // 1_000_000 < due_ms_of(uuid.UUID(s.task))]
    assert early == []
    assert Counter(effects) == Counter(acknowledged), "one effect for each task"
    assert violations == [], [violation.sentence for violation in violations]
    assert set(redriven) <= {"crashes"}
    assert storm.killed == KILLS


def is_recovered(attempt: tuple[str, int], attempts: dict[tuple[str, int], tuple[Outcome, bool]]) -> bool:
    """Whether it is only begun after its holder has said so: then what it said counts, in place of its log."""
    task, number = attempt
    before = [attempts[task, each][0] for each in range(1, number)]
    return Outcome.LAPSED in before or Outcome.RELEASED in before


async def settle_down(storm: Storm, database: Database) -> Counter[str]:
    """Wait until nothing is open, and redrive what is dead; returns the reasons of the dead."""
    redriven: Counter[str] = Counter()
    async with AsyncClient(storm.node.url, storm.node.key, retry_for=60.0) as client:
        while True:
            [row] = await database.fetch(
                "SELECT (SELECT count(*) FROM due) + (SELECT count(*) FROM claim) + (SELECT count(*) FROM held) AS open"
            )
            dead = await database.fetch("SELECT task, reason FROM dead")
            if dead:
                redriven.update(each["reason"] for each in dead)
                await client.redrive([each["task"] for each in dead])
            elif row["open"] == 0:
                return redriven
            await asyncio.sleep(0.2)


async def read_attempts(database: Database) -> dict[tuple[str, int], tuple[Outcome, bool]]:
    rows = await database.fetch("SELECT task, number, outcome, final FROM attempt", timeout=60.0)
    return {(str(row["task"]), row["number"]): (Outcome(row["outcome"]), row["final"]) for row in rows}


async def read_released_by_the_living(database: Database) -> set[tuple[str, int]]:
    rows = await database.fetch(
        "SELECT attempt.task, attempt.number FROM attempt JOIN holder ON holder.id = attempt.holder"
        " WHERE attempt.outcome = $1 AND holder.ended_at IS NULL",
        int(Outcome.RELEASED),
        timeout=60.0,
    )
    return {(str(row["task"]), row["number"]) for row in rows}


async def read_effects(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    try:
        return [row["task"] for row in await connection.fetch("SELECT task FROM effect")]
    finally:
        await connection.close()
