"""Clocks that jump: the database's, under a library that fakes it, and a node's own.

Only the wall clock is faked; monotonic time runs on, as it does on a machine
whose clock is set.
"""

import asyncio
import ctypes
import glob
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from duetime import AsyncClient
from duetime.admin.first_keys import ensure_default
from duetime.database.embedded import EmbeddedServer
from duetime.database.migrate import migrate
from duetime.database.pool import Database
from faults.cast import Cast, begun, has_begun, until
from faults.journal import Reader
from faults.processes import ServeProcess
from services import wait_until

HOUR = 3600


def find_library(name: str) -> str:
    """Of Debian's package faketime."""
    found = glob.glob(f"/usr/lib/*/faketime/{name}")
    assert found, "the tests need Debian's package faketime"
    return found[0]


class FakedClock:
    """The wall clock of the processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.seconds = 0
        self.set(0)
        # The library makes these itself, for the user that a process begins as; a server
        # that changes its user would then be kept out.
        self._shared = f"/{folder.name}"
        _make_semaphore(f"{self._shared}-semaphore")
        memory = Path("/dev/shm", f"{self._shared[1:]}-memory")
        memory.write_bytes(bytes(4096))
        memory.chmod(0o666)
        self.environment = {
            "LD_PRELOAD": find_library("libfaketime.so.1"),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_SHARED": f"{self._shared}-semaphore {self._shared}-memory",
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: int) -> None:
        """So far from the true time, from now on."""
        self.seconds = seconds
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.chmod(0o644)
        os.replace(fresh, self._file)

    def close(self) -> None:
        for left in Path("/dev/shm").glob(f"*{self._shared[1:]}-*"):
            left.unlink()


def _make_semaphore(name: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.sem_open.restype = ctypes.c_void_p
    before = os.umask(0)
    try:
        made = library.sem_open(name.encode(), os.O_CREAT | os.O_EXCL, 0o666, 1)
    finally:
        os.umask(before)
    assert made, os.strerror(ctypes.get_errno())
    library.sem_close(ctypes.c_void_p(made))


@pytest.fixture
def clock(folder: Path) -> Iterator[FakedClock]:
    clock = FakedClock(folder)
    yield clock
    clock.close()


@pytest.fixture
async def faked(folder: Path, clock: FakedClock) -> AsyncIterator[Cast]:
    """Nodes and workers on a database whose clock the test sets."""
    server = EmbeddedServer(folder / "database", environment=clock.environment, is_supervised=False)
    url = await server.start()
    database = await Database.open(url, size=2)
    async with database.connection() as connection:
        await migrate(connection)
    _, key = await ensure_default(database)
    assert key is not None
    cast = Cast(folder, url, key, database)
    yield cast
    await asyncio.to_thread(cast.end)
    await database.close()
    await server.stop()


async def jump(clock: FakedClock, seconds: int, node: ServeProcess) -> None:
    """Set the database's clock; returns when the node has read it, which it does once a second."""
    before = node.output().count("clock jumped")
    clock.set(seconds)
    await until(lambda: node.output().count("clock jumped") > before)


async def is_early(database: Database) -> int:
    """How many attempts were picked before their time, by the database's own clock."""
    rows = await database.fetch(
        "SELECT count(*) AS early FROM attempt JOIN task ON task.lane = attempt.lane AND task.id = attempt.task"
        " WHERE attempt.picked_at < task.run_at"
    )
    early: int = rows[0]["early"]
    return early


