"""Single submissions by the short way: the same answers as by the long one, in the order of the requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from api.client import Api
from duetime.admin.keys import hash_key
from duetime.api.server import express
from duetime.api.server.express import MAX_BODY, Express, Head
from duetime.api.server.peers import Client
from duetime.api.server.protocol import DuetimeProtocol
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The same call, by a URL that only the long way knows.
LONG = "/v1/task%73"
SHORT = "/v1/tasks"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that was offered went the short way."""
    found: list[bool] = []
    take = Express.take

    def note(self: Express, *arguments: Any) -> bool:
        found.append(take(self, *arguments))
        return found[-1]

    monkeypatch.setattr(Express, "take", note)
    return found


def raw(api: Api, body: bytes, path: str = SHORT, *, more: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST %s HTTP/%s\r\nhost: x\r\nauthorization: Bearer %s\r\n" % (path.encode(), version, api.key.encode())
    return head + b"content-type: application/json\r\ncontent-length: %d\r\n%s\r\n%s" % (len(body), more, body)


async def talk(api: Api, *pieces: bytes, pause: float = 0.0) -> list[tuple[int, dict[str, str], Any]]:
    """Send the pieces on one connection, the last with `connection: close`; every answer, in order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(pause)
    answers = []
    while head := await asyncio.wait_for(reader.readline(), 10):
        headers: dict[str, str] = {}
        while (line := await reader.readline()) != b"\r\n":
            name, _, value = line.decode().partition(": ")
            assert name.lower() not in headers
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers["content-length"]))
        answers.append((int(head.split()[1]), headers, json.loads(body)))
    writer.close()
    return answers


CLOSE = b"connection: close\r\n"


async def test_both_ways_answer_alike(api: Api, taken: list[bool]) -> None:
    body = {"type": "email.send", "payload": {"to": "ada"}, "queue": "mail", "priority": "high", "labels": {"a": "b"}}
    long = await api.post(SHORT, body, headers={"Duetime-Tenant": api.tenant_name})
    short = await api.post(SHORT, body)

    assert taken == [False, True]
    assert (long.status, short.status) == (202, 202)
    assert long.headers.keys() == short.headers.keys()
    assert short.headers["Location"] == f"/v1/tasks/{short.json['id']}"
    own = {"id", "run_at", "created_at", "next_run_at"}
    assert {name: long.json[name] for name in long.json.keys() - own} == {
        name: short.json[name] for name in short.json.keys() - own
    }
    assert await api.state(short.json) == "ready"


async def test_a_request_key_gives_the_first_task_again(api: Api, taken: list[bool]) -> None:
    await api.submit()
    headers = {"Idempotency-Key": str(make_uuid7())}
    first = await api.post(SHORT, {"type": "a"}, headers=headers)
    again = await api.post(SHORT, {"type": "a"}, headers=headers)
    other = await api.post(SHORT, {"type": "b"}, headers=headers)

    assert taken[1:] == [True, True, True]
    assert (first.status, again.status, other.status) == (202, 200, 409)
    assert again.json["id"] == first.json["id"]
    assert other.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("body", "headers", "key", "status"),
    [
        (b'{"type": "a b"}', {}, None, 422),
        (b'{"type": ', {}, None, 400),
        (b"", {}, None, 400),
        (b'{"type": "a"}', {"Content-Type": "text/plain"}, None, 415),
        (b'{"type": "a"}', {"Content-Encoding": "br"}, None, 415),
        (b'{"type": "a"}', {"Idempotency-Key": "x"}, None, 422),
        (b'{"type": "a"}', {"Duetime-Tenant": "nobody"}, None, 404),
        (b'{"type": "a"}', {}, "dt_wrong", 401),
    ],
)
async def test_what_is_wrong_is_answered_by_the_long_way(
    api: Api, taken: list[bool], body: bytes, headers: dict[str, str], key: str | None, status: int
) -> None:
    await api.submit()
    taken.clear()
    before = await api.stored()

    reply = await api.post(SHORT, data=body, headers=headers, key=key)

    assert not any(taken)
    assert reply.status == status, reply.body
    assert reply.json["status"] == status
    assert await api.stored() == before


async def test_requests_in_a_row_are_answered_in_their_order(api: Api, taken: list[bool]) -> None:
    await api.submit()
    bodies = [b'{"type": "t%d"}' % number for number in range(6)]
    look = b"GET /v1/tasks?limit=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n" % api.key.encode()
    pieces = [raw(api, bodies[0]), look, raw(api, bodies[1]), raw(api, b"{"), raw(api, bodies[2], LONG)]

    answers = await talk(
        api, b"".join(pieces), raw(api, bodies[3]) + raw(api, bodies[4]), raw(api, bodies[5], more=CLOSE)
    )

    assert [status for status, _, _ in answers] == [202, 200, 202, 400, 202, 202, 202, 202]
    types = [answer["type"] for status, _, answer in answers if status == 202]
    assert types == ["t0", "t1", "t2", "t3", "t4", "t5"]


async def test_a_body_may_come_in_pieces_and_be_long(api: Api, taken: list[bool]) -> None:
    await api.submit()
    short = raw(api, b'{"type": "a", "payload": "%s"}' % (b"x" * 1_000))
    long = raw(api, b'{"type": "b", "payload": 7}' + b" " * MAX_BODY, more=CLOSE)

    answers = await talk(api, short[:50], short[50:700], short[700:], long[:40_000], long[40_000:], pause=0.01)

    assert [(status, answer["type"]) for status, _, answer in answers] == [(202, "a"), (202, "b")]
    assert answers[1][2]["payload"] == 7
    assert taken[1:] == [True]


async def test_a_connection_closes_when_the_client_asks_for_it(api: Api, taken: list[bool]) -> None:
    await api.submit()
    [(status, headers, _)] = await talk(api, raw(api, b'{"type": "a"}', more=CLOSE))
    assert (status, headers["connection"]) == (202, "close")

    [(status, headers, _)] = await talk(api, raw(api, b'{"type": "a"}', version=b"1.0"))
    assert (status, headers["connection"]) == (202, "close")


async def test_a_client_that_leaves_harms_nobody(api: Api, taken: list[bool]) -> None:
    await api.submit()
    before = await api.stored()
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
        writer.write(raw(api, b'{"type": "a"}'))
        await writer.drain()
        writer.transport.abort()

    assert (await api.post(SHORT, {"type": "b"})).status == 202
    assert before < await api.stored() <= before + 6


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[Head]:
    """The heads that were read."""
    found: list[Head] = []

    class Noted(Head):
        def __init__(
            self,
            given: list[tuple[bytes, bytes]],
            headers: dict[bytes, bytes],
            client: Client = None,
            before: Head | None = None,
        ) -> None:
            super().__init__(given, headers, client, before)
            found.append(self)

    monkeypatch.setattr(express, "Head", Noted)
    return found


class Kept:
    """A connection that is kept, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, *pieces: bytes, answers: int = 1) -> list[tuple[int, Any]]:
        for piece in pieces:
            self._writer.write(piece)
            await asyncio.sleep(0.01 if len(pieces) > 1 else 0)
        found = []
        for _ in range(answers):
            head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            found.append((int(head.split()[1]), json.loads(await self._reader.readexactly(length))))
        return found

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(1), 10) == b""

    def close(self) -> None:
        self._writer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def kept(api: Api) -> AsyncIterator[Kept]:
    await api.submit()
    connection = Kept(*await asyncio.open_connection("127.0.0.1", api.serving.port))
    yield connection
    connection.close()


