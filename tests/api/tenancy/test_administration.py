"""Keys and the signing secret over HTTP."""

import base64

import pytest

from api.client import Api
from duetime.admin.keys import create_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_key_is_made_listed_and_revoked(api: Api) -> None:
    made = await api.post("/v1/keys", {"role": "worker"})
    key = made.json["key"]
    works = await api.get("/v1/tasks", key=key)
    listed = await api.get("/v1/keys")

    revoked = await api.call("DELETE", f"/v1/keys/{made.json['id']}")

    assert (made.status, works.status, revoked.status) == (201, 200, 204)
    assert key.startswith("dt_")
    assert key.encode() not in listed.body
    assert [each["role"] for each in listed.json["items"]] == ["admin", "worker"]
    assert (await api.get("/v1/tasks", key=key)).status == 401


async def test_only_an_admin_key_makes_keys(api: Api) -> None:
    _, key = await create_key(api.serving.database, api.tenant, "producer")

    assert (await api.post("/v1/keys", {}, key=key)).status == 403
    assert (await api.get("/v1/keys", key=key)).status == 403
    assert (await api.call("DELETE", "/v1/keys/1", key=key)).status == 403


@pytest.mark.parametrize("name", ["0", "x", "999999999", "99999999999999999999", "-1", "1.5"])
async def test_a_key_that_does_not_exist_is_a_404(api: Api, name: str) -> None:
    assert (await api.call("DELETE", f"/v1/keys/{name}")).status == 404


async def test_another_tenants_key_cannot_be_revoked(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    theirs = (await other.get("/v1/keys")).json["items"][0]["id"]

    assert (await api.call("DELETE", f"/v1/keys/{theirs}")).status == 404
    assert (await other.get("/v1/keys")).status == 200


async def test_a_role_that_does_not_exist_is_a_422(api: Api) -> None:
    assert (await api.post("/v1/keys", {"role": "king"})).paths == ["role"]


async def test_the_signing_secret_is_the_tenants_own(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")

    mine, theirs = await api.get("/v1/signing-secret"), await other.get("/v1/signing-secret")

    assert mine.json["secret"] != theirs.json["secret"]
    assert 24 <= len(base64.b64decode(mine.json["secret"].removeprefix("whsec_"), validate=True)) <= 64
    assert mine.headers["Cache-Control"] == "no-store"
