"""Names are looked up as the system does, with a real name server on loopback."""

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from duetime.config import read_name_server
from duetime.executor.dns_messages import MessageError, ask, read_reply
from duetime.executor.dns_settings import Settings, SystemSettings, read_hosts, read_resolv_conf
from duetime.executor.resolver import Address, NoAnswer, Resolver
from executor.name_server import AAAA, A, encode, name_server


def texts(found) -> set[str]:
    return {address.ip for address in found}


def settings(folder: Path, port: int, *, resolv_conf: str = "", hosts: str = "") -> SystemSettings:
    (folder / "resolv.conf").write_text(resolv_conf)
    (folder / "hosts").write_text(hosts)
    return SystemSettings([("127.0.0.1", port)], resolv_conf=folder / "resolv.conf", hosts=folder / "hosts")


async def test_a_name_has_the_addresses_of_both_families() -> None:
    async with name_server({"api.example": ["192.0.2.1", "192.0.2.2", "2001:db8::1"]}) as server:
        found = await server.resolver().resolve("API.example")

        assert texts(found) == {"192.0.2.1", "192.0.2.2", "2001:db8::1"}
        assert {address.family for address in found} == {socket.AF_INET, socket.AF_INET6}
        assert sorted(server.asked) == [("api.example", A), ("api.example", AAAA)]


async def test_an_alias_is_followed_and_what_is_beside_it_is_not_taken() -> None:
    zone = {
        "www.example": ["=edge.example", "=other.example"],
        "edge.example": ["192.0.2.7"],
        "other.example": ["192.0.2.9"],
    }
    async with name_server(zone) as server:
        assert texts(await server.resolver().resolve("www.example")) == {"192.0.2.7"}


async def test_an_answer_that_was_cut_short_is_fetched_by_tcp() -> None:
    many = [f"192.0.2.{last}" for last in range(1, 65)]
    async with name_server({"many.example": many}, large={"many.example"}) as server:
        assert texts(await server.resolver().resolve("many.example")) == set(many)
        assert server.by_tcp == 2


async def test_a_name_that_does_not_exist_and_one_without_addresses() -> None:
    async with name_server({"empty.example": []}) as server:
        with pytest.raises(NoAnswer, match="does not exist"):
            await server.resolver().resolve("nowhere.example")
        assert await server.resolver().resolve("empty.example") == []


async def test_a_server_that_fails_or_is_silent_is_no_word_about_the_name() -> None:
    async with name_server(errors={"broken.example": 2}) as server:
        resolver = server.resolver(timeout_seconds=0.1)

        with pytest.raises(NoAnswer, match="said no: it failed"):
            await resolver.resolve("broken.example")
        with pytest.raises(NoAnswer, match="in time"):
            await resolver.resolve("silent.example")
        # Each family twice.
        assert server.names().count("silent.example") == 2


async def test_one_family_is_enough_where_the_server_says_nothing_of_the_other() -> None:
    async with name_server({"four.example": ["192.0.2.4"]}, only=A) as server:
        assert texts(await server.resolver().resolve("four.example")) == {"192.0.2.4"}


async def test_the_next_name_server_is_asked_and_then_remembered() -> None:
    zone = {"a.example": ["192.0.2.1"], "b.example": ["192.0.2.2"]}
    async with name_server(zone) as server, name_server(silent="") as dead:
        servers = [("127.0.0.1", dead.port), ("127.0.0.1", server.port)]
        resolver = Resolver(SystemSettings(servers), timeout_seconds=0.4)

        assert texts(await resolver.resolve("a.example")) == {"192.0.2.1"}
        asked = len(dead.asked)
        assert texts(await resolver.resolve("b.example")) == {"192.0.2.2"}
        assert len(dead.asked) == asked


async def test_an_answer_to_something_else_is_passed_over() -> None:
    def spoil(reply: bytes) -> list[bytes]:
        forged = struct.pack("!H", struct.unpack("!H", reply[:2])[0] ^ 1) + reply[2:]
        return [b"", b"\0", forged, reply.replace(b"\x04real", b"\x04fake"), reply]

    async with name_server({"real.example": ["192.0.2.1"]}, spoil=spoil) as server:
        assert texts(await server.resolver().resolve("real.example")) == {"192.0.2.1"}


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("api", ["api.one.test", "api.two.test", "api"]),
        ("api.team", ["api.team.one.test", "api.team.two.test", "api.team"]),
        ("a.b.c", ["a.b.c", "a.b.c.one.test", "a.b.c.two.test"]),
        ("api.", ["api"]),
    ],
)
async def test_search_domains_and_ndots_count(tmp_path: Path, host: str, asked: list[str]) -> None:
    async with name_server() as server:
        conf = "search one.test two.test\noptions ndots:2 timeout:1\n"
        resolver = Resolver(settings(tmp_path, server.port, resolv_conf=conf))

        with pytest.raises(NoAnswer):
            await resolver.resolve(host)

        assert server.names() == asked


