"""Clocks that jump: the database's, under a library that fakes it, and a node's own.

Only the wall clock is faked; monotonic time runs on, as it does on a machine
whose clock is set.
"""

import asyncio
import ctypes
import glob
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from duetime import AsyncClient
from duetime.admin.first_keys import ensure_default
from duetime.database.embedded import EmbeddedServer
from duetime.database.migrate import migrate
from duetime.database.pool import Database
from faults.cast import Cast, begun, has_begun, until
from faults.processes import ServeProcess

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
