"""Server processes that outlived their launcher or their postmaster.

The title of every process of an embedded server contains the mark of its cluster, so
that it can be distinguished from any other PostgreSQL.  Only the launcher that holds
the lock of the data folder may end these processes.
"""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import structlog

from duetime.errors import UsageError

#: A postmaster gives its children 5 s before it kills them.
_PATIENCE_SECONDS = 6.0

_log = structlog.get_logger(__name__)


def mark(cluster: Path) -> str:
    """A name for the folder itself, not for its path or content: a copy of the folder has another mark."""
    facts = cluster.stat()
    return "duetime-" + hashlib.sha256(f"{facts.st_dev}:{facts.st_ino}".encode()).hexdigest()[:16]


async def end(cluster: Path) -> None:
    """End what is left of an earlier server on this folder, and delete its pid files."""
    own_mark = mark(cluster)
    postmaster = _read_pid(cluster / "postmaster.pid")
    # End them at once, without a checkpoint: the server that is about to start recovers anyway.
    for number in (signal.SIGQUIT, signal.SIGKILL):
        pids = _find(own_mark)
        if not pids:
            break
        _log.warning("ending what is left of an earlier PostgreSQL", pids=pids, signal=number.name)
        # A postmaster that still runs ends the others itself.
        is_led = postmaster in pids and number == signal.SIGQUIT
        for pid in [postmaster] if is_led else pids:
            _signal(pid, number)
        await _wait_until_gone(own_mark, _PATIENCE_SECONDS)
    if pids := _find(own_mark):
        raise UsageError(f"an earlier PostgreSQL on {cluster} does not end (process {pids[0]}): end it by hand")
    _forget(cluster)


def _forget(cluster: Path) -> None:
    """Delete both files with the old pid: if another process has that pid now, the server would not start."""
    for file in (cluster / "postmaster.pid", *cluster.glob(".s.PGSQL.*")):
        if not file.is_dir():
            file.unlink(missing_ok=True)


async def _wait_until_gone(own_mark: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while _find(own_mark) and loop.time() < deadline:
        await asyncio.sleep(0.02)


def _find(own_mark: str) -> list[int]:
    wanted = own_mark.encode()
    if sys.platform != "linux":
        lines = subprocess.run(["ps", "-axo", "pid=,command="], capture_output=True, check=True).stdout.splitlines()
        return [int(line.split()[0]) for line in lines if wanted in line and b"postgres" in line]
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if wanted in command and b"postgres" in command:
            found.append(int(entry.name))
    return found


def _read_pid(pid_file: Path) -> int:
    try:
        return int(pid_file.read_text().splitlines()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
