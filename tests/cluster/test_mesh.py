"""Calls between nodes: answered once, ended on request, and only by those who know the secret."""

import asyncio
from collections.abc import AsyncIterator

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from structlog.testing import capture_logs

from depth import far
from duetime.cluster import line as line_module
from duetime.cluster import mesh as mesh_module
from duetime.cluster.contract import Member
from duetime.cluster.line import MAX_FRAME_BYTES, Answer, Call, Line, Proof
from duetime.cluster.mesh import MAX_GREETING, Mesh, PeerGone

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


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def encoded(*message: object) -> bytes:
    return frame(msgspec.msgpack.encode(message))


#: A call whose verb is no UTF-8.
NO_TEXT = frame(b"\x94\x03\x01\xa2\xff\xfe\xc4\x00")
UNREADABLE = {
    "no text": NO_TEXT,
    "no array": frame(b"\xc0"),
    "nothing": frame(b""),
    "too long": (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    "unknown": encoded(77, 1),
    "too short": encoded(3, 1),
    "nested": frame(b"\x96\x03\x01\xa1v\xc4\x00\x01" + b"\x91" * 100_000 + b"\x00"),
    "out of place": encoded(2, b"proof"),
}


async def dial(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A line that has proved nothing, and what it is asked."""
    host, port = end.member.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = int.from_bytes(await reader.readexactly(4), "big")
    [_, nonce] = msgspec.msgpack.decode(await reader.readexactly(length))
    return reader, writer, nonce


async def dial_trusted(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer, nonce = await dial(end)
    proof = end.mesh.prove(b"caller", nonce, b"n", end.incarnation)
    writer.write(encoded(1, "raw", end.incarnation, b"n", proof))
    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return reader, writer


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(20):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


class Faults:
    """What the loop says of exceptions that nobody caught."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.told.append(context)


@pytest.fixture
async def faults() -> AsyncIterator[Faults]:
    found = Faults()
    asyncio.get_running_loop().set_exception_handler(found)
    yield found
    assert found.told == []


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_stranger_that_cannot_be_understood_is_closed_without_a_word(
    ends: tuple[End, End], faults: Faults, sent: bytes
) -> None:
    _, two = ends
    reader, writer, _ = await dial(two)

    with capture_logs() as lines:
        writer.write(sent)
        assert await is_closed(reader)

    assert lines == []
    writer.close()


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_node_that_cannot_be_understood_is_closed_with_one_line_in_the_log(
    ends: tuple[End, End], faults: Faults, sent: bytes
) -> None:
    one, two = ends
    _, writer = await dial_trusted(two)

    with capture_logs() as lines:
        # The call before it is served, and what comes behind it is not.
        writer.write(encoded(3, 1, "turn", b"abc") + sent + encoded(3, 2, "turn", b"def"))
        await until(lambda: lines)

    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("another node said what cannot be understood: its line is closed", "warning")
    ]
    assert await one.mesh.peer("two").call("turn", b"abc", 10) == b"cba"
    writer.close()


async def test_a_call_with_the_number_of_another_closes_the_line(ends: tuple[End, End]) -> None:
    _, two = ends
    reader, writer = await dial_trusted(two)

    writer.write(encoded(3, 1, "wait", b"") * 2)

    assert await is_closed(reader)
    await until(lambda: two.cancelled == 1 or not two.begun.is_set())
    assert two.mesh._working[next(iter(two.mesh._working))] == {}
    writer.close()


async def test_an_answer_that_cannot_be_read_is_logged_and_harms_nobody(ends: tuple[End, End], faults: Faults) -> None:
    one, _ = ends

    def read(verb: str, body: bytes) -> None:
        one.late.append((verb, body))
        msgspec.msgpack.decode(b"\xa1\xff", type=str)

    one.mesh.undelivered = read
    stubborn = await Stubborn("three", incarnation=3).listen()
    one.mesh.meet([stubborn.member])
    call = asyncio.create_task(one.mesh.peer("three").call("wait", b"x", 20))
    await stubborn.begun.wait()

    with capture_logs() as lines:
        call.cancel()
        await until(lambda: one.late)

    assert [line["event"] for line in lines] == ["answer of another node cannot be read"]
    await stubborn.mesh.close()


async def test_a_stranger_is_judged_once(ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
    _, two = ends
    reader, writer, _ = await dial(two)
    asked: list[bytes] = []
    prove = two.mesh.prove

    def note(role: bytes, *arguments: object) -> bytes:
        asked.append(role)
        return prove(role, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(two.mesh, "prove", note)
    writer.write(encoded(1, "raw", 2, b"n", b"wrong") * 1_000)

    assert await is_closed(reader)
    assert asked == [b"caller"]
    writer.close()


async def test_strangers_that_say_nothing_are_few_and_nodes_get_in_beside_them(ends: tuple[End, End]) -> None:
    one, two = ends
    strangers = [await dial(two) for _ in range(MAX_GREETING + 20)]

    assert len(two.mesh._greeting) == MAX_GREETING
    for reader, _, _ in strangers[:20]:
        assert await is_closed(reader)
    one.mesh.meet([])
    one.mesh.meet([two.member])
    assert await one.mesh.peer("two").call("turn", b"abc", 10) == b"cba"

    for _, writer, _ in strangers:
        writer.transport.abort()  # type: ignore[attr-defined]
    await until(lambda: not two.mesh._greeting)


async def test_a_stranger_that_says_nothing_has_little_time(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "HANDSHAKE_SECONDS", 0.05)
    reader, writer, _ = await dial(ends[1])

    assert await is_closed(reader)
    assert ends[1].mesh._greeting == {}
    writer.close()


# Any bytes


class Wire(asyncio.Transport):
    """The other end of a line, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.is_cut = True


good = st.one_of(
    st.builds(Call, st.integers(0, 2**63), st.text(max_size=8), st.binary(max_size=300)),
    st.builds(Answer, st.integers(0, 2**63), st.none() | st.binary(max_size=300)),
    st.builds(Proof, st.text(max_size=8), st.integers(), st.binary(max_size=20), st.binary(max_size=20)).filter(
        lambda proof: -(2**63) <= proof.wanted < 2**64
    ),
)
flipped = st.tuples(good, st.integers(0, 10_000), st.integers(1, 255))


def flip(message: msgspec.Struct, place: int, bits: int) -> bytes:
    body = bytearray(msgspec.msgpack.encode(message))
    body[place % len(body)] ^= bits
    return bytes(body)


bad = st.one_of(
    st.binary(max_size=60).map(frame),
    flipped.map(lambda each: frame(flip(*each))),
    flipped.map(lambda each: flip(*each)),
    st.binary(max_size=60),
)


@settings(max_examples=far(200, 20_000), deadline=None)
@given(
    st.lists(good, max_size=4), bad, st.lists(good, max_size=2), st.lists(st.integers(1, 40), min_size=1), st.booleans()
)
def test_any_bytes_are_read_or_close_the_line(
    before: list[msgspec.Struct], wrong: bytes, after: list[msgspec.Struct], cuts: list[int], is_trusted: bool
) -> None:
    heard: list[object] = []
    line = Line(lambda _, message: heard.append(message), lambda _: None)
    wire = Wire()
    line.connection_made(wire)
    if is_trusted:
        line.trust()
    stream = b"".join(encoded_message(each) for each in before) + wrong
    stream += b"".join(encoded_message(each) for each in after)

    place, turn = 0, 0
    with capture_logs() as lines:
        while place < len(stream) and not wire.is_cut:
            size = cuts[turn % len(cuts)]
            line.data_received(stream[place : place + size])
            place, turn = place + size, turn + 1
            # Never more than one frame, and what one packet brings.
            assert wire.is_cut or len(line._buffer) < 4 + line.limit
        if wire.is_cut:
            count = len(heard)
            line.data_received(encoded_message(Call(1, "late", b"")))
            assert (len(heard), line._buffer) == (count, b"")

    assert heard[: len(before)] == before
    assert len(lines) == (1 if is_trusted and wire.is_cut else 0)


def encoded_message(message: msgspec.Struct) -> bytes:
    return frame(msgspec.msgpack.encode(message))
