"""Load on two processes while each of them is killed with -9: every task ends, once, and the rows agree."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import services
from cluster.lines import PATIENCE_SECONDS, children_of
from duetime import AsyncClient
from duetime.admin.invariants import check_invariants
from duetime.database.pool import Database
from duetime.model.task import Outcome
from faults.journal import Reader
from faults.processes import TargetProcess, WorkerProcess, embedded_url
from nodes import NodeProcess

COUNT = 3_000
BATCH = 100
#: A kill at each of these shares of all tasks begun; one process, then the other, then both.
KILLS = ((0.15, (0,)), (0.4, (1,)), (0.65, (0, 1)))
HARD_LIMIT_SECONDS = 150.0
RETRY = {"max_attempts": 12, "min_backoff": 0.1, "max_backoff": 1.0}


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


@pytest.fixture
def pair(folder: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(folder / "node", arguments=("--processes", "2")).start()
    yield process
    process.stop()


async def test_every_task_ends_once_while_processes_are_killed(folder: Path, pair: NodeProcess) -> None:
    journal = Reader()
    async with AsyncClient(pair.url, pair.key, retry_for=60.0) as client:
        target = TargetProcess(folder, await client.signing_secret())
        target.start()
        workers = [WorkerProcess(folder, f"worker-{place}", pair.url, pair.key, "work") for place in range(2)]
        for worker in workers:
            worker.start()
        database = await Database.open(embedded_url(pair), size=2)
        journals = [target.journal, *(worker.journal for worker in workers)]
        try:
            async with asyncio.timeout(HARD_LIMIT_SECONDS):
                killing = asyncio.create_task(kill(pair, journal, journals))
                ids = await submit(client, target, journal, journals)
                await killing
                await settled(database, client)
            rows = await database.fetch("SELECT task, number, outcome, final FROM attempt", timeout=60.0)
            violations = await check_invariants(database, deep=True)
            stored = {str(row["id"]) for row in await database.fetch("SELECT id FROM task", timeout=60.0)}
        finally:
            for process in (*workers, target):
                process.kill()
            await database.close()

    journal.read(*journals)
    ends = Counter(str(row["task"]) for row in rows if row["final"] and row["outcome"] == Outcome.SUCCEEDED)
    starts = Counter(start.attempt for start in journal.starts)
    assert len(ids) == COUNT
    assert stored == ids, "exactly what was acknowledged is there"
    assert set(ends) == ids, "every task succeeded"
    assert set(ends.values()) == {1}
    assert [attempt for attempt, count in starts.items() if count > 1] == [], "no attempt was run by two"
    assert {task for task, _ in starts} == ids
    assert [violation.sentence for violation in violations] == []
    async with asyncio.timeout(PATIENCE_SECONDS):
        # The one that was killed last may still be on its way back.
        while len(children_of(pair.pid)) < 2:
            await asyncio.sleep(0.02)
    ends_of_processes = [line for line in pair.log.read_text().splitlines() if "is started again" in line]
    assert len(ends_of_processes) == sum(len(places) for _, places in KILLS)
    assert all("status=-9" in line for line in ends_of_processes), ends_of_processes


async def submit(client: AsyncClient, target: TargetProcess, journal: Reader, journals: list[Path]) -> set[str]:
    """All of them, never many ahead of those who run them, so that the kills meet submissions too."""
    ids: set[str] = set()
    for first in range(0, COUNT, BATCH):
        while len(ids) - len(journal.tasks) > 5 * BATCH:
            await asyncio.sleep(0.02)
        answer = await client.submit_many([task_of(place, target) for place in range(first, first + BATCH)])
        assert None not in answer.ids
        ids |= {str(each) for each in answer.ids}
    return ids


def task_of(place: int, target: TargetProcess) -> dict[str, object]:
    task: dict[str, object] = {"type": "fault.async", "queue": "work", "payload": {"place": place}, "retry": RETRY}
    if place % 3 == 0:
        task |= {"type": "fault.call", "queue": "push", "target": {"url": target.url}}
    elif place % 10 == 7:
        task["delay"] = 0.5
    return task


async def kill(pair: NodeProcess, journal: Reader, journals: list[Path]) -> None:
    for share, places in KILLS:
        while len(journal.tasks) < share * COUNT:
            journal.read(*journals)
            await asyncio.sleep(0.02)
        while len(victims := children_of(pair.pid)) < 2:
            await asyncio.sleep(0.02)
        for place in places:
            services.kill(victims[place])
    while len(journal.tasks) < COUNT:
        journal.read(*journals)
        await asyncio.sleep(0.02)


async def settled(database: Database, client: AsyncClient) -> None:
    """Wait until nothing is open; what kills have caught three times is dead, and redriven."""
    while True:
        [row] = await database.fetch("SELECT (SELECT count(*) FROM due) + (SELECT count(*) FROM claim) AS open")
        dead = await database.fetch("SELECT task, reason FROM dead")
        if dead:
            assert {each["reason"] for each in dead} == {"crashes"}
            await client.redrive([each["task"] for each in dead])
        elif row["open"] == 0:
            return
        await asyncio.sleep(0.1)
