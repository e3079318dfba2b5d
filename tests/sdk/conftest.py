"""Clients and workers against a real node."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from duetime import AsyncClient, Client, Worker
from nodes import NodeProcess, node

_LISTS = (
    *("list", "list_dead", "list_schedules", "schedule_runs", "list_types", "list_queues", "list_limits"),
    *("list_tenants", "list_tiers", "list_audit", "list_breakers", "list_refused"),
)


class ThreadedClient:
    """A `Client` whose methods run in a thread and are awaited, so that one test covers both clients."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if name in _LISTS:
            return lambda *arguments, **named: self._iterate(lambda: method(*arguments, **named))
        return lambda *arguments, **named: asyncio.to_thread(method, *arguments, **named)

    async def _iterate(self, method: Callable[[], Any]) -> AsyncIterator[Any]:
        for each in await asyncio.to_thread(lambda: list(method())):
            yield each


@pytest.fixture
def queue() -> str:
    """A queue of the test's own, on the node that all tests share."""
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def client(node: NodeProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(node.url, node.key) as client:
        yield client


@pytest.fixture(params=["plain", "async"])
async def each_client(node: NodeProcess, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Both clients, in turn."""
    if request.param == "async":
        async with AsyncClient(node.url, node.key) as client:
            yield client
    else:
        with Client(node.url, node.key) as plain:
            yield ThreadedClient(plain)


__all__ = ["node", "running"]


@contextlib.asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """The worker works until the end of the block, then stops gracefully."""
    work = asyncio.create_task(worker.run_async())
    try:
        yield worker
    finally:
        worker.stop()
        await work
