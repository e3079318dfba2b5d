"""Calls between nodes: answered once, ended on request, and only by those who know the secret."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from duetime.cluster import line as line_module
from duetime.cluster.contract import Member
from duetime.cluster.line import MAX_FRAME_BYTES, Call, Line
from duetime.cluster.mesh import Mesh, PeerGone

SECRET = b"s" * 32


class End:
    """One node's end, which answers by turning what it was told around."""

    def __init__(self, name: str, secret: bytes = SECRET, incarnation: int = 1) -> None:
        self.mesh = Mesh(
            name, secret, self.handle, self.keep, on_called=self.count, on_lost=lambda member: self.lost.append(member)
        )
        self.name = name
        self.incarnation = incarnation
        self.called = 0
        self.lost: list[Member] = []
        self.late: list[tuple[str, bytes]] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = 0
        self.member = Member(name, incarnation, "")

    async def listen(self) -> "End":
        self.mesh.be(self.incarnation)
        self.member = Member(self.name, self.incarnation, await self.mesh.listen())
        return self

    def count(self) -> None:
        self.called += 1

    def keep(self, verb: str, body: bytes) -> None:
        self.late.append((verb, body))

    async def handle(self, verb: str, body: bytes) -> bytes:
        if verb == "fail":
            raise RuntimeError("as asked")
        if verb == "wait":
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return body[::-1]


class Stubborn(End):
    """Too late to stop: there is something to answer."""

    async def handle(self, verb: str, body: bytes) -> bytes:
        try:
            return await super().handle(verb, body)
        except asyncio.CancelledError:
            return b"claimed all the same"


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    one, two = await End("one").listen(), await End("two", incarnation=2).listen()
    one.mesh.meet([one.member, two.member])
    two.mesh.meet([one.member, two.member])
    # The lines are open once something came over them.
    await one.mesh.peer("two").call("turn", b"", 20)
    await two.mesh.peer("one").call("turn", b"", 20)
    yield one, two
    await one.mesh.close()
    await two.mesh.close()


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_call_is_answered(ends: tuple[End, End]) -> None:
    one, two = ends

    assert await one.mesh.peer("two").call("turn", b"abc", 10) == b"cba"
    assert await two.mesh.peer("one").call("turn", b"", 10) == b""


async def test_many_and_large_calls_are_answered_each_with_its_own(ends: tuple[End, End]) -> None:
    one, _ = ends
    bodies = [bytes([place]) * (200_000 if place % 7 == 0 else 3) + b"." for place in range(50)]

    answers = await asyncio.gather(*[one.mesh.peer("two").call("turn", body, 20) for body in bodies])

    assert answers == [body[::-1] for body in bodies]


async def test_a_call_that_fails_there_has_no_answer(ends: tuple[End, End]) -> None:
    one, _ = ends

    assert await one.mesh.peer("two").call("fail", b"", 10) is None


async def test_a_call_can_be_ended_and_then_has_no_answer(ends: tuple[End, End]) -> None:
    one, two = ends
    calls: set[object] = set()
    call = asyncio.create_task(one.mesh.peer("two").call("wait", b"x", 20, calls))  # type: ignore[arg-type]
    await two.begun.wait()

    for ending in calls:
        ending.end()  # type: ignore[attr-defined]

    assert await call is None
    assert two.cancelled == 1
    assert calls == set()


async def test_a_caller_that_is_cancelled_stops_the_work(ends: tuple[End, End]) -> None:
    one, two = ends
    call = asyncio.create_task(one.mesh.peer("two").call("wait", b"x", 20))
    await two.begun.wait()

    call.cancel()

    await until(lambda: two.cancelled == 1)
    assert one.late == []


async def test_an_answer_for_which_nobody_waits_any_more_is_not_lost(ends: tuple[End, End]) -> None:
    one, _ = ends
    stubborn = await Stubborn("three", incarnation=3).listen()
    one.mesh.meet([stubborn.member])
    call = asyncio.create_task(one.mesh.peer("three").call("wait", b"x", 20))
    await stubborn.begun.wait()

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: one.late == [("wait", b"claimed all the same")])
    await stubborn.mesh.close()


