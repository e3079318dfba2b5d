"""Types beside their schemas: defaults where a submission says nothing, limits, and the rules of flow control."""

from typing import Any

import pytest

from api.client import Api
from duetime.api.bodies.requests import TaskRequest
from duetime.api.server.http import make_decoder
from duetime.api.tasks.validation import canonical_text, plain_fingerprint
from duetime.model.limits import TypeLimits

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULTS = {"queue": "mail", "priority": "high", "timeout": "30s", "sla": "1h", "retry": {"max_attempts": 2}}


async def register(api: Api, **rules: Any) -> Any:
    answer = await api.call("PUT", "/v1/types/t", rules)
    assert answer.status in (200, 201), answer.body
    return answer.json


def how(task: Any) -> tuple[Any, ...]:
    return (task["queue"], task["priority"], task["timeout"], task["sla"], task["retry"]["max_attempts"])


async def test_a_type_s_defaults_hold_where_a_submission_says_nothing(api: Api) -> None:
    before = await api.submit(type="t")
    await register(api, defaults=DEFAULTS)
    given = {"queue": "default", "priority": "normal", "timeout": 5, "sla": 6, "retry": {"min_backoff": 1}}

    for _ in range(2):
        assert how(await api.submit(type="t")) == ("mail", "high", 30.0, 3600.0, 2)
        assert how(await api.submit(type="t", **given)) == ("default", "normal", 5.0, 6.0, 20)
        assert how(await api.submit(type="t", queue="other")) == ("other", "high", 30.0, 3600.0, 2)
        assert how(await api.submit(type="free")) == ("default", "normal", 300.0, None, 20)
    assert how((await api.get(f"/v1/tasks/{before['id']}")).json) == ("default", "normal", 300.0, None, 20)
    batch = (await api.post("/v1/tasks/batch", [{"type": "t"}, {"type": "t", "queue": "q"}])).json["results"]
    shown = [(await api.get(f"/v1/tasks/{each['id']}")).json for each in batch]
    assert [how(task)[:2] for task in shown] == [("mail", "high"), ("q", "high")]


async def test_a_type_s_defaults_hold_for_schedules(api: Api) -> None:
    await register(api, defaults=DEFAULTS)
    for name, template in (("a", {}), ("b", {"queue": "default", "timeout": 7})):
        body = {"spec": {"every": "1d"}, "task": {"type": "t", **template}}
        assert (await api.call("PUT", f"/v1/schedules/{name}", body)).status == 201

    tasks = [(await api.post(f"/v1/schedules/{name}/trigger")).json["task"] for name in "ab"]

    shown = [(await api.get(f"/v1/tasks/{task}")).json for task in tasks]
    assert [how(task) for task in shown] == [("mail", "high", 30.0, 3600.0, 2), ("default", "high", 7.0, 3600.0, 2)]
    # What the type gives is the type's: a schedule that is put as it is shown stays the same.
    stored = (await api.get("/v1/schedules/a")).json["task"]
    assert "queue" not in stored
    again = await api.call("PUT", "/v1/schedules/a", {"spec": {"every": "1d"}, "task": stored})
    assert (again.status, again.json["version"]) == (200, 1)


async def test_a_default_does_not_make_another_request_of_a_repeated_one(api: Api) -> None:
    body = {"type": "t", "idempotency_key": "k"}
    first = await api.post("/v1/tasks", body)
    await register(api, defaults=DEFAULTS)

    again = await api.post("/v1/tasks", body)

    assert (again.status, again.json["id"], again.json["queue"]) == (200, first.json["id"], "default")


@pytest.mark.parametrize(
    ("body", "known"),
    [
        (b'{"type":"a"}', "2393e5a95c0987013d4f42c2c03b0506"),
        (b'{"priority":"normal","type":"a","queue":"default"}', "2393e5a95c0987013d4f42c2c03b0506"),
        (
            b'{"type":"a","queue":"mail","priority":"high","payload":{"b":1,"a":2},"delay":"5m",'
            b'"idempotency_key":"k","retry":{"max_attempts":3},"labels":{"x":"y"}}',
            "c4b29b9fc3fd69b8d74f8ba61950088f",
        ),
        (b'{"type":"x","idempotency_key":"k","retry":{"min_backoff":"2s"}}', "e62b4f611ed655e307f06ccefaab2447"),
        (b'{"type":"x","idempotency_key":"k","retry":{"max_attempts":20}}', "a83faab75ce8f624805cc556e71ba01d"),
    ],
)
async def test_fingerprints_are_what_they_were_when_keys_were_stored(body: bytes, known: str) -> None:
    assert plain_fingerprint(canonical_text(make_decoder(TaskRequest).decode(body))).hex() == known


