"""Queues and limits of keys, as operators set them."""

from typing import Any

import pytest

from api.client import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def put(api: Api, path: str, body: Any) -> Any:
    answer = await api.call("PUT", path, body)
    assert answer.status in (200, 201), answer.body
    return answer.json


async def acts(api: Api) -> list[Any]:
    items: list[Any] = (await api.get(f"/v1/audit?tenant={api.tenant_name}")).json["items"]
    return items


# Queues


async def test_a_queue_is_limited_paused_and_forgotten(api: Api) -> None:
    made = await api.call("PUT", "/v1/queues/mail", {"limits": {"max_running": 5, "rate": 2, "burst": 9}})
    same = await put(api, "/v1/queues/mail", {"limits": {"max_running": 5, "rate": 2, "burst": 9}})
    paused = await put(api, "/v1/queues/mail", {"state": "paused"})

    assert (made.status, made.json["version"], made.json["state"]) == (201, 1, "active")
    assert (same["version"], paused["version"]) == (1, 2)
    assert paused["limits"] == {"max_running": 5, "rate": 2.0, "burst": 9}
    shown = (await api.get("/v1/queues/mail")).json
    assert (shown["state"], shown["limits"], shown["lanes"]) == ("paused", paused["limits"], 0)
    for nothing in (None, {}):
        assert (await put(api, "/v1/queues/mail", {"limits": nothing}))["limits"] == {}
    assert (await api.get("/v1/queues/mail")).json["state"] == "paused"

    assert (await api.call("DELETE", "/v1/queues/mail")).status == 204
    assert (await api.call("DELETE", "/v1/queues/mail")).status == 404
    assert (await api.get("/v1/queues/mail")).status == 404


async def test_what_is_done_is_noted_once_with_before_and_after(api: Api) -> None:
    await put(api, "/v1/queues/mail", {"limits": {"max_running": 5}})
    for _ in range(2):
        await put(api, "/v1/queues/mail", {"state": "paused"})
    await api.call("DELETE", "/v1/queues/mail")
    await put(api, "/v1/limits/a*", {"rate": 3})
    await put(api, "/v1/limits/a*", {"rate": 4})
    await api.call("DELETE", "/v1/limits/a*")

    noted = await acts(api)

    assert [act["action"] for act in noted[:6]] == [
        *("limit.delete", "limit.change", "limit.create"),
        *("queue.delete", "queue.change", "queue.create"),
    ]
    assert (noted[1]["before"]["limits"], noted[1]["after"]["limits"]) == ({"rate": 3.0}, {"rate": 4.0})
    assert noted[4]["before"] == {"state": "active", "limits": {"max_running": 5}}
    assert noted[4]["after"] == {"state": "paused", "limits": {"max_running": 5}}
    assert noted[5]["before"] is None
    assert (noted[0]["subject"], noted[0]["after"], noted[0]["key_hint"]) == ("a*", None, api.key[:8])


async def test_every_queue_is_listed_with_what_it_holds(api: Api) -> None:
    await api.submit(queue="b", delay="1h")
    await api.submit(queue="b", delay="1h", priority="critical", target={"url": "https://example.com/"})
    await api.submit(queue="d", delay="1h")
    await put(api, "/v1/queues/a", {"state": "paused"})
    await put(api, "/v1/queues/d", {"limits": {"max_running": 1}})

    found: list[Any] = []
    path = "/v1/queues?limit=2"
    while path:
        page = (await api.get(path)).json
        found += page["items"]
        path = f"/v1/queues?limit=2&cursor={page['next']}" if page["next"] else ""

    assert [each["name"] for each in found] == ["a", "b", "d"]
    assert found[1] == {
        "name": "b",
        "state": "active",
        "limits": {},
        "lanes": 2,
        "kinds": ["pull", "push"],
        "classes": ["critical", "normal"],
        "version": None,
        "updated_at": None,
        "max_silence": None,
    }
    assert (found[0]["state"], found[0]["kinds"], found[2]["limits"]) == ("paused", [], {"max_running": 1})
    assert (await api.get("/v1/queues/b")).json == found[1]


async def test_a_change_says_what_it_means_for_tasks_that_are_there(api: Api) -> None:
    for _ in range(3):
        await api.submit(queue="mail")
    await api.lease(max=2)
    await api.submit(queue="mail", delay="1h")

    enough = await put(api, "/v1/queues/mail", {"limits": {"max_running": 2}})
    less = await put(api, "/v1/queues/mail", {"limits": {"max_running": 1}})
    none = await put(api, "/v1/queues/mail", {"limits": {"max_running": 0}, "state": "paused"})

    assert (enough["running"], enough["due"], enough["notes"]) == (2, 1, [])
    assert less["notes"] == ["2 tasks are running, more than max_running: they go on, and none starts meanwhile"]
    assert none["notes"] == [
        "the queue is paused: nothing of it starts; 1 task is due now",
        "max_running is 0: nothing of the queue starts; 1 task is due now",
    ]


