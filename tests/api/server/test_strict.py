"""What is not a request of HTTP/1.1 or 1.0 is refused, in its place, within bounds, and ends the connection."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import Api
from duetime.api.server.framing import BODY_BYTES_PER_CHUNK, MAX_CHUNKS, MAX_FRAMING_BYTES, MAX_TRAILERS
from duetime.api.server.heads import MAX_HEAD_BYTES, MAX_HEADERS
from duetime.api.server.protocol import MAX_UNREAD_BYTES
from duetime.api.server.strict import MAX_PIPELINED
from duetime.model.task import MAX_REQUEST_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEGABYTE = 1024 * 1024
#: What systems hold between two sockets, beside what the server reads.
IN_BETWEEN = 16 * MEGABYTE
CLOSE = b"Connection: close\r\n"

Answer = tuple[int, Any]


def head(
    api: Api,
    more: bytes = b"",
    *,
    line: bytes = b"POST /v1/tasks HTTP/1.1",
    host: bytes = b"Host: x\r\n",
    key: str = "",
) -> bytes:
    return line + b"\r\n" + host + b"Authorization: Bearer %s\r\n" % (key or api.key).encode() + more + b"\r\n"


def task(api: Api, more: bytes = b"", body: bytes = b'{"type": "t"}', **options: Any) -> bytes:
    return head(api, b"Content-Length: %d\r\n" % len(body) + more, **options) + body


def look(api: Api, more: bytes = b"", **options: Any) -> bytes:
    return head(api, more, **({"line": b"GET /v1/tasks HTTP/1.1"} | options))


def chunked(api: Api, after: bytes, more: bytes = b"", **options: Any) -> bytes:
    return head(api, b"Transfer-Encoding: chunked\r\n" + more, **options) + after


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_answers(reader: asyncio.StreamReader, most: int = 1_000_000) -> list[Answer]:
    """What comes until the server closes, or so many."""
    answers: list[Answer] = []
    while len(answers) < most and (start := await asyncio.wait_for(reader.readline(), 10)):
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = await reader.readexactly(length)
        answers.append((int(start.split()[1]), json.loads(body) if body else None))
    return answers


async def say(api: Api, *packets: bytes) -> list[Answer]:
    """Each packet by itself; every answer until the server closes, which it must do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    for number, packet in enumerate(packets):
        if number:
            await asyncio.sleep(0.05)
        writer.write(packet)
    try:
        return await read_answers(reader)
    finally:
        writer.close()


def told(answers: list[Answer]) -> list[tuple[int, str]]:
    """Statuses, with the codes of problems."""
    return [(status, body["code"] if status >= 400 else "") for status, body in answers]


MALFORMED = (400, "malformed_request")


# Bytes without end


