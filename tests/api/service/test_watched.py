"""What the watchdog reads from the stack of a node that answers: the operation, and the tenant."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api.client import Api
from duetime.watchdog import read_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def watch(asking: Callable[[], Awaitable[object]], wanted: tuple[str, str | None]) -> set[tuple[str, str | None]]:
    """What a thread sees while it is asked again and again, until it has seen what is wanted."""
    watched, seen, is_over = threading.get_ident(), set[tuple[str, str | None]](), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            operation, tenant, _ = read_stack(sys._current_frames()[watched])
            seen.add((operation, tenant))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    looking = asyncio.create_task(asyncio.to_thread(look))
    try:
        for _ in range(300):
            await asking()
            if wanted in seen:
                break
    finally:
        is_over.set()
        await looking
        sys.setswitchinterval(before)
    return seen


async def test_a_request_is_named_with_its_tenant(api: Api) -> None:
    wanted = ("submit_tasks", api.tenant_name)
    items = [{"type": "a", "delay": "1h", "payload": {"n": number}} for number in range(1000)]

    assert wanted in await watch(lambda: api.post("/v1/tasks/batch", items), wanted)


async def test_a_submission_on_the_short_way_is_named_too(api: Api) -> None:
    wanted = ("submit_task", api.tenant_name)

    async def submit_many() -> None:
        await asyncio.gather(*(api.post("/v1/tasks", {"type": "a", "delay": "1h"}) for _ in range(20)))

    assert wanted in await watch(submit_many, wanted)


async def test_a_request_without_a_key_has_no_tenant(api: Api) -> None:
    wanted = ("metrics", None)

    assert wanted in await watch(lambda: api.get("/metrics", headers={"Authorization": ""}), wanted)


async def test_who_is_being_sent_an_answer_is_named_too(api: Api) -> None:
    """The whole of an answer is sent at once."""
    scope = {"type": "http", "method": "GET", "path": "/v1/tasks", "raw_path": b"/v1/tasks", "query_string": b""}
    headers = [(b"authorization", b"Bearer " + api.key.encode())]
    named: list[tuple[str, str | None]] = []

    async def send(message: Any) -> None:
        operation, tenant, _ = read_stack(sys._getframe())
        named.append((operation, tenant))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await api.serving.app({**scope, "headers": headers, "client": None}, receive, send)

    assert set(named) == {("list_tasks", api.tenant_name)}
