"""Clients and workers behind a proxy, and which addresses are reached through one."""

import asyncio
import contextlib
import os
import pickle
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
import uvloop

from duetime import AsyncClient, Client, Worker
from duetime.sdk.errors import ApiError, ConfigurationError, SdkError, ServerUnreachable
from duetime.sdk.transport.http import HttpClient
from duetime.sdk.transport.proxies import Proxy, find_proxy, is_excepted
from duetime.sdk.transport.route import Route
from executor.targets import answer_everything, serving
from nodes import NodeProcess
from sdk.conftest import running
from sdk.transport.forward_proxy import forward_proxy

PROGRAM = Path(__file__).with_name("proxied.py")
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_proxies_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


# Which proxy


@pytest.mark.parametrize(
    ("rules", "host", "port", "excepted"),
    [
        ("*", "example.com", 443, True),
        ("", "example.com", 443, False),
        ("example.com", "example.com", 443, True),
        ("example.com", "API.Example.com.", 443, True),
        ("example.com", "badexample.com", 443, False),
        (".example.com", "api.example.com", 443, True),
        ("*.example.com", "api.example.com", 443, True),
        ("one.test, example.com", "example.com", 443, True),
        ("one.test example.com", "example.com", 443, True),
        ("example.com:8443", "api.example.com", 8443, True),
        ("example.com:8443", "api.example.com", 443, False),
        ("10.1.2.3", "10.1.2.3", 80, True),
        ("10.1.2.3", "10.1.2.30", 80, False),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("10.1.2.3:80", "10.1.2.3", 81, False),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "example.com", 80, False),
        ("2.3", "10.1.2.3", 80, False),
        ("fd00::1", "fd00::1", 80, True),
        ("[fd00::1]", "fd00::1", 80, True),
        ("[fd00::1]:80", "fd00::1", 81, False),
        ("fd00::/8", "fd00::1", 80, True),
        ("fd00::/8", "10.1.2.3", 80, False),
        (".,:,/,[,*.", "example.com", 80, False),
    ],
)
def test_no_proxy_names_what_is_reached_directly(rules: str, host: str, port: int, excepted: bool) -> None:
    assert is_excepted(host, port, rules) is excepted


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://api.test", None),
        ({"HTTPS_PROXY": "http://one:1"}, "https://api.test", "http://one:1"),
        ({"HTTPS_PROXY": "http://one:1"}, "http://api.test", None),
        ({"HTTP_PROXY": "http://one:1"}, "http://api.test", "http://one:1"),
        ({"HTTP_PROXY": "http://one:1", "http_proxy": "http://two:2"}, "http://api.test", "http://two:2"),
        ({"https_proxy": "one:1"}, "https://api.test", "http://one:1"),
        ({"https_proxy": "http://one"}, "https://api.test", "http://one:80"),
        ({"https_proxy": "http://[::1]:3128"}, "https://api.test", "http://[::1]:3128"),
        ({"HTTPS_PROXY": "", "NO_PROXY": ""}, "https://api.test", None),
        ({"HTTPS_PROXY": "one:1", "NO_PROXY": "api.test"}, "https://api.test", None),
        ({"HTTPS_PROXY": "one:1", "NO_PROXY": "other.test", "no_proxy": "api.test"}, "https://api.test", None),
        ({"HTTPS_PROXY": "one:1", "NO_PROXY": "api.test:444"}, "https://api.test", "http://one:1"),
        # This machine, whatever the environment says.
        ({"HTTP_PROXY": "one:1"}, "http://localhost:8080", None),
        ({"HTTP_PROXY": "one:1"}, "http://127.0.0.1:8080", None),
        ({"HTTP_PROXY": "one:1"}, "http://[::1]:8080", None),
        # A CGI program: the header `Proxy` of a request is the variable HTTP_PROXY.
        ({"HTTP_PROXY": "one:1", "REQUEST_METHOD": "GET"}, "http://api.test", None),
        ({"http_proxy": "one:1", "REQUEST_METHOD": "GET"}, "http://api.test", "http://one:1"),
        ({"HTTPS_PROXY": "one:1", "REQUEST_METHOD": "GET"}, "https://api.test", "http://one:1"),
    ],
)
def test_the_environment_says_which_proxy_leads_to_an_address(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], url: str, proxy: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    found = Route.to(url, "key").proxy

    assert (found and found.name) == proxy