async def test_a_head_that_comes_again_is_not_read_again(
    api: Api, kept: Kept, taken: list[bool], heads: list[Head]
) -> None:
    ids = set()
    for number in range(5):
        [(status, answer)] = await kept.ask(raw(api, b'{"type": "a", "payload": %d}' % number))
        assert (status, answer["payload"]) == (202, number)
        ids.add(answer["id"])

    assert len(ids) == 5
    assert taken == [True] * 5
    assert len(heads) == 1


async def test_what_is_not_as_before_is_read_anew(api: Api, kept: Kept, taken: list[bool]) -> None:
    plain = raw(api, b'{"type": "a", "payload": 1}')
    [(status, _)] = await kept.ask(plain)
    assert status == 202

    longer = raw(api, b'{"type": "a", "payload": 12}')
    wrong = raw(api, b'{"type": "a ", "payload":1}')
    broken = raw(api, b'{"type": "a", "payload": 1]')
    other = plain.replace(b"host: x", b"host: y")
    for request, expected in [(plain, 202), (longer, 202), (wrong, 422), (broken, 400), (other, 202), (plain, 202)]:
        [(status, _)] = await kept.ask(request)
        assert status == expected, request

    # In pieces, two at once, and with something else behind.
    assert [status for status, _ in await kept.ask(plain[:-5], plain[-5:])] == [202]
    assert [status for status, _ in await kept.ask(plain + plain, answers=2)] == [202, 202]
    look = b"GET /v1/tasks?limit=1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n" % api.key.encode()
    assert [status for status, _ in await kept.ask(plain + look, answers=2)] == [202, 200]
    assert [status for status, _ in await kept.ask(plain, plain, answers=2)] == [202, 202]
    # What looks like a request is a header of the one that has begun, with its other headers and its body.
    begun = look.partition(b"\r\n")[0] + b"\r\nx: "
    assert [status for status, _ in await kept.ask(plain + begun, plain, answers=2)] == [202, 200]


