"""The servers of the benchmark: its own PostgreSQL and Redis, and programs from Debian's packages.

PostgreSQL is the one that comes with duetime, started by duetime's own code with its
own settings: everything durable (fsync, full_page_writes and synchronous_commit
on).  All peers that use PostgreSQL and duetime itself run on the same server, one
after the other, each run in a database that was made for it, after a checkpoint
that leaves the server nothing to do.  Redis appends to its file and syncs it every
second, or before each answer; each run gets an empty one.  Only the server of the
current run is up.
"""

import asyncio
import os
import shutil
import socket
import time
from pathlib import Path

import asyncpg

from bench.processes import BenchError, Child, run_program
from duetime.database.embedded import EmbeddedServer, find_free_port

DATABASE = "bench"
EMPTY_DATABASE = "bench_empty"
_APT = ["apt-get", "-qq", "-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]
_APT_SECONDS = 600.0
_START_SECONDS = 10.0
#: The first run that writes so much log must not pay for new files while later runs use them again.
_LOG_MEGABYTES = 512


class Postgres:
    """The PostgreSQL of duetime and of all peers that use one."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedServer(folder, is_supervised=False)
        self._is_new = not folder.exists()
        self.is_up = False
        #: The database of the run, or the one beside it.
        self.database = DATABASE

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def dsn(self) -> str:
        """The address of the run's database, by the socket in its folder: for duetime and for all peers."""
        return self._server.local_dsn_of(self.database)

    async def start(self) -> None:
        await self._server.start()
        self.is_up = True
        if self._is_new:
            self._is_new = False
            await self.execute(
                "SELECT count(pg_logical_emit_message(false, 'bench', repeat('x', 1 << 20))) "
                f"FROM generate_series(1, {_LOG_MEGABYTES})",
                "CHECKPOINT",
            )

    async def stop(self) -> None:
        self.is_up = False
        await self._server.stop()

    async def clear(self) -> None:
        """Make an empty database, and wait until the server has nothing to do."""
        self.database = DATABASE
        await self.execute(
            f"DROP DATABASE IF EXISTS {EMPTY_DATABASE} WITH (FORCE)",
            f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)",
            f"CREATE DATABASE {DATABASE}",
            "CHECKPOINT",
        )

    async def add_empty(self) -> None:
        """Make a second database beside that of the run (`EMPTY_DATABASE`), to compare with."""
        await self.execute(f"CREATE DATABASE {EMPTY_DATABASE}", "CHECKPOINT")

    async def execute(self, *statements: str) -> None:
        """Run statements of an administrator, outside the run's database."""
        connection = await asyncpg.connect(self._server.dsn_of("postgres"), timeout=30.0, command_timeout=120.0)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close(timeout=5.0)

    async def version(self) -> str:
        connection = await asyncpg.connect(self._server.dsn_of("postgres"), timeout=30.0)
        try:
            return str(await connection.fetchval("SHOW server_version"))
        finally:
            await connection.close(timeout=5.0)


class Redis:
    """Redis with an append-only file.

    Synced every second, as its documentation recommends for a queue; with `is_synced`
    before each answer, which makes it as durable as PostgreSQL.
    """

    def __init__(self, folder: Path, is_synced: bool = False) -> None:
        self._folder = folder
        self._is_synced = is_synced
        self._child: Child | None = None
        self.port = 0
        self.is_up = False

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        program = await find_program("redis-server", "redis-server", self._folder.parent)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = find_free_port()
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self._folder), "appendonly": "yes"}
        # No snapshots: the append-only file makes it durable.
        options |= {"appendfsync": "always" if self._is_synced else "everysec", "save": "", "daemonize": "no"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._child = Child("redis", [program, *words], folder=self._folder.parent)
        self.is_up = True
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"Redis does not start{self._child.tail()}")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.is_up = False
        if self._child is not None:
            await self._child.stop()
            self._child = None
        shutil.rmtree(self._folder, ignore_errors=True)

    async def clear(self) -> None:
        """Start a Redis that is empty, also in its file."""
        await self.stop()
        await self.start()

    async def version(self) -> str:
        program = await find_program("redis-server", "redis-server", self._folder.parent)
        ended = await run_program("redis-version", [program, "--version"], folder=self._folder.parent, seconds=30.0)
        # "Redis server v=7.0.15 sha=…"
        return ended.output.split("v=", 1)[1].split()[0]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


async def find_program(name: str, packages: str, folder: Path) -> Path:
    """Find the program; install it from Debian's packages if that is allowed."""
    if found := shutil.which(name):
        return Path(found)
    if shutil.which("apt-get") is None:
        raise BenchError(f"there is no {name}: install it")
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    try:
        await run_program("root", [*as_root, "true"], folder=folder, seconds=30.0)
    except BenchError as error:
        raise BenchError(f"there is no {name}: run apt-get install {packages} as root") from error
    # In this run level, Debian does not start a server that comes with a package.
    quietly = ["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"]
    for words in (["update"], ["install", *packages.split()]):
        await run_program("apt-get", [*as_root, *quietly, *_APT, *words], folder=folder, seconds=_APT_SECONDS)
    if found := shutil.which(name):
        return Path(found)
    raise BenchError(f"apt-get installed {packages}, and there is still no {name}")
