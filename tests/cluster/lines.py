"""Speak to one chosen process of several behind a port: a connection stays with the process that got it."""

import asyncio
from types import TracebackType
from typing import Any

import aiohttp
import psutil

from nodes import NodeProcess

PATIENCE_SECONDS = 60.0


class Line:
    """One kept connection to the port, and the node at its other end."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._session = aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=60),
            headers={"Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=90),
        )
        self.name = ""

    async def open(self) -> "Line":
        try:
            nodes = await self.get("/v1/cluster")
        except aiohttp.ClientError:
            # It went to a process that was killed just then.
            await self.close()
            return await self.another().open()
        [self.name] = [node["name"] for node in nodes["items"] if node["answers"]]
        return self

    def another(self) -> "Line":
        """A connection more, to whichever process gets it."""
        return Line(self._url, self._key)

    async def get(self, path: str) -> Any:
        return await self.ask("GET", path)

    async def post(self, path: str, body: object = None) -> Any:
        return await self.ask("POST", path, body)

    async def ask(self, method: str, path: str, body: object = None, *, tenant: str = "", refused: Any = None) -> Any:
        """The answer; `refused` stands in for a 429, where one may come."""
        headers = {"Duetime-Tenant": tenant} if tenant else {}
        async with self._session.request(method, path, json=body, headers=headers) as answer:
            told = await answer.json(content_type=None)
            if answer.status == 429 and refused is not None:
                return refused
            assert answer.status < 300, told
            return told

    async def close(self) -> None:
        await self._session.close()


class Lines:
    """A line to each of the processes."""

    def __init__(self, url: str, key: str, count: int) -> None:
        self._url, self._key, self._count = url, key, count
        self._by_name: dict[str, Line] = {}

    async def __aenter__(self) -> list[Line]:
        """Processes are given connections in turn; one that is being started again gets none."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self._by_name) < self._count:
                line = await Line(self._url, self._key).open()
                if self._by_name.setdefault(line.name, line) is not line:
                    await line.close()
                    await asyncio.sleep(0.01)
        return [self._by_name[name] for name in sorted(self._by_name)]

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for line in self._by_name.values():
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
