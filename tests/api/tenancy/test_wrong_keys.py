"""A flood of wrong keys, through the API."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from api.client import Api, Serving, serve
from duetime.admin import wrong_keys
from duetime.admin.keys import create_key, mint_key
from duetime.database.pool import Database

pytestmark = pytest.mark.asyncio(loop_scope="module")
BAD = {"X-Forwarded-For": "203.0.113.9"}
GOOD = {"X-Forwarded-For": "198.51.100.7"}


@pytest_asyncio.fixture(loop_scope="module")
async def proxied(module_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    """A server of its own, that believes whom the proxy names, and does not make anybody wait."""
    monkeypatch.setattr(wrong_keys, "PENALTY_SECONDS", 0.0)
    database = await Database.open(module_url)
    async with serve(database, trusted_proxies=["127.0.0.1/32"]) as serving:
        yield serving
    await database.close()


async def flood(api: Api, requests: int) -> list[int]:
    statuses = []
    for _ in range(requests // 50):
        answers = [api.get("/v1/tasks", key=mint_key(), headers=BAD) for _ in range(50)]
        statuses += [answer.status for answer in await asyncio.gather(*answers)]
    return statuses


async def test_a_flood_of_wrong_keys_is_refused_and_nobody_else_is(proxied: Serving) -> None:
    api = await proxied.tenant("floods")
    # It has been seen here before the flood, from the same address.
    assert (await api.get("/v1/tasks", headers=BAD)).status == 200

    statuses = await flood(api, 500)

    assert set(statuses) == {401, 429}
    assert statuses[:100] == [401] * 100
    refused = await api.get("/v1/tasks", key=mint_key(), headers=BAD)
    assert (refused.status, refused.json["code"]) == (429, "too_many_wrong_keys")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert (await api.get("/v1/tasks", headers=BAD)).status == 200
    made = await api.post("/v1/keys", {"role": "viewer"})
    assert (await api.get("/v1/tasks", headers=BAD, key=made.json["key"])).status == 200
    # One that this node has never seen has to come from elsewhere, or later.
    _, unseen = await create_key(proxied.database, api.tenant)
    assert (await api.get("/v1/tasks", headers=BAD, key=unseen)).status == 429
    assert (await api.get("/v1/tasks", headers=GOOD, key=unseen)).status == 200
    assert (await api.get("/v1/tasks", headers=BAD, key=unseen)).status == 200