def test_a_given_proxy_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://one:1")
    monkeypatch.setenv("NO_PROXY", "*")

    given = find_proxy("http://two:2", is_tls=False, host="127.0.0.1", port=80)
    monkeypatch.delenv("NO_PROXY")

    assert given == Proxy("two", 2, "")
    assert find_proxy("", is_tls=False, host="api.test", port=80) is None


@pytest.mark.parametrize("url", ["socks5://ada:secret@one:1", "https://ada:secret@one", "http://", "http://one:port"])
def test_what_is_no_http_proxy_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)

    for make in (Client, AsyncClient):
        with pytest.raises(ConfigurationError, match="HTTPS_PROXY is") as raised:
            make("https://api.test", "key")
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="proxy is"):
        Client("https://api.test", "key", proxy=url)


def test_a_password_is_not_shown() -> None:
    route = Route.to("https://api.test", "key", proxy="http://ada:secret@one:1")

    assert route.proxy is not None
    assert (route.proxy.name, "secret" in repr(route.proxy)) == ("http://one:1", False)
    assert pickle.loads(pickle.dumps(route)) == route


# Through a proxy


class TlsFront:
    """Ends TLS before a node."""

    def __init__(self, url: str) -> None:
        self._upstream = urlsplit(url)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_node, to_node = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, to_node))
                group.create_task(self._pass_on(from_node, writer))
        finally:
            to_node.transport.abort()
            writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(1 << 16):
                sink.write(piece)
                await sink.drain()
        sink.close()


