"""Processes that the fault tests start, kill with -9 and start again: nodes on a server, workers, targets."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from duetime.database.embedded import find_free_port
from nodes import NodeProcess
from services import is_running, wait_until

HERE = Path(__file__).parent
START_SECONDS = 60.0
STOP_SECONDS = 60.0


class Process:
    """One command; its output goes to a log file."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.command = command
        self.log = log
        self.environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment()
            )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; returns its exit code."""
        if self.is_running:
            self.send(number)
        return self.wait()

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self.send(signal.SIGKILL)
        self.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class ServeProcess(Process):
    """`duetime serve` on a database; every start is at the same port."""

    def __init__(
        self, folder: Path, name: str, database_url: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self.port = find_free_port()
        command = [sys.executable, "-m", "duetime.cli.main", "serve", "--database-url", database_url]
        command += ["--port", str(self.port), "--node-name", name, "--egress-allow", "127.0.0.0/8", *arguments]
        super().__init__(command, folder / f"{name}.log", environment)
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again and again while the database is away, until it is ready."""
        deadline = time.monotonic() + START_SECONDS
        super().start()
        while status_of(f"{self.url}/readyz") != 200:
            if not self.is_running:
                # Like any supervisor would: the database may be on its way back.
                super().start()
            assert time.monotonic() < deadline, self.output()[-3000:]
            time.sleep(0.02)


class WorkerProcess(Process):
    """`duetime worker` with the handlers of `journal_worker`."""

    def __init__(
        self, folder: Path, name: str, url: str, key: str, queues: str, effects_url: str = "", *arguments: str
    ) -> None:
        self.journal = folder / f"{name}.journal"
        environment = {
            "DUETIME_URL": url,
            "DUETIME_KEY": key,
            "JOURNAL": str(self.journal),
            "EFFECTS_URL": effects_url,
            "QUEUES": queues,
            "NAME": name,
        }
        super().__init__(
            [sys.executable, "-m", "duetime.cli.main", "worker", "journal_worker:worker", *arguments],
            folder / f"{name}.log",
            environment,
        )


class TargetProcess(Process):
    """The HTTP target of `journal_target`."""

    def __init__(self, folder: Path, secret: str, effects_url: str = "") -> None:
        self.journal = folder / "target.journal"
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}/call"
        environment = {"PORT": str(port), "SECRET": secret, "JOURNAL": str(self.journal), "EFFECTS_URL": effects_url}
        super().__init__([sys.executable, str(HERE / "journal_target.py")], folder / "target.log", environment)

    def start(self) -> None:
        super().start()
        wait_until(lambda: "ready" in self.output() or not self.is_running, START_SECONDS)
        assert self.is_running, self.output()


def status_of(url: str, key: str = "") -> int:
    """The status of a GET; 0 when nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def embedded_url(node: NodeProcess) -> str:
    """The address of the PostgreSQL inside `duetime up`."""
    port, password = ((node.data / name).read_text().strip() for name in ("port", "password"))
    return f"postgresql://duetime:{password}@127.0.0.1:{port}/duetime?sslmode=disable"


def kill_postgres(node: NodeProcess) -> None:
    """kill -9 of the postmaster; returns when another one has taken its place."""
    former = node.postgres_pid()
    os.kill(former, signal.SIGKILL)

    def is_back() -> bool:
        try:
            lines = (node.data / "postgres" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] != str(former) and lines[7].strip() == "ready" and is_running(int(lines[0]))

    wait_until(is_back, START_SECONDS)
