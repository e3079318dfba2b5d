"""Speak to one chosen process of several behind a port: a connection stays with the process that got it."""

from types import TracebackType
from typing import Any

import aiohttp
import psutil

from nodes import NodeProcess

PATIENCE_SECONDS = 60.0


class Line:
    """One kept connection to the port, and the node at its other end."""

    def __init__(self, url: str, key: str) -> None:
        self._session = aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=60),
            headers={"Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=90),
        )
        self.name = ""

    async def open(self) -> "Line":
        nodes = await self.get("/v1/cluster")
        [self.name] = [node["name"] for node in nodes["items"] if node["answers"]]
        return self

    async def get(self, path: str) -> Any:
        return await self.ask("GET", path)

    async def post(self, path: str, body: object = None) -> Any:
        return await self.ask("POST", path, body)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        async with self._session.request(method, path, json=body) as answer:
            told = await answer.json()
            assert answer.status < 300, told
            return told

    async def close(self) -> None:
        await self._session.close()


class Lines:
    """A line to each of the processes."""

    def __init__(self, url: str, key: str, count: int) -> None:
        self._url, self._key, self._count = url, key, count
        self._all: list[Line] = []
        self.by_name: dict[str, Line] = {}

    async def __aenter__(self) -> list[Line]:
        # They are given connections in turn.
        while len(self.by_name) < self._count:
            assert len(self._all) < 50 * self._count, f"only {sorted(self.by_name)} answer"
            self._all.append(await Line(self._url, self._key).open())
            self.by_name.setdefault(self._all[-1].name, self._all[-1])
        return [self.by_name[name] for name in sorted(self.by_name)]

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for line in self._all:
            await line.close()


def lines_to(node: NodeProcess, count: int = 2) -> Lines:
    return Lines(node.url, node.key, count)


def children_of(pid: int) -> list[int]:
    """The node processes of a supervisor, in the order of their start."""
    children = psutil.Process(pid).children()
    return [each.pid for each in sorted(children, key=lambda each: each.create_time()) if is_child(each)]


def is_child(process: psutil.Process) -> bool:
    try:
        return "duetime.child" in process.cmdline()
    except psutil.Error:
        return False


async def pid_of(line: Line, supervisor: int) -> int:
    """The process at the other end of a line: the one that has its connection."""
    connector = line._session.connector
    assert connector is not None
    [[connection]] = [[protocol.transport for protocol, _ in held] for held in connector._conns.values()]  # type: ignore[attr-defined]
    port = connection.get_extra_info("sockname")[1]
    for pid in children_of(supervisor):
        if any(each.raddr and each.raddr.port == port for each in psutil.Process(pid).net_connections("tcp")):
            return pid
    raise AssertionError(f"no process has the connection of {line.name}")
