"""Secret headers of targets over the API: never read again, encrypted where they are stored."""

import asyncio
import hashlib
import json
import sys
import uuid
from typing import Any

import msgspec
import pytest

from api.client import A_VAULT, Api, serve
from api.schedule_calls import DAILY, make_schedule, put_schedule
from api.service.test_outbox import enqueue
from duetime.api.bodies.requests import TaskRequest
from duetime.api.server.http import make_decoder
from duetime.api.tasks.validation import canonical_text, plain_fingerprint
from duetime.database.pool import Database
from duetime.model.task import Options
from duetime.model.vault import Vault
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "Bearer f00dfeedf00dfeed"
HEADERS = {"Authorization": SECRET, "X-Pass": "hush-hush-hush", "X-Team": "core"}
SHOWN = {"Authorization": "***", "X-Pass": "***", "X-Team": "core"}
TARGET = {"url": "http://example.com/x", "headers": HEADERS, "secret_headers": ["x-pass"]}
LATER = {"target": TARGET, "delay": "1h"}


async def options_of(api: Api, task: Any) -> Options:
    [row] = await api.serving.database.fetch("SELECT options FROM task WHERE id = $1", uuid.UUID(task["id"]))
    return msgspec.json.decode(row["options"], type=Options)


async def test_a_secret_is_shown_to_nobody_and_stored_sealed(api: Api) -> None:
    made = await api.submit(**LATER)

    read = (await api.get(f"/v1/tasks/{made['id']}")).json
    listed = (await api.get("/v1/tasks")).json["items"][0]
    for each in (made, read, listed):
        assert each["target"]["headers"] == SHOWN
        assert each["target"]["secret_headers"] == ["Authorization", "X-Pass"]
    target = (await options_of(api, made)).target
    assert target is not None
    assert target.headers == {"X-Team": "core"}
    sealed = target.secret_headers
    assert {name: A_VAULT.open(api.tenant, name, sealed[name]) for name in sealed} == {
        "Authorization": SECRET,
        "X-Pass": "hush-hush-hush",
    }


async def test_a_batch_is_sealed_too(api: Api) -> None:
    answer = await api.post(
        "/v1/tasks/batch", [{"type": "a", **LATER}] * 2, headers={"Idempotency-Key": str(make_uuid7())}
    )

    assert answer.json["accepted"] == 2
    [one, other] = [await options_of(api, each) for each in answer.json["results"]]
    assert one == other
    assert SECRET not in str(one)


async def test_the_same_secret_under_the_same_key_is_the_same_task(api: Api) -> None:
    body = {"type": "a", **LATER, "idempotency_key": "one"}
    first = await api.post("/v1/tasks", body)

    again = await api.post("/v1/tasks", body)
    other = await api.post("/v1/tasks", {**body, "target": {**TARGET, "headers": {**HEADERS, "X-Pass": "else-else"}}})

    assert (first.status, again.status, other.status) == (202, 200, 409)
    assert again.json["id"] == first.json["id"]


async def test_a_repeated_request_with_a_secret_gives_the_same_task(api: Api) -> None:
    named = {"Idempotency-Key": str(make_uuid7())}
    first = await api.post("/v1/tasks", {"type": "a", **LATER}, headers=named)

    again = await api.post("/v1/tasks", {"type": "a", **LATER}, headers=named)

    assert (first.status, again.status) == (202, 200)
    assert again.json["id"] == first.json["id"]


async def test_no_fingerprint_can_be_tried_out(api: Api) -> None:
    """Whoever has the database and guesses a secret must not be able to see that the guess is right."""
    body = json.dumps({"type": "guess", **LATER, "idempotency_key": "guess"}).encode()
    await api.post("/v1/tasks", data=body, headers={"Idempotency-Key": str(make_uuid7())})

    # The same in other words, which a search for the name would not find.
    escaped = body.replace(b'"headers"', b'"he\\u0061ders"').replace(b'"guess"}', b'"escaped"}')
    answer = await api.post("/v1/tasks", data=escaped, headers={"Idempotency-Key": str(make_uuid7())})
    assert answer.status == 202
    rows = await api.serving.database.fetch(
        "SELECT fingerprint FROM idempotency_key UNION SELECT fingerprint FROM request_key"
    )
    wanted = make_decoder(TaskRequest).decode(body)
    guesses = {hashlib.sha256(each).digest()[:16] for each in (body, escaped)}
    guesses |= {plain_fingerprint(canonical_text(wanted))}
    assert len(rows) >= 2
    assert guesses.isdisjoint(row["fingerprint"] for row in rows)


