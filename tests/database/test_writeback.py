"""What PostgreSQL writes reaches the disk a little at a time: which files, and who sees to it."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import services
from duetime.database import writeback
from duetime.database.embedded import EmbeddedServer

BEFORE, AT, AFTER = 1_000.0, 2_000.0, 3_000.0

pytestmark = pytest.mark.skipif(writeback.find_begin_writing() is None, reason="this system has no such call")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two databases with two tables each, of which one was written to."""
    for database in ("1", "5"):
        (tmp_path / "base" / database).mkdir(parents=True)
        for name, written_at in (("old", BEFORE), ("new", AFTER)):
            file = tmp_path / "base" / database / name
            file.write_bytes(b"page")
            os.utime(file, (written_at, written_at))
    return tmp_path


def test_what_was_written_to_is_written_and_nothing_else(cluster: Path) -> None:
    begun: list[str] = []

    count = writeback.write_changed(str(cluster), AT, lambda file: begun.append(os.readlink(f"/proc/self/fd/{file}")))

    assert sorted(begun) == [str(cluster / "base" / database / "new") for database in ("1", "5")]
    assert count == 2


def test_a_database_that_is_dropped_meanwhile_does_not_matter(cluster: Path) -> None:
    left = cluster / "base" / "5" / "new"

    def drop(_: int) -> None:
        # Whichever comes first takes the other one with it.
        for database in ("1", "5"):
            shutil.rmtree(cluster / "base" / database, ignore_errors=True)

    assert writeback.write_changed(str(cluster), AT, drop) == 1
    assert not left.exists()


def test_the_kernel_begins_to_write_at_once(tmp_path: Path) -> None:
    """With the real call, on a file of which much is not on the disk yet."""
    begin_writing = writeback.find_begin_writing()
    assert begin_writing is not None
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(1 << 20))
        file.flush()
        assert begin_writing(file.fileno()) == 0
    assert begin_writing(-1) == -1


def find_writers(server: EmbeddedServer) -> list[psutil.Process]:
    words = [str(Path(writeback.__file__)), str(server.data / "postgres")]
    return [
        process
        for process in psutil.Process().children()
        if process.status() != psutil.STATUS_ZOMBIE and set(words) <= set(process.cmdline())
    ]


async def test_one_that_is_killed_comes_back_and_ends_with_its_server(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data")
    await server.start()
    [first] = find_writers(server)

    services.kill(first.pid)
    while not (found := find_writers(server)) or found[0].pid == first.pid:
        await asyncio.sleep(0.01)
    [second] = found
    await server.stop()

    assert not services.is_running(second.pid)
    assert not find_writers(server)


def test_it_ends_with_whoever_started_it(cluster: Path) -> None:
    program = "import sys, time; from duetime.database import writeback; p = writeback.start(sys.argv[1])"
    wait = "print(p.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{program}; {wait}", str(cluster)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert services.is_running(pid)

    parent.kill()
    parent.communicate()

    services.wait_until(lambda: not services.is_running(pid))
