"""Tenants that mean harm: each is refused clearly or served within bounds, and the next tenant never notices.

The server, its database and both tenants share one process and one loop, so a
request that held the loop would hold the other tenant's submission, too.
"""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psutil
import pytest
import pytest_asyncio

from api.client import Api, Reply, Serving
from duetime.api.server import protocol
from duetime.api.server.bounds import MAX_BATCHES_PER_TENANT
from duetime.model.payload_schema import MAX_SCHEMA_BYTES
from duetime.model.task import MAX_BATCH, MAX_PAYLOAD_BYTES, MAX_REQUEST_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEGABYTE = 1024 * 1024
#: Nothing here may hold up the other tenant for longer; far above what any of it takes.
HARD_LIMIT_SECONDS = 20.0
CUT_OFF = b"cut off"


@pytest_asyncio.fixture(loop_scope="module")
async def victim(serving: Serving, api: Api) -> Api:
    return await serving.tenant(f"beside-{api.tenant_name}")


@asynccontextmanager
async def beside(victim: Api) -> AsyncIterator[list[Any]]:
    """The other tenant submits all the while, one task after the other; each is accepted."""
    accepted: list[Any] = []
    is_over = asyncio.Event()

    async def submit() -> None:
        while not is_over.is_set() or not accepted:
            accepted.append(await victim.submit())
            await asyncio.sleep(0.001)

    submitting = asyncio.create_task(submit())
    try:
        async with asyncio.timeout(HARD_LIMIT_SECONDS):
            yield accepted
            is_over.set()
            await submitting
    finally:
        submitting.cancel()
    assert accepted


