"""Task types: payloads are judged by the schema they are registered with, wherever a task comes from."""

import asyncio
import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from api.client import Api, serve
from duetime.api.bodies.requests import TaskRequest
from duetime.api.tasks.judging import Judging
from duetime.api.tasks.validation import TaskReader
from duetime.database.pool import Database

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


#: Each comparison of a number with these takes its time, so that a payload of a few hundred numbers takes a turn.
DEAR = {"items": {"enum": [number + 0.5 for number in range(40)]}}
#: By its weight some ten milliseconds.
DEAR_PAYLOAD = [39.5] * 250


@pytest.mark.parametrize("is_batch", [True, False])
async def test_between_tasks_that_are_dear_to_judge_the_loop_goes_round(api: Api, is_batch: bool) -> None:
    await register(api, DEAR, "dear")
    judging = Judging(TaskReader(api.serving.types))
    request = TaskRequest(type="dear", payload=msgspec.Raw(json.dumps(DEAR_PAYLOAD).encode()))
    events: list[str] = []

    def read(reader: TaskReader, item: TaskRequest) -> None:
        reader.read(item, api.tenant, datetime.now(UTC))
        events.append("judged")

    async def go_round() -> None:
        while events.count("judged") < 20:
            events.append("round")
            await asyncio.sleep(0)

    if is_batch:
        await asyncio.gather(judging.each(api.tenant, [request] * 20, read), go_round())
    else:
        singles = [judging.one(api.tenant, lambda reader: read(reader, request)) for _ in range(20)]
        await asyncio.gather(*singles, go_round())

    assert events.count("judged") == 20
    assert not any(one == following == "judged" for one, following in pairwise(events))


async def test_a_batch_of_tasks_that_are_dear_to_judge_is_stored(api: Api) -> None:
    await register(api, DEAR, "dear")
    batch = [{"type": "dear", "payload": [*DEAR_PAYLOAD, *([7] if number == 3 else [])]} for number in range(6)]

    answer = (await api.post("/v1/tasks/batch", batch)).json

    assert (answer["accepted"], answer["rejected"]) == (5, 1)
    assert [error["path"] for error in answer["results"][3]["error"]["errors"]] == ["payload[250]"]


async def test_a_dear_template_and_a_dear_row_of_the_outbox_are_judged(api: Api) -> None:
    await register(api, DEAR, "dear")
    for payload, status in ((DEAR_PAYLOAD, 201), ([*DEAR_PAYLOAD, 7], 422)):
        template = {"type": "dear", "payload": payload}
        schedule = await api.call("PUT", f"/v1/schedules/s{status}", {"spec": {"every": "1d"}, "task": template})
        assert schedule.status == status, schedule.body
        preview = await api.post("/v1/schedules/preview", {"spec": {"every": "1d"}, "task": template})
        assert preview.status == (200 if status == 201 else 422), preview.body
        await api.serving.database.fetch(
            "SELECT enqueue($1, $2::text::json)", api.tenant_name, json.dumps({"type": "dear", "payload": payload})
        )
    while not await api.serving.relay.step():
        pass

    [refused] = (await api.get("/v1/outbox")).json["items"]
    assert [error["path"] for error in refused["error"]["errors"]] == ["payload[250]"]
    assert len((await api.get("/v1/tasks?type=dear")).json["items"]) == 1


