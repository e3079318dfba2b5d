"""The five walks that a newcomer should be able to follow, on a node in this process."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import asyncpg

from duetime.admin.first_keys import ensure_default
from duetime.config import Config
from duetime.database.pool import Database
from duetime.serve import Node
from executor.targets import answer_everything, serving
from walks.tracing import Trace, Walk, trace

#: A schedule's row is due this long before its time.
_AHEAD = timedelta(seconds=2)


class Walker:
    """A client of the node, by one connection, and a look at the rows past it."""

    def __init__(self, node: Node, key: str, rows: asyncpg.Connection, target: str) -> None:
        self._node = node
        self._key = key
        self._rows = rows
        self._target = target
        self._numbers = itertools.count()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def walk_all(self) -> list[Walk]:
        # A node that has just started does much that belongs to no walk; a fire comes seconds later.
        walk = await self._fire()
        await walk()
        return [
            await trace("Plain single submission", self._plain),
            await trace("Batch of 1,000", self._batch),
            await trace("Delayed push task, from the request to its settlement", self._push),
            await trace("Settlement by a worker", self._settle),
            await trace("A schedule fires", self._fire),
        ]

    async def trace_idle(self) -> set[str]:
        """The files that the loops of an idle node go through within four seconds."""
        each = Trace()
        until = datetime.now(UTC) + timedelta(seconds=4)
        with each.recording():
            while datetime.now(UTC) < until:
                await self._count("fire")
        return {step.file for step in each.steps}

    async def _plain(self) -> Callable[[], Awaitable[None]]:
        return lambda: self._call("POST", "/v1/tasks", {"type": "plain", "payload": {"to": "ada"}})

    async def _batch(self) -> Callable[[], Awaitable[None]]:
        tasks = [{"type": "plain", "payload": {"to": "ada"}} for _ in range(1_000)]
        return lambda: self._call("POST", "/v1/tasks/batch", tasks)

    async def _push(self) -> Callable[[], Awaitable[None]]:
        task = {"type": "push", "payload": {}, "target": {"url": self._target}, "delay": 0.02}

        async def walk() -> None:
            before = await self._count("attempt")
            await self._call("POST", "/v1/tasks", task)
            while await self._count("attempt") == before:
                pass

        return walk

    async def _settle(self) -> Callable[[], Awaitable[None]]:
        name = f"worker-{next(self._numbers)}"
        await self._call("POST", "/v1/tasks", {"type": "pull", "queue": name})
        answer = await self._call("POST", "/v1/workers/lease", {"worker": name, "queues": [name], "max": 1, "wait": 30})
        (task,) = answer["tasks"]  # type: ignore[index]
        settlement = {"id": task["id"], "attempt": task["attempt"], "outcome": "succeeded"}
        return lambda: self._call("POST", "/v1/workers/settle", {"worker": name, "settlements": [settlement]})

    async def _fire(self) -> Callable[[], Awaitable[None]]:
        before = await self._count("fire")
        at = (datetime.now(UTC) + _AHEAD + timedelta(seconds=1.2)).replace(microsecond=0)
        body = {"spec": {"every": "1h", "phase": f"{int(at.timestamp()) % 3600}s"}, "task": {"type": "fired"}}
        await self._call("PUT", f"/v1/schedules/once-{next(self._numbers)}", body)
        while datetime.now(UTC) < at - _AHEAD - timedelta(milliseconds=20):
            await self._count("fire")

        async def walk() -> None:
            while await self._count("fire") == before:
                pass

        return walk

    async def _count(self, table: str) -> int:
        return int(await self._rows.fetchval(f"SELECT count(*) FROM {table}"))

    async def _call(self, method: str, path: str, body: object) -> dict[str, object]:
        if self._streams is None:
            address = urlsplit(self._node.url)
            self._streams = await asyncio.open_connection(address.hostname, address.port)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(length)
        status = int(answer.split()[1])
        assert status < 300, (status, content)
        return json.loads(content)  # type: ignore[no-any-return]


@asynccontextmanager
async def walking(database_url: str) -> AsyncIterator[Walker]:
    database = await Database.open(database_url, size=1)
    _, key = await ensure_default(database)
    await database.close()
    assert key is not None
    node = await Node.open(Config(port=0, egress_allow=["127.0.0.0/8"]), database_url)
    await node.start()
    rows = await asyncpg.connect(database_url, server_settings={"search_path": "duetime"})
    try:
        async with serving(answer_everything) as target:
            walker = Walker(node, key, rows, target.url)
            yield walker
            walker.close()
    finally:
        await rows.close()
        await node.stop()
