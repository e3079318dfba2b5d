"""Whatever bytes come in whatever packets: the server serves what a strict reader finds, and answers in order."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
import uvicorn
from hypothesis import HealthCheck, example, given, settings
from uvicorn.server import ServerState

from api.http_grammar import cut, streams
from api.reference_reader import End, Reader, Seen
from depth import far
from duetime.api.server.express import METHOD, PATH, Head
from duetime.api.server.http import Answer
from duetime.api.server.protocol import DuetimeProtocol

ROUNDS = 200


class Wire(asyncio.Transport):
    """A connection in memory; what is written to it stays."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.said = bytearray()
        self.is_paused = self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1234) if name in ("peername", "sockname") else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.said += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All that is written is taken at once."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


@dataclass
class Application:
    """Notes what it is asked, and answers with the number of that: early or late, by the short way or the long one."""

    seen: list[Seen] = field(default_factory=list)

    @property
    def express(self) -> "Application":
        return self

    def take(self, head: Head, body: bytes, finish: Callable[[Any], None]) -> bool:
        short = head.headers.get(b"short")
        if short is None:
            return False
        headers = [(name, value.strip()) for name, value in head._given]
        self.seen.append(Seen(METHOD, PATH, b"", headers, body, True))
        answer = Answer(200, b"short", headers=((b"number", b"%d" % (len(self.seen) - 1)),))
        asyncio.get_running_loop().call_soon(finish, self.wait(answer) if short == b"wait" else answer)
        return True

    async def wait(self, answer: Answer) -> Answer:
        for _ in range(3):
            await asyncio.sleep(0)
        return answer

    async def judge(
        self, answering: Coroutine[None, None, Answer], method: str, path: str, request_id: bytes
    ) -> Answer:
        return await answering

    def render(self, answer: Answer, *, keep_alive: bool, request_id: bytes) -> bytes:
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        lines = [b"%s: %s\r\n" % header for header in headers]
        return b"HTTP/1.1 %d Told\r\n%s\r\n%s" % (answer.status, b"".join(lines), answer.body)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name, value.strip()) for name, value in scope["headers"]]
        seen = Seen(scope["method"].encode(), scope["raw_path"], scope["query_string"], headers)
        self.seen.append(seen)
        number = len(self.seen) - 1
        is_early = b"early" in dict(headers)
        message = {"more_body": True}
        while message["more_body"] and not is_early:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            seen.body += message["body"]
        seen.is_whole = not is_early
        for _ in range(3 if b"slow" in dict(headers) else 0):
            await asyncio.sleep(0)
        body = b"" if seen.method == b"HEAD" else b"long"
        sent = [(b"number", b"%d" % number), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        await send({"type": "http.response.body", "body": body})


@dataclass
class Talk:
    """What became of a stream of bytes."""

    app: Application
    said: bytes
    is_closed: bool

    def answers(self) -> list[tuple[int, int | None]]:
        """Statuses and the numbers of the requests that they answer."""
        answers, rest = [], self.said
        while rest:
            head, end, rest = rest.partition(b"\r\n\r\n")
            assert end
            status = int(head.split()[1])
            if status == 100:
                continue
            number = re.search(rb"(?i)\r\nnumber: (\d+)", head)
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            assert length is not None
            size = int(length[1])
            assert len(rest) >= size
            rest = rest[size:]
            answers.append((status, None if number is None else int(number[1])))
        return answers


def make_protocol(app: Application) -> tuple[DuetimeProtocol, Wire]:
    config = uvicorn.Config(
        app,
        http=DuetimeProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        date_header=False,
        server_header=False,
    )
    config.load()
    protocol = DuetimeProtocol(config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    wire.protocol = protocol
    protocol.connection_made(wire)
    return protocol, wire


async def talk(packets: list[bytes], rounds: list[int]) -> Talk:
    """Say it in these packets, with so many rounds of the loop after each."""
    app = Application()
    _, wire = make_protocol(app)
    for number, packet in enumerate(packets):
        for _ in range(ROUNDS):
            if not wire.is_paused or wire.is_closed:
                break
            await asyncio.sleep(0)
        if wire.is_closed:
            break
        assert not wire.is_paused
        wire.protocol.data_received(packet)
        for _ in range(rounds[number % len(rounds)]):
            await asyncio.sleep(0)
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    told = Talk(app, bytes(wire.said), wire.is_closed)
    wire.is_closed = True
    wire.protocol.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    return told


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def compare(runner: asyncio.Runner, stream: bytes, sizes: list[int], rounds: list[int]) -> None:
    reader = Reader(stream)
    end = reader.read()
    faults: list[Any] = []
    runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))

    told = runner.run(talk(cut(stream, sizes), rounds))

    assert faults == []
    wanted, seen = reader.requests, told.app.seen
    early = [b"early" in dict(each.headers) for each in wanted]
    # A last one that is not whole may have been begun with, and is not served.
    assert len(seen) in (len(wanted), len([each for each in wanted if each.is_whole]))
    for want, got, is_early in zip(wanted, seen, early, strict=False):
        assert (got.method, got.path, got.query, got.headers) == (want.method, want.path, want.query, want.headers)
        assert got.is_whole == (want.is_whole and not is_early)
        if got.is_whole:
            assert got.body == want.body
    answers = told.answers()
    is_refused = bool(answers) and answers[-1][0] != 200
    numbers = [number for _, number in answers[: -1 if is_refused else None]]
    assert all(status == (200 if number is not None else 400) for status, number in answers)
    served = [number for number, want in enumerate(wanted) if want.is_whole]
    if len(numbers) > len(served) and len(wanted) > len(served) and early[-1]:
        served.append(len(wanted) - 1)
    assert numbers == served
    match end:
        case End.BETWEEN:
            assert not told.is_closed
        case End.LAST:
            assert told.is_closed
            assert not is_refused
        case End.PARTIAL:
            # What has begun may be wrong already.
            assert told.is_closed == is_refused or (told.is_closed and early[-1])
        case End.WRONG:
            assert told.is_closed
            assert is_refused or len(served) == len(wanted)


_GET = b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"

sizes = st.one_of(
    st.just([1_000_000]),
    st.lists(st.integers(1, 300), min_size=1, max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
rounds = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@settings(
    max_examples=far(400, 10_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(streams(), sizes, rounds)
@example(_CHUNKED + b"1;=b\r\ny\r\n0\r\n\r\n" + _GET, [1000], [0])
@example(_CHUNKED + b"0\r\nProxy-Connection: close\r\n\r\n" + _GET, [1000], [0])
@example(_CHUNKED + b"0\r\nA: b\r\n\r\n" + _GET, [1], [0])
@example(_POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(_GET) + _GET, [90], [1])
@example(_POST + b"early: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nConnection: close\r\n\r\n", [1000], [0])
@example(b"HEAD" + _CHUNKED[4:-2] + b"early: 1\r\nslow: 1\r\n\r\n" + b"1\r\ny\r\n" * 3 + b"1\r\ny\0", [112, 1], [4])
@example(_POST + b"short: now\r\nContent-Length: 1\r\n\r\nx\r" + _POST, [80, 3], [5])
def test_whatever_comes_is_read_as_a_strict_reader_does(
    runner: asyncio.Runner, stream: bytes, sizes: list[int], rounds: list[int]
) -> None:
    compare(runner, stream, sizes, rounds)
