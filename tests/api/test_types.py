"""Task types: payloads are judged by the schema they are registered with, wherever a task comes from."""

from typing import Any

import pytest

from api.client import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "required": ["to"],
    "properties": {
        "to": {"type": "string", "pattern": "^[a-z]+@[a-z.]+$"},
        "n": {"type": "array", "items": {"type": "integer"}},
    },
    "additionalProperties": False,
}


async def register(api: Api, schema: Any = SCHEMA, name: str = "email.send") -> Any:
    answer = await api.call("PUT", f"/v1/types/{name}", {"schema": schema})
    assert answer.status in (200, 201), answer.body
    return answer.json


async def test_a_type_is_registered_changed_listed_and_forgotten(api: Api) -> None:
    made = await api.call("PUT", "/v1/types/email.send", {"schema": SCHEMA})
    again = await api.call("PUT", "/v1/types/email.send", {"schema": SCHEMA})
    changed = await api.call("PUT", "/v1/types/email.send", {"schema": True})

    assert (made.status, made.json["version"]) == (201, 1)
    assert (again.status, again.json["version"]) == (200, 1)
    assert (changed.status, changed.json["version"]) == (200, 2)
    assert (await api.get("/v1/types/email.send")).json["schema"] is True
    await register(api, name="other")
    first = (await api.get("/v1/types?limit=1")).json
    second = (await api.get(f"/v1/types?limit=1&cursor={first['next']}")).json
    assert [each["name"] for page in (first, second) for each in page["items"]] == ["email.send", "other"]
    assert second["next"] is None

    assert (await api.call("DELETE", "/v1/types/email.send")).status == 204
    assert (await api.get("/v1/types/email.send")).status == 404
    assert (await api.call("DELETE", "/v1/types/email.send")).status == 404
    actions = [act["action"] for act in (await api.get(f"/v1/audit?tenant={api.tenant_name}")).json["items"]]
    assert actions[:4] == ["type.delete", "type.create", "type.change", "type.create"]


@pytest.mark.parametrize(
    ("payload", "paths"),
    [
        ({}, ["payload"]),
        ({"to": 7}, ["payload.to"]),
        ({"to": "ada"}, ["payload.to"]),
        ({"to": "ada@example.com", "n": [1, "x"]}, ["payload.n[1]"]),
        ({"to": "ada@example.com", "cc": ""}, ["payload"]),
        ([], ["payload"]),
        (None, ["payload"]),
    ],
)
async def test_a_payload_that_does_not_match_is_refused(api: Api, payload: Any, paths: list[str]) -> None:
    await register(api)
    for more in ({}, {"delay": "1h"}):
        answer = await api.post("/v1/tasks", {"type": "email.send", "payload": payload, **more})
        assert (answer.status, answer.paths) == (422, paths), answer.body
    batch = (await api.post("/v1/tasks/batch", [{"type": "email.send", "payload": payload}, {"type": "free"}])).json
    assert (batch["accepted"], batch["rejected"]) == (1, 1)
    template = {"type": "email.send", "payload": payload}
    schedule = await api.call("PUT", "/v1/schedules/s", {"spec": {"every": "1d"}, "task": template})
    assert (schedule.status, schedule.paths) == (422, [f"task.{path}" for path in paths])


async def test_a_payload_that_matches_is_taken_and_other_tenants_are_free(api: Api) -> None:
    await register(api)
    right = {"type": "email.send", "payload": {"to": "ada@example.com", "n": [1]}}
    for _ in range(2):
        assert (await api.post("/v1/tasks", right)).status == 202
    other = await api.serving.tenant(f"{api.tenant_name}-free")
    assert (await other.post("/v1/tasks", {"type": "email.send", "payload": 7})).status == 202
    assert (await api.post("/v1/tasks", {"type": "email.other", "payload": 7})).status == 202


async def test_a_change_says_how_many_waiting_tasks_do_not_match(api: Api) -> None:
    for number in range(5):
        await api.submit(type="email.send", payload={"to": "ada@example.com" if number < 2 else number}, delay="1h")
    await api.submit(type="other", payload=7)

    told = await register(api)

    assert (told["waiting_sampled"], told["waiting_invalid"]) == (5, 3)
    assert len((await api.get("/v1/tasks?type=email.send")).json["items"]) == 5


async def test_a_preview_names_waiting_tasks_that_would_not_match_and_stores_nothing(api: Api) -> None:
    tasks = [
        await api.submit(type="email.send", payload={"to": "ada@example.com" if number < 1 else number}, delay="1h")
        for number in range(13)
    ]

    new = await api.post("/v1/types/email.send/preview", {"schema": SCHEMA})

    assert (new.status, new.json["name"], new.json["is_new"]) == (200, "email.send", True)
    assert (new.json["waiting_sampled"], new.json["waiting_invalid"], len(new.json["examples"])) == (13, 12, 10)
    assert {each["task"] for each in new.json["examples"]} < {task["id"] for task in tasks[1:]}
    assert [error["path"] for error in new.json["examples"][0]["errors"]] == ["payload.to"]
    assert (await api.get("/v1/types/email.send")).status == 404

    await register(api)
    change = await api.post("/v1/types/email.send/preview", {"schema": True, "throttle": {"limit": 1, "period": 1}})
    assert (change.json["is_new"], change.json["waiting_invalid"], change.json["examples"]) == (False, 0, [])
    assert (await api.get("/v1/types/email.send")).json["version"] == 1


async def test_a_preview_refuses_what_registering_would_refuse(api: Api) -> None:
    for wrong, path in (
        ({"schema": {"type": "nothing"}}, "schema"),
        ({"throttle": {"limit": 1, "period": 1, "key": ".."}}, "throttle.key"),
    ):
        answer = await api.post("/v1/types/email.send/preview", wrong)

        assert (answer.status, answer.json["errors"][0]["path"]) == (422, path)


@pytest.mark.parametrize(
    "schema",
    [
        7,
        "text",
        {"type": "nothing"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"pattern": "(a+"},
        {"pattern": "(?=a)b"},
        {"enum": ["x" * 70_000]},
    ],
    ids=["number", "text", "unknown type", "elsewhere", "file", "open group", "look-ahead", "too long"],
)
async def test_a_schema_that_cannot_be_used_is_refused(api: Api, schema: Any) -> None:
    answer = await api.call("PUT", "/v1/types/t", {"schema": schema})
    assert (answer.status, answer.paths) == (422, ["schema"]), answer.body
    assert (await api.get("/v1/types/t")).status == 404


async def test_a_pattern_that_others_choke_on_takes_no_time(api: Api) -> None:
    await register(api, {"type": "string", "pattern": "^(a+)+$"}, "slow")
    answer = await api.post("/v1/tasks", {"type": "slow", "payload": "a" * 60_000 + "!"})
    assert answer.status == 422
