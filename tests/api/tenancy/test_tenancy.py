"""Tenants, roles and reach of keys, audit; and that no tenant sees another."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import Api, until
from duetime.api.openapi import OPERATIONS
from duetime.api.operations import Operation

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def make_key(api: Api, role: str, **fields: Any) -> str:
    answer = await api.post("/v1/keys", {"role": role, **fields})
    assert answer.status == 201, answer.body
    key: str = answer.json["key"]
    return key


async def put_tenant(api: Api, name: str, **fields: Any) -> Any:
    answer = await api.call("PUT", f"/v1/tenants/{name}", fields)
    assert answer.status in (200, 201), answer.body
    return answer.json


# Tenants


async def test_a_tenant_is_made_changed_and_listed(api: Api) -> None:
    made = await api.call("PUT", "/v1/tenants/new-team", {"weight": 3})
    again = await put_tenant(api, "new-team")
    changed = await put_tenant(api, "new-team", state="suspended")

    assert (made.status, made.json["weight"], made.json["state"]) == (201, 3, "active")
    assert again == made.json
    assert (changed["weight"], changed["state"]) == (3, "suspended")
    assert (await api.get("/v1/tenants/new-team")).json | {"notes": []} == changed
    names = [each["name"] for each in (await api.get("/v1/tenants?limit=200")).json["items"]]
    assert names == sorted(names)
    assert {"new-team", api.tenant_name} <= set(names)


async def test_tenants_come_in_pages(api: Api) -> None:
    for number in range(3):
        await put_tenant(api, f"paged-{number}")
    seen: list[str] = []
    path = "/v1/tenants?limit=2"
    while path:
        page = (await api.get(path)).json
        seen += [each["name"] for each in page["items"]]
        path = f"/v1/tenants?limit=2&cursor={page['next']}" if page["next"] else ""
    assert len(seen) == len(set(seen)) >= 3


@pytest.mark.parametrize(
    ("name", "fields", "path"),
    [
        ("t", {"weight": 0}, "weight"),
        ("t", {"weight": 1001}, "weight"),
        ("t", {"state": "gone"}, "state"),
        ("t", {"colour": "red"}, "colour"),
        ("-t", {}, "name"),
        ("a" * 64, {}, "name"),
    ],
)
async def test_a_wrong_tenant_is_a_422(api: Api, name: str, fields: Any, path: str) -> None:
    answer = await api.call("PUT", f"/v1/tenants/{name}", fields)
    assert (answer.status, answer.paths) == (422, [path])


async def test_nothing_of_a_suspended_tenant_runs_and_nothing_is_lost(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-suspended")
    waiting = await other.submit()
    await put_tenant(api, other.tenant_name, state="suspended")
    await api.serving.obey()
    meanwhile = await other.submit()

    assert await other.lease(wait=0) == []
    explained = (await other.get(f"/v1/tasks/{waiting['id']}/explain")).json
    assert explained["waiting_for"][0]["reason"] == "suspended"

    await put_tenant(api, other.tenant_name, state="active")
    await api.serving.obey()
    leased: list[Any] = []

    async def has_both() -> bool:
        leased.extend(await other.lease(wait=1))
        return len(leased) == 2

    await until(has_both)
    assert {each["id"] for each in leased} == {waiting["id"], meanwhile["id"]}


async def test_a_tenant_cannot_suspend_itself(api: Api) -> None:
    answer = await api.call("PUT", f"/v1/tenants/{api.tenant_name}", {"state": "suspended"})
    assert answer.status == 403


# Keys

ROLES = ("producer", "worker", "operator", "viewer", "owner", "admin")
CALLS: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/v1/tasks", {"type": "a"}, {"producer", "operator", "owner", "admin"}),
    ("POST", "/v1/tasks/batch", [{"type": "a"}], {"producer", "operator", "owner", "admin"}),
    ("GET", "/v1/tasks", None, set(ROLES)),
    ("POST", "/v1/workers/lease", {"worker": "w", "wait": 0}, {"worker", "operator", "owner", "admin"}),
    ("POST", "/v1/workers/beat", {"worker": "w"}, {"worker", "operator", "owner", "admin"}),
    ("POST", "/v1/tasks/bulk/pause", {"filter": {}}, {"operator", "owner", "admin"}),
    ("POST", "/v1/dead/drop", {"all": True}, {"operator", "owner", "admin"}),
    ("PUT", "/v1/schedules/s", {"spec": {"every": "1d"}, "task": {"type": "a"}}, {"operator", "owner", "admin"}),
    ("POST", "/v1/schedules/preview", {"spec": {"every": "1d"}}, set(ROLES)),
    ("GET", "/v1/schedules", None, set(ROLES)),
    ("PUT", "/v1/queues/default", {"state": "active"}, {"operator", "owner", "admin"}),
    ("GET", "/v1/queues", None, set(ROLES)),
    ("PUT", "/v1/limits/k", {"rate": 5}, {"operator", "owner", "admin"}),
    ("GET", "/v1/limits", None, set(ROLES)),
    ("POST", "/v1/types/t/preview", {"schema": True}, {"operator", "owner", "admin"}),
    ("GET", "/v1/breakers", None, set(ROLES)),
    ("PUT", "/v1/breakers/a.example:443", {"state": "auto"}, {"operator", "owner", "admin"}),
    ("GET", "/v1/signing-secret", None, {"operator", "owner", "admin"}),
    ("POST", "/v1/signing-secret/rotate", {}, {"operator", "owner", "admin"}),
    ("GET", "/v1/keys", None, {"owner", "admin"}),
    ("POST", "/v1/keys", {"role": "viewer"}, {"owner", "admin"}),
    ("GET", "/v1/tenants", None, {"admin"}),
    ("GET", "/v1/tiers", None, {"admin"}),
    ("GET", "/v1/audit", None, {"owner", "admin"}),
    ("GET", "/v1/cluster", None, {"admin"}),
]


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_do_what_is_its_own_and_nothing_else(api: Api, role: str) -> None:
    key = await make_key(api, role)
    for method, path, body, allowed in CALLS:
        answer = await api.call(method, path, body, key=key)
        if role in allowed:
            assert answer.status < 300, (method, path, answer.body)
        else:
            assert answer.status == 403, (method, path, answer.body)
            assert answer.json["code"] == "forbidden"
            assert role in answer.json["detail"]
            assert all(each in answer.json["detail"] for each in allowed)


async def test_a_key_reaches_only_its_types_and_queues(api: Api) -> None:
    key = await make_key(api, "producer", types=["email.*"], queues=["mail", "mail-*"])
    for _ in range(2):
        right = await api.post("/v1/tasks", {"type": "email.send", "queue": "mail-2"}, key=key)
        wrong_type = await api.post("/v1/tasks", {"type": "sms.send", "queue": "mail"}, key=key)
        wrong_queue = await api.post("/v1/tasks", {"type": "email.send"}, key=key)
        assert (right.status, wrong_type.status, wrong_queue.status) == (202, 403, 403)
        assert "email.*" in wrong_type.json["detail"]
        assert "sms.send" in wrong_type.json["detail"]

    items = [{"type": "email.send", "queue": "mail"}, {"type": "sms.send", "queue": "mail"}]
    batch = (await api.post("/v1/tasks/batch", items, key=key)).json
    assert (batch["accepted"], batch["rejected"]) == (1, 1)
    assert batch["results"][1]["error"]["code"] == "forbidden"


async def test_a_worker_leases_only_from_its_queues(api: Api) -> None:
    await api.submit(queue="mail")
    await api.submit(queue="other")
    key = await make_key(api, "worker", queues=["mail"])

    async def lease(queues: Any) -> Any:
        return await api.post("/v1/workers/lease", {"worker": "w", "queues": queues, "max": 9, "wait": 1}, key=key)

    assert (await lease(None)).status == 403
    assert (await lease(["mail", "other"])).status == 403
    assert [task["queue"] for task in (await lease(["mail"])).json["tasks"]] == ["mail"]


async def test_a_key_ends_when_it_is_revoked_or_expires(api: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    expiring = await make_key(api, "viewer", expires_at=soon, name="for the audit")
    listed = (await api.get("/v1/keys")).json["items"][-1]
    assert (listed["name"], listed["role"]) == ("for the audit", "viewer")
    assert (await api.get("/v1/tasks", key=expiring)).status == 200

    async def is_refused() -> bool:
        return (await api.get("/v1/tasks", key=expiring)).status == 401

    await until(is_refused)
    past = await api.post("/v1/keys", {"expires_at": "2020-01-01T00:00:00Z"})
    assert (past.status, past.paths) == (422, ["expires_at"])


async def test_a_rotated_key_goes_on_for_a_while_beside_the_new_one(api: Api) -> None:
    old = await make_key(api, "producer", types=["a"])
    number = (await api.get("/v1/keys")).json["items"][-1]["id"]

    rotated = await api.post(f"/v1/keys/{number}/rotate", {"overlap": "1h"})
    new = rotated.json["key"]
    for key in (old, new):
        assert (await api.post("/v1/tasks", {"type": "a"}, key=key)).status == 202
        assert (await api.post("/v1/tasks", {"type": "b"}, key=key)).status == 403
    listed = {each["id"]: each for each in (await api.get("/v1/keys")).json["items"]}
    assert listed[number]["expires_at"] is not None
    assert listed[rotated.json["id"]]["types"] == ["a"]

    at_once = await api.post(f"/v1/keys/{rotated.json['id']}/rotate", {"overlap": 0})
    assert at_once.status == 201

    async def is_refused() -> bool:
        return (await api.post("/v1/tasks", {"type": "a"}, key=new)).status == 401

    await until(is_refused)
    assert (await api.post("/v1/keys/999999/rotate")).status == 404


async def test_a_key_that_has_ended_is_not_replaced(api: Api) -> None:
    soon = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    made = (await api.post("/v1/keys", {"role": "viewer", "expires_at": soon})).json
    number, before = made["id"], (await api.get("/v1/keys")).json

    async def is_refused() -> bool:
        return (await api.get("/v1/tasks", key=made["key"])).status == 401

    await until(is_refused)
    rotated = await api.post(f"/v1/keys/{number}/rotate")

    assert (rotated.status, rotated.json["code"]) == (409, "conflict")
    assert f"key {number} has expired" in rotated.json["detail"]
    assert "POST /v1/keys" in rotated.json["detail"]
    assert (await api.get("/v1/keys")).json == before


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"role": "king"}, "role"),
        ({"role": "owner", "types": ["a"]}, "role"),
        ({"role": "admin", "queues": ["a"]}, "role"),
        ({"role": "producer", "types": ["a b"]}, "types[0]"),
        ({"role": "producer", "queues": ["a", ""]}, "queues[1]"),
        ({"name": "a\n"}, "name"),
    ],
)
async def test_a_wrong_key_is_a_422(api: Api, fields: Any, path: str) -> None:
    answer = await api.post("/v1/keys", fields)
    assert (answer.status, answer.paths) == (422, [path])


# Audit


async def test_every_act_is_noted_with_who_and_what(api: Api) -> None:
    name = f"{api.tenant_name}-audited"
    await put_tenant(api, name)
    await put_tenant(api, name, weight=5)
    await put_tenant(api, name, weight=5)
    made = await api.post("/v1/keys", {"role": "viewer"}, headers={"Duetime-Tenant": name})
    await api.call("DELETE", f"/v1/keys/{made.json['id']}", headers={"Duetime-Tenant": name})

    acts = (await api.get(f"/v1/audit?tenant={name}")).json["items"]

    assert [act["action"] for act in acts] == ["key.revoke", "key.create", "tenant.change", "tenant.create"]
    change = acts[2]
    assert (change["before"]["weight"], change["after"]["weight"]) == (None, 5)
    assert change["key_hint"] == api.key[:8]
    assert (change["tenant"], change["subject"]) == (name, name)
    page = (await api.get("/v1/audit?limit=1")).json
    assert len((await api.get(f"/v1/audit?limit=1&cursor={page['next']}")).json["items"]) == 1
    assert (await api.get("/v1/audit?tenant=nobody")).status == 404
    assert (await api.get("/v1/audit?cursor=x")).status == 422


# Isolation

#: Calls whose path names something of a tenant, by what stands for it in a test.
NAMED = {
    "/v1/tasks/{id}": "task",
    "/v1/schedules/{name}": "schedule",
    "/v1/calendars/{name}": "calendar",
    "/v1/queues/{name}": "queue",
    "/v1/limits/{name}": "limit",
}


def belongs(operation: Operation) -> str | None:
    return next((noun for path, noun in NAMED.items() if operation.path.startswith(path)), None)


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if belongs(each)], ids=lambda each: f"{each.method} {each.path}"
)
async def test_another_tenants_things_are_not_there(api: Api, operation: Operation) -> None:
    task = await api.submit(delay="1h")
    assert (await api.call("PUT", "/v1/schedules/mine", {"spec": {"every": "1d"}, "task": {"type": "a"}})).status < 300
    assert (await api.call("PUT", "/v1/calendars/mine", {"dates": []})).status < 300
    assert (await api.call("PUT", "/v1/queues/mine", {"limits": {"max_running": 7}})).status < 300
    assert (await api.call("PUT", "/v1/limits/mine", {"rate": 7})).status < 300
    backfill = await api.post(
        "/v1/schedules/mine/backfill", {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    )
    other = await api.serving.tenant(f"{api.tenant_name}-other")
    before = await snapshot(api, task)

    path = operation.path.replace("{name}", "mine")
    path = path.replace("{id}", str(backfill.json["id"]) if "backfills" in path else task["id"])
    answer = await other.call(operation.method, path, operation.example if operation.body is not None else None)

    if operation.method == "PUT":
        # It makes a thing of the same name for itself.
        assert answer.status in (200, 201)
    else:
        assert answer.status == 404, answer.body
    assert await snapshot(api, task) == before


async def snapshot(api: Api, task: Any) -> Any:
    """All that the other tenant could have changed."""
    schedule = (await api.get("/v1/schedules/mine")).json
    return (
        (await api.get(f"/v1/tasks/{task['id']}")).json,
        {name: schedule[name] for name in ("version", "state", "spec", "task", "note", "updated_at")},
        (await api.get("/v1/calendars/mine")).json,
        (await api.get("/v1/queues/mine")).json,
        (await api.get("/v1/limits/mine")).json,
    )


async def test_every_list_is_confined_to_its_tenant(api: Api) -> None:
    await api.bury()
    await api.submit()
    await api.call("PUT", "/v1/schedules/mine", {"spec": {"every": "1d"}, "task": {"type": "a"}})
    await api.call("PUT", "/v1/calendars/mine", {"dates": []})
    await api.call("PUT", "/v1/limits/mine", {"rate": 7})
    other = await api.serving.tenant(f"{api.tenant_name}-alone")
    lists = [
        each
        for each in OPERATIONS
        if each.method == "GET" and re.fullmatch(r"/v1/(tasks|dead|schedules|calendars|queues|limits)", each.path)
    ]
    assert len(lists) == 6
    for operation in lists:
        assert (await api.get(operation.path)).json["items"] != []
        assert (await other.get(operation.path)).json["items"] == []
    keys = (await other.get("/v1/keys")).json["items"]
    assert [each["hint"] for each in keys] == [other.key[:8]]


async def test_explain_knows_a_suspension_and_a_pause_before_the_node_obeys_them(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-steered")
    waiting = await other.submit()

    async def reasons() -> list[str]:
        explained = (await other.get(f"/v1/tasks/{waiting['id']}/explain")).json
        return [reason["reason"] for reason in explained["waiting_for"]]

    # Nobody asks the node to read its rules again: only the rows have changed.
    assert (await other.call("PUT", "/v1/queues/default", {"state": "paused"})).status == 201
    assert (await reasons())[0] == "queue_paused"
    assert (await other.call("PUT", "/v1/queues/default", {"state": "active"})).status == 200
    assert (await reasons())[0] != "queue_paused"

    await put_tenant(api, other.tenant_name, state="suspended")
    assert (await reasons())[0] == "suspended"
    await put_tenant(api, other.tenant_name, state="active")
    assert (await reasons())[0] != "suspended"
