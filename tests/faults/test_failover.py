"""PostgreSQL fails over to a standby that did not get the last writes: nodes forget what they knew of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from duetime import AsyncClient
from duetime.admin.first_keys import ensure_default
from duetime.config import Config
from duetime.database.lineage import TimelinePosition
from duetime.database.migrate import bring_up_to_date
from duetime.database.pool import Database
from duetime.errors import FailingOver, Unavailable
from duetime.serve import Node, Sharing
from faults.cast import Cast, begun, until
from proxy import CuttingProxy, proxied
from services import Postgres15

Reply = tuple[int, dict[str, Any]]


class Pair:
    """A primary, a standby that it does not wait for, and the address at which one of them is."""

    def __init__(self, primary: Postgres15, standby: Postgres15, proxy: CuttingProxy, url: str, cast: Cast) -> None:
        self.primary, self.standby = primary, standby
        self.proxy = proxy
        self.url = url
        self.cast = cast

    async def split(self) -> None:
        """The standby has all that was written by now, and gets no more."""
        await until(lambda: self.standby.is_level_with(self.primary))
        await asyncio.to_thread(self.standby.stop_following)

    async def fail_over(self) -> None:
        """The standby is promoted and has the address; the former primary lives on elsewhere."""
        await asyncio.to_thread(self.standby.promote)
        self.proxy.turn_to(self.standby.port)
        self.proxy.cut()

    def database(self, server: Postgres15) -> str:
        return server.dsn_of("postgres")


@pytest.fixture
async def pair(folder: Path) -> AsyncIterator[Pair]:
    primary = Postgres15(folder / "primary")
    (folder / "primary").mkdir()
    (folder / "standby").mkdir()
    await asyncio.to_thread(primary.start)
    url = primary.dsn_of("postgres")
    await bring_up_to_date(url)
    database = await Database.open(url, size=2)
    _, key = await ensure_default(database)
    assert key is not None
    standby = await asyncio.to_thread(primary.make_standby, folder / "standby")
    async with proxied(url) as (proxy, through):
        cast = Cast(folder, through, key, database)
        yield Pair(primary, standby, proxy, through, cast)
        await asyncio.to_thread(cast.end)
    await database.close()
    await asyncio.to_thread(standby.stop)
    await asyncio.to_thread(primary.stop)


class Caller:
    """Calls of one client, without the SDK's retries."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self._session = session
        self.url = url
        self._key = key

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", **headers}
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, f"{self.url}{path}", data=data, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def submit(self, queue: str = "default", **more: object) -> Reply:
        return await self.call("POST", "/v1/tasks", {"type": "fault.async", "payload": {}, "queue": queue, **more})

    async def until_served(self) -> Reply:
        """What a call gets when the node serves again; before, it is told to come again."""
        async with asyncio.timeout(60):
            while (answer := await self.call("GET", "/v1/tasks?limit=1"))[0] == 503:
                assert answer[1]["code"] in ("failing_over", "unavailable", "unknown")
                await asyncio.sleep(0.02)
        return answer


@asynccontextmanager
async def calling(url: str, key: str) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, url, key)


async def test_a_task_accepted_into_a_lane_that_was_lost_survives_a_restart_and_runs(pair: Pair) -> None:
    cast = pair.cast
    node = await cast.serve()
    async with calling(node.url, cast.key) as caller:
        assert (await caller.submit("early"))[0] == 202
        await pair.split()
        # The lane of this queue is made now, and the standby does not get it.
        status, lost = await caller.submit("late")
        assert status == 202

        await pair.fail_over()
        await caller.until_served()
        status, kept = await caller.submit("late")
        assert status == 202
        assert (await caller.call("GET", f"/v1/tasks/{lost['id']}"))[0] == 404
        pid = node.pid
        assert node.is_running
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
        assert node.pid != pid

        leased = await lease(caller, "late")
        assert [task["id"] for task in leased] == [kept["id"]]