@contextmanager
def bounded_memory(megabytes: float) -> Iterator[None]:
    """What stays in memory, and what was in it at the worst, grows by no more than this."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < megabytes * MEGABYTE
    assert after - before < 4 * MEGABYTE


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


# Bodies


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_a_payload_that_is_nested_without_end_is_refused(api: Api, victim: Api, opening: bytes) -> None:
    bodies = [
        b'{"type": "t", "payload": ' + opening * depth + b"0" + (b"]" if opening == b"[" else b"}") * depth + b"}"
        for depth in (101, 5_000, 9_000)
    ]
    unclosed = b'{"type": "t", "payload": ' + opening * 10_000

    async with beside(victim):
        with bounded_memory(16):
            answers = [await api.post("/v1/tasks", data=body) for body in bodies]
            answers.append(await api.post("/v1/tasks", data=unclosed))

    assert answers[0].paths == ["payload"]
    assert all(answer.status in (400, 422) for answer in answers)
    assert await api.stored() == 0


async def test_a_batch_of_nothing_but_brackets_is_refused(api: Api, victim: Api) -> None:
    async with beside(victim):
        for body in (
            b"[" * MEGABYTE,
            b"[" + b"[]," * (MEGABYTE // 3) + b"[]]",
            b"[" + b"{}," * (MEGABYTE // 3) + b"{}]",
        ):
            answer = await api.post("/v1/tasks/batch", data=body)
            assert answer.status in (400, 413, 422), answer.body[:300]

    assert await api.stored() == 0


async def test_a_batch_of_tiny_items_is_bounded_by_their_number(api: Api, victim: Api) -> None:
    item = b'{"type":"t"},'
    async with beside(victim):
        with bounded_memory(64):
            too_many = await api.post("/v1/tasks/batch", data=b"[" + (item * (MAX_BATCH + 1))[:-1] + b"]")
            lines = await api.post(
                "/v1/tasks/batch",
                data=b'{"type":"t"}\n' * (MAX_BATCH + 1),
                headers={"Content-Type": "application/x-ndjson"},
            )
            full = await api.post("/v1/tasks/batch", data=b"[" + (item * MAX_BATCH)[:-1] + b"]")

    assert refusal(too_many) == (413, "too_large")
    assert refusal(lines) == (413, "too_large")
    assert full.status in (200, 202)
    assert await api.stored() == MAX_BATCH


async def test_a_batch_in_which_each_item_is_wrong_has_an_answer_of_bounded_size(api: Api, victim: Api) -> None:
    # Each item has as many errors as fit into it.
    labels = {f"!{number}": "x" for number in range(32)}
    body = json.dumps([{"type": "t", "labels": labels}] * 1_000).encode()

    async with beside(victim):
        answer = await api.post("/v1/tasks/batch", data=body)

    assert answer.status in (200, 422)
    assert len(answer.body) < 16 * len(body)
    assert await api.stored() == 0


async def test_a_refused_batch_leaves_nothing_for_the_collector(api: Api, victim: Api) -> None:
    """Errors that are kept as values hold no frames: each of these would hold a payload of thousands of values."""
    allowed = [f"value {number}" for number in range(4_000)]
    await api.call("PUT", "/v1/types/costly", {"schema": {"properties": {"n": {"items": {"enum": allowed}}}}})
    await api.serving.obey()
    wrong = {"type": "costly", "payload": {"n": ["value 3999"] * 3_999 + ["none"]}}
    body = json.dumps([wrong] * 20).encode()
    await api.post("/v1/tasks/batch", data=body)

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            answer = await api.post("/v1/tasks/batch", data=body)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()

    assert answer.json["rejected"] == 20
    # The payloads of one batch take some six megabytes.
    assert after - before < 8 * MEGABYTE


async def test_a_body_larger_than_any_limit_is_not_kept(api: Api, victim: Api) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(4 * MAX_REQUEST_BYTES // MEGABYTE):
            yield b" " * MEGABYTE

    async with beside(victim):
        with bounded_memory(3 * MAX_REQUEST_BYTES / MEGABYTE):
            try:
                answer = await api.post("/v1/tasks/batch", data=endless())
                assert refusal(answer) == (413, "too_large")
            except ConnectionError:
                # It was cut off while it still sent.
                pass

    assert await api.stored() == 0


async def test_of_the_batches_of_a_tenant_a_few_are_worked_on_at_a_time(api: Api, victim: Api) -> None:
    # Each takes thirty times as much memory while it is worked on as it came with.
    wrong = json.dumps([{"type": "a", "x": 1}] * 1_000).encode()
    schedules = json.dumps({"items": [{"name": "a", "x": "y" * 16_000}] * 2}).encode()
    slots = api.serving.app._bodies.batch_slot(api.tenant)
    for _ in range(MAX_BATCHES_PER_TENANT):
        await slots.acquire()
    mine = [
        asyncio.create_task(api.post("/v1/tasks/batch", data=wrong)),
        asyncio.create_task(api.post("/v1/schedules/batch", data=schedules)),
    ]

    answer = await victim.post("/v1/tasks/batch", data=wrong)
    small = await api.post("/v1/tasks/batch", [{"type": "a"}])
    assert (answer.json["rejected"], small.json["accepted"]) == (1_000, 1)
    assert not any(each.done() for each in mine)

    for _ in range(MAX_BATCHES_PER_TENANT):
        slots.release()
    for each in mine:
        assert (await each).status == 200


COSTLY = {"cron": "* * * * *", "exclude": [{"cron": f"{minute % 58} * * * *"} for minute in range(1_000)]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/schedules/preview", {"spec": COSTLY, "x": 1}),
        ("/v1/tasks", {"type": "a", "x": 1, "labels": {f"name-{number}": "x" for number in range(1_000)}}),
    ],
)
async def test_what_is_wrong_with_long_bodies_is_said_to_one_client_of_a_tenant_at_a_time(
    api: Api, victim: Api, path: str, body: dict[str, Any]
) -> None:
    app = api.serving.app
    async with app._bodies.explanation_slot(api.tenant):
        mine = [asyncio.create_task(api.post(path, body)) for _ in range(20)]
        turns = app._turns.count
        theirs = await asyncio.gather(*[victim.post(path, body) for _ in range(20)])
        assert app._turns.count - turns == 20
        assert not any(each.done() for each in mine)

    for answer in [*theirs, *await asyncio.gather(*mine)]:
        assert answer.status == 422
        assert "x" in answer.paths


async def test_of_a_body_with_very_many_values_a_bounded_part_is_looked_at(api: Api) -> None:
    right = {f"name-{number}": "x" for number in range(10_000)}

    answer = await api.post("/v1/tasks", {"type": "a", "labels": {**right, "last": 1}, "x": 1})

    # What is behind that is named when it is mended.
    assert answer.paths == ["labels[...]"]


# Names, labels, headers


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"labels": {f"name-{number}": "x" for number in range(10_000)}}, "labels"),
        ({"labels": {"a": "x" * 60_000}}, "labels.a"),
        ({"labels": {"a" * 60_000: "x"}}, None),
        ({"requires": [f"tag-{number}" for number in range(5_000)]}, "requires"),
        ({"type": "t" * 60_000}, "type"),
        ({"queue": "q" * 60_000}, "queue"),
        ({"idempotency_key": "k" * 60_000}, "idempotency_key"),
        ({"target": {"url": "http://example.com/" + "a" * 60_000}}, "target.url"),
        ({"target": {"url": "http://example.com/", "headers": {"a": "x" * 60_000}}}, "target.headers"),
        ({"target": {"url": "http://example.com/", "headers": {f"a{n}": "x" for n in range(5_000)}}}, "target.headers"),
        ({"target": {"url": "http://example.com/", "headers": {"a": "x\r\nHost: other"}}}, "target.headers.a"),
        ({"payload": "x" * MAX_PAYLOAD_BYTES}, "payload"),
    ],
)
async def test_what_is_too_much_of_anything_is_refused_by_its_name(
    api: Api, victim: Api, fields: dict[str, Any], path: str | None
) -> None:
    async with beside(victim):
        answer = await api.post("/v1/tasks", {"type": "t", **fields})

    assert answer.status in (413, 422), answer.body[:300]
    if path is not None:
        assert answer.paths[0].startswith(path)
    # The answer does not throw back what was sent.
    assert len(answer.body) < 4_000
    assert await api.stored() == 0


async def test_a_head_without_end_is_refused(api: Api, victim: Api) -> None:
    head = f"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n".encode()
    bombs = [
        head + b"X-Bomb: " + b"x" * protocol.MAX_HEAD_BYTES,
        head + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)),
        b"GET /v1/tasks?" + b"x" * protocol.MAX_HEAD_BYTES,
    ]

    async with beside(victim):
        for bomb in bombs:
            answer = await _say(api.serving.port, bomb)
            assert answer.startswith(b"HTTP/1.1 431 "), answer[:100]
            assert b'"code":"head_too_large"' in answer
        with bounded_memory(8):
            # Who goes on sending is cut off.
            await _say(api.serving.port, head + b"X-Bomb: ", b"x" * MEGABYTE, times=30)


async def test_many_headers_within_the_bounds_are_served(api: Api) -> None:
    answer = await api.get("/v1/tasks", headers={f"X-{number}": "y" * 100 for number in range(300)})

    assert answer.status == 200


# Slow and idle clients


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ARRIVE_SECONDS", 0.4)


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/tasks/batch"])
async def test_a_body_that_stalls_or_trickles_is_cut_off(api: Api, victim: Api, hasty: None, path: str) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 50000\r\n\r\n"
    ).encode()
    port = api.serving.port

    async with beside(victim):
        stalled = await asyncio.gather(*[_say(port, head + b"[") for _ in range(20)])
        trickled = await asyncio.gather(*[_say(port, head, b" ", times=1_000, pause=0.02) for _ in range(20)])

    assert all(answer.startswith(b"HTTP/1.1 408 ") and b'"code":"too_slow"' in answer for answer in stalled)
    # What is sent into a closed connection may cost the sender the answer.
    assert all(answer == CUT_OFF or answer.startswith(b"HTTP/1.1 408 ") for answer in trickled)
    assert await api.stored() == 0


async def test_a_head_that_stalls_is_cut_off(api: Api, victim: Api, hasty: None) -> None:
    async with beside(victim):
        answer = await _say(api.serving.port, b"GET /v1/tasks HTTP/1.1\r\nX-Slow: ")

    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_connections_that_say_nothing_are_closed(api: Api, victim: Api, hasty: None) -> None:
    async with beside(victim):
        lines = [await asyncio.open_connection("127.0.0.1", api.serving.port) for _ in range(200)]
        assert await asyncio.gather(*[reader.read() for reader, _ in lines]) == [b""] * 200
        for _, writer in lines:
            writer.close()


async def test_a_connection_that_is_used_late_or_again_has_its_time_anew(api: Api, hasty: None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    request = f"GET /v1/tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode()
    for _ in range(3):
        # In two pieces, each within the time; together they are beyond it.
        for part in (request[:30], request[30:]):
            writer.write(part)
            await asyncio.sleep(0.15)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def test_a_long_poll_is_not_taken_for_a_slow_request(api: Api, hasty: None) -> None:
    tasks = await api.lease(wait=1)

    assert tasks == []


# Types with schemas that are meant to take for ever


def deep_schema(depth: int) -> bytes:
    return b'{"properties":{"a":' * depth + b"true" + b"}}" * depth


def type_of(schema: Any) -> bytes:
    return b'{"schema":' + (schema if isinstance(schema, bytes) else json.dumps(schema).encode()) + b"}"


def nested(depth: int) -> Any:
    payload: Any = 1
    for _ in range(depth):
        payload = {"a": payload}
    return payload


def doubling_schema(steps: int) -> Any:
    """Each definition refers to the next one twice: 2 ** steps ways through it."""
    definitions: dict[str, Any] = {
        f"d{step}": {"allOf": [{"$ref": f"#/$defs/d{step + 1}"}, {"$ref": f"#/$defs/d{step + 1}"}]}
        for step in range(steps)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{steps}": {"type": "object"}}}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(deep_schema(3_000), id="deep"),
        pytest.param(doubling_schema(20), id="doubling"),
        pytest.param(doubling_schema(600), id="doubling for ever"),
        pytest.param({"description": "x" * MAX_SCHEMA_BYTES}, id="large"),
        pytest.param({"$ref": "http://127.0.0.1:1/schema.json"}, id="elsewhere"),
        pytest.param({"$ref": "file:///etc/passwd"}, id="file"),
        pytest.param({"pattern": "(?=a)b"}, id="look-around"),
        pytest.param({"pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}, id="large pattern"),
    ],
)
async def test_a_schema_that_cannot_be_judged_quickly_is_refused(api: Api, victim: Api, schema: Any) -> None:
    async with beside(victim):
        answer = await api.call(
            "PUT",
            "/v1/types/hostile",
            data=type_of(schema),
        )

    assert answer.status in (400, 413, 422), answer.body[:300]
    assert len(answer.body) < 4_000
    assert (await api.get("/v1/types/hostile")).status == 404


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        pytest.param({"pattern": "^(a+)+$"}, "a" * 60_000 + "b", id="pattern"),
        pytest.param({"pattern": "^(a|a)*$"}, "a" * 60_000 + "b", id="alternatives"),
        pytest.param({"uniqueItems": True}, list(range(10_000)), id="unique items"),
        pytest.param({"$ref": "#"}, {"a": 1}, id="itself"),
        pytest.param(deep_schema(90), {"a": {"a": {"a": 1}}}, id="deep"),
        pytest.param({"anyOf": [{"const": number} for number in range(2_000)]}, 5_000, id="many ways"),
        pytest.param({"items": {"anyOf": [{"const": n} for n in range(2_000)]}}, [-1] * 10_000, id="many ways each"),
        pytest.param({"items": {"anyOf": [{"const": n} for n in range(2_000)]}}, [1_999] * 10_000, id="the last way"),
        pytest.param(
            {"additionalProperties": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}}, nested(90), id="doubling with depth"
        ),
    ],
)
async def test_a_payload_is_judged_in_bounded_time_whatever_the_schema(
    api: Api, victim: Api, schema: Any, payload: Any
) -> None:
    async with beside(victim):
        # Not by tracemalloc, which does not see what the library takes.
        before = psutil.Process().memory_info().rss
        put = await api.call(
            "PUT",
            "/v1/types/hostile",
            data=type_of(schema),
        )
        answers = [await api.post("/v1/tasks", {"type": "hostile", "payload": payload}) for _ in range(2)]
        taken = psutil.Process().memory_info().rss - before

    assert put.status in (201, 422), put.body[:300]
    assert {answer.status for answer in answers} <= {202, 422}
    assert taken < 200 * MEGABYTE
    assert all(len(answer.body) < 4_000 or answer.status == 202 for answer in answers)


async def _say(port: int, begin: bytes, more: bytes = b"", times: int = 0, pause: float = 0.0) -> bytes:
    """Send this, and more of it, until all is sent or the server has had enough; what it says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin)
    saying = asyncio.create_task(reader.read())
    try:
        for _ in range(times):
            if saying.done():
                break
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(pause)
        return await saying
    except ConnectionError:
        return CUT_OFF
    finally:
        saying.cancel()
        writer.close()
