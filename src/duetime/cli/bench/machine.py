"""How busy this machine and its processes are, as far as this process can see.

Only the CPU time of our own processes is known everywhere.  The rest is read
from Linux's /proc, for the node and its database only if they are on this
machine. A value that cannot be read is None and never guessed.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

_PROC = Path("/proc")
_LISTENS = "0A"


class Cpu(msgspec.Struct, frozen=True):
    """Average number of cores in use during a phase. None: not known."""

    bench: float = 0.0
    workers: float = 0.0
    #: All processes of the node together, and the busiest of them.
    node: float | None = None
    node_busiest: float | None = None
    #: All PostgreSQL processes on this machine.
    postgres: float | None = None
    machine: float | None = None
    #: CPU time that the host of a virtual machine gave to others although it was wanted here.
    stolen: float | None = None


class Machine:
    """This machine, seen beside one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.cores = os.cpu_count() or 1
        self.is_local = _is_local(parts.hostname or "")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.node_pids = _listeners(port) if self.is_local else []

    def watch(self, workers_cpu: Callable[[], float]) -> "Watch":
        return Watch(self, workers_cpu)


class Watch:
    """CPU time spent by each part, from now on."""

    def __init__(self, machine: Machine, workers_cpu: Callable[[], float]) -> None:
        self._machine = machine
        self._workers_cpu = workers_cpu
        self._began_at = time.monotonic()
        self._workers = workers_cpu()
        self._bench = time.process_time()
        self._nodes = _spent(machine.node_pids)
        self._postgres = _spent(_named("postgres")) if machine.is_local else {}
        self._busy, self._stolen = _busy_seconds()

    def read(self) -> Cpu:
        elapsed = max(time.monotonic() - self._began_at, 1e-3)
        nodes = [spent / elapsed for spent in _since(self._nodes, _spent(self._machine.node_pids))]
        busy, stolen = _busy_seconds()
        postgres = None
        if busy is not None and self._machine.is_local:
            postgres = sum(_since(self._postgres, _spent(_named("postgres")))) / elapsed
        return Cpu(
            bench=(time.process_time() - self._bench) / elapsed,
            workers=(self._workers_cpu() - self._workers) / elapsed,
            node=sum(nodes) if nodes else None,
            node_busiest=max(nodes) if nodes else None,
            postgres=postgres,
            machine=None if busy is None or self._busy is None else (busy - self._busy) / elapsed,
            stolen=None if stolen is None or self._stolen is None else (stolen - self._stolen) / elapsed,
        )


def _is_local(host: str) -> bool:
    """Whether the address belongs to this machine: only such addresses can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as bound:
                bound.bind(address)
        except OSError:
            return False
    return bool(found)


def _listeners(port: int) -> list[int]:
    """Return the processes of duetime that listen at a port. None are found if they are not visible."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in _lines(_PROC / "net" / name)[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return [pid for pid in _pids() if inodes and _is_duetime(pid) and _has_open(pid, inodes)]


def _is_duetime(pid: int) -> bool:
    """A proxy or a tunnel at the port is not the node."""
    try:
        return b"duetime" in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _has_open(pid: int, names: set[str]) -> bool:
    try:
        with os.scandir(_PROC / str(pid) / "fd") as files:
            return any(os.readlink(file.path) in names for file in files)
    except OSError:
        return False


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def _named(name: str) -> list[int]:
    return [pid for pid in _pids() if _lines(_PROC / str(pid) / "comm")[:1] == [name]]


def _spent(pids: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds of each process that still runs."""
    spent = {}
    for pid in pids:
        if lines := _lines(_PROC / str(pid) / "stat"):
            # The name stands in parentheses and may contain any characters.
            fields = lines[0].rpartition(")")[2].split()
            spent[pid] = (int(fields[11]) + int(fields[12])) / _ticks()
    return spent


def _since(before: dict[int, float], after: dict[int, float]) -> list[float]:
    return [spent - before.get(pid, 0.0) for pid, spent in after.items()]


def _busy_seconds() -> tuple[float | None, float | None]:
    """Return CPU seconds of all cores since the machine started: not idle, and given to others by the host."""
    lines = _lines(_PROC / "stat")
    if not lines or not re.match(r"cpu +\d", lines[0]):
        return None, None
    # Guests are counted in user and nice already.
    user, nice, system, _idle, _waiting, irq, softirq, *rest = (int(field) for field in lines[0].split()[1:9])
    return (user + nice + system + irq + softirq) / _ticks(), rest[0] / _ticks() if rest else None


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
