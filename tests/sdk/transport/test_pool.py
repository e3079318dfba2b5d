"""The connections of plain code against servers that behave well, badly, and not at all."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from duetime.http1.messages import MAX_HEAD_BYTES, ExchangeError
from duetime.sdk.calls.call import Answer
from duetime.sdk.errors import ApiError
from duetime.sdk.transport.pool import Pool
from duetime.sdk.transport.route import Route
from executor.targets import LocalTarget, Visitor, answer_everything, serving


@contextlib.asynccontextmanager
async def speaking_to(target: LocalTarget) -> AsyncIterator[Pool]:
    pool = Pool(Route.to(f"http://127.0.0.1:{target.port}", "key", tenant="team"), max_kept=2, connect_seconds=5)
    yield pool
    pool.close()


async def ask(pool: Pool, method: str = "POST", body: bytes | None = b"{}", timeout: float = 10.0) -> Answer:
    return await asyncio.to_thread(pool.request, method, "/v1/tasks", body, timeout=timeout, idempotency_key="once")


def saying(content: bytes, *, stays: bool = False) -> Callable[[Visitor], Awaitable[None]]:
    """Answer the first request with these bytes; then close, or leave the connection open."""

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(content)
        if stays:
            await visitor.wait_for_close()

    return handle


async def answer_once_and_close_at_the_second(visitor: Visitor) -> None:
    await visitor.read_request()
    await visitor.answer(200, b"{}")
    await visitor.read_request()


async def test_a_request_has_what_the_server_needs_and_its_connection_is_kept() -> None:
    async with serving(answer_everything) as target, speaking_to(target) as pool:
        first = await ask(pool)
        await ask(pool, "GET", None)

        assert target.connections == 1
        assert (first.status, first.body, first.headers["content-TYPE"]) == (200, b'{"ok":true}', "application/json")
        submitted, listed = target.received
        assert submitted.line == "POST /v1/tasks HTTP/1.1"
        assert submitted.body == b"{}"
        assert submitted.headers["authorization"] == "Bearer key"
        assert submitted.headers["duetime-tenant"] == "team"
        assert submitted.headers["idempotency-key"] == "once"
        assert "content-length" not in listed.headers


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: t\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 103 Hints\r\nTail: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na\x00\x00noise", b"a"),
    ],
)
async def test_an_answer_is_read_however_it_is_framed(content: bytes, body: bytes) -> None:
    async with serving(saying(content)) as target, speaking_to(target) as pool:
        answer = await ask(pool)

        assert answer.body == body
        assert len(target.received) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the server closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "in the middle of the answer"),
        (b"HTTP/1.1 2", "in the middle of the answer"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * MAX_HEAD_BYTES, f"larger than {MAX_HEAD_BYTES // 1024} KiB"),
    ],
)
async def test_what_is_no_answer_is_said(content: bytes, problem: str) -> None:
    async with serving(saying(content)) as target, speaking_to(target) as pool:
        with pytest.raises(ExchangeError, match=problem):
            await ask(pool)

        assert len(target.received) == 1


async def test_a_large_body_and_a_large_answer_pass() -> None:
    async def handle(visitor: Visitor) -> None:
        request = await visitor.read_request()
        assert request is not None
        await visitor.answer(200, request.body)

    body = bytes(range(256)) * 20_000
    async with serving(handle) as target, speaking_to(target) as pool:
        assert (await ask(pool, body=body)).body == body


async def test_a_refusal_of_a_body_that_is_still_being_sent_is_read() -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.reader.readuntil(b"\r\n\r\n")
        await visitor.answer(413, b"too large", Connection="close")

    async with serving(handle) as target, speaking_to(target) as pool:
        # More than the buffers of both sides hold.
        assert (await ask(pool, body=bytes(30_000_000))).status == 413


async def test_an_answer_that_is_too_large_is_refused_and_not_asked_for_again() -> None:
    async with serving(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000))) as target:
        pool = Pool(Route.to(f"http://127.0.0.1:{target.port}", "key"), max_kept=1, max_bytes=1024)
        with pytest.raises(ApiError, match="larger than 1 KiB"):
            await ask(pool)

        assert len(target.received) == 1


@pytest.mark.parametrize("content", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"])
async def test_every_silence_ends_in_time_and_takes_its_connection_with_it(content: bytes) -> None:
    async with serving(saying(content, stays=True)) as target, speaking_to(target) as pool:
        for _ in range(2):
            with pytest.raises(ExchangeError, match="in time"):
                await ask(pool, timeout=0.1)

        assert target.connections == 2


async def test_an_answer_that_drips_ends_in_time() -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            await visitor.send(b"a")
            await asyncio.sleep(0.01)

    async with serving(handle) as target, speaking_to(target) as pool:
        with pytest.raises(ExchangeError, match="did not end in time"):
            await ask(pool, timeout=0.2)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_what_a_kept_connection_lost_unanswered_is_sent_again_if_that_is_safe(method: str) -> None:
    async with serving(answer_once_and_close_at_the_second) as target, speaking_to(target) as pool:
        await ask(pool)
        assert (await ask(pool, method)).status == 200

        assert target.connections == 2
        assert len(target.received) == 3


async def test_a_post_that_a_kept_connection_lost_unanswered_is_left_to_the_caller() -> None:
    async with serving(answer_once_and_close_at_the_second) as target, speaking_to(target) as pool:
        await ask(pool)
        with pytest.raises(ExchangeError, match="kept connection before it answered"):
            await ask(pool)

        assert len(target.received) == 2


async def test_a_kept_connection_that_was_closed_or_is_not_silent_is_not_used_again() -> None:
    spoken = asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer(200, b"{}")
        await visitor.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
        spoken.set()
        await visitor.wait_for_close()

    async with serving(handle) as target, speaking_to(target) as pool:
        await ask(pool)
        await spoken.wait()
        assert (await ask(pool)).body == b"{}"

        assert target.connections == 2


async def test_a_server_that_keeps_connections_shorter_than_we_do_is_believed() -> None:
    async def handle(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(200, b"{}", Keep_Alive="timeout=1")

    async with serving(handle) as target, speaking_to(target) as pool:
        await ask(pool)
        await ask(pool)

        assert target.connections == 2


async def test_no_more_connections_are_kept_than_there_is_room_for_and_closing_closes_them() -> None:
    everybody_came = asyncio.Barrier(4)
    closed = asyncio.Event()
    left = 4

    async def handle(visitor: Visitor) -> None:
        nonlocal left
        await visitor.read_request()
        await everybody_came.wait()
        await visitor.answer(200, b"{}")
        await visitor.wait_for_close()
        left -= 1
        closed.set()

    async def until(open_connections: int) -> None:
        async with asyncio.timeout(10):
            while left != open_connections:
                closed.clear()
                await closed.wait()

    async with serving(handle) as target, speaking_to(target) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(4)))
        await until(2)
        pool.close()
        await until(0)


async def test_threads_that_share_it_get_their_own_answers() -> None:
    async def handle(visitor: Visitor) -> None:
        while (request := await visitor.read_request()) is not None:
            await visitor.answer(200, request.body)

    def ask_often(pool: Pool, name: bytes) -> None:
        for _ in range(100):
            assert pool.request("POST", "/", name, timeout=10).body == name

    async with serving(handle) as target, speaking_to(target) as pool:
        await asyncio.gather(*(asyncio.to_thread(ask_often, pool, b"%d" % number) for number in range(4)))


def test_nobody_listening_and_a_name_that_does_not_exist_are_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(ExchangeError, match=r"no connection to 127\.0\.0\.1"):
        Pool(Route.to(f"http://127.0.0.1:{port}", "key"), max_kept=1).request("GET", "/", timeout=5)
    with pytest.raises(ExchangeError, match=r"no connection to nowhere\.invalid"):
        Pool(Route.to("http://nowhere.invalid", "key"), max_kept=1).request("GET", "/", timeout=5)


def test_a_handshake_that_does_not_end_is_given_up_after_the_time_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = Pool(Route.to(f"https://127.0.0.1:{listener.getsockname()[1]}", "key"), max_kept=1, connect_seconds=0.2)
        with pytest.raises(ExchangeError, match="in time"):
            pool.request("GET", "/", timeout=10)
