"""An answer names everything that is wrong with a request, in one go."""

import time
from typing import Any

import pytest

from api.client import Api, Reply
from duetime.api.bodies.errors import MAX_ERRORS

pytestmark = pytest.mark.asyncio(loop_scope="module")

ID = "0199a3c4-6f00-8123-9abc-def000000101"


async def put(api: Api, path: str, body: Any) -> Reply:
    return await api.call("PUT", path, body)


async def test_every_wrong_field_of_a_task_is_named(api: Api) -> None:
    answer = await api.post(
        "/v1/tasks",
        {
            "type": "!",
            "queue": 5,
            "priority": "urgent",
            "delay": "soon",
            "expires_at": "tomorrow",
            "labels": {"fine": "a", "wrong": 1, "-": "b"},
            "requires": ["gpu", 2, "a b"],
            "target": {"url": "ftp://example.com", "method": "FETCH", "retry_on": [200, 404, 700]},
            "retry": {"max_attempts": 0, "min_backof": 1},
            "idempotency_key": "",
            "colour": "red",
        },
    )

    assert answer.status == 422
    assert set(answer.paths) == {
        "type",
        "queue",
        "priority",
        "delay",
        "expires_at",
        "labels.wrong",
        "labels.-",
        "requires",
        "requires[1]",
        "requires[2]",
        "target.url",
        "target.method",
        "target.retry_on[0]",
        "target.retry_on[2]",
        "retry.max_attempts",
        "retry.min_backof",
        "idempotency_key",
        "colour",
    }
    assert len(answer.paths) == len(set(answer.paths))
    assert "and 13 more" in answer.json["detail"]
    assert await api.stored() == 0


async def test_what_is_missing_is_named_beside_what_is_wrong(api: Api) -> None:
    answer = await api.post("/v1/tasks", {"target": {"timeout": "x"}, "queue": "a b"})

    assert answer.paths == ["target.timeout", "target.url", "type", "queue"]
    assert [error["message"] for error in answer.json["errors"]][1:3] == ["is required"] * 2


async def test_what_fields_ask_of_wrong_ones_is_not_said(api: Api) -> None:
    wrong = [
        await api.post("/v1/tasks", {"type": 5, "unique": {"key": "a"}}),
        await put(api, "/v1/limits/a", {"max_running": "many", "rate": None}),
        await put(api, "/v1/limits/a", {"rate": "fast", "burst": 5}),
        await put(api, "/v1/limits/a", {"max_running": "many", "strict": True}),
        await put(api, "/v1/queues/a", {"limits": {"rate": "fast", "burst": 5}}),
        await put(api, "/v1/types/a", {"limits": {"rate": "fast", "rate_key": "a"}}),
        await api.post(f"/v1/tasks/{ID}/reschedule", {"delay": -5}),
        await put(api, "/v1/schedules/a", {"spec": {"cron": 5}, "task": {"type": "a"}}),
        await put(
            api, "/v1/schedules/a", {"spec": {"cron": "@daily", "exclude": [{"day": "x"}]}, "task": {"type": "a"}}
        ),
        await put(
            api,
            "/v1/schedules/a",
            {"spec": {"cron": "@daily"}, "task": {"type": "a"}, "misfire": "al", "catchup_rate": 1},
        ),
    ]

    assert [answer.paths for answer in wrong] == [
        ["type"],
        ["max_running"],
        ["rate"],
        ["max_running"],
        ["limits.rate"],
        ["limits.rate"],
        ["delay"],
        ["spec.cron"],
        ["spec.exclude[0].day"],
        ["misfire"],
    ]


async def test_a_payload_that_does_not_match_is_named_beside_the_rest(api: Api) -> None:
    await put(api, "/v1/types/mail", {"schema": {"type": "object", "required": ["to"]}})
    await api.serving.obey()

    answer = await api.post("/v1/tasks", {"type": "mail", "payload": {}, "queue": "a b", "delay": "soon"})

    assert answer.status == 422
    assert set(answer.paths) == {"queue", "delay", "payload"}


@pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson"])
async def test_each_item_of_a_batch_has_all_its_errors(api: Api, content_type: str) -> None:
    items = [b'{"type":"a"}', b'{"type":"!","queue":7,"delay":"x"}', b'{"queue":"a b","labels":{"a":1}}']
    body = b"\n".join(items) if content_type.endswith("ndjson") else b"[%s]" % b",".join(items)

    answer = await api.post("/v1/tasks/batch", data=body, headers={"Content-Type": content_type})

    first, second, third = answer.json["results"]
    assert "error" not in first
    assert [each["path"] for each in second["error"]["errors"]] == ["queue", "delay", "type"]
    assert [each["path"] for each in third["error"]["errors"]] == ["labels.a", "type", "queue"]


async def test_a_line_that_is_no_json_refuses_the_whole_batch(api: Api) -> None:
    answer = await api.post(
        "/v1/tasks/batch", data=b'{"type":"a"}\n\n{"type":', headers={"Content-Type": "application/x-ndjson"}
    )

    assert (answer.status, answer.json["code"]) == (400, "malformed")
    assert "line 3 is not JSON" in answer.json["detail"]
    assert await api.stored() == 0


async def test_every_wrong_settlement_is_named(api: Api) -> None:
    fine = {"id": ID, "attempt": 1, "outcome": "failed"}
    early = "0001-01-01T00:00:00+14:00"

    shapes = await api.post(
        "/v1/workers/settle",
        {"settlements": [fine, {"id": "x", "attempt": 0}, fine, {**fine, "outcome": "lapsed", "colour": 1}]},
    )
    values = await api.post(
        "/v1/workers/settle",
        {
            "worker": "\n",
            "settlements": [
                fine,
                {**fine, "started_at": early, "completed_at": early, "result": "x" * 70_000},
                {**fine, "started_at": early},
            ],
        },
    )

    assert shapes.paths == [
        "settlements[1].id",
        "settlements[1].attempt",
        "settlements[1].outcome",
        "settlements[3].outcome",
        "settlements[3].colour",
        "worker",
    ]
    assert values.status == 422
    assert values.paths == [
        "worker",
        "settlements[1].result",
        "settlements[1].started_at",
        "settlements[1].completed_at",
        "settlements[2].started_at",
    ]


@pytest.mark.parametrize("others", [0, 200])
async def test_wrong_types_and_wrong_values_of_settlements_are_named_at_once(api: Api, others: int) -> None:
    fine = {"id": ID, "attempt": 1, "outcome": "failed"}
    early = "0001-01-01T00:00:00+14:00"

    answer = await api.post(
        "/v1/workers/settle",
        {
            "worker": "\n",
            "settlements": [
                {**fine, "attempt": "one", "started_at": early},
                {**fine, "result": "x" * 70_000, "completed_at": early},
                {"outcome": "lapsed", "completed_at": early},
                7,
                {**fine, "error": {"message": "m", "detail": "x" * 70_000}},
                *[fine] * others,
            ],
        },
    )

    assert answer.status == 422
    assert answer.paths == [
        "settlements[0].attempt",
        "settlements[2].outcome",
        "settlements[2].id",
        "settlements[2].attempt",
        "settlements[3]",
        "worker",
        "settlements[0].started_at",
        "settlements[1].result",
        "settlements[1].completed_at",
        "settlements[2].completed_at",
        "settlements[4].error.detail",
    ]


async def test_too_many_values_are_named_beside_a_wrong_one(api: Api) -> None:
    answer = await api.post("/v1/workers/lease", {"worker": "\n", "tags": ["!", 5, *["a"] * 200]})

    assert answer.paths == ["tags[1]", "tags", "worker"]


async def test_settlements_that_are_only_too_large_are_a_413(api: Api) -> None:
    large = {"id": ID, "attempt": 1, "outcome": "succeeded", "result": "x" * 70_000}

    answer = await api.post("/v1/workers/settle", {"worker": "w", "settlements": [large, large]})

    assert (answer.status, answer.paths) == (413, ["settlements[0].result", "settlements[1].result"])


