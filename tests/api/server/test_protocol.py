"""Answers leave in one write, and none stays behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from duetime.api.server.protocol import DuetimeProtocol

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]], send: Send) -> None:
    """Answers with the length of the body, or with as many bytes as the path asks for."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    size = scope["path"].removeprefix("/")
    answer = b"x" * int(size) if size else b"%d" % len(body)
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=DuetimeProtocol, log_config=None, lifespan="off", port=0)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def ask(port: int, request: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


async def test_head_and_body_arrive_together(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for size in (1, 1_000):
        writer.write(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % size)
        # What was written at once can be read at once.
        answer = await reader.read(100_000)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n" + b"x" * size)
    writer.close()


async def test_a_long_answer_arrives_whole(port: int) -> None:
    answer = await ask(port, b"GET /5000000 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == b"x" * 5_000_000


async def test_an_answer_without_a_body_does_not_wait_for_one(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HEAD /7 HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert b"content-length: 7" in answer
    writer.close()


async def test_several_requests_on_one_connection_are_answered_in_order(port: int) -> None:
    requests = b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % size for size in (1, 2, 3))
    answer = await ask(port, requests + b"GET /4 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"x", b"xx", b"xxx", b"xxxx"]


async def test_who_asks_whether_to_go_on_is_told_at_once(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await asyncio.wait_for(reader.read(1_000), 10)).endswith(b"\r\n\r\n3")
    writer.close()


async def test_what_is_not_http_is_refused_before_the_connection_closes(port: int) -> None:
    assert (await ask(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