async def test_a_day_whose_partitions_were_lost_takes_tasks_again(pair: Pair) -> None:
    cast = pair.cast
    node = await cast.serve()
    on = (datetime.now(UTC) + timedelta(days=40)).isoformat()
    async with calling(node.url, cast.key) as caller:
        assert (await caller.submit())[0] == 202
        await pair.split()
        assert (await caller.submit(run_at=on))[0] == 202

        await pair.fail_over()
        await caller.until_served()
        status, answer = await caller.submit(run_at=on)

    assert (status, answer.get("detail")) == (202, None)


async def test_what_was_remembered_of_lost_rows_is_forgotten(pair: Pair) -> None:
    cast = pair.cast
    node = await cast.serve()
    type_ = {"schema": {"type": "object", "required": ["to"]}}
    async with calling(node.url, cast.key) as caller:
        await pair.split()
        _, made = await caller.call("POST", "/v1/keys", {"role": "producer"})
        assert (await caller.call("PUT", "/v1/types/fault.async", type_))[0] in (200, 201)
        async with calling(node.url, made["key"]) as new:
            assert (await new.submit())[0] == 422
            assert (await new.submit(payload={"to": "x"}))[0] == 202
        _, first = await caller.submit(payload={"to": "x"}, idempotency_key="once")
        _, again = await caller.submit(payload={"to": "x"}, idempotency_key="once")
        assert again["id"] == first["id"]

        await pair.fail_over()
        await caller.until_served()

        async with calling(node.url, made["key"]) as new:
            assert (await new.submit())[0] == 401
        assert (await caller.submit())[0] == 202
        status, anew = await caller.submit(payload={"to": "x"}, idempotency_key="once")
        assert status == 202
        assert anew["id"] != first["id"]


async def test_polls_end_and_calls_under_way_are_reported_after_the_failover(pair: Pair) -> None:
    cast = pair.cast
    node, target, gate = await cast.serve(), await cast.target(), cast.gate()
    async with AsyncClient(node.url, cast.key) as client, calling(node.url, cast.key) as caller:
        kept = await client.submit("fault.call", {"until": str(gate)}, target=target.url)
        await begun(target.journal, kept.id)
        await beaten(cast.database)
        await pair.split()
        # Of this one the new server knows nothing.
        lost = await client.submit("fault.call", {"until": str(gate)}, target=target.url)
        await begun(target.journal, lost.id)
        poll = asyncio.create_task(lease(caller, "nothing", wait=60))
        async with asyncio.timeout(30):
            while not await cast.count("holder", "tenant <> 0"):
                await asyncio.sleep(0.02)

        await pair.fail_over()
        assert await asyncio.wait_for(poll, 60) == []
        await caller.until_served()
        assert (await caller.call("GET", f"/v1/tasks/{lost.id}"))[0] == 404
        gate.touch()
        done = await client.wait(kept.id, timeout=60)

    assert [(each.number, each.outcome) for each in done.attempts] == [(1, "succeeded")]
    # The same process went on.
    assert node.is_running
    assert node.output().count("node started") == 1
    assert await asyncio.to_thread(node.stop) == 0


async def test_a_server_that_was_replaced_is_not_used_any_more(pair: Pair) -> None:
    cast = pair.cast
    node = await cast.serve()
    async with calling(node.url, cast.key) as caller:
        await pair.split()
        await pair.fail_over()
        await caller.until_served()
        before = await cast.count("task")

        # The address leads back to the former primary, which still takes writes.
        pair.proxy.turn_to(pair.primary.port)
        pair.proxy.cut()
        refused = [await caller.submit() for _ in range(5)]
        pair.proxy.turn_to(pair.standby.port)
        await caller.until_served()

        assert {status for status, _ in refused} == {503}
        assert "that has replaced it" in refused[-1][1]["detail"]
        assert await cast.count("task") == before
        assert (await caller.submit())[0] == 202
    assert node.output().count("the node has started anew") == 1