async def test_what_is_shown_in_place_of_a_secret_is_not_taken_for_one(api: Api) -> None:
    shown = {**TARGET, "headers": SHOWN}

    task = await api.post("/v1/tasks", {"type": "a", "target": shown})
    schedule = await put_schedule(api, "round-trip", task={"type": "a", "target": shown})

    assert (task.status, task.paths) == (422, ["target.headers.Authorization", "target.headers.X-Pass"])
    assert (schedule.status, schedule.paths[0]) == (422, "task.target.headers.Authorization")
    assert (
        await api.post("/v1/tasks", {"type": "a", "target": {**TARGET, "headers": {"X-Pass": "***"}}})
    ).status == 422
    assert (await api.submit(target={"url": "http://a.example", "headers": {"X-Team": "***"}}))["state"] == "ready"


async def test_a_marked_header_must_be_there(api: Api) -> None:
    answer = await api.post("/v1/tasks", {"type": "a", "target": {**TARGET, "secret_headers": ["x-past"]}})

    assert (answer.status, answer.paths) == (422, ["target.secret_headers[0]"])


async def test_a_schedule_keeps_its_secret_sealed_and_compares_equal(api: Api) -> None:
    task = {"type": "a", "target": TARGET}
    made = await make_schedule(api, "s", task=task)

    again = await put_schedule(api, "s", task=task)
    listed = (await api.get("/v1/schedules")).json["items"][0]
    other = await put_schedule(
        api, "s", task={**task, "target": {**TARGET, "headers": {**HEADERS, "X-Pass": "another"}}}
    )

    for each in (made, again.json, listed, other.json):
        assert each["task"]["target"]["headers"] == SHOWN
        assert each["task"]["target"]["secret_headers"] == ["Authorization", "X-Pass"]
    assert [each["version"] for each in (made, again.json, other.json)] == [1, 1, 2]
    [row] = await api.serving.database.fetch(
        "SELECT definition, task_options FROM schedule WHERE tenant = $1", api.tenant
    )
    assert SECRET.encode() not in row["definition"] + row["task_options"]


async def test_a_trial_says_what_a_batch_would_change_and_stores_nothing(api: Api) -> None:
    task = {"type": "a", "target": TARGET}
    other = {"type": "a", "target": {**TARGET, "headers": {**HEADERS, "X-Pass": "another"}}}
    await make_schedule(api, "same", task=task)
    await make_schedule(api, "other", task=task)
    items = [
        {**DAILY, "name": name, "task": wanted} for name, wanted in (("same", task), ("other", other), ("new", task))
    ]

    answer = await api.post("/v1/schedules/batch?dry_run=true", {"items": [*items, {"name": "bad"}]})

    assert [each.get("result") for each in answer.json["results"]] == ["unchanged", "changed", "created", None]
    assert {each["name"]: each["version"] for each in (await api.get("/v1/schedules")).json["items"]} == {
        "same": 1,
        "other": 1,
    }


async def test_a_run_of_a_schedule_has_the_secret_sealed(api: Api) -> None:
    await make_schedule(api, "runs", task={"type": "a", "target": TARGET})

    run = (await api.post("/v1/schedules/runs/trigger")).json

    task = (await api.get(f"/v1/tasks/{run['task']}")).json
    assert task["target"]["headers"] == SHOWN
    target = (await options_of(api, task)).target
    assert target is not None
    assert sorted(target.secret_headers) == ["Authorization", "X-Pass"]


async def test_what_was_stored_in_plain_is_hidden_when_it_is_read(api: Api) -> None:
    task = await api.submit(target={"url": "http://a.example", "headers": {"X-Team": "core"}}, delay="1h")
    await make_schedule(
        api, "old", task={"type": "a", "target": {"url": "http://a.example", "headers": {"X-Team": "core"}}}
    )
    plain, old = '{"X-Team":"core"}', '{"X-Team":"core","cookie":"c00kie"}'
    execute = api.serving.database.execute
    change = "convert_to(replace(convert_from({0}, 'UTF8'), $1, $2), 'UTF8')"
    await execute(
        f"UPDATE task SET options = {change.format('options')} WHERE id = $3", plain, old, uuid.UUID(task["id"])
    )
    changed = await execute(
        f"UPDATE schedule SET definition = {change.format('definition')} WHERE tenant = $3 AND name = 'old'",
        *(plain, old, api.tenant),
    )
    assert changed == "UPDATE 1"

    for path in (f"/v1/tasks/{task['id']}", "/v1/tasks", "/v1/schedules", "/v1/schedules/old"):
        answer = await api.get(path)
        assert b'"cookie":"***"' in answer.body
        assert b"c00kie" not in answer.body