async def test_a_key_that_has_ended_is_refused_under_a_known_head(api: Api, kept: Kept) -> None:
    made = await api.post("/v1/keys", {"role": "producer"})
    body = raw(api, b'{"type": "a"}').replace(api.key.encode(), made.json["key"].encode())
    for _ in range(3):
        [(status, _)] = await kept.ask(body)
        assert status == 202

    assert (await api.call("DELETE", f"/v1/keys/{made.json['id']}")).status == 204
    [(status, problem)] = await kept.ask(body)
    assert (status, problem["status"]) == (401, 401)


async def test_each_request_of_a_connection_has_its_own_key(api: Api, kept: Kept, heads: list[Head]) -> None:
    made = await api.post("/v1/keys", {"role": "producer"})
    own, other = api.key.encode(), made.json["key"].encode()
    for number, (key, expected) in enumerate([(own, 202), (own, 202), (other, 202), (b"dt_no_key", 401), (own, 202)]):
        asked = raw(api, b'{"type": "a"}').replace(own, key).replace(b"host: x", b"host: x%d" % number)
        [(status, _)] = await kept.ask(asked)
        assert (key, status) == (key, expected)

    assert [head.key_hash for head in heads] == [
        hash_key(key) for key in (api.key, api.key, made.json["key"], "dt_no_key", api.key)
    ]


async def test_a_connection_that_rests_is_closed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.submit()
    made: list[DuetimeProtocol] = []
    connect = DuetimeProtocol.connection_made

    def note(self: DuetimeProtocol, transport: asyncio.Transport) -> None:
        connect(self, transport)
        made.append(self)

    monkeypatch.setattr(DuetimeProtocol, "connection_made", note)
    connection = Kept(*await asyncio.open_connection("127.0.0.1", api.serving.port))
    for _ in range(3):
        [(status, _)] = await connection.ask(raw(api, b'{"type": "a"}'))
        assert status == 202
    [protocol] = made
    timer = protocol._resting
    assert timer is not None

    # The timer of the first request looks too early: there were others since.
    timer.cancel()
    protocol._look_whether_resting()
    assert protocol._resting not in (None, timer)
    assert not protocol._plain_transport.is_closing()

    protocol._resting.cancel()
    protocol._resting_since -= protocol.timeout_keep_alive + 1
    protocol._look_whether_resting()
    assert await connection.is_closed()
    connection.close()