async def test_each_of_several_processes_starts_anew(pair: Pair) -> None:
    cast = pair.cast
    node = await cast.serve("--processes", "2")
    async with calling(node.url, cast.key) as caller:
        assert (await caller.submit("early"))[0] == 202
        await pair.split()
        assert (await caller.submit("late"))[0] == 202

        await pair.fail_over()
        await until(lambda: node.output().count("the node has started anew") == 2)
        await caller.until_served()
        kept = [await caller.submit("late") for _ in range(4)]
        assert {status for status, _ in kept} == {202}
        leased: set[str] = set()
        async with asyncio.timeout(60):
            while len(leased) < 4:
                leased |= {task["id"] for task in await lease(caller, "late")}

    assert leased == {answer["id"] for _, answer in kept}
    server = await Database.open(pair.standby.dsn_of("postgres"), size=1)
    assert not await server.fetch("SELECT FROM task LEFT JOIN lane ON lane.id = task.lane WHERE lane.id IS NULL")
    await server.close()


async def test_a_history_ends_with_the_first_connection_to_another_server(pair: Pair) -> None:
    database = await Database.open(pair.url, size=3)
    at_primary = database.place
    await pair.split()
    await pair.fail_over()

    with pytest.raises(Unavailable):
        await database.fetch("SELECT 1")
    with pytest.raises(FailingOver):
        await database.fetch("SELECT 1")
    assert database.is_over.is_set()
    following = await database.follow()

    assert at_primary is not None
    assert following.place is not None
    assert at_primary.is_before(following.place)
    assert (at_primary.timeline, following.place.timeline) == (1, 2)
    pair.proxy.turn_to(pair.primary.port)
    with pytest.raises(Unavailable, match="replaced it"):
        await database.follow()
    await database.close()
    await following.close()


async def test_who_hears_of_a_newer_timeline_leaves_the_server_that_it_is_connected_to(pair: Pair) -> None:
    database = await Database.open(pair.url, size=3)
    await pair.split()
    await asyncio.to_thread(pair.standby.promote)
    elsewhere = await Database.open(pair.standby.dsn_of("postgres"), size=1)
    assert database.place is not None
    assert elsewhere.place is not None

    database.hear(database.place)
    database.hear(TimelinePosition(elsewhere.place.system + 1, *list(astuple(elsewhere.place))[1:]))
    assert await database.fetch("SELECT 1 AS one")
    database.hear(elsewhere.place)
    with pytest.raises(FailingOver):
        await database.fetch("SELECT 1")
    with pytest.raises(Unavailable, match="replaced it"):
        await database.follow()
    pair.proxy.turn_to(pair.standby.port)
    following = await database.follow()

    assert following.place is not None
    assert following.place.timeline == elsewhere.place.timeline
    for each in (database, elsewhere, following):
        await each.close()


async def test_nodes_that_share_the_shards_tell_each_other_of_a_newer_timeline(pair: Pair) -> None:
    sharing = Sharing("together", b"secret" * 6)

    async def start(name: str, server: Postgres15) -> Node:
        database = await Database.open(server.dsn_of("postgres"))
        node = Node(Config(node_name=name), database, None, sharing)
        await node.start()
        return node

    first = await start("first", pair.primary)
    await pair.split()
    await asyncio.to_thread(pair.standby.promote)
    assert not first.parts.database.is_over.is_set()
    second = await start("second", pair.standby)
    # Its connections to the former primary are open, and nobody but the other node can tell.
    await asyncio.wait_for(first.parts.database.is_over.wait(), 30)

    await first.stop()
    await second.stop()


def astuple(place: TimelinePosition) -> tuple[int, int, int, int]:
    return place.system, place.database, place.timeline, place.written


async def lease(caller: Caller, queue: str, wait: float = 2) -> list[dict[str, Any]]:
    status, answer = await caller.call(
        "POST", "/v1/workers/lease", {"worker": "w", "queues": [queue], "max": 10, "wait": wait}
    )
    assert status == 200, answer
    tasks: list[dict[str, Any]] = answer["tasks"]
    return tasks


async def beaten(database: Database) -> None:
    """Wait until an executor has said that it runs something."""
    async with asyncio.timeout(30):
        while not await database.fetch("SELECT FROM holder WHERE tenant = 0 AND running <> '{}'"):
            await asyncio.sleep(0.02)
