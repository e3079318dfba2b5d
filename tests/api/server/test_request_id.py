"""Every answer has a request id: the client's, or one of the server."""

import asyncio
import json
import re

import pytest
from structlog.testing import capture_logs

from api.client import Api, serve
from duetime.api.server import protocol
from duetime.database.pool import Database
from duetime.listening import make_server
from duetime.telemetry import Sparing
from proxy import proxied

pytestmark = pytest.mark.asyncio(loop_scope="module")

OURS = re.compile(r"[0-9a-f]{10}-[0-9a-f]+")


async def test_answers_of_all_kinds_have_ids_of_their_own(api: Api) -> None:
    answers = [
        await api.post("/v1/tasks", {"type": "a"}),
        await api.post("/v1/tasks", {"type": "a", "labels": {"a": "b"}}),
        await api.post("/v1/tasks/batch", [{"type": "a"}]),
        await api.get("/v1/tasks"),
        await api.call("HEAD", "/v1/tasks"),
        await api.get("/healthz"),
        await api.get("/docs"),
        await api.get("/nowhere"),
        await api.call("PATCH", "/v1/tasks"),
        await api.post("/v1/tasks", {}),
        await api.post("/v1/tasks", {"type": "a"}, key="dt_wrong"),
        await api.post("/v1/tasks/batch?atomic=true", [{"type": "a"}, {}]),
    ]

    assert [answer.status for answer in answers] == [202, 202, 200, 200, 200, 200, 200, 404, 405, 422, 401, 422]
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert all(OURS.fullmatch(each) for each in ids)
    assert len(set(ids)) == len(ids)
    problems = [answer for answer in answers if answer.status >= 400]
    assert [answer.json["request_id"] for answer in problems] == [answer.headers["X-Request-Id"] for answer in problems]


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/task%73"])
@pytest.mark.parametrize("given", ["order-17", "a" * 128, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])
async def test_the_client_s_own_id_is_kept_on_both_ways(api: Api, path: str, given: str) -> None:
    headers = {"X-Request-Id": given}

    fine = await api.post(path, {"type": "a"}, headers=headers)
    again = await api.post(path, {"type": "a"}, headers=headers)
    wrong = await api.post(path, {"type": 5}, headers=headers)

    assert (fine.status, again.status, wrong.status) == (202, 202, 422)
    assert fine.headers["X-Request-Id"] == again.headers["X-Request-Id"] == wrong.json["request_id"] == given


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/task%73"])
@pytest.mark.parametrize("given", ["a b", "a" * 129, "ä", "<script>", '"', "a,b"])
async def test_an_id_that_is_not_sane_is_replaced(api: Api, path: str, given: str) -> None:
    answer = await api.post(path, {"type": "a"}, headers={"X-Request-Id": given})

    assert answer.status == 202
    assert OURS.fullmatch(answer.headers["X-Request-Id"])


async def say(api: Api, data: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(data)
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), json.loads(body)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed_request"),
        (b"GET /v1/tasks HTTP/1.1\r\nX-Bomb: " + b"x" * 70_000, 431, "head_too_large"),
        (b"GET /v1/tasks HTTP/1.1\r\nX-Slow: ", 408, "too_slow"),
        (b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n[", 408, "too_slow"),
    ],
)
async def test_what_never_becomes_a_request_has_one_too(
    api: Api, monkeypatch: pytest.MonkeyPatch, data: bytes, status: int, code: str
) -> None:
    monkeypatch.setattr(protocol, "ARRIVE_SECONDS", 0.3)

    found, headers, problem = await say(api, data)

    assert (found, problem["code"]) == (status, code)
    assert OURS.fullmatch(headers["x-request-id"])
    assert problem["request_id"] == headers["x-request-id"]


async def test_what_anybody_may_send_writes_no_line_of_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """A line of the library would have no node, be no JSON where the log is JSON, and come as often as they like."""
    make_server(api.serving.app)

    assert (await say(api, b"nonsense\r\n\r\n"))[0] == 400

    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_a_slow_request_keeps_the_id_that_it_came_with(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ARRIVE_SECONDS", 0.3)

    _, headers, _ = await say(
        api, b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Length: 5\r\n\r\n["
    )

    assert headers["x-request-id"] == "mine"


async def test_a_fault_stands_in_the_log_under_the_id(api: Api) -> None:
    await api.submit()
    database = api.serving.database
    await database.execute("ALTER TABLE task RENAME COLUMN labels TO hidden")
    try:
        with capture_logs() as said:
            answer = await api.get("/v1/tasks?queue=default", headers={"X-Request-Id": "order-17"})
    finally:
        await database.execute("ALTER TABLE task RENAME COLUMN hidden TO labels")

    assert (answer.status, answer.json["request_id"]) == (500, "order-17")
    assert [(line["event"], line["request_id"]) for line in said] == [("request failed", "order-17")]


async def test_requests_that_cannot_be_served_are_in_the_log_a_few_a_second(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        async with serve(database) as serving:
            api = await serving.tenant("team")
            await api.submit()
            proxy.is_away = True
            proxy.cut()
            with capture_logs() as said:
                answers = [await api.get("/v1/tasks") for _ in range(2)]
            proxy.is_away = False
        await database.close()

    lines = [line for line in said if line["event"] == "request not served"]
    assert [line["request_id"] for line in lines] == [answer.headers["X-Request-Id"] for answer in answers]
    assert {(line["status"], line["method"], line["path"]) for line in lines} == {(503, "GET", "/v1/tasks")}


async def test_lines_that_are_left_out_are_counted() -> None:
    now = 0.0
    sparing = Sparing(2, lambda: now)

    first = [sparing.take() for _ in range(5)]
    now = 1.0
    second = [sparing.take() for _ in range(3)]

    assert first == [0, 0, None, None, None]
    assert second == [3, 0, None]