async def test_the_hosts_file_comes_first_and_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    async with name_server({"listed.example": ["192.0.2.1"]}) as server:
        found = settings(tmp_path, server.port, hosts="10.1.1.1 Listed.example other # old\n::1 listed.example\n")
        resolver = Resolver(found)

        assert texts(await resolver.resolve("listed.example.")) == {"10.1.1.1", "::1"}
        assert server.asked == []

        (tmp_path / "hosts").write_text("10.1.1.2 listed.example another\n")
        assert texts(await resolver.resolve("listed.example")) == {"10.1.1.2"}
        (tmp_path / "hosts").unlink()
        assert texts(await resolver.resolve("listed.example")) == {"192.0.2.1"}


async def test_resolv_conf_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    async with name_server({"api.two.test": ["192.0.2.2"], "api.one.test": ["192.0.2.1"]}) as server:
        found = settings(tmp_path, server.port, resolv_conf="search one.test")
        resolver = Resolver(found)
        assert texts(await resolver.resolve("api")) == {"192.0.2.1"}

        (tmp_path / "resolv.conf").write_text("domain two.test\n")
        os.utime(tmp_path / "resolv.conf", ns=(time.time_ns(), time.time_ns()))

        assert texts(await resolver.resolve("api")) == {"192.0.2.2"}


async def test_localhost_needs_nobody(tmp_path: Path) -> None:
    async with name_server() as server:
        resolver = Resolver(settings(tmp_path, server.port))

        for host in ("localhost", "LOCALHOST.", "team.localhost"):
            assert texts(await resolver.resolve(host)) == {"127.0.0.1", "::1"}
        for host in ("127.1", "0x7f000001", "2130706433"):
            assert await resolver.resolve(host) == [Address(socket.AF_INET, "127.0.0.1")]
        assert server.asked == []


def test_resolv_conf_is_read_as_the_system_does() -> None:
    read = read_resolv_conf(
        "# comment\n; another\nnameserver 10.0.0.1\nnameserver nonsense\nnameserver fd00::53\nsearch a.test b.test.\n"
        "options ndots:5 timeout:1 attempts:3 rotate edns0 ndots:x\nsortlist 1.2.3.4\nnameserver\n"
    )

    assert read == Settings((("10.0.0.1", 53), ("fd00::53", 53)), ("a.test", "b.test"), 5, 1.0, 3)
    assert read_resolv_conf("") == Settings()
    assert read_resolv_conf("nameserver 10.0.0.1", [("10.0.0.9", 5353)]).servers == (("10.0.0.9", 5353),)
    assert read_hosts("127.0.0.1 a A b\nnonsense c\n\n::1 a # d\n") == {"a": ("127.0.0.1", "::1"), "b": ("127.0.0.1",)}


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.2", ("10.0.0.2", 53)),
        (" 10.0.0.2:5353", ("10.0.0.2", 5353)),
        ("fd00::2", ("fd00::2", 53)),
        ("[fd00::2]", ("fd00::2", 53)),
        ("[fd00::2]:99", ("fd00::2", 99)),
    ],
)
def test_a_name_server_is_an_address_with_or_without_a_port(text: str, server: tuple[str, int]) -> None:
    assert read_name_server(text) == server


@pytest.mark.parametrize(
    "text", ["", "dns.example", "10.0.0.2:", "10.0.0.2:x", "10.0.0.2:0", "10.0.0.2:65536", "[::1]5", "1:2"]
)
def test_what_is_no_name_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        read_name_server(text)


def message(records: list[bytes], *, count: int | None = None) -> bytes:
    question = ask(7, "a.example", A)
    head = struct.pack("!HHHHHH", 7, 0x8180, 1, len(records) if count is None else count, 0, 0)
    return head + question.content[12:] + b"".join(records)


def record(owner: bytes, type: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", type, 1, 60, len(data)) + data


@pytest.mark.parametrize(
    "content",
    [
        message([], count=1),
        message([record(b"\xc0\x0c", A, b"\1\2\3\4")[:-1]]),
        message([record(b"\xc0\xff", A, b"\1\2\3\4")]),
        message([record(b"\x80", A, b"\1\2\3\4")]),
        message([record(b"\x01a" * 130 + b"\0", A, b"\1\2\3\4")]),
        message([])[:11],
        message([])[:20],
    ],
)
def test_a_message_that_is_broken_is_no_answer(content: bytes) -> None:
    with pytest.raises(MessageError):
        read_reply(ask(7, "a.example", A), content)


def test_aliases_that_go_round_in_a_circle_end() -> None:
    circle = [record(encode("a.example"), 5, encode("b.example")), record(encode("b.example"), 5, encode("a.example"))]

    assert read_reply(ask(7, "a.example", A), message(circle)).addresses == ()


def test_only_so_many_addresses_of_an_answer_are_taken() -> None:
    records = [record(b"\xc0\x0c", A, struct.pack("!I", number)) for number in range(4000)]

    assert len(read_reply(ask(7, "a.example", A), message(records)).addresses) == 64


@pytest.mark.parametrize("name", ["", "a..b", "a" * 64, ".".join(["a" * 60] * 5), "sp ace"])
def test_what_is_no_domain_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="not a domain name"):
        ask(7, name, A)


def test_only_so_many_records_of_an_answer_are_read() -> None:
    records = [record(encode("other.example"), A, struct.pack("!I", number)) for number in range(256)]

    assert read_reply(ask(7, "a.example", A), message([*records, record(b"\xc0\x0c", A, b"\1\2\3\4")])).addresses == ()
