"""The HTTP client against servers that behave well, badly, and not at all."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from duetime.executor.dial import MAX_DRAIN_BYTES
from duetime.executor.egress import Guard, read_networks
from duetime.executor.http import HttpClient
from duetime.executor.messages import NoResponse, Request, Response
from duetime.executor.resolver import Address
from duetime.http1.messages import MAX_HEAD_BYTES, Reason
from duetime.model.origin import Origin
from duetime.model.task import MAX_RESPONSE_BYTES
from executor.targets import LocalTarget, Visitor, answer_everything, send, serving

OPEN = read_networks(["127.0.0.0/8", "::1/128"])


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    opened = HttpClient(Guard(OPEN))
    yield opened
    await opened.close()


def request(target: LocalTarget, *, method: str = "POST", body: bytes = b"{}", host: str = "127.0.0.1") -> Request:
    head = f"{method} /hook HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return Request(Origin("http", host, target.port), head + body, is_head=method == "HEAD")


def saying(content: bytes) -> Callable[[Visitor], Awaitable[None]]:
    """Answer the first request with these bytes and close."""

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(content)

    return handle


def saying_and_staying(content: bytes) -> Callable[[Visitor], Awaitable[None]]:
    """Answer the first request with these bytes and leave the connection open."""

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(content)
        await visitor.wait_for_close()

    return handle


async def call(client: HttpClient, target: LocalTarget, timeout: float = 10.0, **options: str) -> Response:
    answer = await send(client, request(target, **options), timeout)
    assert isinstance(answer, Response), answer
    return answer


async def fail(client: HttpClient, target: LocalTarget, timeout: float = 10.0) -> NoResponse:
    answer = await send(client, request(target), timeout)
    assert isinstance(answer, NoResponse), answer
    return answer


async def test_a_connection_is_kept_for_the_next_call(client: HttpClient) -> None:
    async with serving(answer_everything) as target:
        first = await call(client, target)
        second = await call(client, target)

        assert target.connections == 1
    assert (first.status, first.body, first.is_truncated) == (200, b'{"ok":true}', False)
    assert (first.timings.reused, second.timings.reused) == (False, True)
    assert first.timings.connect_ms is not None
    assert second.timings.connect_ms is None
    assert second.timings.first_byte_ms is not None
    assert second.timings.total_ms >= second.timings.first_byte_ms


async def test_no_proxy_of_the_environment_is_asked(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async with serving(answer_everything) as target:
        assert (await call(client, target)).status == 200

        assert [each.line for each in target.received] == ["POST /hook HTTP/1.1"]


async def test_calls_at_the_same_time_have_connections_of_their_own(client: HttpClient) -> None:
    everybody_came = asyncio.Barrier(5)

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await everybody_came.wait()
        await visitor.answer()

    async with serving(handle) as target:
        answers = await asyncio.gather(*(call(client, target) for _ in range(5)))

    assert [answer.status for answer in answers] == [200] * 5


async def test_a_kept_connection_that_the_server_closed_is_not_used_again(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer()

    async with serving(handle) as target:
        for _ in range(5):
            assert (await call(client, target)).status == 200

        assert target.connections == 5


async def test_a_close_that_only_the_kernel_knows_of_is_seen_before_a_connection_is_used_again() -> None:
    """The loop gets no turn between the close and the next call."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = HttpClient(Guard(OPEN))
    origin = Origin("http", "127.0.0.1", listener.getsockname()[1])
    ask = Request(origin, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")

    def serve_one() -> socket.socket:
        accepted, _ = listener.accept()
        accepted.recv(65536)
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return accepted

    with listener:
        first, accepted = await asyncio.gather(send(client, ask, 10), asyncio.to_thread(serve_one))
        accepted.close()
        second, accepted = await asyncio.gather(send(client, ask, 10), asyncio.to_thread(serve_one))
        accepted.close()

    assert isinstance(first, Response)
    assert isinstance(second, Response)
    assert second.timings.reused is False
    await client.close()


async def test_a_kept_connection_that_dies_under_a_request_fails_the_call_and_nothing_is_sent_twice(
    client: HttpClient,
) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer()
        await visitor.read_request()

    async with serving(handle) as target:
        await call(client, target)
        answer = await fail(client, target)

        assert len(target.received) == 2
    assert answer.reason is Reason.CLOSED
    assert "kept connection" in answer.message
    assert answer.timings.reused is True


@pytest.mark.parametrize("promise", ["timeout=1", "timeout=0, max=5", "max=100, timeout=1"])
async def test_a_server_that_keeps_connections_shorter_than_we_do_is_believed(client: HttpClient, promise: str) -> None:
    async def handle(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(Keep_Alive=promise)

    async with serving(handle) as target:
        await call(client, target)
        await call(client, target)

        assert target.connections == 2


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    closed = asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer()
        await visitor.wait_for_close()
        closed.set()

    client = HttpClient(Guard(OPEN), idle_seconds=0.05)
    async with serving(handle) as target:
        await call(client, target)
        async with asyncio.timeout(10):
            await closed.wait()
    await client.close()


async def test_a_connection_is_kept_apart_for_each_host_name() -> None:
    async def resolve(host: str) -> list[Address]:
        return [Address(socket.AF_INET, "127.0.0.1")]

    client = HttpClient(Guard(OPEN, resolve=resolve))
    async with serving(answer_everything) as target:
        await call(client, target, host="one.example")
        await call(client, target, host="two.example")
        await call(client, target, host="one.example")

        assert target.connections == 2
    await client.close()


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 200 OK\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.0 200 OK\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", b"abcde"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", b""),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    ],
)
async def test_an_answer_is_read_however_it_is_framed(client: HttpClient, content: bytes, body: bytes) -> None:
    async with serving(saying(content)) as target:
        answer = await call(client, target)

        assert answer.body == body
        assert answer.status == int(content.rpartition(b"HTTP/1.")[2][2:5])
        assert not answer.is_truncated
        assert b"link" not in dict(answer.headers)
        assert len(target.received) == 1


