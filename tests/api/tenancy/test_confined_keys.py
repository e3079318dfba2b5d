"""What a key that is confined to types and queues gets of each operation: its part, and nothing of the rest."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from api.client import Api, Reply, Serving
from duetime.admin.keys import create_key
from duetime.api.openapi import OPERATIONS
from duetime.api.operations import CONFINABLE, Confined

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "not-for-this-key"
SCHEMA = {"type": "object", "required": [SECRET]}
WHEN = "2026-01-01T00:00:00Z"
SPEC = {"cron": "0 0 1 1 *"}
#: Types and queues of what is beyond the key: another type, another queue, and both.
BEYOND = [("other.task", "other"), ("other.task", "mine"), ("mine.task", "other")]


@dataclass
class World:
    """A tenant with tasks, dead letters, schedules and refused rows; a confined key reaches the first of each."""

    api: Api
    key: str
    tasks: list[str]
    dead: list[str]
    refused: list[int]


async def confine(api: Api, role: str = "operator", **patterns: list[str]) -> str:
    answer = await api.post("/v1/keys", {"role": role, **patterns})
    assert answer.status == 201, answer.body
    key: str = answer.json["key"]
    return key


async def write_refused(api: Api, type: str, queue: str | None, note: str) -> int:
    body = {"type": type, "payload": {"note": note}, "delay": "-1s"} | ({} if queue is None else {"queue": queue})
    [row] = await api.serving.database.fetch(
        "SELECT enqueue($1, $2::text::json) AS number", api.tenant_name, json.dumps(body)
    )
    while not await api.serving.relay.step():
        pass
    number: int = row["number"]
    return number


async def make_world(api: Api, **patterns: list[str]) -> World:
    kinds = [("mine.task", "mine"), *BEYOND]
    tasks, dead, refused = [], [], []
    for place, (type, queue) in enumerate(kinds):
        note = SECRET if place else "shown"
        fields = {"type": type, "queue": queue, "payload": {"note": note}}
        letter = await api.submit(**fields)
        [leased] = await api.lease(queues=[queue])
        await api.settle(leased, "failed", error={"message": note, "kind": "permanent"})
        dead.append(letter["id"])
        tasks.append((await api.submit(**fields, delay="30d", labels={"a": "b"}))["id"])
        refused.append(await write_refused(api, type, queue, note))
        template = {"type": type, "queue": queue, "payload": {"note": note}}
        put = await api.call("PUT", f"/v1/schedules/s{place}", {"spec": SPEC, "task": template})
        assert put.status == 201, put.body
    assert (await api.call("PUT", "/v1/types/other.task", {"schema": SCHEMA})).status == 201
    assert (await api.call("PUT", "/v1/types/mine.task", {})).status == 201
    for queue in ("mine", "other"):
        assert (await api.call("PUT", f"/v1/queues/{queue}", {"limits": {"max_running": 7}})).status == 201
    assert (await api.call("PUT", "/v1/limits/k", {"max_running": 7})).status == 201
    assert (await api.call("PUT", "/v1/calendars/c", {"dates": ["2039-12-24"]})).status == 200
    return World(
        api, await confine(api, **(patterns or {"types": ["mine.*"], "queues": ["m?ne"]})), tasks, dead, refused
    )


TEMPLATE = {"type": "other.task", "queue": "mine", "payload": {}}
BULK = {"filter": {"type": "other.task", "state": "scheduled"}}
AGAIN = {"filter": {"label": ["a=b"], "queue": "other"}, "delay": "1h"}
SETTLED = {"worker": "confined", "settlements": [{"id": "ID", "attempt": 1, "outcome": "succeeded"}]}
BEATEN = {"worker": "confined", "attempts": [{"id": "ID", "attempt": 1}]}
#: For each operation: the path with what is beyond the key, the body, and what it is answered with.
#: A list stands for the path to what must be an empty list, or to the number 0, in a 200.
CALLS: dict[str, tuple[str, Any, int, str]] = {
    "submit_task": ("/v1/tasks", TEMPLATE, 403, ""),
    "submit_tasks": ("/v1/tasks/batch", [TEMPLATE, {"type": "mine.task"}], 200, "accepted"),
    "list_tasks": ("/v1/tasks?type=other.task", None, 200, "items"),
    "get_task": ("/v1/tasks/ID", None, 404, ""),
    "list_attempts": ("/v1/tasks/ID/attempts", None, 404, ""),
    "explain_task": ("/v1/tasks/ID/explain", None, 404, ""),
    **{
        f"{verb.replace('-', '_')}_task": (f"/v1/tasks/ID/{verb}", None, 404, "")
        for verb in ("cancel", "pause", "resume", "retry", "run-now")
    },
    "reschedule_task": ("/v1/tasks/ID/reschedule", {"delay": "1h"}, 404, ""),
    **{
        f"{verb.replace('-', '_')}_tasks": (f"/v1/tasks/bulk/{verb}", BULK, 200, "matched")
        for verb in ("cancel", "pause", "resume", "retry", "run-now")
    },
    "reschedule_tasks": ("/v1/tasks/bulk/reschedule", AGAIN, 200, "matched"),
    "list_dead": ("/v1/dead?queue=other", None, 200, "items"),
    "redrive_dead": ("/v1/dead/redrive", {"ids": ["DEAD"]}, 200, "matched"),
    "drop_dead": ("/v1/dead/drop", {"filter": {"queue": "other"}}, 200, "matched"),
    "list_refused": ("/v1/outbox?limit=1&cursor=NUMBER", None, 200, "items"),
    "get_outbox": ("/v1/outbox/NUMBER", None, 404, ""),
    "retry_outbox": ("/v1/outbox/NUMBER/retry", None, 404, ""),
    "delete_outbox": ("/v1/outbox/NUMBER", None, 404, ""),
    "put_schedule": ("/v1/schedules/SCHEDULE", {"spec": SPEC, "task": {"type": "mine.task", "queue": "mine"}}, 409, ""),
    "put_schedules": (
        "/v1/schedules/batch",
        {"items": [{"name": "x", "spec": SPEC, "task": TEMPLATE}]},
        200,
        "accepted",
    ),
    "preview_schedule": ("/v1/schedules/preview", {"spec": SPEC, "task": TEMPLATE}, 403, ""),
    "list_schedules": ("/v1/schedules?prefix=SCHEDULE", None, 200, "items"),
    "get_schedule": ("/v1/schedules/SCHEDULE", None, 404, ""),
    "delete_schedule": ("/v1/schedules/SCHEDULE?tasks=cancel", None, 404, ""),
    "pause_schedule": ("/v1/schedules/SCHEDULE/pause", None, 404, ""),
    "resume_schedule": ("/v1/schedules/SCHEDULE/resume", None, 404, ""),
    "trigger_schedule": ("/v1/schedules/SCHEDULE/trigger", None, 404, ""),
    "backfill_schedule": ("/v1/schedules/SCHEDULE/backfill", {"from": WHEN, "to": WHEN}, 404, ""),
    "list_backfills": ("/v1/schedules/SCHEDULE/backfills", None, 404, ""),
    "get_backfill": ("/v1/schedules/SCHEDULE/backfills/1", None, 404, ""),
    "cancel_backfill": ("/v1/schedules/SCHEDULE/backfills/1/cancel", None, 404, ""),
    "list_runs": ("/v1/schedules/SCHEDULE/runs", None, 404, ""),
    "preview_stored_schedule": ("/v1/schedules/SCHEDULE/preview", None, 404, ""),
    "list_calendars": ("/v1/calendars", None, 200, ""),
    "get_calendar": ("/v1/calendars/c", None, 200, ""),
    "put_calendar": ("/v1/calendars/c", {"dates": []}, 403, ""),
    "delete_calendar": ("/v1/calendars/c", None, 403, ""),
    "lease_tasks": ("/v1/workers/lease", {"worker": "w", "types": ["other.task"], "queues": ["mine"]}, 403, ""),
    "settle_attempts": ("/v1/workers/settle", SETTLED, 200, "settled"),
    "beat": ("/v1/workers/beat", BEATEN, 200, "cancelled"),
    "list_keys": ("/v1/keys", None, 403, ""),
    "make_key": ("/v1/keys", {"role": "viewer"}, 403, ""),
    "revoke_key": ("/v1/keys/1", None, 403, ""),
    "rotate_key": ("/v1/keys/1/rotate", None, 403, ""),
    "get_signing_secret": ("/v1/signing-secret", None, 403, ""),
    "rotate_signing_secret": ("/v1/signing-secret/rotate", None, 403, ""),
    "list_tenants": ("/v1/tenants", None, 403, ""),
    "get_tenant": ("/v1/tenants/TENANT", None, 403, ""),
    "put_tenant": ("/v1/tenants/TENANT", {}, 403, ""),
    "list_acts": ("/v1/audit", None, 403, ""),
    "list_tiers": ("/v1/tiers", None, 403, ""),
    "get_tier": ("/v1/tiers/t", None, 403, ""),
    "put_tier": ("/v1/tiers/t", {}, 403, ""),
    "delete_tier": ("/v1/tiers/t", None, 403, ""),
    "list_types": ("/v1/types?cursor=mine.task", None, 200, "items"),
    "get_type": ("/v1/types/other.task", None, 404, ""),
    "put_type": ("/v1/types/other.task", {}, 403, ""),
    "preview_type": ("/v1/types/other.task/preview", {"schema": {"type": "array"}}, 403, ""),
    "delete_type": ("/v1/types/other.task", None, 404, ""),
    "list_queues": ("/v1/queues?cursor=mine", None, 200, "items"),
    "get_queue": ("/v1/queues/other", None, 404, ""),
    "put_queue": ("/v1/queues/other", {"state": "paused"}, 403, ""),
    "delete_queue": ("/v1/queues/other", None, 404, ""),
    "list_limits": ("/v1/limits", None, 403, ""),
    "get_limit": ("/v1/limits/k", None, 403, ""),
    "put_limit": ("/v1/limits/k", {"max_running": 1}, 403, ""),
    "delete_limit": ("/v1/limits/k", None, 403, ""),
    "list_breakers": ("/v1/breakers", None, 403, ""),
    "put_breaker": ("/v1/breakers/tenant", {"state": "open"}, 403, ""),
    "list_nodes": ("/v1/cluster", None, 403, ""),
}


def aim(text: str, world: World, place: int) -> str:
    """What the call is about: the thing at that place, beyond the key."""
    return (
        text.replace("ID", world.tasks[place])
        .replace("DEAD", world.dead[place])
        .replace("NUMBER", str(world.refused[place]))
        .replace("SCHEDULE", f"s{place}")
        .replace("TENANT", world.api.tenant_name)
    )


async def snapshot(world: World) -> list[Any]:
    """All that the tenant has, as its admin sees it."""
    api = world.api
    paths = [
        "/v1/tasks?limit=200",
        "/v1/dead",
        "/v1/outbox",
        "/v1/schedules",
        "/v1/types",
        "/v1/queues",
        "/v1/breakers",
    ]
    return [
        [
            {name: value for name, value in item.items() if name not in ("sla_met", "version")}
            for item in (await api.get(path)).json["items"]
            if item.get("type") != "mine.task" or item.get("queue") != "mine"
        ]
        for path in paths
    ]


async def test_every_operation_has_a_decision() -> None:
    assert set(CALLS) == {each.name for each in OPERATIONS if each.needs_key}
    by_name = {each.name: each for each in OPERATIONS}
    for name, (*_, status, _) in CALLS.items():
        if by_name[name].confined is Confined.NONE:
            assert status == 403, name
        if by_name[name].confined is Confined.ALL:
            assert status == 200, name


@pytest.mark.parametrize("place", [1, 2, 3])
async def test_nothing_beyond_its_confinement_is_there_for_a_key(api: Api, place: int) -> None:
    world = await make_world(api)
    before = await snapshot(world)
    wrong: dict[str, object] = {}
    for operation in OPERATIONS:
        if not operation.needs_key:
            continue
        path, body, status, empty = CALLS[operation.name]
        asked = None if body is None else json.loads(aim(json.dumps(body), world, place))
        answer = await api.call(operation.method, aim(path, world, place), asked, key=world.key)
        is_empty = not empty or (answer.status == 200 and answer.json[empty] in ([], 0, 1 if "batch" in path else 0))
        if answer.status != status or SECRET.encode() in answer.body or not is_empty:
            wrong[operation.name] = (answer.status, answer.body)

    assert wrong == {}
    assert await snapshot(world) == before


async def ids(reply: Reply, name: str = "id") -> list[Any]:
    assert reply.status == 200, reply.body
    return [each[name] for each in reply.json["items"]]


async def test_its_own_part_is_shown_in_every_list(api: Api) -> None:
    world = await make_world(api)
    key = world.key

    assert await ids(await api.get("/v1/tasks", key=key)) == [world.dead[0], world.tasks[0]]
    for state, expected in (("scheduled", world.tasks[0]), ("dead", world.dead[0])):
        assert await ids(await api.get(f"/v1/tasks?state={state}", key=key)) == [expected]
    for state in ("ready", "retrying", "running", "paused", "blocked", "succeeded", "cancelled", "expired"):
        assert await ids(await api.get(f"/v1/tasks?state={state}", key=key)) == []
    assert await ids(await api.get("/v1/dead", key=key)) == [world.dead[0]]
    assert await ids(await api.get("/v1/outbox", key=key)) == [world.refused[0]]
    assert await ids(await api.get("/v1/schedules", key=key), "name") == ["s0"]
    assert await ids(await api.get("/v1/types", key=key), "name") == ["mine.task"]
    assert await ids(await api.get("/v1/queues", key=key), "name") == ["mine"]
    for part in ("", "/attempts", "/explain"):
        assert (await api.get(f"/v1/tasks/{world.tasks[0]}{part}", key=key)).status == 200
    assert (await api.get("/v1/schedules/s0/runs", key=key)).status == 200
    for path in ("/v1/schedules/s0", "/v1/types/mine.task", "/v1/queues/mine", f"/v1/outbox/{world.refused[0]}"):
        assert (await api.get(path, key=key)).status == 200


async def test_its_own_part_can_be_steered(api: Api) -> None:
    world = await make_world(api)
    key = world.key

    assert (await api.post(f"/v1/tasks/{world.tasks[0]}/pause", key=key)).json["state"] == "paused"
    resumed = await api.post("/v1/tasks/bulk/resume", {"filter": {"label": ["a=b"], "state": "paused"}}, key=key)
    assert (resumed.json["matched"], resumed.json["changed"]) == (1, 1)
    redriven = await api.post("/v1/dead/redrive", {"all": True}, key=key)
    assert (redriven.json["matched"], redriven.json["redriven"]) == (1, 1)
    assert (await api.post("/v1/schedules/s0/trigger", key=key)).status == 202
    assert await ids(await api.get("/v1/schedules/s0/runs", key=key), "cause") == ["trigger"]
    assert (await api.call("DELETE", "/v1/schedules/s0", key=key)).status == 200
    assert (await api.post(f"/v1/outbox/{world.refused[0]}/retry", key=key)).status == 202


@pytest.mark.parametrize(
    ("patterns", "shown"), [({"types": ["mine.*"]}, {0, 3}), ({"queues": ["mine"]}, {0, 2})], ids=["types", "queues"]
)
async def test_a_key_may_be_confined_to_one_kind(api: Api, patterns: dict[str, list[str]], shown: set[int]) -> None:
    world = await make_world(api, **patterns)
    key = world.key

    assert set(await ids(await api.get("/v1/tasks?state=scheduled", key=key))) == {world.tasks[each] for each in shown}
    assert set(await ids(await api.get("/v1/dead", key=key))) == {world.dead[each] for each in shown}
    assert set(await ids(await api.get("/v1/outbox", key=key))) == {world.refused[each] for each in shown}
    assert set(await ids(await api.get("/v1/schedules", key=key), "name")) == {f"s{each}" for each in shown}
    # What is set for a type or a queue as a whole belongs to those who reach all of it.
    put_type = await api.call("PUT", "/v1/types/mine.task", {}, key=key)
    put_queue = await api.call("PUT", "/v1/queues/mine", {"state": "active"}, key=key)
    assert (put_type.status, put_queue.status) == ((200, 403) if "types" in patterns else (403, 200))


async def test_pages_of_a_confined_key_are_full_and_complete(api: Api) -> None:
    key = await confine(api, "viewer", types=["mine.*"])
    wanted: dict[str, set[Any]] = {"/v1/tasks": set(), "/v1/outbox": set(), "/v1/schedules": set(), "/v1/types": set()}
    for number in range(24):
        type = "mine.task" if number % 8 == 7 else "other.task"
        made = (await api.submit(type=type))["id"]
        refused = await write_refused(api, type, None, "")
        schedule = await api.call("PUT", f"/v1/schedules/p{number:02}", {"spec": SPEC, "task": {"type": type}})
        registered = await api.call("PUT", f"/v1/types/{type}{number:02}", {})
        assert (schedule.status, registered.status) == (201, 201)
        if type == "mine.task":
            for path, value in zip(wanted, (made, refused, f"p{number:02}", f"{type}{number:02}"), strict=True):
                wanted[path].add(value)

    for path, expected in wanted.items():
        name = "id" if path in ("/v1/tasks", "/v1/outbox") else "name"
        seen: list[Any] = []
        cursor, pages = "", 0
        while True:
            page = (await api.get(f"{path}?limit=2{cursor}", key=key)).json
            seen += [each[name] for each in page["items"]]
            pages += 1
            if page["next"] is None:
                break
            assert len(page["items"]) == 2, path
            cursor = f"&cursor={page['next']}"
        assert (len(seen), set(seen), pages) == (3, expected, 2), path


@pytest.mark.parametrize("role", sorted(CONFINABLE))
async def test_every_role_below_owner_can_be_confined(api: Api, role: str) -> None:
    hidden = await api.submit(type="other.task", payload=SECRET)
    shown = await api.submit(type="mine.task")
    key = await confine(api, role, types=["mine.*"])

    assert (await api.get(f"/v1/tasks/{hidden['id']}", key=key)).status == 404
    assert (await api.get(f"/v1/tasks/{shown['id']}", key=key)).status == 200


async def test_the_type_of_a_task_is_judged_before_its_payload(api: Api) -> None:
    await api.call("PUT", "/v1/types/other.task", {"schema": SCHEMA})
    await api.serving.types.refresh()
    key = await confine(api, "producer", types=["mine.*"])
    task = {"type": "other.task", "payload": {}}

    answers = [
        await api.post("/v1/tasks", task, key=key),
        await api.post("/v1/tasks", {**task, "delay": "x"}, key=key),
        await api.post("/v1/tasks/batch", [task, {**task, "delay": "x"}], key=key),
        await api.post("/v1/schedules/preview", {"spec": SPEC, "task": task}, key=key),
        await api.post("/v1/schedules/preview", {"spec": SPEC, "task": task, "count": 0}, key=key),
    ]

    assert [answer.status for answer in answers] == [403, 422, 200, 403, 422]
    assert [answer for answer in answers if SECRET.encode() in answer.body] == []


async def test_the_key_of_a_submission_does_not_lead_to_another_task(api: Api) -> None:
    unique = {"type": "mine.task", "unique": {"key": "u"}}
    theirs = await api.submit(**unique, queue="other", payload=SECRET)
    kept = await api.submit(type="other.task", queue="other", idempotency_key="i")
    key = await confine(api, "producer", queues=["mine"])

    answers = [
        await api.post("/v1/tasks", {**unique, "queue": "mine"}, key=key),
        await api.post("/v1/tasks", {"type": "other.task", "queue": "mine", "idempotency_key": "i"}, key=key),
    ]
    batch = await api.post(
        "/v1/tasks/batch",
        [{**unique, "queue": "mine"}, {"type": "a", "queue": "mine", "idempotency_key": "i"}],
        key=key,
    )

    assert [answer.status for answer in answers] == [409, 409]
    assert [each["error"]["status"] for each in batch.json["results"]] == [409, 409]
    for answer in (*answers, batch):
        for hidden in (SECRET, theirs["id"], kept["id"]):
            assert hidden.encode() not in answer.body


async def test_a_repeated_request_is_answered_with_tasks_that_are_reached(api: Api) -> None:
    """The type's default queue has changed since: the same body meant a task of another queue."""
    await api.call("PUT", "/v1/types/mine.task", {"defaults": {"queue": "other"}})
    await api.serving.types.refresh()
    task = {"type": "mine.task", "payload": SECRET, "idempotency_key": "i"}
    assert (await api.post("/v1/tasks", task)).status == 202
    await api.call("PUT", "/v1/types/mine.task", {"defaults": {"queue": "mine"}})
    await api.serving.types.refresh()
    key = await confine(api, "producer", queues=["mine"])

    answer = await api.post("/v1/tasks", task, key=key)

    assert (answer.status, SECRET.encode() in answer.body) == (409, False)


