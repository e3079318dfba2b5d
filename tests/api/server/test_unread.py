"""Clients that ask and do not read: what the node holds for them is bounded, and nobody else notices."""

import asyncio
import contextlib
import gc
import json
import re
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from bench.node import NodeProcess

from api.client import Api, Serving, until
from duetime import metrics
from duetime.api.server.connections import Connections
from duetime.api.server.peers import Client, Peers
from duetime.api.server.unsent import (
    BYTES_PER_SECOND,
    MAX_READS_PER_TENANT,
    MAX_UNSENT_BYTES_PER_TENANT,
    TAKE_SECONDS,
    Unsent,
)
from duetime.errors import Overloaded
from duetime.views.tasks import PAGE_BYTES

MEGABYTE = 1024 * 1024
LARGE = {"type": "large", "payload": "x" * 60_000, "delay": "1h"}


def requests(api: Api, path: str, count: int = 1) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n"
    return head.encode() * count


async def connect(stack: contextlib.AsyncExitStack, api: Api) -> socket.socket:
    """A connection of which nothing is read before somebody does."""
    line = socket.socket()
    stack.callback(line.close)
    # The less the system takes for the client, the more is left to the node.
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", api.serving.port))
    return line


async def say(line: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(line, data)


async def read_answers(line: socket.socket, count: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
    """The next answers: status, headers, body."""
    reader, writer = await asyncio.open_connection(sock=line)
    answers = []
    for _ in range(count):
        head, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest if each)}
        answers.append((int(head.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))))
    writer.close()
    return answers