async def test_an_answer_that_comes_byte_by_byte_is_read(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: 12345678\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
            await visitor.send(bytes([byte]))
            await asyncio.sleep(0)

    async with serving(handle) as target:
        answer = await call(client, target)

    assert answer.body == b"abc"
    assert (b"x-long", b"12345678") in answer.headers


async def test_the_answer_to_head_has_no_body_whatever_its_length_says(client: HttpClient) -> None:
    async with serving(saying_and_staying(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) as target:
        answer = await send(client, request(target, method="HEAD", body=b""), 10)

    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (200, b"")


async def test_a_protocol_switch_nobody_asked_for_is_a_status_and_ends_the_connection(client: HttpClient) -> None:
    content = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nbytes of x"
    async with serving(saying_and_staying(content)) as target:
        assert (await call(client, target)).status == 101
        assert (await call(client, target)).timings.reused is False


async def test_a_body_a_bit_too_large_is_cut_and_the_connection_kept(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        while await visitor.read_request() is not None:
            await visitor.answer(200, b"x" * (MAX_RESPONSE_BYTES + 1))

    async with serving(handle) as target:
        first = await call(client, target)
        await call(client, target)

        assert target.connections == 1
    assert first.is_truncated
    assert first.body == b"x" * MAX_RESPONSE_BYTES


async def test_a_body_of_the_largest_size_is_whole(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.answer(200, b"x" * MAX_RESPONSE_BYTES)

    async with serving(handle) as target:
        answer = await call(client, target)

    assert not answer.is_truncated
    assert len(answer.body) == MAX_RESPONSE_BYTES


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_without_end_is_cut_and_the_connection_closed(client: HttpClient, is_chunked: bool) -> None:
    sent = 0

    async def handle(visitor: Visitor) -> None:
        nonlocal sent
        await visitor.read_request()
        framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 1000000000000"
        await visitor.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")
        while not visitor.writer.is_closing():
            await visitor.send(b"1000\r\n" + b"x" * 4096 + b"\r\n" if is_chunked else b"x" * 4096)
            sent += 4096

    async with serving(handle) as target:
        answer = await call(client, target)
        assert answer.is_truncated
        assert answer.body == b"x" * MAX_RESPONSE_BYTES
        assert (await call(client, target)).timings.reused is False


async def test_chunks_of_nothing_but_extensions_end_too(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")
        while not visitor.writer.is_closing():
            await visitor.send(b"e" * 4096)

    async with serving(handle) as target:
        answer = await send(client, request(target), 10)

    assert isinstance(answer, Response | NoResponse)
    assert not isinstance(answer, NoResponse) or answer.reason is not Reason.TIMEOUT


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\x01\x02\x03garbage",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: minus\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon here\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
    ],
)
async def test_what_is_not_http_fails_the_call(client: HttpClient, content: bytes) -> None:
    async with serving(saying_and_staying(content)) as target:
        answer = await fail(client, target)

    assert answer.reason is Reason.PROTOCOL


@pytest.mark.parametrize("line", [b"X: " + b"y" * 8192 + b"\r\n", b"y" * 8192])
async def test_headers_without_end_fail_the_call(client: HttpClient, line: bytes) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\n")
        while not visitor.writer.is_closing():
            await visitor.send(line)

    async with serving(handle) as target:
        answer = await fail(client, target)

    assert answer.reason is Reason.PROTOCOL
    assert str(MAX_HEAD_BYTES // 1024) in answer.message


async def test_interim_answers_without_end_fail_the_call(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        while not visitor.writer.is_closing():
            await visitor.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    async with serving(handle) as target:
        assert (await fail(client, target)).reason is Reason.PROTOCOL


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
async def test_an_answer_that_is_cut_off_fails_the_call(client: HttpClient, content: bytes) -> None:
    async with serving(saying(content)) as target:
        assert (await fail(client, target)).reason is Reason.CLOSED


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n\r\nabc",
    ],
)
async def test_every_silence_ends_at_the_deadline(client: HttpClient, content: bytes) -> None:
    async with serving(saying_and_staying(content)) as target:
        answer = await fail(client, target, timeout=0.05)

    assert answer.reason is Reason.TIMEOUT
    assert "0.05 s" in answer.message


async def test_a_body_that_drips_ends_at_the_deadline(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not visitor.writer.is_closing():
            await visitor.send(b"1\r\nx\r\n")
            await asyncio.sleep(0.005)

    async with serving(handle) as target:
        assert (await fail(client, target, timeout=0.1)).reason is Reason.TIMEOUT


async def test_an_early_answer_is_taken_and_its_connection_not_used_again(client: HttpClient) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.reader.readuntil(b"\r\n\r\n")
        visitor.writer.transport.pause_reading()
        await visitor.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.get_running_loop().create_future()

    async with serving(handle) as target:
        answer = await send(client, request(target, body=b"x" * 30_000_000), 10)

        assert isinstance(answer, Response)
        assert answer.status == 413
        again = await send(client, request(target), 10)
        assert again.timings.reused is False


async def test_a_second_answer_nobody_asked_for_is_not_given_to_the_next_call(client: HttpClient) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"

    async with serving(saying_and_staying(answer + b"a" + answer + b"b")) as target:
        assert (await call(client, target)).body == b"a"
        second = await call(client, target)

        assert second.body == b"a"
        assert second.timings.reused is False


async def test_noise_behind_an_answer_does_not_spoil_it(client: HttpClient) -> None:
    async with serving(saying_and_staying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na\x00\x00noise")) as target:
        assert (await call(client, target)).body == b"a"
        assert (await call(client, target)).timings.reused is False


async def test_a_cancelled_call_takes_its_connection_with_it(client: HttpClient) -> None:
    closed = asyncio.Event()
    asked = asyncio.Event()

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        asked.set()
        with contextlib.suppress(ConnectionError):
            await visitor.wait_for_close()
        closed.set()

    async with serving(handle) as target:
        under_way = asyncio.create_task(send(client, request(target), 10))
        await asked.wait()
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError):
            await under_way
        async with asyncio.timeout(10):
            await closed.wait()


async def test_nobody_listening_fails_the_call(client: HttpClient) -> None:
    async with serving(answer_everything) as target:
        pass

    answer = await fail(client, target)

    assert answer.reason is Reason.CONNECT
    assert "refused" in answer.message.lower()


async def test_a_connection_that_does_not_come_about_is_given_up_after_the_connect_time() -> None:
    # A full backlog leaves further connections unanswered.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        client = HttpClient(Guard(OPEN), connect_timeout_seconds=0.1)

        answer = await send(client, Request(Origin("http", "127.0.0.1", port), b"GET / HTTP/1.1\r\n\r\n"), 30)

        for filler in fillers:
            filler.close()
    assert isinstance(answer, NoResponse)
    assert answer.reason is Reason.CONNECT
    await client.close()


async def test_the_next_address_is_tried_when_the_first_does_not_answer() -> None:
    async def resolve(host: str) -> list[Address]:
        return [Address(socket.AF_INET6, "::1"), Address(socket.AF_INET, "127.0.0.1")]

    client = HttpClient(Guard(OPEN, resolve=resolve))
    async with serving(answer_everything) as target:
        answer = await call(client, target, host="two.example")

    assert answer.status == 200
    await client.close()


async def test_a_refused_address_is_never_dialled() -> None:
    client = HttpClient(Guard())
    async with serving(answer_everything) as target:
        answer = await fail(client, target)

        assert target.connections == 0
    assert answer.reason is Reason.REFUSED
    await client.close()


async def test_a_kept_connection_is_not_used_once_its_host_has_moved() -> None:
    now = 0.0
    addresses = ["127.0.0.1"]

    async def resolve(host: str) -> list[Address]:
        return [Address(socket.AF_INET, ip) for ip in addresses]

    client = HttpClient(Guard(read_networks(["127.0.0.1/32"]), resolve=resolve, ttl_seconds=5, monotonic=lambda: now))
    async with serving(answer_everything) as target:
        await call(client, target, host="moving.example")
        addresses[:] = ["127.0.0.2"]
        now = 6.0
        answer = await send(client, request(target, host="moving.example"), 10)

        assert isinstance(answer, NoResponse)
        assert answer.reason is Reason.REFUSED
        assert len(target.received) == 1
    await client.close()


async def test_a_name_that_is_not_resolved_fails_the_call() -> None:
    async def resolve(host: str) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    client = HttpClient(Guard(resolve=resolve))
    answer = await send(client, Request(Origin("http", "nowhere.example", 80), b""), 10)

    assert isinstance(answer, NoResponse)
    assert answer.reason is Reason.RESOLVE
    await client.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def tls_request(target: LocalTarget, host: str = "127.0.0.1") -> Request:
    plain = request(target, host=host)
    return Request(Origin("https", host, target.port), plain.content)


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def tls_client(ca_file: str | None, names: dict[str, str]) -> HttpClient:
    async def resolve(host: str) -> list[Address]:
        return [Address(socket.AF_INET, names[host])]

    return HttpClient(Guard(OPEN, resolve=resolve), ca_file=ca_file)


async def test_tls_is_verified_against_the_name_and_kept(authority: trustme.CA, ca_file: str) -> None:
    client = tls_client(ca_file, {"hooks.example": "127.0.0.1"})
    async with serving(answer_everything, server_tls(authority, "hooks.example")) as target:
        first = await send(client, tls_request(target, "hooks.example"), 10)
        second = await send(client, tls_request(target, "hooks.example"), 10)

        assert isinstance(first, Response), first
        assert isinstance(second, Response), second
        assert first.timings.tls_ms is not None
        assert second.timings.reused is True
        assert target.connections == 1
        await client.close()


@pytest.mark.parametrize("case", ["unknown authority", "other name", "plain server"])
async def test_tls_that_cannot_be_verified_fails_the_call(authority: trustme.CA, ca_file: str, case: str) -> None:
    client = tls_client(None if case == "unknown authority" else ca_file, {"hooks.example": "127.0.0.1"})
    name = "other.example" if case == "other name" else "hooks.example"
    tls = None if case == "plain server" else server_tls(authority, name)

    async def refuse(visitor: Visitor) -> None:
        await visitor.reader.read(1)
        await visitor.answer(400)

    async with serving(refuse, tls) as target:
        answer = await send(client, tls_request(target, "hooks.example"), 10)
        await client.close()

        assert target.received == []
    assert isinstance(answer, NoResponse)
    assert answer.reason is Reason.TLS
    assert "hooks.example" in answer.message
    gc.collect()


async def test_a_handshake_that_does_not_end_is_given_up_after_the_connect_time(ca_file: str) -> None:
    async def handle(visitor: Visitor) -> None:
        await visitor.wait_for_close()

    client = HttpClient(Guard(OPEN), ca_file=ca_file, connect_timeout_seconds=0.1)
    async with serving(handle) as target:
        answer = await send(client, tls_request(target), 30)

    assert isinstance(answer, NoResponse)
    assert answer.reason is Reason.TLS
    await client.close()


async def test_a_body_that_ends_with_a_tls_connection_is_read(authority: trustme.CA, ca_file: str) -> None:
    client = tls_client(ca_file, {"hooks.example": "127.0.0.1"})

    async def handle(visitor: Visitor) -> None:
        await visitor.read_request()
        await visitor.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        visitor.writer.close()
        await visitor.writer.wait_closed()

    async with serving(handle, server_tls(authority, "hooks.example")) as target:
        answer = await send(client, tls_request(target, "hooks.example"), 10)

        assert isinstance(answer, Response), answer
        assert answer.body == b"abc"
        await client.close()


def test_the_bound_of_draining_is_above_what_is_kept() -> None:
    assert MAX_DRAIN_BYTES > MAX_RESPONSE_BYTES
