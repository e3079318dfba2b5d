"""A stage: one peer on a fresh server, its programs ready to run, and what each part spends.

`Hall` keeps the servers and makes a stage for every run.  Only the stage's server is
up.  A stage ends with everything that was started on it.
"""

import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.crew import Workers
from bench.node import NodeProcess
from bench.peers.base import Installation, Peer
from bench.processes import BenchError, following, run_program
from bench.servers import Postgres, Redis

SETUP_SECONDS = 120.0
SUBMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Submitted:
    """What a producer did; `began_at` is the epoch second of its first send."""

    count: int
    seconds: float
    began_at: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Meter:
    """CPU time of each part since the meter was made: steadier than a rate on a machine that others use too."""

    def __init__(self, parts: Mapping[str, list[int]]) -> None:
        self._parts = dict(parts)
        self._before = self._read()

    def since(self, tasks: int, **more_seconds: float) -> dict[str, float]:
        """Microseconds per task of each part, and of the parts whose seconds are given."""
        spent = {part: after - self._before[part] for part, after in self._read().items()}
        return {part: round(1e6 * seconds / tasks, 2) for part, seconds in {**more_seconds, **spent}.items()}

    def _read(self) -> dict[str, float]:
        return {part: sum(map(_cpu_seconds, pids)) for part, pids in self._parts.items()}


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process and of its children; a parent counts the children that have ended."""
    process = psutil.Process(pid)
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Stage:
    """One peer, ready to be measured."""

    def __init__(self, peer: Peer, installation: Installation, server: Postgres | Redis, folder: Path) -> None:
        self.peer = peer
        self.server = server
        self.folder = folder
        self.node: NodeProcess | None = None
        self.environment: dict[str, str] = {}
        self._installation = installation
        self._count = 0

    async def open(self) -> None:
        """Clear the server, start the node if the peer is duetime, and let the peer make what it needs."""
        await self.server.clear()
        if isinstance(self.server, Redis):
            self.environment = {**self.peer.environment, "BENCH_REDIS": self.server.url}
        else:
            self.environment = {**self.peer.environment, "BENCH_DSN": self.server.dsn}
        if self.peer.language == "duetime":
            await self.restart_node()
        await self._run("setup", seconds=SETUP_SECONDS)
        if isinstance(self.server, Postgres):
            # The run must not pay for what the setup wrote.
            await self.server.execute("CHECKPOINT")

    async def close(self) -> None:
        self.stop_node()

    async def restart_node(self, *arguments: str) -> None:
        """Start duetime's node, with more arguments; the node that ran before is stopped."""
        assert isinstance(self.server, Postgres)
        self.stop_node()
        node = NodeProcess(
            # The node's key belongs to the database.
            self.folder / f"node-{self.server.database}",
            arguments=("--database-url", self.server.dsn, *arguments),
            python=tuple(following(sys.executable)),
        )
        self.node = node
        node.start()
        self.environment |= {"BENCH_URL": node.url, "BENCH_KEY": node.key}

    def stop_node(self) -> None:
        node, self.node = self.node, None
        if node is not None and node.is_running:
            node.stop()

    async def submit(self, mode: str, count: int) -> Submitted:
        """Let a producer submit this many tasks, and wait for its end."""
        return await self._produce("submit", mode, str(count))

    async def burst(self, count: int, at: float) -> Submitted:
        """Let a producer submit tasks that are due at this epoch second."""
        return await self._produce("burst", str(count), str(at))

    async def lag(self, rate: float, seconds: float) -> int:
        """Let a producer submit at this rate. Return how many tasks it submitted."""
        answer, _, _ = await self._run("lag", f"{rate:g}", f"{seconds:g}", seconds=seconds + SUBMIT_SECONDS)
        return int(answer["count"])

    @asynccontextmanager
    async def workers(self, processes: int | None = None, *, is_awaited: bool = True) -> AsyncIterator[Workers]:
        """Worker processes that consume already, unless they are not awaited; they are stopped at the end."""
        self._count += 1
        workers = Workers(
            [*self._installation.command, "work"],
            self.peer.workers if processes is None else processes,
            name=f"worker-{self._count}",
            folder=self.folder,
            environment=self.environment,
            cwd=self._installation.folder,
        )
        try:
            workers.start()
            if is_awaited:
                await workers.until_ready()
            yield workers
        finally:
            await workers.stop()

    def meter(self, workers: Workers | None = None, **more: list[int]) -> Meter:
        """Measure the CPU time of the server, the node, these workers and more processes."""
        parts = {"server": [self.server.pid], **more}
        if self.node is not None:
            parts["node"] = [self.node.pid]
        if workers is not None:
            parts["workers"] = workers.pids
        return Meter(parts)

    async def _produce(self, *words: str) -> Submitted:
        answer, written_at, cpu_seconds = await self._run(*words, seconds=SUBMIT_SECONDS)
        seconds = answer["seconds"]
        return Submitted(
            int(answer["count"]),
            seconds,
            # A program without this figure wrote its line when it was done.
            answer.get("began_at", written_at - seconds),
            answer.get("cpu_seconds", cpu_seconds),
        )

    async def _run(self, *words: str, seconds: float) -> tuple[dict[str, float], float, float]:
        self._count += 1
        ended = await run_program(
            f"{words[0]}-{self._count}",
            [*self._installation.command, *words],
            folder=self.folder,
            environment=self.environment,
            cwd=self._installation.folder,
            seconds=seconds,
        )
        lines = ended.output.strip().splitlines()
        if words[0] == "setup":
            return {}, ended.written_at, ended.cpu_seconds
        try:
            return json.loads(lines[-1]), ended.written_at, ended.cpu_seconds
        except (IndexError, ValueError) as error:
            raise BenchError(f"{self.peer.name}'s {words[0]} ended without its line of JSON") from error


class Hall:
    """The servers, and one stage at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._postgres = Postgres(folder / "postgres")
        self._redis = Redis(folder / "redis")
        self._synced_redis = Redis(folder / "redis-synced", is_synced=True)
        #: The versions of the servers that were used.
        self.versions: dict[str, str] = {}

    @asynccontextmanager
    async def stage(self, peer: Peer, installation: Installation) -> AsyncIterator[Stage]:
        """A stage for one run."""
        server = await self._raise_server(peer)
        folder = self._folder / f"stage-{time.monotonic_ns()}"
        folder.mkdir(parents=True)
        stage = Stage(peer, installation, server, folder)
        try:
            await stage.open()
            yield stage
        finally:
            await stage.close()
            shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        for server in (self._postgres, self._redis, self._synced_redis):
            if server.is_up:
                await server.stop()

    async def _raise_server(self, peer: Peer) -> Postgres | Redis:
        """Start the peer's server, and stop the other one."""
        redis = self._synced_redis if peer.is_synced else self._redis
        wanted: Postgres | Redis = redis if peer.server == "redis" else self._postgres
        for server in (self._postgres, self._redis, self._synced_redis):
            if server is not wanted and server.is_up:
                await server.stop()
        if not wanted.is_up:
            await wanted.start()
            if isinstance(wanted, Postgres):
                self.versions["PostgreSQL"] = await wanted.version()
            else:
                self.versions["Redis"] = await wanted.version()
        return wanted