# Keys


async def test_a_key_is_limited_listed_and_freed(api: Api) -> None:
    made = await api.call("PUT", "/v1/limits/customer-*", {"max_running": 2, "strict": True})
    changed = await put(api, "/v1/limits/customer-*", {"rate": 0.5})
    await put(api, "/v1/limits/a%2Fb%20%C3%A9", {"max_running": 0})

    assert (made.status, made.json["version"], made.json["strict"], made.json["notes"]) == (201, 1, True, [])
    assert (changed["version"], changed["max_running"], changed["rate"], changed["burst"]) == (2, None, 0.5, None)
    first = (await api.get("/v1/limits?limit=1")).json
    second = (await api.get(f"/v1/limits?limit=1&cursor={first['next']}")).json
    assert [page["items"][0]["name"] for page in (first, second)] == ["a/b é", "customer-*"]
    assert second["next"] is None
    assert (await api.get("/v1/limits/customer-*")).json == second["items"][0]

    assert (await api.call("DELETE", "/v1/limits/customer-*")).status == 204
    assert (await api.call("DELETE", "/v1/limits/customer-*")).status == 404
    assert (await api.get("/v1/limits/customer-*")).status == 404


async def test_a_cap_of_zero_is_taken_and_told(api: Api) -> None:
    told = await put(api, "/v1/limits/k", {"max_running": 0})
    assert told["notes"] == ["max_running is 0: no task with such a concurrency_key starts"]
    inner = await api.call("PUT", "/v1/limits/a*b", {"rate": 1})
    assert inner.json["notes"] == ["only a * at the end makes a pattern; any other is a character of the key"]


async def test_a_queue_without_tasks_is_told_as_one(api: Api) -> None:
    answer = await api.call("PUT", "/v1/queues/misspelt", {"state": "paused"})

    assert answer.json["notes"][-1] == "no task was ever put into this queue"


# What is wrong

WRONG = [
    ({"max_running": -1}, ["max_running"]),
    ({"max_running": 1_000_001}, ["max_running"]),
    ({"max_running": "many"}, ["max_running"]),
    ({"max_running": 1.5}, ["max_running"]),
    ({"rate": 0}, ["rate"]),
    ({"rate": 1e7}, ["rate"]),
    ({"rate": 1, "burst": 0}, ["burst"]),
    ({"max_running": 1, "burst": 5}, ["burst"]),
    ({"rate": 1, "strict": True}, ["strict"]),
    ({"max_running": -1, "rate": 0, "burst": 0}, ["max_running", "rate", "burst"]),
    ({"colour": "red"}, ["colour"]),
]


@pytest.mark.parametrize(("limits", "paths"), WRONG)
async def test_wrong_limits_are_refused_field_by_field(api: Api, limits: Any, paths: list[str]) -> None:
    key = await api.call("PUT", "/v1/limits/k", limits)
    queue = await api.call("PUT", "/v1/queues/q", {"limits": limits})

    assert (key.status, key.paths) == (422, paths), key.body
    assert (queue.status, queue.paths) == (422, [f"limits.{path}" for path in paths]), queue.body
    assert (await api.get("/v1/limits")).json["items"] == []
    assert (await api.get("/v1/queues")).json["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "paths"),
    [
        ("/v1/limits/k", {}, ["max_running"]),
        ("/v1/limits/k", {"rate": None}, ["max_running"]),
        ("/v1/limits/" + "k" * 256, {"rate": 1}, ["name"]),
        ("/v1/limits/a%00", {"rate": 1}, ["name"]),
        ("/v1/limits/a%0A", {"rate": 1}, ["name"]),
        ("/v1/queues/-q", {}, ["name"]),
        ("/v1/queues/a%00", {}, ["name"]),
        ("/v1/queues/q", {"state": "gone"}, ["state"]),
        ("/v1/queues/q", {"state": None}, ["state"]),
        ("/v1/queues/q", {"limit": {}}, ["limit"]),
    ],
)
async def test_a_wrong_name_or_body_is_refused(api: Api, path: str, body: Any, paths: list[str]) -> None:
    answer = await api.call("PUT", path, body)
    assert (answer.status, answer.paths) == (422, paths), answer.body


@pytest.mark.parametrize("noun", ["queues", "limits"])
async def test_what_cannot_be_a_name_is_not_there(api: Api, noun: str) -> None:
    assert (await api.get(f"/v1/{noun}/a%00")).status == 404
    assert (await api.call("DELETE", f"/v1/{noun}/a%00")).status == 404
    if noun == "limits":
        assert (await api.get("/v1/limits?cursor=a%00")).status == 422
