"""Who is on the other side of a connection, and whom a proxy is believed to name."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvloop

from duetime.api.app import App
from duetime.api.server.express import Head
from duetime.api.server.peers import Peer, Peers, read_address
from duetime.config import read_config
from duetime.errors import UsageError
from duetime.listening import make_server

PROXY = ("10.0.0.7", 40_000)
STRANGER = ("192.0.2.9", 40_000)


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), *((b"x-forwarded-for", value.encode()) for value in values)]


def name(peers: Peers, client: tuple[str, int], *values: str) -> str:
    return str(peers.of_request(client, forwarded(*values)).address)


PEERS = Peers(["10.0.0.0/8", "2001:db8::/32"])


def test_without_trusted_proxies_a_header_says_nothing() -> None:
    assert name(Peers(), PROXY, "198.51.100.1") == "10.0.0.7"


def test_a_stranger_cannot_name_another() -> None:
    assert name(PEERS, STRANGER, "198.51.100.1") == "192.0.2.9"


def test_a_trusted_proxy_names_its_client() -> None:
    assert name(PEERS, PROXY, "198.51.100.1") == "198.51.100.1"
    assert name(PEERS, PROXY) == "10.0.0.7"


def test_what_the_client_wrote_itself_stands_left_of_what_proxies_append() -> None:
    assert name(PEERS, PROXY, "203.0.113.5, 198.51.100.1, 10.1.2.3, 2001:db8::1") == "198.51.100.1"
    assert name(PEERS, PROXY, "203.0.113.5", "198.51.100.1") == "198.51.100.1"
    assert name(PEERS, PROXY, "garbage, 198.51.100.1") == "198.51.100.1"


def test_a_request_that_begins_at_a_trusted_proxy_is_its_own() -> None:
    assert name(PEERS, PROXY, "10.3.3.3, 10.1.2.3") == "10.3.3.3"


@pytest.mark.parametrize(
    "value",
    ["garbage", "", " ", "198.51.100.1, unknown", "198.51.100.1,", "[::1", "[::1]x", "300.1.1.1", "\xff", "1" * 500],
)
def test_garbage_leaves_the_address_of_the_socket(value: str) -> None:
    assert name(PEERS, PROXY, value) == "10.0.0.7"


def test_no_more_hops_are_read_than_requests_pass() -> None:
    assert name(PEERS, PROXY, ",".join(["198.51.100.1"] + ["10.0.0.1"] * 40)) == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[2001:db8::1]:8080", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_is_read_as_proxies_and_sockets_write_it(text: str, address: str) -> None:
    assert str(read_address(text)) == address


def test_an_ipv4_address_that_came_as_ipv6_is_matched_as_ipv4() -> None:
    assert name(PEERS, ("::ffff:10.0.0.7", 1), "198.51.100.1") == "198.51.100.1"


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
    ],
)
def test_a_slash_64_of_ipv6_is_one_peer(address: str, group: str) -> None:
    assert Peer(read_address(address)).group == group


def test_a_local_socket_is_a_peer_without_an_address() -> None:
    assert PEERS.of_request(None, forwarded("198.51.100.1")) == Peer(None)
    assert Peer(None).group == "local"


def test_the_short_way_knows_the_same_peer() -> None:
    given = forwarded("198.51.100.1")
    head = Head(given, dict(given), PROXY)

    assert head.peer(PEERS) == PEERS.of_request(PROXY, forwarded("198.51.100.1"))
    assert head.peer(PEERS) is head.peer(PEERS)


@pytest.mark.parametrize("networks", ["everything", "10.0.0.1/8", "0.0.0.0/0", "10.0.0.0/8,::/0"])
def test_wrong_networks_of_proxies_are_refused(networks: str) -> None:
    with pytest.raises(UsageError, match="trusted_proxies"):
        read_config({}, {"DUETIME_TRUSTED_PROXIES": networks})


def test_the_networks_of_proxies_come_from_the_settings() -> None:
    assert read_config({}, {"DUETIME_TRUSTED_PROXIES": "10.0.0.0/8,fd00::/8"}).trusted_proxies == [
        "10.0.0.0/8",
        "fd00::/8",
    ]


def test_a_connection_from_another_process_keeps_its_peer() -> None:
    """As `supervise` accepts it and hands its descriptor over, and a node adopts it."""
    seen: list[Peer] = []

    async def app(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        seen.append(PEERS.of_request(scope["client"], scope["headers"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def hand_over(host: str) -> None:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ours, theirs = socket.socketpair()
        with socket.create_server((host, 0), family=family) as listener, ours, theirs:
            listener.setblocking(False)
            server = make_server(cast(App, app))
            serving = asyncio.ensure_future(server.serve(sockets=[]))
            while not server.started:
                await asyncio.sleep(0.005)
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            accepted, _ = await loop.sock_accept(listener)
            with accepted:
                socket.send_fds(ours, [b"c"], [accepted.fileno()])
            _, [descriptor], _, _ = socket.recv_fds(theirs, 1, 1)
            adopted = socket.socket(fileno=descriptor)
            adopted.setblocking(False)
            await loop.connect_accepted_socket(server.make_protocol, adopted)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
            server.should_exit = True
            await serving

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(hand_over("127.0.0.1"))
        runner.run(hand_over("::1"))

    assert [str(peer.address) for peer in seen] == ["127.0.0.1", "::1"]