async def test_a_type_needs_no_schema_and_shows_what_it_says(api: Api) -> None:
    rules = {
        "limits": {"max_running": 5, "concurrency_key": "customer"},
        "throttle": {"limit": 6, "period": "1m", "key": "customer"},
        "rate_limit": {"limit": 10, "period": 60},
        "unique": {"key": "order.id", "period": "1h"},
        "defaults": {"queue": "mail"},
    }
    assert (await register(api, **rules))["version"] == 1
    assert (await register(api, **rules))["version"] == 1

    shown = (await api.get("/v1/types/t")).json

    assert (shown["schema"], shown["debounce"]) == (None, None)
    assert shown["defaults"] == {"queue": "mail"}
    assert shown["limits"] == rules["limits"]
    assert shown["throttle"] == {"limit": 6, "period": 60.0, "key": "customer"}
    assert shown["rate_limit"] == {"limit": 10, "period": 60.0}
    assert shown["unique"] == {"key": "order.id", "period": 3600.0}
    assert (await register(api, debounce={"period": 5}, schema={"type": "object"}))["version"] == 2
    changed = (await api.get("/v1/types?limit=1")).json["items"][0]
    assert (changed["debounce"], changed["unique"], changed["schema"]) == ({"period": 5.0}, None, {"type": "object"})
    assert (await register(api))["version"] == 3
    assert (await api.submit(type="t", payload=7))["state"] == "ready"
    audit = (await api.get(f"/v1/audit?tenant={api.tenant_name}")).json["items"]
    assert audit[0]["before"] == {"schema": {"type": "object"}, "debounce": {"period": 5.0}}


async def test_the_feeder_is_told_of_limits_and_of_throttles_as_limits(api: Api) -> None:
    types = api.serving.types
    before = types.limits_change
    await register(api, limits={"max_running": 3, "concurrency_key": "a.b"}, throttle={"limit": 30, "period": "1m"})

    limits = types.limits(api.tenant, "t")

    assert limits == TypeLimits(max_running=3, rate=0.5, burst=30, concurrency_key="a.b")
    assert types.limits(api.tenant, "other") is None
    assert api.tenant in types.limited_tenants()
    assert types.limits_change > before
    await register(api, throttle={"limit": 1, "period": "1h", "burst": 4, "key": "k"})
    assert types.limits(api.tenant, "t") == TypeLimits(rate=1 / 3600, burst=5, rate_key="k")
    await register(api, limits={}, defaults={})
    assert (types.limits(api.tenant, "t"), api.tenant in types.limited_tenants()) == (None, False)
    await api.call("DELETE", "/v1/types/t")


@pytest.mark.parametrize(
    ("paths", "rules"),
    [
        (["limit"], {"limit": {}}),
        (["schema"], {"schema": None}),
        (["limits.max_running"], {"limits": {"max_running": -1}}),
        (["limits.rate"], {"limits": {"rate": 0}}),
        (["limits.burst"], {"limits": {"burst": 3}}),
        (["limits.strict"], {"limits": {"strict": True}}),
        (["limits.speed"], {"limits": {"speed": 1}}),
        (["limits.concurrency_key"], {"limits": {"concurrency_key": "a"}}),
        (["limits.rate_key"], {"limits": {"max_running": 1, "rate_key": "a"}}),
        (["limits.concurrency_key"], {"limits": {"max_running": 1, "concurrency_key": "a..b"}}),
        (["limits.concurrency_key"], {"limits": {"max_running": 1, "concurrency_key": ".".join("abcdefghi")}}),
        (["throttle"], {"limits": {"rate": 1}, "throttle": {"limit": 1, "period": 1}}),
        (["throttle.period"], {"throttle": {"limit": 1}}),
        (["throttle.period"], {"throttle": {"limit": 1, "period": "8d"}}),
        (["throttle.limit"], {"throttle": {"limit": 0, "period": 1}}),
        (["throttle.burst"], {"throttle": {"limit": 1, "period": 1, "burst": -1}}),
        (["throttle.key"], {"throttle": {"limit": 1, "period": 1, "key": ""}}),
        (["rate_limit.limit"], {"rate_limit": {"limit": 1.5, "period": 1}}),
        (["rate_limit.period"], {"rate_limit": {"limit": 1, "period": "soon"}}),
        (["rate_limit.burst"], {"rate_limit": {"limit": 1, "period": 1, "burst": 1}}),
        (["rate_limit.key"], {"rate_limit": {"limit": 1, "period": 1, "key": "a."}}),
        (["debounce.period"], {"debounce": {}}),
        (["debounce.timeout"], {"debounce": {"period": 5, "timeout": 1}}),
        (["debounce.key"], {"debounce": {"period": 5, "key": "\0"}}),
        (["unique"], {"debounce": {"period": 5}, "unique": {}}),
        (["unique.states[0]"], {"unique": {"states": ["open"]}}),
        (["unique.period"], {"unique": {"period": -1}}),
        (["defaults.queue"], {"defaults": {"queue": "no queue"}}),
        (["defaults.priority"], {"defaults": {"priority": "urgent"}}),
        (["defaults.timeout"], {"defaults": {"timeout": 0}}),
        (["defaults.retry.max_backoff"], {"defaults": {"retry": {"min_backoff": 9, "max_backoff": 1}}}),
        (["defaults.delay"], {"defaults": {"delay": 1}}),
    ],
)
async def test_what_is_wrong_with_a_type_is_said(api: Api, paths: list[str], rules: dict[str, Any]) -> None:
    answer = await api.call("PUT", "/v1/types/t", rules)
    assert (answer.status, answer.paths) == (422, paths), answer.body
    assert (await api.get("/v1/types/t")).status == 404