@pytest.mark.parametrize(
    ("method", "path", "body", "paths"),
    [
        (
            "POST",
            "/v1/workers/lease",
            {"worker": "\n", "queues": ["a b", "b", 3], "max": 0},
            ["queues[2]", "max", "worker", "queues[0]"],
        ),
        (
            "POST",
            "/v1/workers/lease",
            {"worker": "\n", "queues": ["a b", "!"], "tags": ["c d"]},
            ["worker", "queues[0]", "queues[1]", "tags[0]"],
        ),
        (
            "POST",
            "/v1/workers/beat",
            {"worker": "\n", "attempts": [{"id": "x"}, {"attempt": 1}]},
            ["attempts[0].id", "attempts[0].attempt", "attempts[1].id", "worker"],
        ),
        (
            "POST",
            "/v1/keys",
            {"role": "king", "name": "\n", "queues": ["a b", "c d"]},
            ["role", "queues[0]", "queues[1]", "name"],
        ),
        (
            "PUT",
            "/v1/breakers/example.com:443",
            {"state": "ajar", "note": "\n"},
            ["state", "note"],
        ),
        (
            "PUT",
            "/v1/tenants/somebody",
            {"weight": -1, "state": "away", "quotas": {"rate": "x", "burst": "y"}},
            ["weight", "state", "quotas.rate", "quotas.burst"],
        ),
        (
            "PUT",
            "/v1/tiers/gold",
            {"weight": "heavy", "quotas": {"max_waiting": -1}},
            ["weight", "quotas.max_waiting"],
        ),
        (
            "PUT",
            "/v1/queues/a",
            {"state": "half", "limits": {"rate": "x", "burst": "y"}},
            ["state", "limits.rate", "limits.burst"],
        ),
        (
            "PUT",
            "/v1/limits/a",
            {"rate": 1000000000.0, "burst": -1, "strict": True},
            ["rate", "burst", "strict"],
        ),
        (
            "PUT",
            "/v1/types/a",
            {"schema": {"type": "thing"}, "throttle": {"limit": 0}, "defaults": {"queue": "a b"}},
            ["throttle.limit", "throttle.period", "defaults.queue", "schema"],
        ),
        (
            "POST",
            "/v1/tasks/bulk/reschedule",
            {"filter": {"type": 5, "frm": 1}, "run_at": "2099-01-01T00:00:00Z", "limit": 0},
            ["filter.type", "filter.frm", "limit", "run_at"],
        ),
        (
            "POST",
            "/v1/tasks/bulk/cancel",
            {"filter": {"type": "!", "queue": "a b", "label": ["x"]}},
            ["filter.type", "filter.queue", "filter.label"],
        ),
        (
            "POST",
            "/v1/dead/drop",
            {"ids": ["x", ID, "y"], "limit": 0},
            ["ids[0]", "ids[2]", "limit"],
        ),
        (
            "PUT",
            "/v1/calendars/holidays",
            {"dates": ["2027-13-01", "2027-12-24", "Monday"]},
            ["dates[0]", "dates[2]"],
        ),
    ],
)
async def test_every_call_names_all_that_is_wrong(
    api: Api, method: str, path: str, body: dict[str, Any], paths: list[str]
) -> None:
    answer = await api.call(method, path, body)

    assert answer.status == 422, answer.body
    assert answer.paths == paths


async def test_every_part_of_a_schedule_is_named(api: Api) -> None:
    spec = {"cron": ["@daily", "99 * * * *", "nonsense"], "dates": ["2027-13-01T00:00"], "exclude": ["Monday"]}
    task = {"type": "!", "labels": {"-": "a"}}

    readable = await put(api, "/v1/schedules/a", {"spec": spec, "timezone": "Mars/Base", "task": task})
    typed = await put(api, "/v1/schedules/a", {"spec": spec, "task": task, "overlap": "no", "jitter": "x"})
    previewed = await api.post("/v1/schedules/preview", {"spec": spec, "count": 0})

    parts = {"spec.cron[1]", "spec.cron[2]", "spec.dates[0]", "spec.exclude[0]"}
    assert set(readable.paths) == {*parts, "timezone", "task.type", "task.labels.-"}
    assert set(typed.paths) == {*parts, "task.type", "task.labels.-", "overlap", "jitter"}
    assert set(previewed.paths) == {*parts, "count"}