async def flood(api: Api, begin: bytes, piece: bytes, most: int) -> int:
    """How many bytes can be sent until the server has had enough; up to `most`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    reading = asyncio.create_task(reader.read())
    sent = 0
    try:
        writer.write(begin)
        while sent < most and not reading.done():
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return sent
    except ConnectionError:
        return sent
    finally:
        reading.cancel()
        writer.transport.abort()  # type: ignore[attr-defined]


@pytest.fixture
def little_memory() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 8 * MEGABYTE


@pytest.mark.parametrize("path", [b"/v1/tasks", b"/v1/tasks/batch", b"/nowhere"])
@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"0\r\n", b"a: b\r\n" * 50_000),
        (b"0\r\na: ", b"x" * 300_000),
        (b"0\r\n", b"x" * 300_000),
        (b"1;a=", b"x" * 300_000),
        (b"1;a=" + b'"' * 1, b"x" * 300_000),
        (b"", b"0" * 300_000),
        (b"", b"1;%s\r\nx\r\n" % (b"e" * 1_000) * 300),
    ],
    ids=["trailers", "one trailer", "one name", "extension", "quoted extension", "digits", "extensions"],
)
async def test_what_frames_a_body_without_end_is_cut_off(
    api: Api, little_memory: None, path: bytes, begin: bytes, piece: bytes
) -> None:
    head_bytes = b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path

    sent = await flood(api, head_bytes + begin, piece, 100 * MEGABYTE)

    assert sent < IN_BETWEEN


async def test_empty_lines_without_end_are_cut_off(api: Api, little_memory: None) -> None:
    assert await flood(api, b"", b"\r\n" * 100_000, 100 * MEGABYTE) < IN_BETWEEN


async def test_who_goes_on_after_the_answer_is_cut_off(api: Api, little_memory: None) -> None:
    begin = chunked(api, b"", key="dt_wrong")

    sent = await flood(api, begin, chunk(b"x" * 300_000), 4 * MAX_UNREAD_BYTES)

    assert MAX_REQUEST_BYTES < sent < MAX_UNREAD_BYTES + IN_BETWEEN


async def test_trailers_within_the_bound_are_dropped(api: Api) -> None:
    trailers = b"".join(b"Trailer-%d: %s\r\n" % (number, b"x" * 100) for number in range(100))
    body = chunk(b'{"type":') + chunk(b' "t"}') + b"0\r\n" + trailers + b"\r\n"

    answers = await say(api, chunked(api, body) + look(api, CLOSE))

    assert told(answers) == [(202, ""), (200, "")]


async def test_a_body_in_chunks_of_one_byte_is_served(api: Api) -> None:
    body = b'{"type": "t", "payload": "%s"}' % (b"x" * 5_000)
    one_by_one = b"".join(b"1;e=f\r\n%c\r\n" % byte for byte in body)

    answers = await say(api, chunked(api, one_by_one + b"0\r\n\r\n", CLOSE))

    assert told(answers) == [(202, "")]


@pytest.mark.parametrize("path", [b"/v1/tasks", b"/v1/tasks/batch"])
async def test_very_many_tiny_chunks_are_refused_wherever_they_are_in_a_packet(api: Api, path: bytes) -> None:
    line = b"POST %s HTTP/1.1" % path
    tiny = chunk(b"x") * (2 * MAX_CHUNKS)

    assert told(await say(api, chunked(api, tiny, line=line))) == [MALFORMED]
    assert told(await say(api, look(api) + chunked(api, tiny, line=line))) == [(200, ""), MALFORMED]
    # As many, of a size that pays for them.
    paying = b"[" + b" " * (2 * MAX_CHUNKS * BODY_BYTES_PER_CHUNK) + b'{"type": "t"}]'
    pieces = [chunk(paying[at : at + BODY_BYTES_PER_CHUNK]) for at in range(0, len(paying), BODY_BYTES_PER_CHUNK)]
    batch = chunked(api, b"".join(pieces) + b"0\r\n\r\n", CLOSE, line=b"POST /v1/tasks/batch HTTP/1.1")
    assert told(await say(api, batch)) == [(200, "")]


async def test_very_many_trailers_are_refused(api: Api) -> None:
    body = chunk(b'{"type": "t"}') + b"0\r\n" + b"a: b\r\n" * (MAX_TRAILERS + 1) + b"\r\n"

    assert told(await say(api, chunked(api, body))) == [MALFORMED]
    assert await api.stored() == 0


async def test_extensions_of_large_chunks_are_served(api: Api) -> None:
    # As of those who sign each chunk.
    piece = b" " * 60_000
    signed = b"%x;chunk-signature=%s\r\n%s\r\n" % (len(piece), b"f" * 64, piece)
    body = signed * 15 + chunk(b'{"type": "t"}') + b"0\r\n\r\n"

    assert told(await say(api, chunked(api, body, CLOSE))) == [(202, "")]


async def test_the_bound_of_what_frames_a_body_holds_in_small_pieces(api: Api) -> None:
    pieces = [b"a: %s\r\n" % (b"x" * 990)] * (2 * MAX_FRAMING_BYTES // 1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(chunked(api, b"", line=b"POST /v1/tasks/batch HTTP/1.1"))
    writer.write(chunk(b'[{"type": "t"}]') + b"0\r\n")
    for piece in pieces:
        await asyncio.sleep(0.001)
        writer.write(piece)

    # It waits for the end of the body, so nothing else was answered before.
    assert told(await read_answers(reader)) == [MALFORMED]
    writer.close()
    assert await api.stored() == 0


# Headers that are said twice, and trailers


async def test_a_trailer_is_no_header(api: Api) -> None:
    other = await api.serving.tenant(f"other-{api.tenant_name}")
    body = chunk(b'{"type": "t"}') + b"0\r\n"
    keyless = b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + CLOSE
    good_key = b"Authorization: Bearer %s\r\n\r\n" % api.key.encode()
    good_tenant = b"Duetime-Tenant: %s\r\n\r\n" % other.tenant_name.encode()

    wrong = await say(api, chunked(api, body + good_key, CLOSE, key="dt_wrong"))
    none = await say(api, keyless + b"\r\n" + body + good_key)
    nobodys = await say(api, chunked(api, body + good_tenant, CLOSE + b"Duetime-Tenant: nobody\r\n"))
    own = await say(api, chunked(api, body + good_tenant, CLOSE))

    assert [told(each) for each in (wrong, none, nobodys, own)] == [
        [(401, "unauthorized")],
        [(401, "unauthorized")],
        [(404, "not_found")],
        [(202, "")],
    ]
    assert (await api.stored(), await other.stored()) == (1, 0)


async def test_a_trailer_does_not_reach_the_next_request(api: Api) -> None:
    body = chunk(b'{"type": "t"}') + b"0\r\nAuthorization: Bearer %s\r\n\r\n" % api.key.encode()
    keyless = b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"

    assert told(await say(api, chunked(api, body) + keyless)) == [(202, ""), (401, "unauthorized")]


@pytest.mark.parametrize(
    "trailer", ["Connection: close", "Proxy-Connection: close", "Content-Length: 3", "Transfer-Encoding: chunked"]
)
async def test_a_trailer_that_would_change_how_to_read_on_is_refused(api: Api, trailer: str) -> None:
    body = chunk(b'{"type": "t"}') + b"0\r\n%s\r\n\r\n" % trailer.encode()

    assert told(await say(api, chunked(api, body) + look(api, CLOSE))) == [MALFORMED]
    assert await api.stored() == 0


@pytest.mark.parametrize(
    "twice",
    [
        b"Authorization: Bearer dt_other\r\n",
        b"authorization: x\r\n",
        b"Host: y\r\n",
        b"Content-Length: 13\r\n",
        b"Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        b"Duetime-Tenant: a\r\nDuetime-Tenant: b\r\n",
        b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
async def test_what_says_two_things_at_once_is_refused(api: Api, twice: bytes, is_last: bool) -> None:
    request = task(api, twice) if is_last else task(api).replace(b"Host:", twice + b"Host:", 1)

    assert told(await say(api, request)) == [MALFORMED]
    assert await api.stored() == 0


# Requests that are none, or more than one


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/tasks HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
        b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nA: b\n\r\n",
        b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
        b"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nA: b\0\r\n\r\n",
        b"GET /v1/tasks HTTP/1.1\r\n Host: x\r\n\r\n",
        b"GET /v1/tasks\r\n\r\n",
        b"GET /v1/tasks HTTP/0.9\r\nHost: x\r\n\r\n",
        b"GET /v1/tasks HTTP/2.0\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/tasks#x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:///v1/tasks HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://u@x/v1/tasks HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/tasks HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\nx",
        b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\nx",
        b"POST /v1/tasks/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %s1\r\n\r\nx" % (b"0" * 5_000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_is_refused_and_closes(api: Api, request_bytes: bytes) -> None:
    assert told(await say(api, request_bytes)) == [MALFORMED]


@pytest.mark.parametrize("path", [b"/v1/tasks", b"/v1/tasks/batch"])
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_the_body_of_an_upgrade_is_no_request(api: Api, path: bytes, is_at_once: bool) -> None:
    inner = task(api)
    asks = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n" % len(inner)
    outer = head(api, asks, line=b"POST %s HTTP/1.1" % path)

    answers = await say(api, outer + inner) if is_at_once else await say(api, outer, inner)

    assert told(answers) == [MALFORMED]
    assert await api.stored() == 0


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"HTTP/2.0, SHTTP/1.3"])
async def test_an_upgrade_without_a_body_is_answered_as_if_it_had_not_asked(api: Api, protocol: bytes) -> None:
    asks = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nContent-Length: 0\r\n" % protocol

    answers = await say(api, look(api, asks) + look(api, asks) + look(api, CLOSE))

    assert told(answers) == [(200, "")] * 3


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_nothing_behind_the_last_request_is_served(api: Api, version: bytes) -> None:
    line = b"POST /v1/tasks HTTP/" + version
    for last in (task(api, CLOSE, line=line), task(api, CLOSE, line=line.replace(b"/v1/tasks", b"/v1/task%73"))):
        before = await api.stored()

        assert told(await say(api, last + task(api) + b"garbage")) == [(202, "")]
        assert await api.stored() == before + 1


async def test_a_1_0_client_is_answered_once_whatever_it_hopes_for(api: Api) -> None:
    request = task(
        api, b"Connection: keep-alive\r\nExpect: 100-continue\r\n", line=b"POST /v1/tasks HTTP/1.0", host=b""
    )

    # No interim answer either, which it does not know.
    assert told(await say(api, request + task(api))) == [(202, "")]
    assert await api.stored() == 1


async def test_an_absolute_target_is_its_path(api: Api) -> None:
    line = b"GET http://elsewhere:80/v1/tasks?limit=1 HTTP/1.1"

    assert told(await say(api, look(api, CLOSE, line=line))) == [(200, "")]


@pytest.mark.parametrize("given", [None, b"a b", b"a/b", b"a@b", b"a:b", b"[", b"a, b", b"b\xc3\xbc"])
async def test_a_request_without_a_right_host_is_refused(api: Api, given: bytes | None) -> None:
    host = b"" if given is None else b"Host: %s\r\n" % given
    for request in (task(api, host=host), look(api, host=host)):
        assert told(await say(api, request)) == [MALFORMED]
    assert await api.stored() == 0


@pytest.mark.parametrize(
    "host", [b"x", b"x:80", b"127.0.0.1:8080", b"[::1]:8080", b"a_b.example", b"", b"x:", b"xn--bcher-kva.example"]
)
async def test_a_right_host_is_served(api: Api, host: bytes) -> None:
    assert told(await say(api, look(api, CLOSE, host=b"Host: %s\r\n" % host))) == [(200, "")]


async def test_a_1_0_client_needs_no_host(api: Api) -> None:
    assert told(await say(api, look(api, host=b"", line=b"GET /v1/tasks HTTP/1.0"))) == [(200, "")]


# In their order


@pytest.mark.parametrize("garbage", [b"garbage\r\n\r\n", b"POST /v1/tasks HTTP/1.1\r\n\r\n", b"\0"])
async def test_what_was_asked_before_the_garbage_is_answered_before_it(api: Api, garbage: bytes) -> None:
    short, long, get = task(api), task(api, line=b"POST /v1/task%73 HTTP/1.1"), look(api)

    assert told(await say(api, short + garbage)) == [(202, ""), MALFORMED]
    assert told(await say(api, long + garbage)) == [(202, ""), MALFORMED]
    assert told(await say(api, get + garbage)) == [(200, ""), MALFORMED]
    assert told(await say(api, short + get + long + garbage)) == [(202, ""), (200, ""), (202, ""), MALFORMED]
    assert await api.stored() == 4


async def test_garbage_behind_a_long_poll_is_answered_after_it(api: Api) -> None:
    body = b'{"worker": "w", "wait": 30}'
    poll = task(api, body=body, line=b"POST /v1/workers/lease HTTP/1.1")
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(poll)
    await asyncio.sleep(0.05)
    writer.write(b"garbage\r\n\r\n")
    await asyncio.sleep(0.05)

    made = await api.submit()
    answers = await read_answers(reader)

    assert told(answers) == [(200, ""), MALFORMED]
    assert [each["id"] for each in answers[0][1]["tasks"]] == [made["id"]]
    writer.close()


async def test_a_body_that_breaks_behind_others_is_answered_after_them_and_not_served(api: Api) -> None:
    broken = chunked(api, chunk(b'{"type": "t"}') + b"zz")

    answers = await say(api, look(api) + task(api) + broken)

    assert told(answers) == [(200, ""), (202, ""), MALFORMED]
    assert await api.stored() == 1


async def test_a_body_that_breaks_after_its_answer_only_closes(api: Api) -> None:
    broken = chunked(api, chunk(b"x" * 100), key="dt_wrong")

    assert told(await say(api, broken, b"zz")) == [(401, "unauthorized")]


async def test_very_many_requests_at_once_are_answered_up_to_a_bound(api: Api) -> None:
    answers = await say(api, look(api) * (2 * MAX_PIPELINED))

    assert told(answers) == [(200, "")] * (MAX_PIPELINED + 1) + [(429, "overloaded")]


async def test_a_poll_ends_with_its_connection_although_something_came_behind_it(api: Api) -> None:
    body = b'{"worker": "gone", "wait": 30}'
    _, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(task(api, body=body, line=b"POST /v1/workers/lease HTTP/1.1") + look(api))
    await asyncio.sleep(0.1)
    writer.transport.abort()  # type: ignore[attr-defined]
    await asyncio.sleep(0.1)

    made = await api.submit()

    assert [each["id"] for each in await api.lease("alive")] == [made["id"]]


# Sizes


async def test_a_head_in_one_piece_has_the_same_bound(api: Api) -> None:
    for filler in (b"A: %s\r\n" % (b"x" * 70_000), b"".join(b"A%d: x\r\n" % n for n in range(9_000))):
        assert told(await say(api, look(api, filler))) == [(431, "head_too_large")]
    long_target = b"GET /v1/tasks?%s HTTP/1.1" % (b"x" * 70_000)
    assert told(await say(api, look(api, line=long_target))) == [(431, "head_too_large")]
    # A large body in the same packet is no large head.
    body = b'{"type": "t", "payload": "%s"}' % (b"x" * (MAX_HEAD_BYTES // 2))
    filler = CLOSE + b"A: %s\r\n" % (b"x" * (MAX_HEAD_BYTES // 2))
    assert told(await say(api, task(api, filler, body=body))) == [(202, "")]


async def test_a_head_of_very_many_headers_is_refused(api: Api) -> None:
    headers = b"".join(b"a%d:\r\n" % number for number in range(MAX_HEADERS + 1))

    assert told(await say(api, look(api, headers))) == [(431, "head_too_large")]
    assert told(await say(api, look(api, headers)[:-2], b"b: c")) == [(431, "head_too_large")]


@pytest.mark.parametrize("path", [b"/v1/tasks", b"/v1/tasks/batch", b"/v1/task%73"])
async def test_a_length_beyond_the_limit_is_refused_before_the_body_comes(api: Api, path: bytes) -> None:
    length = b"Content-Length: %d \r\n" % (2 * MAX_REQUEST_BYTES)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(head(api, length, line=b"POST %s HTTP/1.1" % path) + b"[")

    assert told(await read_answers(reader, 1)) == [(413, "too_large")]
    writer.close()


async def test_a_body_in_very_many_pieces_costs_no_more_than_its_bytes(api: Api, little_memory: None) -> None:
    body = b'{"type": "t", "payload": "%s"}' % (b"xyz" * 2_000)
    request = task(api, CLOSE, body=body)
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(request[: -len(body)])
    for place in range(0, len(body), 2):
        writer.write(body[place : place + 2])
        await asyncio.sleep(0)

    assert told(await read_answers(reader)) == [(202, "")]
    writer.close()