async def test_others_are_served_while_waiting_tasks_are_tried(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-beside")
    await other.submit()
    waiting = [{"type": "dear", "payload": [*DEAR_PAYLOAD, 7], "delay": "1h"} for _ in range(5)]
    assert (await api.post("/v1/tasks/batch", waiting)).json["accepted"] == 5

    answering = asyncio.create_task(api.post("/v1/types/dear/preview", {"schema": DEAR}))
    served = 0
    while not answering.done():
        await other.submit()
        served += 1

    told = (await answering).json
    assert (told["waiting_sampled"], told["waiting_invalid"], len(told["examples"])) == (5, 5, 5)
    assert served >= 2


async def test_a_schema_is_compiled_when_it_is_needed_and_again_after_a_restart(api: Api, module_url: str) -> None:
    await register(api)
    right, wrong = ({"type": "email.send", "payload": {"to": to}} for to in ("ada@example.com", "ada"))
    database = await Database.open(module_url)
    try:
        async with serve(database) as restarted:
            assert restarted.types.schemas.held_bytes == 0
            there = Api(restarted, api.tenant, api.tenant_name, api.key)
            assert [(await there.post("/v1/tasks", each)).status for each in (wrong, right)] == [422, 202]
            batch = (await there.post("/v1/tasks/batch", [right, wrong])).json
            assert (batch["accepted"], batch["rejected"]) == (1, 1)
            assert 0 < restarted.types.schemas.held_bytes < 100_000
    finally:
        await database.close()


async def test_patterns_that_take_hundreds_of_megabytes_are_refused_uncompiled(api: Api) -> None:
    many = [f"^.{{1000}}{number}$" for number in range(300)]
    for schema in (
        {"allOf": [{"pattern": pattern} for pattern in many]},
        {"patternProperties": dict.fromkeys(many, True)},
        {"propertyNames": {"anyOf": [{"pattern": pattern} for pattern in many]}},
        {"$defs": {"unused": {"allOf": [{"pattern": pattern} for pattern in many]}}},
    ):
        before = api.serving.types.schemas.held_bytes
        put = await api.call("PUT", "/v1/types/hostile", {"schema": schema})
        preview = await api.post("/v1/types/hostile/preview", {"schema": schema})

        for answer in (put, preview):
            assert (answer.status, answer.paths) == (422, ["schema"])
            assert "memory" in answer.json["detail"]
        assert api.serving.types.schemas.held_bytes == before


async def test_a_schema_is_refused_if_even_a_small_payload_is_too_dear(api: Api) -> None:
    answer = await api.call("PUT", "/v1/types/hostile", {"schema": {"items": {"enum": [[n] for n in range(6_000)]}}})

    assert (answer.status, answer.paths) == (422, ["schema"])
    assert "dear even for a small payload" in answer.json["detail"]


async def test_a_payload_is_refused_if_it_is_too_large_for_its_schema_and_a_smaller_one_is_taken(api: Api) -> None:
    await register(api, {"items": {"enum": [[number] for number in range(500)]}}, "dear")

    large = await api.post("/v1/tasks", {"type": "dear", "payload": [[7]] * 1_000})
    small = await api.post("/v1/tasks", {"type": "dear", "payload": [[7]] * 20})

    assert (large.status, large.paths, small.status) == (422, ["payload"], 202)
    assert "too large to be judged" in large.json["errors"][0]["message"]


async def test_a_type_whose_stored_schema_cannot_be_used_says_so_and_others_go_on(api: Api) -> None:
    await register(api, name="good")
    await register(api, name="bad")
    await api.serving.database.fetch(
        'UPDATE task_type SET schema = \'{"pattern": "^.{99999}$"}\', updated_at = clock_timestamp() '
        f"WHERE tenant = {api.tenant} AND name = 'bad'"
    )
    await api.serving.database.fetch("UPDATE rule_change SET change = change + 1 WHERE kind = 'types'")
    await api.serving.obey()

    bad = await api.post("/v1/tasks", {"type": "bad"})
    batch = (await api.post("/v1/tasks/batch", [{"type": "bad"}, {"type": "free"}])).json

    assert (bad.status, bad.paths) == (422, ["type"])
    assert "register the type again" in bad.json["errors"][0]["message"]
    assert (batch["accepted"], batch["rejected"]) == (1, 1)
    assert (await api.post("/v1/tasks", {"type": "good", "payload": {"to": "ada@example.com"}})).status == 202
    await register(api, name="bad")
    assert (await api.post("/v1/tasks", {"type": "bad", "payload": {"to": "ada@example.com"}})).status == 202