async def test_a_database_clock_that_jumps_lapses_nothing_and_nothing_is_early(faked: Cast, clock: FakedClock) -> None:
    node = await faked.serve()
    worker = faked.worker(node)
    gate = faked.gate()
    async with AsyncClient(node.url, faked.key) as client:
        running = await client.submit("fault.async", {"until": str(gate)})
        in_half_an_hour = await client.submit("fault.async", {}, delay=HOUR / 2)
        tomorrow = await client.submit("fault.async", {}, delay=24 * HOUR)
        await begun(worker.journal, running.id)

        await jump(clock, +HOUR, node)
        ahead = await client.submit("fault.async", {})
        soon_ahead = await client.submit("fault.async", {}, delay=HOUR / 4)
        await begun(worker.journal, ahead.id)
        await begun(worker.journal, in_half_an_hour.id)

        await jump(clock, 0, node)
        back = await client.submit("fault.async", {})
        await begun(worker.journal, back.id)
        await jump(clock, -HOUR, node)
        behind = await client.submit("fault.async", {})
        delayed = await client.submit("fault.async", {}, delay=1)
        await begun(worker.journal, behind.id)
        await begun(worker.journal, delayed.id)
        for task in (soon_ahead, tomorrow):
            assert not has_begun(worker.journal, task.id)
            assert (await client.get(task.id)).state == "scheduled"

        await jump(clock, +2 * HOUR, node)
        await begun(worker.journal, soon_ahead.id)
        gate.touch()
        done = await client.wait(running.id, timeout=120)
        for task in (in_half_an_hour, ahead, back, behind, delayed, soon_ahead):
            await client.wait(task.id, timeout=120)

    assert [(attempt.number, attempt.outcome) for attempt in done.attempts] == [(1, "succeeded")]
    assert await faked.count("attempt", "outcome <> 1") == 0
    assert await faked.count("attempt") == 7
    assert await is_early(faked.database) == 0
    assert await faked.count("holder", "ended_at IS NOT NULL") == 0


async def test_work_goes_on_while_the_database_clock_jumps_to_and_fro(faked: Cast, clock: FakedClock) -> None:
    """Every jump back leaves the lanes' hints in a future that has been taken back."""
    node = await faked.serve()
    worker = faked.worker(node)
    async with AsyncClient(node.url, faked.key) as client:
        for seconds in (HOUR, 0, -HOUR, HOUR, -HOUR, 0):
            await jump(clock, seconds, node)
            ids = (await client.submit_many([{"type": "fault.async", "payload": {}}] * 50)).ids
            await until(lambda ids=ids: all(has_begun(worker.journal, each) for each in ids))
        async with asyncio.timeout(120):
            while await faked.count("claim"):
                await asyncio.sleep(0.02)

    assert await faked.count("attempt", "outcome = 1 AND number = 1") == 300
    assert await faked.count("attempt") == 300


async def test_a_jump_back_claims_nothing_early_and_gives_nothing_back(faked: Cast, clock: FakedClock) -> None:
    """Whatever comes due by the old clock, before the node has heard of the new one, waits for the new one."""
    node = await faked.serve()
    worker = faked.worker(node)
    target = await faked.target()
    async with AsyncClient(node.url, faked.key) as client:
        first = await client.submit("fault.async", {})
        await begun(worker.journal, first.id)
        for _ in range(3):
            # One after the other comes due, also within any second in which the node could not know better.
            tasks = [
                {"type": kind, "payload": {}, "delay": 0.5 + place * 0.05} | more
                for place in range(50)
                for kind, more in (("fault.async", {}), ("fault.call", {"target": {"url": target.url}}))
            ]
            ids = (await client.submit_many(tasks)).ids
            await asyncio.to_thread(until_some_began, worker.journal, target.journal, ids)
            await jump(clock, -30, node)
            waiting = await faked.count("due", "lane > 255")
            # Forward again: all that waited is due.
            await jump(clock, 0, node)
            for each in ids:
                assert each is not None
                await client.wait(each, timeout=120)
            assert waiting > 0

    assert await faked.count("attempt") == 301
    assert await faked.count("attempt", "outcome = 1 AND number = 1") == 301, "nothing was claimed and given back"
    assert await is_early(faked.database) == 0


def until_some_began(worker: Path, target: Path, ids: Sequence[object]) -> None:
    wanted, reader = {str(each) for each in ids}, Reader()

    def have_begun() -> bool:
        reader.read(worker, target)
        return len(wanted & reader.tasks) > 5

    wait_until(have_begun, 60.0)


