"""The last use of keys over HTTP: from every way that a request goes, without a statement of its own."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from bench.node import NodeProcess

from api.client import Api, Serving, serve
from duetime.admin.key_uses import KeyUses
from duetime.api.server.express import Express
from duetime.database.pool import Database
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxied(module_url: str) -> AsyncIterator[Serving]:
    """A server that believes whom the proxy names."""
    database = await Database.open(module_url)
    async with serve(database, trusted_proxies=["127.0.0.1/32"]) as serving:
        yield serving
    await database.close()


def uses_of(serving: Serving) -> KeyUses:
    return serving.app._keys.uses


async def shown(api: Api, number: int) -> Any:
    [found] = [each for each in (await api.get("/v1/keys")).json["items"] if each["id"] == number]
    return found["last_used_at"], found["last_used_from"]


async def test_the_last_use_of_a_key_is_shown_once_it_is_stored(proxied: Serving) -> None:
    api = await proxied.tenant("uses")
    made = (await api.post("/v1/keys", {"role": "producer"})).json
    await api.get("/v1/tasks", key=made["key"], headers={"X-Forwarded-For": "198.51.100.7"})
    assert await shown(api, made["id"]) == (None, None)

    await uses_of(proxied).write()
    at, peer = await shown(api, made["id"])

    assert peer == "198.51.100.7"
    assert datetime.now(UTC) - datetime.fromisoformat(at) < timedelta(minutes=1)


async def test_the_short_way_notes_a_use(proxied: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    api = await proxied.tenant("short-uses")
    made = (await api.post("/v1/keys", {"role": "producer"})).json
    await api.post("/v1/tasks", {"type": "a"}, key=made["key"])
    await uses_of(proxied).step()
    taken: list[bool] = []
    take = Express.take

    def note(self: Express, *arguments: Any) -> bool:
        taken.append(take(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(Express, "take", note)

    await api.post("/v1/tasks", {"type": "a"}, key=made["key"], headers={"X-Forwarded-For": "2001:db8::7"})
    await uses_of(proxied).write()

    assert taken == [True]
    assert (await shown(api, made["id"]))[1] == "2001:db8::7"


async def test_a_use_that_is_refused_by_its_address_is_none(proxied: Serving) -> None:
    api = await proxied.tenant("refused-uses")
    made = (await api.post("/v1/keys", {"role": "viewer", "allowed_ips": ["10.0.0.0/8"]})).json

    assert (await api.get("/v1/tasks", key=made["key"])).status == 403
    await uses_of(proxied).write()

    assert await shown(api, made["id"]) == (None, None)


async def test_a_request_writes_nothing_for_it(proxied: Serving) -> None:
    api = await proxied.tenant("quiet-uses")
    await uses_of(proxied).write()
    [before] = await proxied.database.fetch("SELECT count(*) AS rows FROM api_key_use")

    for _ in range(20):
        await api.get("/v1/tasks")
        await api.submit()

    [after] = await proxied.database.fetch("SELECT count(*) AS rows FROM api_key_use")
    assert before == after


async def test_unused_keys_are_found(proxied: Serving) -> None:
    api = await proxied.tenant("unused")
    old = (await api.post("/v1/keys", {"role": "viewer"})).json["id"]
    await proxied.database.execute("UPDATE api_key SET watched_since = now() - interval '91 days' WHERE id = $1", old)

    found = await api.get("/v1/keys?unused_for=90d")

    assert [each["id"] for each in found.json["items"]] == [old]
    for wrong in ("90", "x", "1s", "", "90d&unused_for=91d", "999999999d"):
        answer = await api.get(f"/v1/keys?unused_for={wrong}")
        assert (answer.status, answer.paths) == (422, ["unused_for"]), wrong


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]


async def test_the_last_use_survives_a_restart_of_the_node(fresh_node: NodeProcess) -> None:
    def read() -> list[dict[str, Any]]:
        with Client(fresh_node.url, fresh_node.key) as client:
            return client.send(ApiCall("GET", "/v1/keys", msgspec.json.Decoder(_Page).decode)).items

    assert [each["last_used_at"] for each in await asyncio.to_thread(read)] == [None]

    await asyncio.to_thread(fresh_node.stop)
    await asyncio.to_thread(fresh_node.start)

    [key] = await asyncio.to_thread(read)
    assert key["last_used_from"] == "127.0.0.1"
    assert key["last_used_at"] is not None