@pytest.mark.parametrize("trial", ["", "?dry_run=true"])
async def test_an_item_of_a_batch_of_schedules_names_what_a_single_one_names(api: Api, trial: str) -> None:
    spec = {"cron": ["@daily", "99 * * * *", "nonsense"], "dates": ["2027-13-01T00:00"], "exclude": ["Monday"]}
    wrong: list[dict[str, Any]] = [
        {"spec": spec, "task": {"type": "a"}},
        {"spec": spec, "timezone": "Mars/Base", "task": {"type": "!", "labels": {"-": "a"}}},
        {"spec": spec, "task": {"type": "!"}, "overlap": "no", "jitter": "x"},
        {"spec": {"cron": "99 * * * *", "exclude": [{"calendar": "none"}, "Monday"]}, "task": {"type": "a"}},
        {"spec": {"cron": 5}, "start_at": "1900-01-01T00:00:00Z", "task": {"queue": "a b"}},
    ]
    items = [{"name": f"wrong.{place}", **each} for place, each in enumerate(wrong)]
    fine = {"name": "fine", "spec": {"cron": "@daily"}, "task": {"type": "a"}}
    twice = {**fine, "spec": spec, "colour": 1}

    answer = await api.post(f"/v1/schedules/batch{trial}", {"items": [*items, fine, twice, {**fine, "spec": spec}]})
    alone = [await put(api, f"/v1/schedules/{item['name']}", each) for item, each in zip(items, wrong, strict=True)]

    *refused, made, strange, repeated = answer.json["results"]
    assert [each["error"]["errors"] for each in refused] == [each.json["errors"] for each in alone]
    assert [each["error"]["detail"] for each in refused] == [each.json["detail"] for each in alone]
    assert {each["path"] for each in refused[0]["error"]["errors"]} == {
        *("spec.cron[1]", "spec.cron[2]", "spec.dates[0]", "spec.exclude[0]")
    }
    assert made["result"] == "created"
    assert len(strange["error"]["errors"]) == 5
    assert [each["path"] for each in repeated["error"]["errors"]][:2] == ["name", "spec.cron[1]"]


@pytest.mark.parametrize(
    ("path", "body", "paths"),
    [
        ("/v1/limits/a", {"max_running": -1, "rate": "fast", "burst": 0}, ["rate", "max_running", "burst"]),
        ("/v1/limits/a", {"max_running": 5_000, "rate": "fast", "strict": True}, ["rate", "strict"]),
        (f"/v1/limits/{'a' * 256}", {"max_running": "many", "rate": 0}, ["max_running", "rate", "name"]),
        (
            "/v1/queues/a%20b",
            {"state": "half", "limits": {"max_running": -1, "rate": "fast", "burst": 0}},
            ["state", "limits.rate", "name", "limits.max_running", "limits.burst"],
        ),
        (
            "/v1/types/a",
            {
                "limits": {"max_running": "many", "rate": 0, "concurrency_key": "a..b"},
                "throttle": {"limit": 1, "period": "1s", "key": ".."},
                "rate_limit": {"limit": "x", "period": "1s", "key": ".."},
            },
            [
                "limits.max_running",
                "rate_limit.limit",
                "limits.rate",
                "limits.concurrency_key",
                "throttle",
                "throttle.key",
                "rate_limit.key",
            ],
        ),
    ],
)
async def test_ranges_are_named_beside_wrong_types(api: Api, path: str, body: dict[str, Any], paths: list[str]) -> None:
    answer = await put(api, path, body)

    assert answer.status == 422, answer.body
    assert answer.paths == paths