async def test_the_outbox_seals_what_it_relays_and_hides_what_it_refuses(api: Api) -> None:
    accepted = await enqueue(api, target=TARGET)
    refused = await enqueue(api, target=TARGET, queue="not a queue")

    found = (await api.get(f"/v1/outbox/{accepted}")).json
    task = (await api.get(f"/v1/tasks/{found['task']}")).json
    assert task["target"]["headers"] == SHOWN
    assert SECRET not in str(await options_of(api, task))
    for path in ("/v1/outbox", f"/v1/outbox/{refused}"):
        answer = await api.get(path)
        assert b"***" in answer.body
        assert SECRET.encode() not in answer.body


async def test_without_a_key_secrets_are_refused_and_nothing_else(module_url: str) -> None:
    database = await Database.open(module_url)
    async with serve(database, Vault()) as serving:
        api = await serving.tenant("without-a-key")

        single = await api.post("/v1/tasks", {"type": "a", **LATER})
        batch = await api.post("/v1/tasks/batch", [{"type": "a", **LATER}, {"type": "a"}])
        schedule = await put_schedule(api, "s", task={"type": "a", "target": TARGET})
        plain = await api.post("/v1/tasks", {"type": "a", "target": {"url": "http://a.example", "headers": {"A": "b"}}})
        number = await enqueue(api, target=TARGET)
        kept = (await api.get(f"/v1/outbox/{number}")).json

    await database.close()
    assert (single.status, single.json["code"]) == (409, "no_secrets_key")
    assert "secrets_key_file" in single.json["detail"]
    assert [each.get("error", {}).get("code") for each in batch.json["results"]] == ["no_secrets_key", None]
    assert (schedule.status, schedule.json["code"]) == (409, "no_secrets_key")
    assert plain.status == 202
    assert kept["refused"]["error"]["code"] == "no_secrets_key"


async def test_readers_at_once_are_told_no_secret_by_an_error(api: Api) -> None:
    wrong = {"Authorization": "Bearer f00dfeedf00dfeed\n", "X-Bad Name": SECRET}

    answers = await asyncio.gather(
        api.post("/v1/tasks", {"type": "a", "target": {"url": "nowhere", "headers": wrong}}),
        api.post(
            "/v1/tasks", {"type": "a", "target": {"url": "http://a.example", "headers": {"Authorization": [SECRET]}}}
        ),
    )

    assert [answer.status for answer in answers] == [422, 422]
    assert [b"f00dfeed" in answer.body for answer in answers] == [False, False]


async def test_a_repetition_is_known_across_a_change_of_keys(module_url: str) -> None:
    """Also where the task is older than the encryption."""
    old, new = b"1" * 32, b"2" * 32
    database = await Database.open(module_url)
    body, named = {"type": "a", **LATER, "idempotency_key": "kept"}, {"Idempotency-Key": str(make_uuid7())}
    answers = []
    async with serve(database, Vault([old])) as serving:
        first = await serving.tenant("changes-its-key")
        answers += [
            await first.post("/v1/tasks", body),
            await first.post("/v1/tasks", {"type": "a", **LATER}, headers=named),
        ]
    for keys in ([old, new], [new, old]):
        async with serve(database, Vault(keys)) as serving:
            api = Api(serving, first.tenant, first.tenant_name, first.key)
            answers += [
                await api.post("/v1/tasks", body),
                await api.post("/v1/tasks", {"type": "a", **LATER}, headers=named),
            ]
    wanted = make_decoder(TaskRequest).decode(json.dumps(body).encode())
    await database.execute(
        "UPDATE idempotency_key SET fingerprint = $1 WHERE tenant = $2",
        *(plain_fingerprint(canonical_text(wanted)), first.tenant),
    )
    async with serve(database, Vault([new])) as serving:
        answers += [await Api(serving, first.tenant, first.tenant_name, first.key).post("/v1/tasks", body)]
    await database.close()

    assert [answer.status for answer in answers] == [202, 202, 200, 200, 200, 200, 200]
    assert len({answer.json["id"] for answer in answers}) == 2


async def test_a_server_without_secrets_does_not_load_the_cipher() -> None:
    program = "import sys, duetime.serve, duetime.cli.server.up; sys.exit('cryptography' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)

    assert await process.wait() == 0
