"""The SDK's HTTP client against servers that behave well, badly, and not at all."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme

from duetime.http1.messages import MAX_HEAD_BYTES
from duetime.sdk.calls.call import Answer
from duetime.sdk.errors import ApiError, ConfigurationError, ServerUnreachable
from duetime.sdk.transport.http import HttpClient
from duetime.sdk.transport.route import Route, ServerAddress
from executor.targets import LocalTarget, Visitor, answer_everything, serving


@contextlib.asynccontextmanager
async def speaking_to(target: LocalTarget, scheme: str = "http", **options: object) -> AsyncIterator[HttpClient]:
    client = HttpClient(Route.to(f"{scheme}://127.0.0.1:{target.port}", "key"), **options)  # type: ignore[arg-type]
    yield client
    await client.close()


async def post(client: HttpClient, timeout: float = 10.0) -> Answer:
    return await client.request("POST", "/v1/tasks", b"{}", timeout=timeout)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


def saying(content: bytes, *, stays: bool = False) -> Callable[[Visitor], Awaitable[None]]:
    """Answer the first request with these bytes; then close, or leave the connection open."""

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(content)
        if stays:
            await visitor.wait_for_close()

    return handle


async def test_a_request_has_what_the_server_needs_and_its_connection_is_kept() -> None:
    async with serving(answer_everything) as target, speaking_to(target) as client:
        first = await client.request("POST", "/v1/tasks", b'{"a":1}', timeout=10, idempotency_key="once")
        await client.request("GET", "/v1/tasks?state=dead", timeout=10)
        await client.request("POST", "/v1/tasks/1/cancel", timeout=10)

        assert target.connections == 1
        assert (first.status, first.body, first.headers["content-TYPE"]) == (200, b'{"ok":true}', "application/json")
        assert first.headers.get("Retry-After") is None
        submitted, listed, cancelled = target.received
        assert submitted.line == "POST /v1/tasks HTTP/1.1"
        assert submitted.body == b'{"a":1}'
        assert submitted.headers["host"] == f"127.0.0.1:{target.port}"
        assert submitted.headers["authorization"] == "Bearer key"
        assert submitted.headers["content-type"] == "application/json"
        assert submitted.headers["idempotency-key"] == "once"
        assert submitted.headers["accept-encoding"] == "identity"
        assert listed.line == "GET /v1/tasks?state=dead HTTP/1.1"
        assert "content-length" not in listed.headers
        assert "idempotency-key" not in listed.headers
        assert cancelled.headers["content-length"] == "0"


async def test_a_path_or_a_key_cannot_break_out_of_its_line() -> None:
    async with serving(answer_everything) as target, speaking_to(target) as client:
        await client.request("GET", "/v1/a b\r\nX: y/ü%20", timeout=10)
        with pytest.raises(ValueError, match="printable"):
            await client.request("GET", "/", timeout=10, idempotency_key="a\r\nX: y")

        assert [each.line for each in target.received] == ["GET /v1/a%20b%0D%0AX:%20y/%C3%BC%20 HTTP/1.1"]


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTail: t\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 103 Hints\r\nTail: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na\x00\x00noise", b"a"),
    ],
)
async def test_an_answer_is_read_however_it_is_framed(content: bytes, body: bytes) -> None:
    async with serving(saying(content)) as target, speaking_to(target) as client:
        answer = await post(client)

        assert answer.body == body
        assert answer.status == int(content.rpartition(b"HTTP/1.")[2][2:5])
        assert "tail" not in answer.headers
        assert len(target.received) == 1


async def test_an_answer_that_comes_byte_by_byte_is_read_and_its_connection_kept() -> None:
    async def handle(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            for byte in b"HTTP/1.1 200 OK\r\nX-Long: 1234\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
                await visitor.send(bytes([byte]))
                await asyncio.sleep(0)

    async with serving(handle) as target, speaking_to(target) as client:
        for _ in range(2):
            answer = await post(client)
            assert (answer.body, answer.headers["x-long"]) == (b"abc", "1234")

        assert target.connections == 1


async def test_a_large_body_and_a_large_answer_pass() -> None:
    async def handle(visitor: Visitor) -> None:
        request = await visitor.read_request()
        assert request is not None
        await visitor.answer(200, request.body)

    body = bytes(range(256)) * 20_000
    async with serving(handle) as target, speaking_to(target) as client:
        answer = await client.request("POST", "/", body, timeout=20)

    assert answer.body == body


async def test_a_kept_connection_that_the_server_closed_is_not_used_again() -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer()

    async with serving(handle) as target, speaking_to(target) as client:
        for _ in range(3):
            assert (await post(client)).status == 200

        assert target.connections == 3


async def test_a_close_that_only_the_kernel_knows_of_is_seen_before_a_connection_is_used_again() -> None:
    def serve_one() -> socket.socket:
        accepted, _ = listener.accept()
        accepted.recv(65536)
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return accepted

    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient(Route.to(f"http://127.0.0.1:{listener.getsockname()[1]}", "key"))
        for _ in range(2):
            _, accepted = await asyncio.gather(post(client), asyncio.to_thread(serve_one))
            # The loop gets no turn between this and the next request.
            accepted.close()
        await client.close()


async def hang_up_on_the_second(visitor: Visitor) -> None:
    """Of each connection."""
    await visitor.read_request()
    await visitor.answer()
    await visitor.read_request()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_what_a_kept_connection_lost_unanswered_is_sent_again_if_that_is_safe(method: str) -> None:
    async with serving(hang_up_on_the_second) as target, speaking_to(target) as client:
        await post(client)
        answer = await client.request(method, "/", timeout=10)

        assert answer.status == 200
        assert [each.line[: len(method)] for each in target.received[1:]] == [method, method]
        assert target.connections == 2


async def test_a_post_that_a_kept_connection_lost_unanswered_is_left_to_the_caller() -> None:
    async with serving(hang_up_on_the_second) as target, speaking_to(target) as client:
        await post(client)
        with pytest.raises(ServerUnreachable, match="before it answered"):
            await post(client)

        assert len(target.received) == 2


async def test_what_a_new_connection_lost_is_not_sent_again() -> None:
    async with serving(saying(b"")) as target, speaking_to(target) as client:
        with pytest.raises(ServerUnreachable, match="before it answered"):
            await client.request("GET", "/", timeout=10)

        assert len(target.received) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_an_answer_that_is_cut_off_is_none_and_is_not_asked_for_again(content: bytes) -> None:
    async with serving(saying(content)) as target, speaking_to(target) as client:
        with pytest.raises(ServerUnreachable, match="in the middle"):
            await client.request("GET", "/", timeout=10)

        assert len(target.received) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_no_answer(content: bytes) -> None:
    async with serving(saying(content, stays=True)) as target, speaking_to(target) as client:
        with pytest.raises(ServerUnreachable, match="not HTTP"):
            await post(client)


@pytest.mark.parametrize("line", [b"X: " + b"y" * 8192 + b"\r\n", b"y" * 8192])
async def test_headers_without_end_are_refused(line: bytes) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\n")
        while not visitor.writer.is_closing():
            await visitor.send(line)

    async with serving(handle) as target, speaking_to(target) as client:
        with pytest.raises(ServerUnreachable, match=f"{MAX_HEAD_BYTES // 1024} KiB"):
            await post(client)


@pytest.mark.parametrize("piece", [b"1000\r\n" + b"x" * 4096 + b"\r\n", b"1;" + b"e" * 4096 + b"\r\nx\r\n"])
async def test_an_answer_without_end_is_refused_and_not_asked_for_again(piece: bytes) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not visitor.writer.is_closing():
            await visitor.send(piece)

    async with serving(handle) as target, speaking_to(target, max_bytes=1024 * 1024) as client:
        with pytest.raises(ApiError, match="larger than 1,024 KiB") as raised:
            await post(client)

        assert not isinstance(raised.value, ServerUnreachable)


async def test_every_silence_ends_in_time_and_takes_its_connection_with_it() -> None:
    for content in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"):
        closed = asyncio.Event()

        async def handle(visitor: Visitor, content: bytes = content, closed: asyncio.Event = closed) -> None:
            await saying(content, stays=True)(visitor)
            closed.set()

        async with serving(handle) as target, speaking_to(target) as client:
            with pytest.raises(ServerUnreachable, match="in time"):
                await post(client, timeout=0.05)
            await soon(closed)


async def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        asked.set()
        with contextlib.suppress(ConnectionError):
            await visitor.wait_for_close()
        closed.set()

    async with serving(handle) as target, speaking_to(target, max_connections=1) as client:
        polling = asyncio.create_task(post(client))
        await soon(asked)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await soon(closed)

        # Its place is free again, and the next request does not hear its answer.
        asked.clear()
        second = asyncio.create_task(post(client))
        await soon(asked)
        assert target.connections == 2
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


async def test_a_second_answer_nobody_asked_for_is_not_given_to_the_next_request() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"

    async with serving(saying(answer + b"a" + answer + b"b", stays=True)) as target, speaking_to(target) as client:
        assert (await post(client)).body == b"a"
        assert (await post(client)).body == b"a"

        assert target.connections == 2


async def test_an_early_answer_is_taken_and_its_connection_not_used_again() -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.reader.readuntil(b"\r\n\r\n")
        visitor.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await visitor.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.get_running_loop().create_future()

    async with serving(handle) as target, speaking_to(target) as client:
        answer = await client.request("POST", "/", b"x" * 30_000_000, timeout=10)
        await client.request("POST", "/", b"", timeout=10)

        assert answer.status == 413
        assert target.connections == 2


async def test_many_requests_at_a_time_share_a_bounded_number_of_connections() -> None:
    most = under_way = 0

    async def handle(visitor: Visitor) -> None:
        nonlocal most, under_way
        while (request := await visitor.read_request()) is not None:
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            await visitor.answer(200, request.body)

    async with serving(handle) as target, speaking_to(target, max_connections=5) as client:
        bodies = [b"%d" % number for number in range(200)]
        answers = await asyncio.gather(*(client.request("POST", "/", body, timeout=20) for body in bodies))

        assert [answer.body for answer in answers] == bodies
        assert target.connections == 5
    assert most <= 5


async def test_who_finds_no_place_in_the_time_to_connect_is_told_so() -> None:
    async with (
        serving(saying(b"", stays=True)) as target,
        speaking_to(target, max_connections=1, connect_seconds=0.5) as client,
    ):
        first = asyncio.create_task(post(client))
        while not target.connections:
            await asyncio.sleep(0.01)
        with pytest.raises(ServerUnreachable, match="all connections are in use"):
            await post(client)

        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    closed = asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer()
        await visitor.wait_for_close()
        closed.set()

    async with serving(handle) as target, speaking_to(target, idle_seconds=0.05) as client:
        await post(client)
        await soon(closed)


async def test_closing_fails_what_is_under_way_and_leaves_no_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        asked.set()
        with contextlib.suppress(ConnectionError):
            await visitor.wait_for_close()
        closed.set()

    async with serving(handle) as target, speaking_to(target) as client:
        polling = asyncio.create_task(post(client))
        await soon(asked)
        await client.close()
        with pytest.raises(ServerUnreachable):
            await polling
        await soon(closed)


async def test_nobody_listening_is_said() -> None:
    async with serving(answer_everything) as target:
        pass

    async with speaking_to(target) as client:
        with pytest.raises(ServerUnreachable, match="no connection to 127"):
            await post(client)


async def test_a_name_that_does_not_exist_is_said() -> None:
    client = HttpClient(Route.to("http://nowhere.invalid", "key"))

    with pytest.raises(ServerUnreachable, match=r"no connection to nowhere\.invalid"):
        await post(client)
    await client.close()


async def test_the_next_address_of_a_name_is_tried_while_the_first_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def resolve(host: str, port: int, **options: int) -> object:
        if host != "two.example":
            return await look_up(host, port, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    async with serving(answer_everything) as target:
        with contextlib.ExitStack() as sockets:
            # A full backlog leaves further connections unanswered.
            sockets.enter_context(socket.create_server(("127.0.0.2", target.port), backlog=0))
            for _ in range(4):
                filler = sockets.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", target.port))
            client = HttpClient(Route.to(f"http://two.example:{target.port}", "key"))

            assert (await post(client)).status == 200
            await client.close()


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://example.com", ServerAddress(False, "example.com", 80, ""), "example.com"),
        (
            "https://example.com:8443/due/time",
            ServerAddress(True, "example.com", 8443, "/due/time"),
            "example.com:8443",
        ),
        ("https://[::1]", ServerAddress(True, "::1", 443, ""), "[::1]"),
        ("http://[::1]:8080/", ServerAddress(False, "::1", 8080, ""), "[::1]:8080"),
        (
            "http://bücher.example/a b",
            ServerAddress(False, "xn--bcher-kva.example", 80, "/a%20b"),
            "xn--bcher-kva.example",
        ),
    ],
)
def test_a_base_url_is_taken_apart(url: str, address: ServerAddress, authority: str) -> None:
    assert ServerAddress.read(url) == address
    assert address.authority == authority


@pytest.mark.parametrize("url", ["http://a:b@example.com", "http://example.com:port", "http://h?x=1", "http://h#x"])
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a server address"):
        ServerAddress.read(url)


async def test_a_path_of_the_base_url_is_before_every_path() -> None:
    async with serving(answer_everything) as target:
        client = HttpClient(Route.to(f"http://127.0.0.1:{target.port}/due/", "key"))
        await client.request("GET", "/v1/tasks", timeout=10)
        await client.close()

        assert target.received[0].line == "GET /due/v1/tasks HTTP/1.1"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_is_verified_by_a_given_context_and_kept(authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async with (
        serving(answer_everything, server_tls(authority, "127.0.0.1")) as target,
        speaking_to(target, "https", tls=trusting) as client,
    ):
        assert (await post(client)).body == b'{"ok":true}'
        assert (await post(client)).body == b'{"ok":true}'
        assert target.connections == 1


@pytest.mark.parametrize("case", ["unknown authority", "other name", "plain server"])
async def test_tls_that_cannot_be_verified_is_no_answer(authority: trustme.CA, case: str) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    tls = server_tls(authority, "127.0.0.2" if case == "other name" else "127.0.0.1")

    async def refuse(visitor: Visitor) -> None:
        await visitor.reader.read(1)
        await visitor.answer(400)

    async with (
        serving(refuse, None if case == "plain server" else tls) as target,
        speaking_to(target, "https", tls=None if case == "unknown authority" else trusting) as client,
    ):
        with pytest.raises(ServerUnreachable, match=r"certificate|no connection"):
            await post(client)

        assert target.received == []


async def test_a_handshake_that_does_not_end_is_given_up_after_the_time_to_connect() -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.wait_for_close()

    async with serving(handle) as target, speaking_to(target, "https", connect_seconds=0.1) as client:
        with pytest.raises(ServerUnreachable, match="in time"):
            await post(client)