async def read_to_the_end(line: socket.socket) -> int:
    """How many bytes still come before the server closes or resets the connection."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while data := await asyncio.get_running_loop().sock_recv(line, MEGABYTE):
            size += len(data)
    return size


async def fill(api: Api, count: int = 200) -> None:
    answer = await api.post("/v1/tasks/batch", [LARGE] * count)
    assert answer.json["accepted"] == count


@pytest_asyncio.fixture(loop_scope="module")
async def unsent(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Unsent]:
    """The book of the server, whose clock stands still until a test moves it."""
    book = serving.app.unsent
    assert book.bytes == 0
    yield book
    await until(lambda: _is_empty(book))
    assert (book._left, book._accounts) == ({}, {})


async def _is_empty(book: Unsent) -> bool:
    return not book.bytes and not book._left


@pytest_asyncio.fixture(loop_scope="module")
async def neighbour(serving: Serving, api: Api) -> Api:
    return await serving.tenant(f"beside-{api.tenant_name}")


async def is_left(book: Unsent, lines: int) -> None:
    async def looks() -> bool:
        return len(book._left) >= lines

    await until(looks)


# The book, without a server


@dataclass(eq=False)
class Line:
    size: int
    client: Client = ("192.0.2.1", 1)
    tenant: int = 0
    answer_bytes: int = 0
    is_cut: bool = False

    def unsent(self) -> int:
        return self.size

    def cut_off(self) -> None:
        self.is_cut = True


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, most: int = 1_000, most_per_tenant: int = 400) -> Unsent:
    return Unsent(Connections(Peers()), most, most_per_tenant, now=clock)


async def test_what_does_not_move_is_cut_off_after_its_time() -> None:
    clock = Clock()
    book, line = make(clock), Line(100)
    book.add(line, 1)

    clock.now += TAKE_SECONDS
    book.look()
    assert not line.is_cut
    clock.now += 0.1
    book.look()
    assert line.is_cut
    assert (book.bytes, book._left, book._accounts) == (0, {}, {})


async def test_what_moves_too_slowly_is_cut_off_and_what_moves_fast_enough_is_not() -> None:
    clock = Clock()
    size = 100 * BYTES_PER_SECOND
    book = make(clock, 10 * size, 10 * size)
    slow, fast = Line(size), Line(size)
    book.add(slow, 1)
    book.add(fast, 1)

    for _ in range(9):
        clock.now += 10
        slow.size -= BYTES_PER_SECOND
        fast.size -= 10 * BYTES_PER_SECOND
        book.look()

    assert (slow.is_cut, fast.is_cut) == (True, False)


async def test_who_took_much_and_then_nothing_more_is_cut_off_as_well() -> None:
    clock = Clock()
    size = 1_000 * BYTES_PER_SECOND
    book, line = make(clock, 10 * size, 10 * size), Line(size)
    book.add(line, 1)
    line.size = 1
    book.look()
    clock.now += TAKE_SECONDS + 1
    book.look()

    assert line.is_cut


async def test_a_tenant_reads_no_more_before_its_clients_have_read() -> None:
    clock = Clock()
    book, lines = make(clock), [Line(200), Line(200)]
    for line in lines:
        book.add(line, 1)

    with pytest.raises(Overloaded) as refused:
        book.check(1)
    assert refused.value.retry_after
    with pytest.raises(Overloaded):
        async with book.reading(1):
            pass
    book.check(2)
    # An answer is in memory as a whole until it is taken.
    lines[0].size = 1
    with pytest.raises(Overloaded):
        book.check(1)
    book.discard(lines[0])
    book.check(1)


async def test_an_answer_counts_as_a_whole() -> None:
    book = make(Clock())
    book.add(Line(10, answer_bytes=300), 1)

    assert book.bytes == 300


async def test_at_the_bound_of_the_node_the_largest_loses_what_moved_least() -> None:
    clock = Clock()
    book = make(clock, 1_000, 10_000)
    small, moving, stuck, last = Line(100), Line(400), Line(400), Line(300)
    book.add(small, 1)
    clock.now += 1
    book.add(moving, 2)
    book.add(stuck, 2)
    clock.now += 1
    moving.size = 399
    book.add(last, 3)

    assert [line.is_cut for line in (small, moving, stuck, last)] == [False, False, True, False]
    assert book.bytes == 100 + 400 + 300


async def test_a_tenant_makes_so_many_large_answers_at_a_time() -> None:
    book = make(Clock())
    is_over = asyncio.Event()
    at_work: list[int] = []

    async def read(tenant: int) -> None:
        async with book.reading(tenant):
            at_work.append(tenant)
            await is_over.wait()

    reads = [asyncio.create_task(read(tenant)) for tenant in [1] * 20 + [2]]
    for _ in range(5):
        await asyncio.sleep(0)
    assert at_work == [1] * MAX_READS_PER_TENANT + [2]
    is_over.set()
    await asyncio.gather(*reads)
    assert len(at_work) == 21


# On a server


@pytest.mark.asyncio(loop_scope="module")
class TestOnTheWire:
    async def test_who_takes_nothing_is_cut_off(
        self, api: Api, unsent: Unsent, neighbour: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(api)
        before = metrics.CLOSED["unread"]._value.get()
        async with contextlib.AsyncExitStack() as stack:
            line = await connect(stack, api)
            await say(line, requests(api, "/v1/tasks?limit=200"))
            await is_left(unsent, 1)
            clock = asyncio.get_running_loop().time
            monkeypatch.setattr(unsent, "_now", lambda: clock() + TAKE_SECONDS - 1)
            unsent.look()
            assert unsent.bytes
            await neighbour.submit()
            monkeypatch.setattr(unsent, "_now", lambda: clock() + 2 * TAKE_SECONDS)
            unsent.look()

            assert unsent.bytes == 0
            # Nothing but what the system had taken.
            assert await read_to_the_end(line) < PAGE_BYTES
        assert metrics.CLOSED["unread"]._value.get() == before + 1
        assert b"duetime_unsent_bytes" in (await api.get("/metrics")).body

    async def test_what_was_sent_ahead_waits_until_the_answer_before_is_taken(
        self, api: Api, unsent: Unsent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(api)
        made: list[int] = []

        def reading(tenant: int) -> AbstractAsyncContextManager[None]:
            made.append(tenant)
            return unsent.reading(tenant)

        monkeypatch.setattr(api.serving.app.patience, "reading", reading)
        async with contextlib.AsyncExitStack() as stack:
            line = await connect(stack, api)
            await say(line, requests(api, "/v1/tasks?limit=200", 20))
            await is_left(unsent, 1)
            for _ in range(20):
                await api.get("/healthz")
            [left] = unsent._left.values()

            assert len(made) == 1
            assert left.bytes <= PAGE_BYTES + MEGABYTE
            answers = await read_answers(line, 20)
            assert [status for status, _, _ in answers] == [200] * 20
            assert len({len(json.loads(body)["items"]) for _, _, body in answers}) == 1

    async def test_what_is_refused_is_told_behind_the_answers_that_are_taken_late(
        self, api: Api, unsent: Unsent
    ) -> None:
        await fill(api)
        async with contextlib.AsyncExitStack() as stack:
            line = await connect(stack, api)
            await say(line, requests(api, "/v1/tasks?limit=200", 2) + b"no request\r\n\r\n")
            await is_left(unsent, 1)

            answers = await read_answers(line, 3)

            assert [status for status, _, _ in answers] == [200, 200, 400]
            assert answers[-1][1]["connection"] == "close"

    async def test_a_connection_whose_answer_was_taken_late_goes_on(self, api: Api, unsent: Unsent) -> None:
        await fill(api)
        async with contextlib.AsyncExitStack() as stack:
            line = await connect(stack, api)
            await say(line, requests(api, "/v1/tasks?limit=200"))
            await is_left(unsent, 1)
            reader, writer = await asyncio.open_connection(sock=line)
            for _ in range(3):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                # By the short way, too.
                body = b'{"type": "a", "delay": 3600}'
                post = f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
                writer.write(post.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()

    async def test_a_hundred_that_ask_for_much_hold_no_more_than_the_bound(
        self, api: Api, unsent: Unsent, neighbour: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(api)
        await neighbour.submit()
        monkeypatch.setattr(unsent, "_most_per_tenant", 8 * MEGABYTE)
        most = 0
        held = Unsent.add

        def add(book: Unsent, line: Any, tenant: int) -> None:
            nonlocal most
            held(book, line, tenant)
            most = max(most, book.bytes)

        monkeypatch.setattr(Unsent, "add", add)
        async with contextlib.AsyncExitStack() as stack:
            lines = [await connect(stack, api) for _ in range(100)]
            for line in lines:
                await say(line, requests(api, "/v1/tasks?limit=200"))

            async def is_refused() -> bool:
                return (await api.get("/v1/tasks?limit=1")).status == 429

            await until(is_refused)
            refused = [await api.get(path) for path in ("/v1/tasks", "/v1/dead", "/v1/queues", "/v1/schedules")]
            # What is small goes on, and others read.
            submitted = await api.submit(delay="1h")
            worker = await api.lease(wait=0)
            beside = await neighbour.get("/v1/tasks")
            statuses = [(await read_answers(line))[0] for line in lines]

        assert [(each.status, each.json["code"]) for each in refused] == [(429, "overloaded")] * 4
        assert all(int(each.headers["Retry-After"]) >= 1 for each in refused)
        assert (submitted["state"], worker) == ("scheduled", [])
        assert (beside.status, len(beside.json["items"])) == (200, 1)
        assert {status for status, _, _ in statuses} == {200, 429}
        assert all(headers["retry-after"] for status, headers, _ in statuses if status == 429)
        assert most <= 8 * MEGABYTE + MAX_READS_PER_TENANT * (PAGE_BYTES + MEGABYTE)
        assert (await api.get("/v1/tasks?limit=200")).status == 200

    async def test_answers_of_the_short_way_that_nobody_reads_count_for_their_tenant(
        self, api: Api, unsent: Unsent
    ) -> None:
        body = json.dumps({**LARGE, "type": "short"}).encode()
        head = f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with contextlib.AsyncExitStack() as stack:
            line = await connect(stack, api)
            sending = asyncio.create_task(say(line, request * 1_000))
            await is_left(unsent, 1)
            # What is sent on is not read any more.
            assert unsent._accounts.keys() == {api.tenant}
            stored = await api.stored()
            await asyncio.sleep(0)
            assert await api.stored() <= stored + 1
            sending.cancel()
            await asyncio.wait([sending])

    async def test_a_connection_that_is_closed_is_gone_without_the_collector(self, api: Api) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
        writer.write(requests(api, "/v1/tasks"))
        await reader.readuntil(b"\r\n\r\n")
        own = writer.get_extra_info("sockname")
        [line] = [weakref.ref(each) for each in api.serving.app.connections._all.members if each.client == own]
        gc.disable()
        try:
            writer.close()

            async def is_gone() -> bool:
                return line() is None

            await until(is_gone)
        finally:
            gc.enable()

    async def test_a_client_that_goes_away_leaves_nothing(self, api: Api, unsent: Unsent) -> None:
        await fill(api)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                line = await connect(stack, api)
                await say(line, requests(api, "/v1/tasks?limit=200", 3))
            await is_left(unsent, 3)
            assert unsent.bytes <= 3 * (PAGE_BYTES + MEGABYTE)


# On a node


async def test_a_node_under_such_clients_stays_small_and_serves_others(node: NodeProcess) -> None:
    headers = {"Authorization": f"Bearer {node.key}"}
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(node.url, headers=headers))
        for _ in range(20):
            async with session.post("/v1/tasks/batch", json=[LARGE] * 10) as answer:
                assert answer.status == 200
        await (await session.put("/v1/tenants/beside", json={})).release()
        async with session.post("/v1/keys", json={"role": "owner"}, headers={"Duetime-Tenant": "beside"}) as answer:
            key = (await answer.json())["key"]
        beside = {"Authorization": f"Bearer {key}"}
        async with session.get("/v1/tasks?limit=200") as answer:
            assert len(await answer.read()) > 3 * MEGABYTE
        before = _memory(node)
        request = f"GET /v1/tasks?limit=200 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {node.key}\r\n\r\n"

        for _ in range(100):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(("127.0.0.1", node.port))
            line.sendall(request.encode() * 20)

        async def is_refused() -> bool:
            async with session.get("/v1/tasks?limit=1") as answer:
                return answer.status == 429

        await until(is_refused)
        for path in ("/v1/tasks", "/v1/schedules"):
            async with session.get(path, headers=beside) as answer:
                assert answer.status == 200
        async with session.post("/v1/tasks", json={"type": "a", "delay": "1h"}) as answer:
            assert answer.status == 202
        async with session.get("/metrics") as answer:
            held = re.search(r"^duetime_unsent_bytes\{.*\} (\S+)$", await answer.text(), re.MULTILINE)

        assert held is not None
        most = MAX_UNSENT_BYTES_PER_TENANT + MAX_READS_PER_TENANT * (PAGE_BYTES + MEGABYTE)
        assert MAX_UNSENT_BYTES_PER_TENANT <= float(held[1]) <= most
        # What is being made takes some more, and none of it comes back at once.
        assert _memory(node) - before < 3 * most


def _memory(node: NodeProcess) -> int:
    processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
    return sum(each.memory_info().rss for each in processes if "postgres" not in each.name())