# Clients name their requests by their own clocks, which may be an hour off.
@pytest.mark.parametrize("seconds", [-HOUR // 2, HOUR // 2])
async def test_what_is_submitted_in_the_moment_of_a_jump_runs_at_once(
    faked: Cast, clock: FakedClock, seconds: int
) -> None:
    """Nobody has told the node of the jump, and the first statement that meets it is a submission."""
    node = await faked.serve()
    worker = faked.worker(node)
    async with AsyncClient(node.url, faked.key, retry_for=0.0) as client:
        first = await client.submit("fault.async", {})
        await begun(worker.journal, first.id)
        await client.schedule("s", "fault.async", {}, cron="0 0 1 1 *")

        clock.set(seconds)
        single = await client.submit("fault.async", {})
        await begun(worker.journal, single.id)
        clock.set(0)
        batch = (await client.submit_many([{"type": "fault.async", "payload": {}}] * 20)).ids
        for each in batch:
            await begun(worker.journal, each)
        # A triggered run stands for the time of its request, which is the client's.
        early = await is_early(faked.database)
        clock.set(seconds)
        triggered = await client.trigger_schedule("s")
        await begun(worker.journal, triggered.task)
        for each in (first.id, single.id, *batch, triggered.task):
            assert each is not None
            await client.wait(each, timeout=120)

    assert await faked.count("attempt", "outcome = 1 AND number = 1") == 23
    assert await faked.count("attempt") == 23
    assert early == 0


async def test_the_counters_of_a_schedule_equal_its_runs_after_jumps(faked: Cast, clock: FakedClock) -> None:
    node = await faked.serve()
    faked.worker(node)

    async def next_ms() -> int:
        rows = await faked.database.fetch("SELECT next_ms FROM schedule_state")
        following: int = rows[0]["next_ms"]
        return following

    async with AsyncClient(node.url, faked.key) as client:
        await client.schedule("s", "fault.async", {}, every="1s", overlap="allow")
        for seconds in (0, -4, 0, -4):
            if seconds != clock.seconds:
                await jump(clock, seconds, node)
                # A change finds the next time anew, by the clock as it is now: those that have run have their lines.
                await client.pause_schedule("s")
                await client.resume_schedule("s")
            until_ms = await next_ms() + 4_000
            async with asyncio.timeout(60):
                while await next_ms() < until_ms:
                    await asyncio.sleep(0.05)
    node.stop()

    [row] = await faked.database.fetch(
        "SELECT fired, (SELECT count(*) FROM fire WHERE outcome = 1) AS lines FROM schedule_state"
    )
    assert row["fired"] == row["lines"] == await faked.count("task") >= 5


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_node_whose_own_clock_is_off_changes_nothing(cast: Cast, seconds: int) -> None:
    environment = {
        "LD_PRELOAD": find_library("libfaketimeMT.so.1"),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    node = await cast.serve(environment=environment)
    # What the library shares with nobody here would outlive a node that is killed.
    for left in Path("/dev/shm").glob(f"*faketime_*_{node.pid}"):
        left.unlink()
    worker = cast.worker(node)
    # It checks the signatures' time by its own, true clock.
    target = await cast.target()
    async with AsyncClient(node.url, cast.key) as client:
        now = await client.submit("fault.async", {})
        pushed = await client.submit("fault.call", {}, target=target.url)
        soon = await client.submit("fault.async", {}, delay=1)
        later = await client.submit("fault.async", {}, delay=HOUR / 2)
        done = [await client.wait(task.id, timeout=120) for task in (now, pushed, soon)]

        assert [[attempt.outcome for attempt in task.attempts] for task in done] == [["succeeded"]] * 3
        assert (await client.get(later.id)).state == "scheduled"
    assert not has_begun(worker.journal, later.id)
    assert await is_early(cast.database) == 0
