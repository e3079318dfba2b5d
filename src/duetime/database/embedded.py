"""The PostgreSQL that comes with duetime: duetime makes, starts, watches and stops it.

One folder holds everything: the cluster, its password, its port, its log.  A lock on
the folder keeps a second launcher out.  PostgreSQL runs as a direct child in a session
of its own, so a Ctrl-C in the terminal reaches only duetime, and it ends when duetime
does, however that ends.  If it ends by itself, it is started again at the same address.
Anything that is wrong with the folder or the machine is reported in one sentence
(`UsageError`).

Start it from a thread that lives as long as the server should: on Linux the child ends
with the thread that started it.
"""

import asyncio
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import asyncpg
import structlog

from duetime.database import launch, leftovers, writeback
from duetime.database.binaries import Account, Binaries, find_account, find_binaries
from duetime.database.driver import DroppedConnection
from duetime.database.folder import DataFolder, write_private
from duetime.database.statements import load
from duetime.errors import UsageError

USER = DATABASE = "duetime"
#: The largest size of the log before it is cut; the part before is kept once.
LOG_LIMIT_BYTES = 8 << 20
#: Chosen for two cores and a few gigabytes; `ALTER SYSTEM` overrides any of these.
SETTINGS: dict[str, str] = {
    "max_connections": "50",
    "shared_buffers": "256MB",
    "huge_pages": "off",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    # A statement over a partitioned table locks each partition and each index of it.
    "max_locks_per_transaction": "256",
    "max_parallel_workers_per_gather": "0",
    "io_method": "sync",
    "jit": "off",
    "random_page_cost": "1.1",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_buffers": "16MB",
    # Filling a new segment with zeros first delays every commit by about 50 ms, once a second in a burst.
    "wal_init_zero": "off",
    "min_wal_size": "128MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "10min",
    "autovacuum": "on",
    "autovacuum_max_workers": "2",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
    # Statements contain payloads, which must not be in a log.
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_INITDB_OPTIONS = [
    f"--username={USER}",
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
    # The files that it leaves show whether the disk was full.
    "--no-clean",
]
#: The limit of macOS; Linux allows four bytes more.
MAX_SOCKET_PATH = 103
_START_SECONDS = 300.0
_INITDB_SECONDS = 120.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 0.1
_READY_LINE = 7

_SQL = load(__package__, "embedded.sql")
_log = structlog.get_logger(__name__)


class EmbeddedServer:
    """One PostgreSQL server on the loopback, with its data in one folder."""

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        is_supervised: bool = True,
        on_restart: Callable[[int], None] | None = None,
    ) -> None:
        self._folder = DataFolder(data)
        self.data = self._folder.path
        self._settings = {**SETTINGS, **(settings or {})}
        self._environment = {"LC_ALL": "C", "PATH": os.defpath, **(environment or {})}
        self._is_supervised = is_supervised
        self._on_restart = on_restart
        self._cluster = self.data / "postgres"
        self._log_file = self.data / "postgres.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._writeback: subprocess.Popen[bytes] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._account: Account
        self._binaries: Binaries
        self._password = ""
        self._port = 0
        #: Not every file system supports sockets.
        self._has_socket = True

    @property
    def pid(self) -> int:
        """The pid of the postmaster."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def port(self) -> int:
        return self._port

    @property
    def dsn(self) -> str:
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        return self._dsn_at("127.0.0.1", database)

    def local_dsn_of(self, database: str) -> str:
        """The address for programs on this machine: the folder's socket if there is one, which costs less than TCP."""
        if self._has_socket and len(os.fsencode(self._cluster / f".s.PGSQL.{self._port}")) <= MAX_SOCKET_PATH:
            return self._dsn_at(quote(str(self._cluster), safe=""), database)
        return self.dsn_of(database)

    def _dsn_at(self, host: str, database: str) -> str:
        return f"postgresql://{USER}:{quote(self._password)}@{host}:{self._port}/{database}?sslmode=disable"

    async def start(self) -> str:
        """Make the cluster if there is none, and start it. Return its address."""
        try:
            self._folder.open()
            owner = self._cluster.stat().st_uid if self._cluster.exists() else None
            self._account = find_account(owner)
            self._binaries = find_binaries(self._account)
            if self._cluster.exists():
                self._check_version()
            else:
                await self._make_cluster()
            self._password = (self.data / "password").read_text().strip()
            self._write_settings()
            await self._launch_at_a_free_port()
            await self._ensure_database()
            self._writeback = writeback.start(str(self._cluster))
        except OSError as error:
            await self.stop()
            raise self._folder.explain(error) from error
        except BaseException:
            await self.stop()
            raise
        if self._is_supervised:
            self._supervisor = asyncio.create_task(self._supervise(), name="postgres")
        return self.local_dsn_of(DATABASE)

    async def stop(self, deadline_seconds: float = 10.0) -> None:
        """Stop it cleanly. After the deadline it is stopped at once, and recovers at its next start."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        if self._writeback is not None:
            self._writeback.kill()
            self._writeback.wait()
            self._writeback = None
        for stop_signal, seconds in ((signal.SIGINT, deadline_seconds), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 6.0)):
            if self._process is None or self._process.poll() is not None:
                break
            self._process.send_signal(stop_signal)
            await self._wait_for_exit(self._process, seconds)
        self._process = None
        self._folder.close()

    def _check_version(self) -> None:
        made_by = (self._cluster / "PG_VERSION").read_text().strip()
        ours = self._binaries.major_version()
        if made_by != str(ours):
            raise UsageError(
                f"{self.data} was made by PostgreSQL {made_by} and this duetime brings PostgreSQL {ours}: "
                "use the duetime that made it, or move the data with pg_dump"
            )

    async def _make_cluster(self) -> None:
        """Run initdb beside the final place, so that a half-made cluster is never used as a complete one."""
        for abandoned in self.data.glob("postgres.new-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        password = self.data / "password"
        password.touch(mode=0o600)
        with password.open("w") as file:
            file.write(secrets.token_urlsafe(24))
            file.flush()
            # If a cluster survives a power cut, its password must survive it too.
            os.fsync(file.fileno())
        fresh = self.data / f"postgres.new-{secrets.token_hex(4)}"
        fresh.mkdir(mode=0o700)
        output = self.data / "initdb.log"
        # The server's user reads the password from an open file, wherever the folder is.
        with password.open() as secret, output.open("wb") as log:
            self._give_to_account(fresh, password)
            process = self._spawn(
                self._binaries.initdb,
                [f"--pwfile=/dev/fd/{secret.fileno()}", *_INITDB_OPTIONS],
                fresh,
                log.fileno(),
                (secret.fileno(),),
            )
            try:
                await self._wait_for_exit(process, _INITDB_SECONDS)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            os.chown(password, os.geteuid(), os.getegid())
        if process.returncode != 0:
            failure = self._folder.explain_output(
                "PostgreSQL's data cannot be made", output.read_text(errors="replace")
            )
            shutil.rmtree(fresh, ignore_errors=True)
            raise failure
        output.unlink()
        fresh.rename(self._cluster)
        _sync_folder(self.data)

    def _write_settings(self) -> None:
        lines = [f"{name} = '{value}'" for name, value in self._settings.items()]
        text = "# Written at each start of duetime; use ALTER SYSTEM for settings of your own.\n" + "\n".join(lines)
        fresh = self._cluster / "postgresql.conf.new"
        fresh.write_text(text + "\n")
        fresh.chmod(0o600)
        self._give_to_account(fresh)
        fresh.rename(self._cluster / "postgresql.conf")

    def _give_to_account(self, *paths: Path) -> None:
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, self._account.uid, self._account.gid)

    async def _launch_at_a_free_port(self) -> None:
        """The port of last time if it is free, so that the address mostly stays the same."""
        port_file = self.data / "port"
        remembered = port_file.read_text().strip() if port_file.exists() else ""
        for attempt in range(5):
            last = int(remembered) if remembered.isdigit() and attempt == 0 else None
            self._port = last if last and _is_free(last) else find_free_port()
            try:
                await self._launch()
                break
            except UsageError as error:
                if self._has_socket and "Unix-domain socket" in error.detail:
                    self._has_socket = False
                elif "Address already in use" not in error.detail or attempt == 4:
                    raise
        write_private(port_file, str(self._port))

    async def _launch(self) -> None:
        """Start the server and wait until it accepts connections."""
        await leftovers.end(self._cluster)
        self._bound_log()
        with self._log_file.open("ab") as log:
            self._log_file.chmod(0o600)
            log_start = log.tell()
            arguments = ["-c", f"port={self._port}", "-c", "listen_addresses=127.0.0.1"]
            # The socket is in the cluster's own folder, which nobody else can use.
            arguments += ["-c", f"unix_socket_directories={'.' if self._has_socket else ''}"]
            arguments += ["-c", f"cluster_name={leftovers.mark(self._cluster)}"]
            process = self._spawn(self._binaries.postgres, arguments, self._cluster, log.fileno())
        self._process = process
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_SECONDS
        while not self._is_ready(process.pid):
            is_late = loop.time() > deadline
            if is_late:
                process.kill()
            if is_late or process.poll() is not None:
                process.wait()
                with self._log_file.open("rb") as log:
                    log.seek(log_start)
                    raise self._folder.explain_output("PostgreSQL does not start", log.read().decode(errors="replace"))
            await asyncio.sleep(_POLL_SECONDS)

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > _READY_LINE and lines[0] == str(pid) and lines[_READY_LINE].strip() == "ready"

    def _spawn(
        self, program: Path, arguments: list[str], cluster: Path, output: int, open_files: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        # The server's user may have no access to the parents of the folder (a private home), but it owns the folder
        # itself: an open descriptor of the folder needs no path.
        folder = os.open(cluster, os.O_RDONLY | os.O_DIRECTORY)
        is_by_descriptor = os.geteuid() == 0 and sys.platform == "linux"
        path = f"/proc/self/fd/{folder}" if is_by_descriptor else str(cluster)
        who = [str(os.getpid()), str(self._account.uid), str(self._account.gid)]
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, *who, str(program), "-D", path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd="/",
                pass_fds=(*open_files, folder) if is_by_descriptor else open_files,
                # A Ctrl-C in the terminal is for duetime, which then stops the server in order.
                start_new_session=True,
            )
        finally:
            os.close(folder)

    async def _wait_for_exit(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while process.poll() is None and loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    async def _supervise(self) -> None:
        """Start the server again whenever it ends; keep its log short."""
        rounds = 0
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            rounds += 1
            if rounds % 50 == 0:
                self._bound_log()
            if rounds % 10 == 0 and self._writeback is not None and self._writeback.poll() is not None:
                # The loop that watches the server must not end because a helper cannot be started.
                with suppress(OSError):
                    self._writeback = writeback.start(str(self._cluster))
            if self._process is None or self._process.poll() is None:
                continue
            _log.warning("PostgreSQL ended and is started again", status=self._process.returncode)
            delay = 0.1
            while True:
                try:
                    await self._launch()
                    break
                except (UsageError, OSError) as error:
                    _log.error("PostgreSQL cannot be started again", error=str(error), retry_seconds=delay)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, 2.0)
            _log.info("PostgreSQL is back", pid=self._process.pid)
            if self._on_restart is not None:
                self._on_restart(self._process.pid)

    def _bound_log(self) -> None:
        """Cut the log in place: the server appends to the file it has open."""
        try:
            if self._log_file.stat().st_size > LOG_LIMIT_BYTES:
                shutil.copyfile(self._log_file, self._log_file.with_suffix(".log.1"))
                os.truncate(self._log_file, 0)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("PostgreSQL's log cannot be cut", error=str(error))

    async def _ensure_database(self) -> None:
        try:
            connection = await asyncpg.connect(
                self.dsn_of("postgres"), timeout=30.0, command_timeout=60.0, connection_class=DroppedConnection
            )
            try:
                if not await connection.fetchval(_SQL["has_database"].sql, DATABASE):
                    await connection.execute(_SQL["create_database"].spelled(database=DATABASE).sql)
            finally:
                await connection.close(timeout=5.0)
        except asyncpg.PostgresError as error:
            raise self._folder.explain_output("PostgreSQL does not work", str(error)) from error


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def find_free_port() -> int:
    """A free port below the range from which the kernel gives ports to outgoing connections."""
    while True:
        port = random.randrange(15000, 32000)
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
