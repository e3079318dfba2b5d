"""The protocol itself: keys, paths, methods, bodies, and errors of every kind."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from api.client import Api
from duetime.admin.keys import create_key

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1024 * 1024


# Keys


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer dt_wrong", "Basic YTpi", "dt_x", "Bearer \xff"])
async def test_no_or_a_wrong_key_is_a_401(api: Api, header: str) -> None:
    answer = await api.get("/v1/tasks", headers={"Authorization": header})

    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.json["code"] == "unauthorized"


async def test_the_key_is_asked_for_before_the_body_is_judged(api: Api) -> None:
    answer = await api.post("/v1/tasks", data=b"not json", key="dt_wrong")

    assert answer.status == 401


async def test_an_admin_key_acts_for_another_tenant(api: Api) -> None:
    other = await api.serving.tenant("acted-for")

    made = await api.post("/v1/tasks", {"type": "a"}, headers={"Duetime-Tenant": "acted-for"})

    assert made.json["tenant"] == "acted-for"
    assert (await other.get(f"/v1/tasks/{made.json['id']}")).status == 200
    assert (await api.get(f"/v1/tasks/{made.json['id']}")).status == 404


@pytest.mark.parametrize("name", ["nobody", "no body", "é"])
async def test_a_tenant_that_does_not_exist_is_a_404(api: Api, name: str) -> None:
    answer = await api.get("/v1/tasks", headers={"Duetime-Tenant": name})

    assert answer.status == 404


async def test_only_an_admin_key_acts_for_another_tenant(api: Api) -> None:
    _, key = await create_key(api.serving.database, api.tenant, "producer")
    await api.serving.tenant("out-of-reach")

    other = await api.get("/v1/tasks", headers={"Duetime-Tenant": "out-of-reach"}, key=key)
    own = await api.get("/v1/tasks", headers={"Duetime-Tenant": api.tenant_name}, key=key)

    assert (other.status, own.status) == (403, 200)


# Paths and methods


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/tasks/", "/v1/nothing", "//v1/tasks", "/v1%2Ftasks", "/v1/tasks/%ff", "/V1/tasks", "/docs/"],
)
async def test_what_is_not_a_path_is_a_404(api: Api, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    # By hand, because clients normalise paths.
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()

    assert head.startswith(b"HTTP/1.1 404")
    assert b"application/problem+json" in head


async def test_a_path_may_be_percent_encoded(api: Api) -> None:
    task = await api.submit()

    assert (await api.get("/v1/%74asks")).status == 200
    assert (await api.get(f"/v1/tasks/%{ord(task['id'][0]):02x}{task['id'][1:]}")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/tasks", "GET, HEAD, POST"),
        ("GET", "/v1/tasks/batch", "POST"),
        ("DELETE", "/v1/workers/lease", "POST"),
        ("OPTIONS", "/healthz", "GET, HEAD"),
        ("PATCH", "/v1/tasks/0199f6b8-2f40-8a3c-9d11-3b5f00000100", "GET, HEAD"),
    ],
)
async def test_another_method_is_a_405_that_names_the_right_ones(
    api: Api, method: str, path: str, allowed: str
) -> None:
    answer = await api.call(method, path)

    assert (answer.status, answer.headers["Allow"]) == (405, allowed)
    assert answer.json["code"] == "method_not_allowed"


async def test_head_is_get_without_the_body(api: Api) -> None:
    full, head = await api.get("/openapi.json"), await api.call("HEAD", "/openapi.json")

    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == full.headers["Content-Length"]


@pytest.mark.parametrize(
    "name", ["x", "5", "0199f6b8-2f40-8a3c-9d11-3b5f0000010", "{0199f6b82f408a3c9d113b5f00000100}", "%00", "a%2Fb", "é"]
)
@pytest.mark.parametrize("rest", ["", "/explain"])
async def test_what_cannot_be_an_id_is_a_404(api: Api, name: str, rest: str) -> None:
    assert (await api.get(f"/v1/tasks/{name}{rest}")).status == 404


@pytest.mark.parametrize(
    "name",
    [
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "0199f6b8-2f40-8a3c-9d11-3b5fffffffff",
        "0199f6b8-2f40-8a3c-9d11-3b5f00000100",
    ],
)
async def test_an_id_that_nobody_has_is_a_404(api: Api, name: str) -> None:
    for method, rest in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/retry")):
        answer = await api.call(method, f"/v1/tasks/{name}{rest}")

        assert answer.status == 404, (method, rest)


async def test_a_query_parameter_that_is_not_known_is_a_422(api: Api) -> None:
    misspelt = await api.get("/v1/tasks?stat=dead")
    unwanted = await api.post("/v1/tasks?x=1", {"type": "a"})

    assert (misspelt.status, misspelt.paths) == (422, ["stat"])
    assert (unwanted.status, unwanted.paths) == (422, ["x"])


@pytest.mark.parametrize("query", ["type=%ff", "&".join(f"label=a{n}%3Db" for n in range(200))])
async def test_a_query_that_cannot_be_read_is_a_422(api: Api, query: str) -> None:
    assert (await api.get(f"/v1/tasks?{query}")).status == 422


# Bodies


async def test_a_body_over_16_mib_is_a_413(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch", data=b" " * (16 * MIB + 1))

    assert answer.status == 413
    assert answer.json["code"] == "too_large"


async def test_a_body_that_does_not_tell_its_length_is_cut_off_at_16_mib(api: Api) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(17):
            sent += MIB
            yield b" " * MIB

    answer = await api.post("/v1/tasks/batch", data=body())

    assert answer.status == 413


async def test_a_body_in_chunks_is_read_whole(api: Api) -> None:
    async def body() -> AsyncIterator[bytes]:
        for part in (b'[{"type"', b':"a"}', b"]"):
            yield part

    answer = await api.post("/v1/tasks/batch", data=body())

    assert (answer.status, answer.json["accepted"]) == (200, 1)


async def test_the_connection_goes_on_after_a_refused_body(api: Api) -> None:
    for _ in range(3):
        assert (await api.post("/v1/tasks/batch", data=b" " * (17 * MIB))).status == 413
        assert (await api.get("/healthz")).status == 200


async def test_a_compressed_body_is_a_415(api: Api) -> None:
    answer = await api.post("/v1/tasks", data=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})

    assert answer.status == 415


async def test_a_verb_without_a_body_takes_an_empty_one_only(api: Api) -> None:
    task = await api.submit(delay=60)

    assert (await api.post(f"/v1/tasks/{task['id']}/pause", {"x": 1})).status == 422
    assert (await api.post(f"/v1/tasks/{task['id']}/pause", {})).status == 200
    assert (await api.post(f"/v1/tasks/{task['id']}/pause")).status == 200


# Errors


async def test_a_fault_of_ours_is_a_500_with_its_id_in_the_log_and_no_more(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    await api.submit()
    database = api.serving.database
    await database.execute("ALTER TABLE task RENAME COLUMN labels TO hidden")
    try:
        answer = await api.get("/v1/tasks?queue=default")
    finally:
        await database.execute("ALTER TABLE task RENAME COLUMN hidden TO labels")

    assert answer.status == 500
    assert answer.json["code"] == "internal"
    assert answer.json["detail"].endswith(answer.json["request_id"])
    assert answer.json["request_id"] in "".join(capsys.readouterr())
    assert b"labels" not in answer.body
    assert b"Traceback" not in answer.body


async def test_a_problem_has_all_its_fields(api: Api) -> None:
    answer = await api.post("/v1/tasks", {})

    assert answer.json == {
        "type": "urn:duetime:problem:invalid",
        "title": "The request is not valid",
        "status": 422,
        "code": "invalid",
        "detail": "type: is required",
        "errors": [{"path": "type", "message": "is required"}],
        "request_id": answer.headers["X-Request-Id"],
    }


# The node and the pages


async def test_health_needs_no_key_and_readiness_tells_its_reason(api: Api) -> None:
    assert (await api.get("/healthz", headers={"Authorization": ""})).json == {"status": "ok"}
    assert (await api.get("/readyz", headers={"Authorization": ""})).status == 200
    api.serving.reasons.append("no shard is owned")

    answer = await api.get("/readyz")

    api.serving.reasons.clear()
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.json["detail"] == "no shard is owned"


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_load_nothing_from_elsewhere(api: Api, path: str) -> None:
    answer = await api.get(path, headers={"Authorization": ""})

    page = answer.body.decode()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page.replace("https://example.com", "")


async def test_the_reference_has_every_call(api: Api) -> None:
    page = (await api.get("/docs")).body.decode()
    document = json.loads((await api.get("/openapi.json")).body)

    for methods in document["paths"].values():
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
