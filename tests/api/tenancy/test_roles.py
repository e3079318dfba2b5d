"""Which role may call which operation, all of them; and what the admin of one tenant may not."""

from typing import Any

import pytest

from api.client import Api
from duetime.admin.keys import ROLES, Role, create_key
from duetime.api.openapi import OPERATIONS
from duetime.api.operations import Operation

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = {"admin"}
OWNER = {"owner", *ADMIN}
OPERATOR = {"operator", *OWNER}
PRODUCER = {"producer", *OPERATOR}
WORKER = {"worker", *OPERATOR}
EVERYONE = {"viewer", *PRODUCER, *WORKER}

#: Who may call it. What is not here only looks at what belongs to the tenant, or steers it.
MAY = {
    "submit_task": PRODUCER,
    "submit_tasks": PRODUCER,
    "lease_tasks": WORKER,
    "settle_attempts": WORKER,
    "beat": WORKER,
    "preview_schedule": EVERYONE,
    "get_signing_secret": OPERATOR,
    "rotate_signing_secret": OPERATOR,
    "list_keys": OWNER,
    "make_key": OWNER,
    "revoke_key": OWNER,
    "rotate_key": OWNER,
    "get_tenant": OWNER,
    "list_acts": OWNER,
    "list_tenants": ADMIN,
    "put_tenant": ADMIN,
    "list_tiers": ADMIN,
    "get_tier": ADMIN,
    "put_tier": ADMIN,
    "delete_tier": ADMIN,
    "list_nodes": ADMIN,
}


def allowed(operation: Operation) -> set[str]:
    return MAY.get(operation.name, EVERYONE if operation.method == "GET" else OPERATOR)


async def test_the_table_names_operations_that_exist() -> None:
    assert set(MAY) <= {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_call_what_the_table_says(api: Api, role: Role) -> None:
    _, key = await create_key(api.serving.database, api.tenant, role)
    judged = {}
    for operation in OPERATIONS:
        if not operation.needs_key:
            continue
        path = operation.path.replace("{id}", "999999").replace("{name}", "nothing").replace("{host}", "a.example:1")
        # A body that cannot be read: the role is judged before it, and nothing is done.
        data = b"{" if operation.body is not None else None
        answer = await api.call(operation.method, path, data=data, key=key)
        assert answer.status != 401
        judged[operation.name] = answer.status != 403

    assert judged == {each.name: role in allowed(each) for each in OPERATIONS if each.needs_key}


async def owner_of(api: Api) -> tuple[int, str]:
    info, key = await create_key(api.serving.database, api.tenant, "owner")
    return info.id, key


async def test_an_owner_manages_the_keys_of_its_tenant(api: Api) -> None:
    _, owner = await owner_of(api)

    for role in ("producer", "worker", "operator", "viewer", "owner"):
        made = await api.post("/v1/keys", {"role": role}, key=owner)
        assert (made.status, made.json["tenant"]) == (201, api.tenant_name)
        rotated = await api.post(f"/v1/keys/{made.json['id']}/rotate", {"overlap": "1h"}, key=owner)
        assert (rotated.status, rotated.json["role"]) == (201, role)
        assert (await api.call("DELETE", f"/v1/keys/{made.json['id']}", key=owner)).status == 204
        assert (await api.get("/v1/tasks", key=made.json["key"])).status == 401
    listed = (await api.get("/v1/keys", key=owner)).json["items"]
    assert len(listed) == 2 + 5 * 2


async def test_an_owner_makes_and_ends_no_admin_key(api: Api) -> None:
    _, owner = await owner_of(api)
    admin, _ = await create_key(api.serving.database, api.tenant, "admin")
    before = (await api.get("/v1/keys")).json

    answers = [
        await api.post("/v1/keys", {"role": "admin"}, key=owner),
        # The role that is made when none is named.
        await api.post("/v1/keys", {}, key=owner),
        await api.post(f"/v1/keys/{admin.id}/rotate", key=owner),
        await api.call("DELETE", f"/v1/keys/{admin.id}", key=owner),
    ]

    assert [answer.status for answer in answers] == [403] * 4
    assert all("only an admin key" in answer.json["detail"] for answer in answers)
    assert (await api.get("/v1/keys")).json == before


async def test_an_owner_finds_no_key_of_another_tenant(api: Api) -> None:
    _, owner = await owner_of(api)
    other = await api.serving.tenant(f"{api.tenant_name}-other")
    of_other, _ = await create_key(api.serving.database, other.tenant, "viewer")

    for number in (of_other.id, 999_999, 1 << 40):
        assert (await api.call("DELETE", f"/v1/keys/{number}", key=owner)).status == 404
        assert (await api.post(f"/v1/keys/{number}/rotate", key=owner)).status == 404
    acting = await api.get("/v1/keys", key=owner, headers={"Duetime-Tenant": other.tenant_name})
    assert acting.status == 403
    assert [each["revoked_at"] for each in (await other.get("/v1/keys")).json["items"]] == [None, None]


async def test_an_owner_sees_its_own_tenant_and_changes_nothing_of_it(api: Api) -> None:
    _, owner = await owner_of(api)
    other = await api.serving.tenant(f"{api.tenant_name}-beside")
    await api.call("PUT", f"/v1/tenants/{api.tenant_name}", {"quotas": {"max_waiting": 7}})

    own = await api.get(f"/v1/tenants/{api.tenant_name}", key=owner)
    assert (own.status, own.json["effective"]["quotas"]["max_waiting"]) == (200, 7)
    there = await api.get(f"/v1/tenants/{other.tenant_name}", key=owner)
    nowhere = await api.get("/v1/tenants/nobody-at-all", key=owner)
    assert (there.status, nowhere.status) == (404, 404)
    assert there.json["detail"].replace(other.tenant_name, "") == nowhere.json["detail"].replace("nobody-at-all", "")
    changes: list[dict[str, Any]] = [{"weight": 9}, {"quotas": None}, {"state": "suspended"}, {"tier": None}]
    for change in changes:
        assert (await api.call("PUT", f"/v1/tenants/{api.tenant_name}", change, key=owner)).status == 403


async def test_an_owner_reads_what_was_done_to_its_own_tenant(api: Api) -> None:
    number, owner = await owner_of(api)
    other = await api.serving.tenant(f"{api.tenant_name}-audited")
    await other.post("/v1/keys", {"role": "viewer"})
    await api.post("/v1/keys", {"role": "viewer"}, key=owner)

    acts = (await api.get("/v1/audit?limit=200", key=owner)).json["items"]

    assert {act["tenant"] for act in acts} == {api.tenant_name}
    assert (acts[0]["action"], acts[0]["key"]) == ("key.create", number)
    named = await api.get(f"/v1/audit?limit=200&tenant={api.tenant_name}", key=owner)
    assert named.json["items"] == acts
    assert (await api.get(f"/v1/audit?tenant={other.tenant_name}", key=owner)).status == 404
    # An admin goes on seeing all of them.
    assert {api.tenant_name, other.tenant_name} <= {
        act["tenant"] for act in (await api.get("/v1/audit?limit=200")).json["items"]
    }