@pytest.fixture
async def tls_front(node: NodeProcess) -> AsyncIterator[tuple[int, str]]:
    """The port of one for `duetime.test`, and the file of its authority."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("duetime.test").configure_cert(tls)
    with tempfile.TemporaryDirectory() as folder:
        certificate = Path(folder) / "authority.pem"
        authority.cert_pem.write_to_path(str(certificate))
        async with await asyncio.start_server(TlsFront(node.url).accept, "127.0.0.1", 0, ssl=tls) as server:
            yield server.sockets[0].getsockname()[1], str(certificate)


async def run_program(**environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error::ResourceWarning",
        str(PROGRAM),
        env={**{name: value for name, value in os.environ.items() if name not in VARIABLES}, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
        pytest.fail(f"it hangs: {output.decode()}")
    assert (process.returncode, output.decode()) == (0, "done\n")


async def test_clients_and_a_worker_follow_http_proxy(node: NodeProcess, queue: str) -> None:
    async with forward_proxy("ada:p@ss word") as proxy:
        proxy.names["duetime.test"] = ("127.0.0.1", urlsplit(node.url).port or 0)

        await run_program(
            DUETIME_URL="http://duetime.test",
            DUETIME_KEY=node.key,
            QUEUE=queue,
            HTTP_PROXY=f"http://ada:p%40ss%20word@{proxy.address}",
        )

    asked = {line.split(" ")[1].partition("?")[0] for line in proxy.lines}
    for path in ("tasks", "workers/lease", "workers/beat", "workers/settle"):
        assert f"http://duetime.test/v1/{path}" in asked


async def test_clients_and_a_worker_follow_https_proxy(
    node: NodeProcess, queue: str, tls_front: tuple[int, str]
) -> None:
    port, certificate = tls_front
    async with forward_proxy("ada:secret") as proxy:
        proxy.names["duetime.test"] = ("127.0.0.1", port)

        await run_program(
            DUETIME_URL="https://duetime.test",
            DUETIME_KEY=node.key,
            QUEUE=queue,
            SSL_CERT_FILE=certificate,
            https_proxy=f"http://ada:secret@{proxy.address}",
        )

    assert set(proxy.lines) == {"CONNECT duetime.test:443 HTTP/1.1"}


async def test_a_proxy_can_be_given(node: NodeProcess, queue: str) -> None:
    async with forward_proxy() as proxy:
        worker = Worker(node.url, node.key, queues=[queue], proxy=proxy.address)

        @worker.task("proxied.given")
        async def give(payload: int) -> int:
            return payload

        async with running(worker), AsyncClient(node.url, node.key, proxy=proxy.address) as client:
            task = await client.submit("proxied.given", 1, queue=queue)
            assert (await client.wait(task)).result == 1
            task = await give.submit_async(2)
            assert (await client.wait(task)).result == 2
        with Client(node.url, node.key, proxy=proxy.address) as plain:
            assert (await asyncio.to_thread(plain.get, task)).result == 2

        lines = proxy.lines[:]
        assert any(line.startswith(f"POST {node.url}/v1/workers/lease ") for line in lines)
        assert any(line.startswith(f"POST {node.url}/v1/workers/beat ") for line in lines)
        assert lines[-1].startswith(f"GET {node.url}/v1/tasks/")


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_tunnel_is_kept_for_the_next_request(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("server.test").configure_cert(tls)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        async with forward_proxy() as proxy, serving(answer_everything, tls) as target:
            proxy.names["server.test"] = ("127.0.0.1", target.port)
            route = Route.to("https://server.test:8443/due", "key", proxy=f"http://{proxy.address}")
            client = HttpClient(route, tls=trusting)
            for _ in range(3):
                assert (await client.request("POST", "/v1/tasks", b"{}", timeout=10)).status == 200
            await client.close()

            assert proxy.lines == ["CONNECT server.test:8443 HTTP/1.1"]
            assert [each.line for each in target.received] == ["POST /due/v1/tasks HTTP/1.1"] * 3
            assert "proxy-authorization" not in target.received[0].headers

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


# Where a proxy does not lead


async def fail_with_both(url: str, proxy: str) -> list[ApiError]:
    """What a client says, the one for asyncio and the other."""
    said = []
    async with AsyncClient(url, "key", retry_for=0, proxy=proxy) as client:
        with pytest.raises(ApiError) as raised:
            await client.get("018f0000-0000-7000-8000-000000000000")
        said.append(raised.value)
    with Client(url, "key", retry_for=0, proxy=proxy) as plain:
        with pytest.raises(ApiError) as raised:
            await asyncio.to_thread(plain.get, "018f0000-0000-7000-8000-000000000000")
        said.append(raised.value)
    return said


@pytest.mark.parametrize("url", ["http://server.test", "https://server.test"])
@pytest.mark.parametrize("status", [407, 403, 502, 503])
async def test_a_refusal_of_the_proxy_is_said_and_repeated_only_if_it_may_pass(url: str, status: int) -> None:
    async with forward_proxy("ada:secret" if status == 407 else "") as proxy:
        proxy.refusal = 0 if status == 407 else status
        said = await fail_with_both(url, f"http://ada:wrong@{proxy.address}")

    for error in said:
        if status == 403 and url.startswith("http:"):
            # It cannot be told from the server's own.
            assert error.status == 403
            continue
        assert f"the proxy http://{proxy.address} answered {status}" in str(error)
        assert "wrong" not in str(error)
        assert isinstance(error, ServerUnreachable) is (status >= 500)
        assert (error.status, error.code) == ((0, "unreachable") if status >= 500 else (status, "proxy_refused"))


async def test_a_proxy_that_wants_credentials_is_given_none() -> None:
    async with forward_proxy("ada:secret") as proxy:
        for error in await fail_with_both("https://server.test", proxy.address):
            assert "it wants a user name and a password" in str(error)


@pytest.mark.parametrize("url", ["http://server.test", "https://server.test"])
async def test_a_proxy_that_is_not_there_is_named(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    for error in await fail_with_both(url, f"http://ada:secret@127.0.0.1:{port}"):
        assert isinstance(error, ServerUnreachable)
        assert f"{url} (through the proxy http://127.0.0.1:{port}) does not answer: no connection to" in str(error)
        assert "secret" not in str(error)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 2"])
async def test_what_is_no_proxy_is_named(answer: bytes) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for error in await fail_with_both("https://server.test", f"http://127.0.0.1:{port}"):
            assert f"no tunnel through the proxy http://127.0.0.1:{port}" in str(error)


async def test_a_worker_whose_proxy_refuses_it_ends_at_its_start(queue: str) -> None:
    async with forward_proxy("ada:secret") as proxy:
        worker = Worker("http://server.test", "key", queues=[queue], proxy=proxy.address)
        worker.task("proxied.never")(lambda payload: None)

        with pytest.raises(SdkError, match=rf"the proxy http://{proxy.address} answered 407"):
            await worker.run_async()