async def test_values_are_named_beside_wrong_types_and_beside_each_other(api: Api) -> None:
    await put(api, "/v1/schedules/a", {"spec": {"cron": "@daily"}, "task": {"type": "a"}})
    early, late = "1900-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
    wrong = [
        await api.post("/v1/tasks/bulk/cancel", {"filter": {"type": "!"}, "limit": 0}),
        await api.post("/v1/tasks/bulk/reschedule", {"filter": {"queue": "a b"}, "run_at": late, "limit": 0}),
        await api.post("/v1/tasks/bulk/reschedule", {"filter": {"queue": "a b"}, "run_at": late}),
        await api.post("/v1/dead/drop", {"filter": {"queue": "a b", "type": "!"}, "limit": 0}),
        await api.post("/v1/dead/redrive", {"filter": {"queue": "a b"}, "rate": "fast"}),
        await put(api, "/v1/calendars/a%20b", {"dates": ["Monday", 5]}),
        await put(api, "/v1/calendars/a%20b", {"dates": ["Monday", "2027-12-24", "2027-13-01"]}),
        await put(api, "/v1/tenants/a%20b", {"tier": "!", "weight": -1}),
        await put(api, "/v1/tenants/a%20b", {"tier": "!"}),
        await put(api, "/v1/tiers/a%20b", {"weight": "heavy"}),
        await api.post("/v1/schedules/a/backfill", {"from": early, "to": early, "rate": 0}),
        await api.post("/v1/schedules/a/backfill", {"from": early, "to": early}),
        await api.post("/v1/schedules/a/backfill", {"from": 5, "to": early}),
    ]

    assert [answer.status for answer in wrong] == [422] * len(wrong)
    assert [answer.paths for answer in wrong] == [
        ["limit", "filter.type"],
        ["limit", "filter.queue", "run_at"],
        ["run_at", "filter.queue"],
        ["limit", "filter.type", "filter.queue"],
        ["rate", "filter.queue"],
        ["dates[1]", "name", "dates[0]"],
        ["name", "dates[0]", "dates[2]"],
        ["weight", "name", "tier"],
        ["name", "tier"],
        ["weight", "name"],
        ["rate", "from", "to"],
        ["from", "to"],
        ["from", "to"],
    ]


async def test_a_query_names_all_that_is_wrong(api: Api) -> None:
    answer = await api.get("/v1/tasks?state=lost&type=!&priority=urgent")
    around = await api.get("/v1/tasks?from=noon&to=night&queue=a&queue=b&label=x&limit=0")
    dead = await api.get("/v1/dead?from=noon&type=!&limit=many")
    unknown = await api.get("/v1/tasks?stat=ready&typ=a")

    assert answer.paths == ["state", "type", "priority"]
    assert around.paths == ["queue", "from", "to", "label", "limit"]
    assert dead.paths == ["from", "type", "limit"]
    assert unknown.paths == ["stat", "typ"]


async def test_a_choice_of_states_has_those_that_there_are(api: Api) -> None:
    listed = await api.get("/v1/tasks?state=lost")
    changed = await api.post("/v1/tasks/bulk/cancel", {"filter": {"state": "lost"}})

    assert "must be one of scheduled, ready," in listed.json["detail"]
    assert "is none of: scheduled, ready," in changed.json["detail"]


async def test_errors_without_end_are_bounded(api: Api) -> None:
    began = time.monotonic()
    many = await api.post("/v1/workers/settle", {"worker": "w", "settlements": [{}] * 5_000})
    crowd = await api.post("/v1/workers/beat", {"worker": "w", "attempts": [0] * 400_000})

    assert len(many.paths) == MAX_ERRORS
    assert "and at least 45 more" in many.json["detail"]
    # What has more values than any right body is not taken apart.
    assert (crowd.status, crowd.paths) == (422, ["attempts[0]"])
    assert time.monotonic() - began < 30