async def test_calls_fail_at_once_when_the_other_goes(ends: tuple[End, End]) -> None:
    one, two = ends
    call = asyncio.create_task(one.mesh.peer("two").call("wait", b"x", 60))
    await two.begun.wait()

    await two.mesh.close()

    with pytest.raises(PeerGone):
        await call
    await until(lambda: one.lost[:1] == [two.member])


async def test_the_work_stops_when_the_caller_goes(ends: tuple[End, End]) -> None:
    one, two = ends
    call = asyncio.create_task(one.mesh.peer("two").call("wait", b"x", 60))
    await two.begun.wait()

    one.mesh.meet([])

    with pytest.raises(PeerGone):
        await call
    await until(lambda: two.cancelled == 1)


async def test_an_answer_to_a_caller_that_has_gone_is_kept(ends: tuple[End, End]) -> None:
    one, two = ends
    stubborn = await Stubborn("three", incarnation=3).listen()
    one.mesh.meet([two.member, stubborn.member])
    call = asyncio.create_task(one.mesh.peer("three").call("wait", b"x", 60))
    await stubborn.begun.wait()

    one.mesh.meet([two.member])

    with pytest.raises(PeerGone):
        await call
    await until(lambda: stubborn.late == [("wait", b"claimed all the same")])
    await stubborn.mesh.close()


async def test_a_call_that_takes_too_long_fails_and_is_ended(ends: tuple[End, End]) -> None:
    one, two = ends

    with pytest.raises(PeerGone):
        await one.mesh.peer("two").call("wait", b"x", 0.05)

    await until(lambda: two.cancelled == 1 or not two.begun.is_set())


async def test_nobody_is_heard_without_the_secret(ends: tuple[End, End]) -> None:
    _, two = ends
    before = two.called
    stranger = End("stranger", secret=b"guess" * 8)

    stranger.mesh.meet([two.member])

    with pytest.raises(PeerGone):
        await stranger.mesh.peer("two").call("turn", b"abc", 0.5)
    assert stranger.lost
    assert two.called == before
    await stranger.mesh.close()


async def test_a_server_without_the_secret_is_not_spoken_to(ends: tuple[End, End]) -> None:
    one, _ = ends
    impostor = await End("two", secret=b"guess" * 8, incarnation=2).listen()

    one.mesh.meet([impostor.member])

    with pytest.raises(PeerGone):
        await one.mesh.peer("two").call("turn", b"secret payload", 0.5)
    await impostor.mesh.close()


async def test_a_later_start_at_the_same_port_is_not_taken_for_the_former(ends: tuple[End, End]) -> None:
    one, two = ends

    one.mesh.meet([Member("two", 99, two.member.address)])

    with pytest.raises(PeerGone):
        await one.mesh.peer("two").call("turn", b"abc", 0.5)


@pytest.mark.parametrize(
    "bytes_sent",
    [b"GET / HTTP/1.1\r\n\r\n", (MAX_FRAME_BYTES).to_bytes(4, "big"), b"\0\0\0\x03\x93\x03\x01", b"\0\0\0\0"],
    ids=["http", "huge", "call", "empty"],
)
async def test_what_a_stranger_says_closes_the_line(ends: tuple[End, End], bytes_sent: bytes) -> None:
    _, two = ends
    host, port = two.member.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    writer.write(bytes_sent)
    async with asyncio.timeout(20):
        try:
            await reader.read()
        except ConnectionResetError:
            pass

    writer.close()
    assert await ends[0].mesh.peer("two").call("turn", b"abc", 10) == b"cba"


async def test_a_line_whose_other_end_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "MAX_UNSENT_BYTES", 100_000)
    lost = asyncio.Event()
    accepted: list[asyncio.BaseTransport] = []

    class Deaf(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)
            transport.pause_reading()  # type: ignore[attr-defined]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Deaf, "127.0.0.1", 0)
    _, line = await loop.create_connection(
        lambda: Line(lambda _line, _frame: None, lambda _line: lost.set()), *server.sockets[0].getsockname()
    )

    sent = 0
    while line.send(Call(1, "poll", bytes(100_000))):
        sent += 1
        assert sent < 1_000

    async with asyncio.timeout(5):
        await lost.wait()
    assert sent > 1
    assert not line.send(Call(1, "poll", b""))
    accepted[0].abort()  # type: ignore[attr-defined]
    server.close()
