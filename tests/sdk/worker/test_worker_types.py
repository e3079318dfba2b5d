"""Workers that handle different types on one queue, against a real node."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web

from duetime import AsyncClient, Task, Worker
from duetime.cli.main import main
from duetime.sdk.worker.protocol import LEASE_PATH, MAX_TYPES
from nodes import NodeProcess
from sdk.conftest import running


def worker_of(url: str, key: str, queue: str, *types: str) -> Worker:
    worker = Worker(url, key, queues=[queue], shutdown_timeout=10)

    async def handle(payload: object) -> str:
        return "done"

    for name in types:
        worker.task(name)(handle)
    return worker


async def test_two_workers_of_one_queue_get_what_each_handles(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    of_a, of_b = (worker_of(node.url, node.key, queue, name) for name in ("a.only", "b.only"))

    async with running(of_a), running(of_b):
        tasks = [await client.submit(name, queue=queue) for _ in range(100) for name in ("a.only", "b.only")]
        ended = [await client.wait(task.id) for task in tasks]

    assert {task.state for task in ended} == {"succeeded"}
    assert {len(task.attempts) for task in ended} == {1}
    names = {"a.only": of_a.name, "b.only": of_b.name}
    assert all(task.attempts[0].worker == names[task.type] for task in ended)


async def test_a_new_type_waits_without_an_attempt_until_its_worker_is_deployed(
    node: NodeProcess, client: AsyncClient, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(worker_of(node.url, node.key, queue, "old")):
        new = await client.submit("new", queue=queue, retry={"max_attempts": 1})
        old = await client.submit("old", queue=queue)
        assert (await client.wait(old.id)).state == "succeeded"

        # A claim finds it, and puts it back a moment later.
        async with asyncio.timeout(10.0):
            while (waiting := await client.get(new.id)).state != "ready":
                await asyncio.sleep(0.01)
        told = await client.explain(new.id)
        assert await asyncio.to_thread(main, ["tasks", "explain", new.id, "--url", node.url, "--key", node.key]) == 0
        printed = capsys.readouterr().out

        assert (waiting.state, waiting.attempts) == ("ready", [])
        assert [reason.reason for reason in told.waiting_for] == ["no_handler", "position"]
        assert "does not handle type 'new'; it handles old" in printed
        assert f"Start a worker for queue '{queue}' that has a handler for 'new'" in printed
        async with running(worker_of(node.url, node.key, queue, "old", "new")):
            served = await client.wait(new.id)

    assert (served.state, len(served.attempts)) == ("succeeded", 1)


class OldServer:
    """A node of before: it refuses a lease that names types, as it does every field that it does not know."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.refused = 0

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path == LEASE_PATH and "types" in json.loads(body):
            self.refused += 1
            problem = {
                "type": "urn:duetime:problem:invalid",
                "title": "Invalid",
                "status": 422,
                "code": "invalid",
                "detail": "a field is wrong",
                "errors": [{"path": "types", "message": "there is no such field"}],
            }
            return web.json_response(problem, status=422, content_type="application/problem+json")
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        async with (
            ClientSession() as session,
            session.request(request.method, self._url + request.path_qs, data=body, headers=headers) as answer,
        ):
            return web.Response(
                body=await answer.read(), status=answer.status, headers={"Content-Type": answer.content_type}
            )


@contextlib.asynccontextmanager
async def old_server(url: str) -> AsyncIterator[tuple[OldServer, str]]:
    old = OldServer(url)
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", old.answer)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield old, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def message(task: Task) -> str:
    error = task.attempts[-1].error
    assert error is not None
    return error.message


async def test_a_server_that_knows_no_types_is_asked_without_them(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    async with old_server(node.url) as (old, url):
        worker = worker_of(url, node.key, queue, "known")
        async with running(worker):
            unknown = await client.submit("unknown", queue=queue, retry={"max_attempts": 1})
            known = await client.submit("known", queue=queue)
            unknown, known = await client.wait(unknown.id), await client.wait(known.id)

    assert known.state == "succeeded"
    assert message(unknown) == f"no handler for type unknown in worker {worker.name}"
    assert old.refused == 1


async def test_a_worker_of_more_types_than_can_be_named_asks_for_all(
    node: NodeProcess, client: AsyncClient, queue: str
) -> None:
    types = [f"type-{number}" for number in range(MAX_TYPES + 1)]

    async with running(worker_of(node.url, node.key, queue, *types)):
        task = await client.submit(types[-1], queue=queue)
        assert (await client.wait(task.id)).state == "succeeded"
