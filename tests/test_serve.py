"""A node that starts anew in its process: nothing that it remembered stays, and what needs no database does."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from database.test_lineage import replace_database
from duetime.admin.first_keys import ensure_default
from duetime.config import Config
from duetime.database.lineage import TimelinePosition
from duetime.database.pool import Database
from duetime.model.task import Kind
from duetime.serve import Node
from services import Server


@dataclass
class Served:
    node: Node
    key: str
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any, Any]:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, f"{self.node.url}{path}", data=data, headers=headers) as answer:
            return answer.status, answer.headers, await answer.json(content_type=None)

    async def submit(self) -> int:
        return (await self.call("POST", "/v1/tasks", {"type": "a"}))[0]


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    database = await Database.open(database_url, size=1)
    _, key = await ensure_default(database)
    await database.close()
    assert key is not None
    node = await Node.open(Config(port=0, node_name="one"), database_url)
    await node.start()
    # One connection: what is asked over it before and after is answered by other parts.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        yield Served(node, key, session)
    await node.stop()
    gc.unfreeze()


async def test_nothing_of_the_former_parts_is_left(served: Served, postgres_server: Server, database_url: str) -> None:
    node = served.node
    assert await served.submit() == 202
    left = {}
    for name, part in vars(node.parts).items():
        is_ours = type(part).__module__.startswith("duetime") and hasattr(part, "__weakref__")
        if is_ours and name != "_outside":
            left[name] = weakref.ref(part)
    assert {"lanes", "partitions", "keys", "types", "rules", "feeder", "holders", "app", "database"} <= set(left)
    former = id(node.parts)

    await asyncio.to_thread(replace_database, postgres_server, urlsplit(database_url).path[1:])
    async with asyncio.timeout(60):
        while id(node.parts) == former or await served.submit() != 202:
            await asyncio.sleep(0.02)
        del part
        while left := {name: ref for name, ref in left.items() if ref() is not None}:
            gc.unfreeze()
            gc.collect()
            await asyncio.sleep(0.02)

    assert left == {}


async def test_calls_are_refused_until_the_node_has_started_anew(served: Served) -> None:
    place = served.node.parts.database.place
    assert place is not None
    assert await served.submit() == 202
    poll = asyncio.create_task(poll_for_a_minute(served))
    async with asyncio.timeout(30):
        while all(ask.kind is not Kind.PULL for ask in served.node.parts.feeder.polls.recent_asks()):
            await asyncio.sleep(0.01)

    # There is a server on a newer timeline, and the address does not lead to it.
    served.node.parts.database.hear(TimelinePosition(place.system, place.database, place.timeline + 1, 0))
    assert (await asyncio.wait_for(poll, 30))[0] == 200
    answers = [await served.call("POST", "/v1/tasks", {"type": "a"}), await served.call("GET", "/v1/tasks")]
    ready = await served.call("GET", "/readyz")
    alive = await served.call("GET", "/healthz")

    for status, headers, problem in answers:
        assert (status, problem["code"], headers["Retry-After"]) == (503, "failing_over", "1")
    assert (ready[0], ready[2]["code"]) == (503, "unavailable")
    assert "failed over" in ready[2]["detail"]
    assert alive[0] == 200


async def poll_for_a_minute(served: Served) -> tuple[int, Any]:
    body = json.dumps({"worker": "w", "queues": ["none"], "wait": 60})
    headers = {"Authorization": f"Bearer {served.key}", "Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.node.url}/v1/workers/lease", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()
