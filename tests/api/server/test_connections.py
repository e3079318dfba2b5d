"""Too many connections: who has to go, who is refused, and that the next client is served all the same."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field

import pytest

from api.client import Api, until
from duetime.api.server.connections import MOST_CONNECTIONS, Connections
from duetime.api.server.peers import Client, Peers
from duetime.config import Config, read_config
from duetime.errors import DuetimeError, UsageError
from duetime.files import room_for_connections

ASK = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@dataclass(eq=False)
class Line:
    """A connection as the book of them sees it."""

    client: Client
    since: float | None
    looks: int = 0
    refused: list[DuetimeError] = field(default_factory=list)
    is_evicted: bool = False

    def idle_since(self) -> float | None:
        self.looks += 1
        return self.since

    def evict(self) -> None:
        self.is_evicted = True

    def refuse(self, error: DuetimeError) -> None:
        self.refused.append(error)


def of(address: str, since: float | None = 0.0) -> Line:
    return Line((address, 1234), since)


def make(most: int, per_peer: int | None = None, *trusted: str) -> Connections:
    return Connections(Peers(trusted), most, per_peer, now=lambda: 1_000.0)


def test_the_one_that_has_been_idle_for_the_longest_makes_room() -> None:
    book = make(3)
    busy, young, old = of("192.0.2.1", None), of("192.0.2.2", 9.0), of("192.0.2.3", 5.0)
    for line in (busy, young, old):
        assert book.add(line)

    assert book.add(of("192.0.2.4", 10.0))
    assert old.is_evicted
    assert book.add(of("192.0.2.5", 10.0))
    assert young.is_evicted
    assert not busy.is_evicted
    assert len(book) == 3


def test_who_is_served_again_after_a_look_stays() -> None:
    book = make(128, 128)
    lines = [of("192.0.2.1", float(number)) for number in range(128)]
    for line in lines:
        book.add(line)
    book.add(of("192.0.2.1", 500.0))
    # Found by the same look as the first, and busy since.
    lines[1].since = None

    book.add(of("192.0.2.1", 501.0))

    assert [line.is_evicted for line in lines[:4]] == [True, False, True, False]


def test_when_none_is_idle_the_new_one_is_refused() -> None:
    book = make(2)
    book.add(of("192.0.2.1", None))
    book.add(of("192.0.2.2", None))
    late = of("192.0.2.3")

    assert not book.add(late)
    [error] = late.refused
    assert (error.status, error.code) == (503, "too_many_connections")
    assert error.retry_after
    assert len(book) == 2


def test_a_peer_has_so_many_and_makes_room_among_its_own() -> None:
    book = make(100, 2)
    other = of("192.0.2.9", 0.0)
    own = [of("192.0.2.1", 7.0), of("192.0.2.1", 8.0)]
    for line in (other, *own):
        book.add(line)

    assert book.add(of("192.0.2.1", None))
    assert [line.is_evicted for line in (other, *own)] == [False, True, False]
    own[1].since = None
    late = of("192.0.2.1")
    assert not book.add(late)
    assert [error.code for error in late.refused] == ["too_many_connections"]
    assert book.add(of("192.0.2.2"))


def test_addresses_of_a_slash_64_are_one_peer() -> None:
    book = make(100, 1)
    first, second, stranger = of("2001:db8::1"), of("2001:db8::2"), of("2001:db8:0:1::1")
    for line in (first, stranger, second):
        book.add(line)

    assert [line.is_evicted for line in (first, second, stranger)] == [True, False, False]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7"])
def test_loopback_and_trusted_proxies_are_not_one_peer(address: str) -> None:
    book = make(100, 1, "10.0.0.0/8")

    assert all(book.add(of(address, None)) for _ in range(20))


def test_a_peer_that_has_gone_leaves_nothing_behind() -> None:
    book = make(10, 1)
    lines = [of(f"192.0.2.{number}") for number in range(30)]
    for line in lines:
        book.add(line)
    for line in lines:
        book.discard(line)

    assert (len(book), book._by_peer, book._group_of) == (0, {}, {})


def test_a_flood_does_not_look_at_every_connection_each_time() -> None:
    book = make(2_000)
    kept = [of("192.0.2.1", float(number)) for number in range(500)] + [of("192.0.2.2", None) for _ in range(1_500)]
    for line in kept:
        book._all.members.add(line)

    for _ in range(310):
        assert book.add(of("127.0.0.1", None))

    assert sum(line.looks for line in kept) < 30_000


def test_a_flood_of_busy_ones_is_refused_without_a_look_each_time() -> None:
    book = make(1_000)
    kept = [of("127.0.0.1", None) for _ in range(1_000)]
    for line in kept:
        book.add(line)

    assert not any(book.add(of("127.0.0.1")) for _ in range(100))
    assert sum(line.looks for line in kept) == 1_000


def test_long_polls_never_take_all_connections() -> None:
    polls = make(100).bound_polls()

    assert (polls._most, polls._most_per_tenant) == (75, 25)
    assert make(MOST_CONNECTIONS).bound_polls()._most_per_tenant == 2_000


def test_files_are_left_for_the_database_and_for_calls() -> None:
    assert room_for_connections(20_000, database=10, calls=256) == 20_000 - 64 - 10 - 512
    assert room_for_connections(256, database=10, calls=256) == 64


def test_the_settings_say_how_many() -> None:
    book = Connections.of(Config(max_connections=50, max_connections_per_peer=7), Peers())
    assert (book.most, book.most_per_peer) == (50, 7)
    assert Connections.of(Config(max_connections=50), Peers()).most_per_peer == 12


@pytest.mark.parametrize("given", [{"max_connections": "15"}, {"max_connections_per_peer": "0"}])
def test_wrong_numbers_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="max_connections"):
        read_config(given, {})


@pytest.fixture
async def few(api: Api, monkeypatch: pytest.MonkeyPatch) -> Connections:
    """The server has room for three connections more."""
    book = api.serving.app.connections
    monkeypatch.setattr(book, "most", len(book) + 3)
    return book


@pytest.mark.asyncio(loop_scope="module")
class TestOnTheWire:
    async def test_a_client_is_served_although_idle_ones_take_all_the_room(self, api: Api, few: Connections) -> None:
        async with contextlib.AsyncExitStack() as stack:
            idle = [await connect(stack, api) for _ in range(6)]
            reader, writer = await connect(stack, api)
            writer.write(ASK)

            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 200 ")
            assert await asyncio.wait_for(idle[0][0].read(), 10) == b""
            assert len(few) <= few.most

    async def test_who_waits_for_an_answer_stays_and_the_next_is_told(self, api: Api, few: Connections) -> None:
        async with contextlib.AsyncExitStack() as stack:
            # Whatever is idle has to go for them first.
            async def all_wait() -> bool:
                _, writer = await connect(stack, api)
                writer.write(poll(api))
                return sum(line.idle_since() is None for line in few._all.members) >= few.most

            await until(all_wait)
            reader, writer = await connect(stack, api)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            # A client that sends its request meanwhile is not reset before it has read the answer.
            writer.write(ASK)
            body = await asyncio.wait_for(reader.read(), 10)

        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 5\r\n" in head
        assert b"\r\nconnection: close\r\n" in head
        assert json.loads(body)["code"] == "too_many_connections"

        async def all_gone() -> bool:
            return all(line.idle_since() is not None for line in few._all.members)

        await until(all_gone)

    async def test_a_request_under_way_is_not_idle_and_an_unfinished_head_is(self, api: Api, few: Connections) -> None:
        async with contextlib.AsyncExitStack() as stack:
            before = set(few._all.members)
            _, half = await connect(stack, api)
            half.write(b"GET /healthz HTTP/1.1\r\nhos")
            await connect(stack, api)

            async def both_are_there() -> bool:
                return len(set(few._all.members) - before) == 2

            await until(both_are_there)
            assert all(line.idle_since() is not None for line in set(few._all.members) - before)


async def connect(stack: contextlib.AsyncExitStack, api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    stack.callback(writer.close)
    return reader, writer


def poll(api: Api) -> bytes:
    body = b'{"worker": "w", "wait": 30}'
    head = b"POST /v1/workers/lease HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-length: %d\r\n\r\n"
    return head % (api.key.encode(), len(body)) + body