async def test_a_debounced_task_takes_no_place_that_its_key_does_not_reach(api: Api) -> None:
    debounced = {"type": "mine.task", "debounce": {"key": "d", "period": "1h"}}
    theirs = await api.submit(**debounced, queue="other")
    key = await confine(api, "producer", queues=["mine"])

    answer = await api.post("/v1/tasks", {**debounced, "queue": "mine"}, key=key)

    assert (answer.status, await api.state(theirs)) == (409, "scheduled")
    assert (await api.post("/v1/tasks", {**debounced, "queue": "other"})).json["replaces"] == theirs["id"]


async def test_the_runs_of_a_schedule_hide_tasks_of_its_former_type(api: Api) -> None:
    body = {"spec": SPEC, "task": {"type": "other.task"}}
    await api.call("PUT", "/v1/schedules/changing", body)
    former = (await api.post("/v1/schedules/changing/trigger")).json["task"]
    await api.call("PUT", "/v1/schedules/changing", {**body, "task": {"type": "mine.task"}})
    own = (await api.post("/v1/schedules/changing/trigger")).json["task"]
    key = await confine(api, types=["mine.*"])

    runs = (await api.get("/v1/schedules/changing/runs", key=key)).json["items"]
    gone = await api.call("DELETE", "/v1/schedules/changing?tasks=cancel", key=key)

    assert [(run["task"], run["state"]) for run in runs] == [(own, "ready"), (None, None)]
    assert gone.json["cancelled"] == 1
    assert await api.state({"id": former}) == "ready"


async def test_explain_names_no_type_beyond_the_key(api: Api) -> None:
    task = await api.submit(type="mine.task", queue="both")
    await api.post(
        "/v1/workers/lease",
        {"worker": "w", "queues": ["both"], "types": ["other.secret-type", "mine.else"], "wait": 0},
    )
    key = await confine(api, "viewer", types=["mine.*"])

    told = (await api.get(f"/v1/tasks/{task['id']}/explain")).json["waiting_for"][0]
    confined = (await api.get(f"/v1/tasks/{task['id']}/explain", key=key)).json["waiting_for"][0]

    assert (told["reason"], confined["reason"]) == ("no_handler", "no_handler")
    assert "other.secret-type" in told["detail"]
    assert "mine.else" in confined["detail"]
    assert "other.secret-type" not in confined["detail"]


async def test_an_operator_that_is_not_confined_reaches_all(serving: Serving, api: Api) -> None:
    hidden = await api.submit(type="other.task")
    _, key = await create_key(serving.database, api.tenant, "operator")

    assert (await api.get(f"/v1/tasks/{hidden['id']}", key=key)).status == 200
    assert (await api.get("/v1/limits", key=key)).status == 200
