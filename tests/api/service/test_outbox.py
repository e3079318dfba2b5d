"""The outbox over HTTP: what was refused, another try, and that no tenant sees another's."""

import json
from typing import Any

import pytest

from api.client import Api, Serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {"type": "object", "required": ["to"]}


async def enqueue(api: Api, **fields: Any) -> int:
    """Write a task, and let the node relay it or refuse it."""
    rows = await api.serving.database.fetch(
        "SELECT enqueue($1, $2::text::json) AS number", api.tenant_name, json.dumps({"type": "email.send", **fields})
    )
    await relay(api.serving)
    number: int = rows[0]["number"]
    return number


async def relay(serving: Serving) -> None:
    while not await serving.relay.step():
        pass


async def test_a_number_leads_to_its_task(api: Api) -> None:
    number = await enqueue(api, payload={"to": "ada"}, labels={"a": "b"})

    found = (await api.get(f"/v1/outbox/{number}")).json

    assert found["state"] == "accepted"
    task = (await api.get(f"/v1/tasks/{found['task']}")).json
    assert (task["payload"], task["labels"], task["idempotency_key"]) == ({"to": "ada"}, {"a": "b"}, None)
    assert [leased["id"] for leased in await api.lease()] == [found["task"]]
    assert (await api.get("/v1/outbox")).json == {"items": [], "next": None}


async def test_a_clients_key_is_never_taken_for_a_number(api: Api) -> None:
    number = await enqueue(api, payload={"to": "ada"})
    fakes = [
        (await api.post("/v1/tasks", {"type": "email.send", "idempotency_key": f"outbox:{faked}"})).json["id"]
        for faked in (number, number + 1, number + 2)
    ]
    later = await enqueue(api, payload={"to": "bob"})

    assert (await api.get(f"/v1/outbox/{number}")).json["task"] not in fakes
    assert (await api.get(f"/v1/outbox/{later}")).json["task"] not in fakes
    assert (await api.get(f"/v1/outbox/{later + 1}")).status == 404


async def test_what_a_types_schema_refuses_is_kept_until_it_is_right(api: Api) -> None:
    assert (await api.call("PUT", "/v1/types/email.send", {"schema": SCHEMA})).status == 201
    number = await enqueue(api, payload={"for": "ada"})

    found = (await api.get(f"/v1/outbox/{number}")).json
    [refused] = (await api.get("/v1/outbox")).json["items"]
    assert found == {"id": number, "state": "refused", "task": None, "refused": refused}
    assert refused["body"] == {"type": "email.send", "payload": {"for": "ada"}}
    assert refused["error"]["code"] == "invalid"
    assert [error["path"] for error in refused["error"]["errors"]] == ["payload"]

    again = await api.post(f"/v1/outbox/{number}/retry")
    assert (again.status, again.json["state"]) == (202, "waiting")
    assert (await api.get(f"/v1/outbox/{number}")).json["state"] == "waiting"
    await relay(api.serving)
    assert (await api.get(f"/v1/outbox/{number}")).json["state"] == "refused"

    await api.call("PUT", "/v1/types/email.send", {"schema": {"type": "object"}})
    await api.post(f"/v1/outbox/{number}/retry")
    await relay(api.serving)
    repeated = await api.post(f"/v1/outbox/{number}/retry")

    assert (repeated.status, repeated.json["state"]) == (202, "accepted")
    assert [leased["id"] for leased in await api.lease()] == [repeated.json["task"]]
    assert await api.stored() == 1


async def test_flow_control_is_not_for_what_commits(api: Api) -> None:
    await api.call("PUT", "/v1/types/email.send", {"debounce": {"period": "1h"}})

    numbers = [await enqueue(api), await enqueue(api), await enqueue(api, unique={"key": "a"})]

    found = [(await api.get(f"/v1/outbox/{number}")).json for number in numbers]
    assert [each["state"] for each in found] == ["accepted", "accepted", "refused"]
    assert [error["path"] for error in found[2]["refused"]["error"]["errors"]] == ["unique"]
    assert len(await api.lease(max=5)) == 2


async def test_a_refused_one_can_be_thrown_away(api: Api) -> None:
    number = await enqueue(api, priority="urgent")

    assert (await api.call("DELETE", f"/v1/outbox/{number}")).status == 204

    for method, path in (("DELETE", ""), ("GET", ""), ("POST", "/retry")):
        assert (await api.call(method, f"/v1/outbox/{number}{path}")).status == 404


async def test_refused_ones_come_in_pages(api: Api) -> None:
    numbers = [await enqueue(api, priority="urgent") for _ in range(5)]
    seen: list[int] = []
    path = "/v1/outbox?limit=2"
    while path:
        page = (await api.get(path)).json
        seen += [each["id"] for each in page["items"]]
        path = f"/v1/outbox?limit=2&cursor={page['next']}" if page["next"] else ""

    assert seen == numbers
    assert (await api.get("/v1/outbox?cursor=x")).paths == ["cursor"]


async def test_another_tenants_numbers_are_not_there(api: Api) -> None:
    refused = await enqueue(api, priority="urgent")
    accepted = await enqueue(api)
    other = await api.serving.tenant(f"{api.tenant_name}-other")

    for number in (refused, accepted):
        for method, path in (("DELETE", ""), ("GET", ""), ("POST", "/retry")):
            assert (await other.call(method, f"/v1/outbox/{number}{path}")).status == 404
    assert (await other.get("/v1/outbox")).json["items"] == []
    assert [each["id"] for each in (await api.get("/v1/outbox")).json["items"]] == [refused]


@pytest.mark.parametrize("number", ["0", "x", "-1", "9" * 30, "98b8de25-4754-47b1-9513-0072af6174aa", "%00"])
async def test_what_cannot_be_a_number_is_a_404(api: Api, number: str) -> None:
    assert (await api.get(f"/v1/outbox/{number}")).status == 404


async def test_who_may_look_may_not_retry_or_delete(api: Api) -> None:
    number = await enqueue(api, priority="urgent")
    viewer = (await api.post("/v1/keys", {"role": "viewer"})).json["key"]

    assert (await api.get("/v1/outbox", key=viewer)).status == 200
    assert (await api.call("DELETE", f"/v1/outbox/{number}", key=viewer)).status == 403
    assert (await api.post(f"/v1/outbox/{number}/retry", key=viewer)).status == 403


async def test_a_body_that_is_no_json_is_shown_as_text(api: Api) -> None:
    """Whoever may write the table itself can put anything there."""
    await api.serving.database.fetch(
        "INSERT INTO outbox (tenant, body) VALUES ($1, $2) RETURNING id", api.tenant, b'{"type": \xff'
    )
    await relay(api.serving)

    [refused] = (await api.get("/v1/outbox")).json["items"]

    assert refused["body"] == '{"type": \N{REPLACEMENT CHARACTER}'
    assert refused["error"]["code"] == "malformed"
