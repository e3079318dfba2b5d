"""Breakers by API: what is let through and why, and forcing them by hand."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.client import Api
from duetime.admin.breakers import ForcedBreakers
from duetime.model.breaker_status import Forced
from duetime.model.task import Kind, LaneKey, Outcome, PriorityClass

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "a.example:443"


async def put(api: Api, state: str, host: str = HOST, **fields: Any) -> Any:
    answer = await api.call("PUT", f"/v1/breakers/{host}", {"state": state, **fields})
    assert answer.status == 200, answer.body
    return answer.json


async def listed(api: Api) -> list[Any]:
    items: list[Any] = (await api.get("/v1/breakers")).json["items"]
    return items


def fail(api: Api, host: str = HOST, *, seconds: int = 2) -> None:
    """A host that fails for so long."""
    breakers = api.serving.breakers
    now = api.serving.database.clock.now_ms() - seconds * 1000
    for step in range(seconds * 20):
        breakers.of(api.tenant, host).ended("failed", now + step * 50, detail="it answered 500")


async def test_a_breaker_that_opened_says_why_and_until_when(api: Api) -> None:
    assert await listed(api) == []
    fail(api)

    [seen] = await listed(api)

    assert (seen["host"], seen["state"], seen["allowed_rate"], seen["forced"]) == (HOST, "open", 0.0, None)
    assert seen["calls"] == seen["failures"] >= 20
    assert f"{seen['failures']} of {seen['calls']} calls failed" in seen["reason"]
    assert seen["reason"].endswith("; the last: it answered 500")
    assert datetime.fromisoformat(seen["next_probe_at"]) > datetime.now(UTC)


async def test_a_host_that_begins_slowly_is_shown_when_something_waits_for_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakers, now_ms = api.serving.breakers, api.serving.database.clock.now_ms()
    # A test that is slow must not end the ramp.
    monkeypatch.setattr(breakers, "_now_ms", lambda: now_ms)
    assert breakers.begin_all(api.tenant, {HOST: 20}, now_ms)
    assert await listed(api) == []

    assert not breakers.begin_all(api.tenant, {HOST: 10_000}, now_ms)

    [seen] = await listed(api)
    assert (seen["host"], seen["state"], seen["next_probe_at"]) == (HOST, "ramping", None)
    assert seen["allowed_rate"] == 500
    assert seen["reason"].startswith("ramping after a rest")
    await put(api, "closed")
    assert breakers.begin_all(api.tenant, {HOST: 10_000}, now_ms)


async def test_a_breaker_is_forced_open_closed_and_back(api: Api) -> None:
    fail(api)
    breaker = api.serving.breakers.of(api.tenant, HOST)

    opened = await put(api, "open", note="maintenance until noon")
    assert (opened["state"], opened["forced"], opened["note"]) == ("open", "open", "maintenance until noon")
    assert (opened["allowed_rate"], opened["next_probe_at"]) == (0.0, None)
    assert breaker.state == "open"

    closed = await put(api, "closed")
    assert (closed["state"], closed["forced"], closed["note"], closed["allowed_rate"]) == ("closed", "closed", "", None)
    assert breaker.state == "closed"
    assert await listed(api) == [closed]

    free = await put(api, "auto")
    assert (free["state"], free["forced"], free["reason"]) == ("closed", None, "")
    assert await listed(api) == []
    assert await put(api, "auto") == free


async def test_what_is_done_by_hand_is_audited_once_for_each_change(api: Api) -> None:
    await put(api, "open", note="one")
    await put(api, "open", note="one")
    await put(api, "closed", note="two")
    await put(api, "auto", note="three")
    await put(api, "auto")

    acts = (await api.get(f"/v1/audit?tenant={api.tenant_name}")).json["items"]

    assert [(act["action"], act["subject"]) for act in acts[:3]] == [
        ("breaker.auto", HOST),
        ("breaker.force", HOST),
        ("breaker.force", HOST),
    ]
    assert [act["before"] for act in acts[:3]] == [
        {"state": "closed", "note": "two"},
        {"state": "open", "note": "one"},
        None,
    ]
    assert [act["after"] for act in acts[:2]] == [
        {"state": "auto", "note": "three"},
        {"state": "closed", "note": "two"},
    ]
    assert acts[0]["key_hint"] == api.key[:8]


async def test_a_forced_breaker_is_another_tenants_business_and_no_ones_else(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-other")
    await put(api, "open")
    fail(api, "b.example:443")

    assert await listed(other) == []
    assert api.serving.breakers.find(other.tenant, HOST) is None
    assert (await put(other, "auto"))["state"] == "closed"
    assert [each["host"] for each in await listed(api)] == [HOST, "b.example:443"]


async def test_every_node_obeys_what_is_stored(api: Api) -> None:
    await put(api, "open", "B.Example:80")
    heard: list[dict[tuple[int, str], Forced]] = []
    node = ForcedBreakers(api.serving.database, lambda forced: heard.append(dict(forced)))

    await node.refresh()
    await put(api, "closed", "b.example:80")
    await node.refresh()
    await put(api, "auto", "b.example:80")
    await node.refresh()

    assert [each.get((api.tenant, "b.example:80")) for each in heard] == ["open", "closed", None]


async def test_breakers_come_in_pages_by_host(api: Api) -> None:
    for name in ("c", "a", "b"):
        await put(api, "open", f"{name}.example:443")
    seen: list[str] = []
    path = "/v1/breakers?limit=2"
    while path:
        page = (await api.get(path)).json
        seen += [each["host"] for each in page["items"]]
        path = f"/v1/breakers?limit=2&cursor={page['next']}" if page["next"] else ""
    assert seen == ["a.example:443", "b.example:443", "c.example:443"]
    assert (await api.get("/v1/breakers?cursor=%00")).paths == ["cursor"]


@pytest.mark.parametrize(
    ("host", "fields", "path"),
    [
        ("a%20b", {"state": "open"}, "host"),
        ("a.example:0", {"state": "open"}, "host"),
        ("a.example", {"state": "open"}, "host"),
        ("https:%2F%2Fa.example:443", {"state": "open"}, "host"),
        (HOST, {"state": "ajar"}, "state"),
        (HOST, {}, "state"),
        (HOST, {"state": "open", "note": "a\nb"}, "note"),
        (HOST, {"state": "open", "note": "x" * 501}, "note"),
        (HOST, {"state": "open", "colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_request_is_a_422(api: Api, host: str, fields: Any, path: str) -> None:
    answer = await api.call("PUT", f"/v1/breakers/{host}", fields)
    assert (answer.status, answer.paths) == (422, [path]), answer.body
    assert await listed(api) == []


async def stop(api: Api) -> None:
    """Everything of the tenant has failed for more than five minutes."""
    tenants, before = api.serving.tenant_breakers, api.serving.passed[0]
    lane = await api.serving.lanes.ensure(LaneKey(api.tenant, "default", PriorityClass.NORMAL, Kind.PULL))
    for _ in range(32):
        api.serving.onward.counts.ended([(lane, Outcome.FAILED)] * 5)
        await tenants.step()
        api.serving.passed[0] += 10
    api.serving.passed[0] = before


async def test_a_tenant_that_is_stopped_is_listed_and_its_tasks_say_so(api: Api) -> None:
    task = (await api.post("/v1/tasks", {"type": "work"})).json["id"]
    await stop(api)

    [seen] = await listed(api)
    assert (seen["host"], seen["state"], seen["allowed_rate"], seen["forced"]) == ("tenant", "open", 0.0, None)
    assert seen["reason"].endswith("attempts failed in the last 300 s")
    assert seen["calls"] == seen["failures"] >= 140
    assert (await api.get("/v1/breakers?limit=1&cursor=tenant")).json["items"] == []

    explained = (await api.get(f"/v1/tasks/{task}/explain")).json
    [reason] = [each for each in explained["waiting_for"] if each["reason"] == "tenant_breaker"]
    assert "its tenant is stopped, because" in reason["detail"]
    assert reason["until"] == seen["next_probe_at"]
    assert "closed" in explained["what_would_free_it"]

    text = (await api.get("/metrics")).body.decode()
    assert f'duetime_tenant_breaker{{node="here",state="open",tenant="{api.tenant_name}"}} 1.0' in text
    assert 'duetime_tenant_breakers{node="here",state="open"} 1.0' in text
    await put(api, "closed", "tenant")
    await put(api, "auto", "tenant")
    assert await listed(api) == []


async def test_a_tenant_is_held_by_hand_and_that_is_audited(api: Api) -> None:
    opened = await put(api, "open", "tenant", note="a bad release")
    assert (opened["host"], opened["state"], opened["forced"], opened["allowed_rate"]) == ("tenant", "open", "open", 0)
    other = await api.serving.tenant(f"{api.tenant_name}-other")
    assert await listed(other) == []

    free = await put(api, "auto", "tenant")
    assert (free["state"], free["forced"]) == ("closing", None)
    assert free["allowed_rate"] >= 1
    await put(api, "closed", "tenant")
    assert (await put(api, "auto", "tenant"))["state"] == "closed"

    acts = (await api.get(f"/v1/audit?tenant={api.tenant_name}")).json["items"]
    assert [(act["action"], act["subject"]) for act in acts[:4]] == [
        ("breaker.auto", "tenant"),
        ("breaker.force", "tenant"),
        ("breaker.auto", "tenant"),
        ("breaker.force", "tenant"),
    ]


async def test_a_tenant_has_numbers_of_its_own(api: Api) -> None:
    path = f"/v1/tenants/{api.tenant_name}"
    own = {"breaker_failure_rate": 1, "breaker_window": 600, "breaker_probe_every": 5, "breaker_min_attempts": 100}
    stored = (await api.call("PUT", path, {"quotas": own})).json
    assert {name: stored["effective"]["quotas"][name] for name in own} == own
    in_words = {**own, "breaker_window": "10m", "breaker_probe_every": "5s"}
    assert (await api.call("PUT", path, {"quotas": in_words})).json["quotas"] == own
    await api.serving.obey()
    assert not api.serving.tenant_breakers.rules_of(api.tenant).is_on
    await stop(api)
    assert await listed(api) == []

    await api.call("PUT", path, {"quotas": None})
    await api.serving.obey()
    assert api.serving.tenant_breakers.rules_of(api.tenant).failure_rate == 0.9
    for field, value in (("failure_rate", 1.1), ("failure_rate", 0), ("window", 59), ("probe_every", 0.5)):
        answer = await api.call("PUT", path, {"quotas": {f"breaker_{field}": value}})
        assert (answer.status, answer.paths) == (422, [f"quotas.breaker_{field}"])
