"""A separate node: `duetime up` as a child process, with its data in a folder that can be thrown away."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

START_SECONDS = 60.0


class NodeProcess:
    """One `duetime up` with its data folder; `url` and `key` once it is ready."""

    def __init__(
        self, data: Path, *, port: int = 0, arguments: tuple[str, ...] = (), python: tuple[str, ...] = (sys.executable,)
    ) -> None:
        self.data = data
        self.port = port
        self.arguments = arguments
        self.python = python
        self.url = ""
        self.key = ""
        self.log = data.parent / f"{data.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "NodeProcess":
        command = [*self.python, "-m", "duetime.cli.main", "up", "--json", "--port", str(self.port)]
        command += ["--data", str(self.data), *self.arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "DUETIME_LOG_LEVEL": "info"}
            )
        line = self._read_line()
        if not line:
            raise RuntimeError(f"the node did not start:\n{self.log.read_text()[-3000:]}")
        ready = json.loads(line)
        # Only the start that makes the key prints it.
        self.url, self.key = ready["url"], ready["key"] or Path(ready["key_file"]).read_text().strip()
        # After a restart it must have the same address.
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    def allow(self, **quotas: int) -> None:
        """Give the key's tenant other quotas than the default ones."""
        request = urllib.request.Request(
            f"{self.url}/v1/tenants/default",
            json.dumps({"quotas": quotas}).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS):
            pass

    def _read_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if selector.select(0.2):
                    return self._process.stdout.readline()
        return b""

    def stop(self, number: int = signal.SIGTERM, seconds: float = 40.0) -> int:
        """Ask it to stop. Return its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(seconds)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def kill(self) -> None:
        """kill -9, without a clean stop."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def postgres_pid(self) -> int:
        """The pid of the embedded server's postmaster."""
        return int((self.data / "postgres" / "postmaster.pid").read_text().splitlines()[0])
