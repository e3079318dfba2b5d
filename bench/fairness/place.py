"""The place of a scenario: a node with its own PostgreSQL, and the programs around it.

The key of the node is an admin's, so one key submits for every tenant.  All of it
ends with the `async with`.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import msgspec

from bench.fairness.flood import Order
from bench.fairness.records import Start, Starts
from bench.node import NodeProcess
from bench.processes import BenchError, Child, following
from duetime.database.embedded import find_free_port

_ROOT = Path(__file__).parents[2]
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.25
#: A scenario in which nothing is begun for this long has failed.
STALL_SECONDS = 30.0


class Place:
    def __init__(self, folder: Path, node: NodeProcess, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.node = node
        self._session = session
        self.file = folder / "starts"
        self.children: list[Child] = []
        self._floods = 0
        self._starts = Starts(self.file)

    # The API

    async def call(self, method: str, path: str, body: object = None, tenant: str = "default") -> Any:
        """Return the answer of a call; any error is a BenchError."""
        headers = {"Duetime-Tenant": tenant, "Content-Type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(method, self.node.url + path, data=data, headers=headers) as answer:
            told = await answer.read()
            if answer.status >= 300:
                raise BenchError(f"{method} {path} answered {answer.status}: {told.decode(errors='replace')[:300]}")
        return msgspec.json.decode(told) if told else None

    async def make_tenant(self, name: str, weight: int = 1) -> None:
        await self.call("PUT", f"/v1/tenants/{name}", {"weight": weight})

    async def make_key(self, tenant: str, role: str = "worker") -> str:
        answer = await self.call("POST", "/v1/keys", {"role": role}, tenant)
        return str(answer["key"])

    async def submit(self, tenant: str, task: dict[str, object]) -> None:
        await self.call("POST", "/v1/tasks", task, tenant)

    # Programs beside it

    async def run_target(self, hosts: int = 1, delay: float = 0.0) -> list[str]:
        """Start a target on this many ports. Return their addresses."""
        ports = [find_free_port() for _ in range(hosts)]
        await self.start_program("target", self.file, delay, *ports)
        return [f"http://127.0.0.1:{port}/" for port in ports]

    async def run_hands(self, keys: list[str], concurrency: int, name: str = "hands") -> None:
        await self.start_program("hands", self.file, self.node.url, concurrency, *keys, name=name)

    async def start_program(self, program: str, *words: object, name: str | None = None) -> Child:
        """Start a program of this folder, and wait until it is ready."""
        child = self._start(program, name or program, *words)
        await child.wait_for_line("ready", _READY_SECONDS)
        return child

    def _start(self, program: str, name: str, *words: object) -> Child:
        command = [sys.executable, "-m", f"bench.fairness.{program}", *map(str, words)]
        child = Child(name, command, folder=self.folder, cwd=_ROOT)
        self.children.append(child)
        return child

    def flood(self, tenant: str, task: dict[str, object], count: int, rate: float | None = None) -> Child:
        """Submit this many from a process of its own; wait for it with `Child.wait`."""
        self._floods += 1
        order = Order(self.node.url, self.node.key, tenant, task, count, rate)
        return self._start("flood", f"flood-{self._floods}", msgspec.json.encode(order).decode())

    # Starts of tasks

    def new_starts(self) -> list[Start]:
        """Starts that were noted since the last call."""
        return self._starts.read()

    async def until(self, count: float, seconds: float, who: int | None = None) -> list[Start]:
        """Gather starts until this many were begun (by this tenant). BenchError if it takes too long or stalls."""
        starts: list[Start] = []
        counted = unread = 0
        deadline, moved_at = time.monotonic() + seconds, time.monotonic()
        while counted < count:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            before, unread = unread, self._starts.unread()
            moved_at = now if unread > before else moved_at
            # Reading must not take time from what is measured: starts are read only when they may be enough.
            if unread >= count - counted:
                new = self.new_starts()
                starts += new
                counted += len(new) if who is None else sum(start.who == who for start in new)
                unread = 0
            if counted < count and (now > deadline or now - moved_at > STALL_SECONDS):
                raise BenchError(f"{len(starts) + unread:,} tasks were begun, and then it took too long")
        return starts

    async def gather(self, seconds: float) -> list[Start]:
        """The starts within this time."""
        starts: list[Start] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.5))
            starts += self.new_starts()
        return starts

    # The database

    @asynccontextmanager
    async def database(self) -> AsyncIterator[asyncpg.Connection]:
        lines = (self.node.data / "postgres" / "postmaster.pid").read_text().splitlines()
        password = (self.node.data / "password").read_text().strip()
        connection = await asyncpg.connect(
            f"postgres://duetime:{password}@127.0.0.1:{lines[3]}/duetime", timeout=10.0, command_timeout=120.0
        )
        try:
            yield connection
        finally:
            await connection.close(timeout=5.0)


@asynccontextmanager
async def open_place(processes: int | None = None, **settings: int) -> AsyncIterator[Place]:
    """A node with these settings and a fresh database."""
    with tempfile.TemporaryDirectory(prefix="duetime-fairness-") as name:
        folder = Path(name)
        file = folder / "settings.toml"
        file.write_text("".join(f"{each} = {value}\n" for each, value in settings.items()))
        node = NodeProcess(
            folder / "node",
            arguments=("--config", str(file), "--processes", str(processes or 1)),
            python=tuple(following(sys.executable)),
        )
        place: Place | None = None
        try:
            node.start()
            timeout = aiohttp.ClientTimeout(total=60.0)
            connector = aiohttp.TCPConnector(limit=100)
            headers = {"Authorization": f"Bearer {node.key}"}
            async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
                place = Place(folder, node, session)
                yield place
        finally:
            for child in reversed(place.children if place is not None else []):
                child.kill()
            if node.is_running:
                node.stop()
