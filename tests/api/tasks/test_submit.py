"""Submitting: one task or many, with keys, and what is refused."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import Api
from duetime.sdk.uuid7 import make_uuid7

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_task_is_answered_with_202_and_is_stored(api: Api) -> None:
    answer = await api.post("/v1/tasks", {"type": "email.send", "payload": {"to": "ada"}, "labels": {"team": "core"}})

    task = answer.json
    assert answer.status == 202
    assert answer.headers["Location"] == f"/v1/tasks/{task['id']}"
    assert (task["type"], task["queue"], task["priority"], task["state"]) == (
        "email.send",
        "default",
        "normal",
        "ready",
    )
    assert task["payload"] == {"to": "ada"}
    assert task["tenant"] == api.tenant_name
    stored = (await api.get(f"/v1/tasks/{task['id']}")).json
    assert stored.keys() == task.keys()
    times = {"run_at", "created_at"}
    assert {name: stored[name] for name in stored.keys() - times} == {name: task[name] for name in task.keys() - times}


async def test_delay_and_run_at_make_a_scheduled_task(api: Api) -> None:
    run_at = (datetime.now(UTC) + timedelta(hours=2)).isoformat()

    by_delay = await api.submit(delay="1h30m")
    by_time = await api.submit(run_at=run_at)

    assert by_delay["state"] == by_time["state"] == "scheduled"
    assert datetime.fromisoformat(by_time["run_at"]) == datetime.fromisoformat(run_at)
    distance = datetime.fromisoformat(by_delay["run_at"]) - datetime.now(UTC)
    assert timedelta(minutes=89) < distance <= timedelta(minutes=90)


@pytest.mark.parametrize("run_at", ["2001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
async def test_a_run_at_in_the_past_means_now(api: Api, run_at: str) -> None:
    task = await api.submit(run_at=run_at)

    assert task["state"] == "ready"
    assert [each["id"] for each in await api.lease()] == [task["id"]]


async def test_a_task_without_a_policy_has_the_default_one_and_tells_what_is_left_of_it(api: Api) -> None:
    task = await api.submit()
    partly = await api.submit(retry={"min_backoff": "2s"}, delay="1h")
    once = await api.submit(delivery="at_most_once", delay="1h")
    default = {
        "max_attempts": 20,
        "min_backoff": 1,
        "max_backoff": 3600,
        "max_doublings": 16,
        "max_retry_duration": None,
        "max_crashes": 3,
    }
    assert (task["retry"], task["attempts_left"]) == (default, 20)
    assert (partly["retry"]["max_attempts"], partly["attempts_left"], once["attempts_left"]) == (20, 20, 1)

    [leased] = await api.lease()
    assert (await api.get(f"/v1/tasks/{task['id']}")).json["attempts_left"] == 19
    await api.settle(leased, "failed", error={"message": "down"})

    failed = (await api.get(f"/v1/tasks/{task['id']}")).json
    assert (failed["state"], failed["attempts_left"], failed["retry"]) == ("retrying", 19, default)
    assert failed["next_run_at"] is not None
    told = (await api.get(f"/v1/tasks/{task['id']}/explain")).json["waiting_for"][0]["detail"]
    assert told.startswith("it failed once; attempt 2 of 20 is due at ")


async def test_a_payload_is_kept_byte_by_byte(api: Api) -> None:
    payload = '{"a" : 1.50, "b":"\\u0000 \\u00e9", "c":123456789012345678901234567890}'

    answer = await api.post("/v1/tasks", data=f'{{"type":"t","payload":{payload}}}'.encode())

    assert payload.encode() in answer.body
    assert payload.encode() in (await api.get(f"/v1/tasks/{answer.json['id']}")).body


async def test_every_option_is_shown_again(api: Api) -> None:
    asked = {
        "queue": "mail",
        "priority": "high",
        "timeout": "2m",
        "sla": "1h",
        "delivery": "at_most_once",
        "requires": ["gpu", "eu", "gpu"],
        "retry": {"max_attempts": 3, "min_backoff": "2s", "max_retry_duration": "1d", "max_crashes": 7},
        "expires_at": "2035-01-01T00:00:00Z",
        "idempotency_key": "one",
    }

    task = await api.submit(**asked)

    assert (task["timeout"], task["sla"], task["delivery"], task["requires"]) == (
        120,
        3600,
        "at_most_once",
        ["eu", "gpu"],
    )
    assert task["retry"] == {
        "max_attempts": 3,
        "min_backoff": 2,
        "max_backoff": 3600,
        "max_doublings": 16,
        "max_retry_duration": 86400,
        "max_crashes": 7,
    }
    stored = (await api.get(f"/v1/tasks/{task['id']}")).json
    assert {name: stored[name] for name in asked.keys() | {"retry"}} == {
        name: task[name] for name in asked.keys() | {"retry"}
    }


async def test_a_target_makes_a_push_task(api: Api) -> None:
    target = {"url": "https://example.com:8443/x?y=1", "method": "PUT", "headers": {"X-Team": "core"}, "timeout": 5}

    task = await api.submit(target=target)

    assert task["target"] == {**target, "secret_headers": [], "retry_on": []}


# Keys


async def test_the_same_idempotency_key_gives_the_first_task(api: Api) -> None:
    body = {"type": "a", "payload": {"x": 1, "y": 2}, "idempotency_key": "order-7"}
    first = await api.post("/v1/tasks", body)

    # The same request in other words: names in another order, spaces, a default spelt out.
    again = await api.post(
        "/v1/tasks",
        data=b'{ "idempotency_key":"order-7", "queue":"default", "payload":{"y":2,"x":1}, "type":"a" }',
    )
    other = await api.post("/v1/tasks", {**body, "payload": {"x": 2, "y": 2}})

    assert (first.status, again.status, other.status) == (202, 200, 409)
    assert again.json["id"] == first.json["id"]
    assert other.json["code"] == "idempotency_conflict"
    assert await api.stored() == 1


async def test_one_task_comes_of_a_key_that_many_use_at_once(api: Api) -> None:
    body = {"type": "a", "idempotency_key": "order-8"}

    answers = await asyncio.gather(*(api.post("/v1/tasks", body) for _ in range(20)))

    assert {answer.json["id"] for answer in answers} == {answers[0].json["id"]}
    assert sorted(answer.status for answer in answers) == [200] * 19 + [202]


async def test_a_key_means_another_task_for_another_tenant(api: Api) -> None:
    other = await api.serving.tenant("another")
    body = {"type": "a", "idempotency_key": "order-9"}

    mine, theirs = await api.post("/v1/tasks", body), await other.post("/v1/tasks", body)

    assert (mine.status, theirs.status) == (202, 202)


async def test_a_request_that_is_repeated_gives_the_same_tasks(api: Api) -> None:
    headers = {"Idempotency-Key": str(make_uuid7())}
    batch = [{"type": "a"}, {"type": "b", "delay": 60}]

    first = await api.post("/v1/tasks/batch", batch, headers=headers)
    again = await api.post("/v1/tasks/batch", batch, headers=headers)

    assert [each["id"] for each in again.json["results"]] == [each["id"] for each in first.json["results"]]
    assert [each["state"] for each in again.json["results"]] == ["ready", "scheduled"]
    assert [each.get("repeated") for each in again.json["results"]] == [True, True]
    assert await api.stored() == 2


@pytest.mark.parametrize(
    "key",
    [
        "x",
        "763e8d79-a70b-47b0-af72-a5c9c14205be",
        "01900000-0000-7000-8000-000000000000",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ],
)
async def test_a_request_key_must_be_a_fresh_uuid7(api: Api, key: str) -> None:
    answer = await api.post("/v1/tasks", {"type": "a"}, headers={"Idempotency-Key": key})

    assert answer.status == 422
    assert answer.paths == ["Idempotency-Key"]


# Bad input


def _time(**ahead: float) -> str:
    return (datetime.now(UTC) + timedelta(**ahead)).isoformat()


BAD: list[tuple[str, dict[str, Any]]] = [
    # unknown fields
    ("tipe", {"tipe": "x"}),
    ("depends_on", {"depends_on": []}),
    ("target.uri", {"target": {"url": "http://x", "uri": "http://x"}}),
    # wrong types
    ("type", {"type": 5}),
    ("priority", {"priority": "urgent"}),
    ("retry.max_attempts", {"retry": {"max_attempts": "3"}}),
    ("labels", {"labels": ["a"]}),
    ("labels.a", {"labels": {"a\n": "b"}}),
    ("requires[1]", {"requires": ["a", "b c"]}),
    ("delivery", {"delivery": "exactly_once"}),
    ("retry.max_attempts", {"retry": {"max_attempts": True}}),
    # names
    ("type", {"type": ""}),
    ("type", {"type": "a\n"}),
    ("type", {"type": "a\0"}),
    ("type", {"type": "a" * 129}),
    ("queue", {"queue": "-x"}),
    ("queue", {"queue": "é"}),
    ("labels.-a", {"labels": {"-a": "b"}}),
    ("labels.a", {"labels": {"a": "b\0"}}),
    ("labels.a", {"labels": {"a": "b" * 256}}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "a\0b"}),
    ("idempotency_key", {"idempotency_key": "a" * 256}),
    # times
    ("run_at", {"run_at": "tomorrow"}),
    ("run_at", {"run_at": "2030-01-01T00:00:00"}),
    ("run_at", {"run_at": "2030-02-30T00:00:00Z"}),
    ("run_at", {"run_at": 1893456000}),
    ("run_at", {"run_at": _time(days=3660)}),
    ("run_at", {"run_at": "9999-12-31T23:59:59-14:00"}),
    ("delay", {"delay": 5, "run_at": _time(days=1)}),
    ("expires_at", {"expires_at": _time(days=1), "run_at": _time(days=2)}),
    ("expires_at", {"expires_at": _time(days=-1)}),
    ("expires_at", {"expires_at": "9999-12-31T23:59:59-14:00"}),
    # durations
    ("delay", {"delay": "5 minutes"}),
    ("delay", {"delay": "10"}),
    ("delay", {"delay": ""}),
    ("delay", {"delay": "NaN"}),
    ("delay", {"delay": -1}),
    ("delay", {"delay": "-1s"}),
    ("delay", {"delay": 10**400}),
    ("delay", {"delay": "4000d"}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": "25h"}),
    ("sla", {"sla": 0}),
    ("idempotency_ttl", {"idempotency_ttl": "8d"}),
    # negative and too great numbers
    ("retry.max_attempts", {"retry": {"max_attempts": 0}}),
    ("retry.max_attempts", {"retry": {"max_attempts": 10**30}}),
    ("retry.max_crashes", {"retry": {"max_crashes": 0}}),
    ("retry.max_crashes", {"retry": {"max_crashes": 101}}),
    ("retry.max_doublings", {"retry": {"max_doublings": -1}}),
    ("retry.min_backoff", {"retry": {"min_backoff": -1}}),
    ("retry.max_backoff", {"retry": {"max_backoff": "31d"}}),
    ("retry.max_backoff", {"retry": {"min_backoff": 10, "max_backoff": 5}}),
    # targets
    ("target.url", {"target": {"url": "example.com"}}),
    ("target.url", {"target": {"url": "ftp://example.com"}}),
    ("target.url", {"target": {"url": "file:///etc/passwd"}}),
    ("target.url", {"target": {"url": "http://"}}),
    ("target.url", {"target": {"url": "http://user:secret@example.com"}}),
    ("target.url", {"target": {"url": "http://example.com\\@evil.example"}}),
    ("target.url", {"target": {"url": "http://exam ple.com"}}),
    ("target.url", {"target": {"url": "http://[::1"}}),
    ("target.url", {"target": {"url": "http://[:::]/"}}),
    ("target.url", {"target": {"url": "http://example.com:99999"}}),
    ("target.url", {"target": {"url": "http://example.com/" + "a" * 2083}}),
    ("target.method", {"target": {"url": "http://example.com", "method": "TRACE"}}),
    ("target.headers.X", {"target": {"url": "http://example.com", "headers": {"X": "a\r\nHost: b"}}}),
    ("target.headers.X", {"target": {"url": "http://example.com", "headers": {"X": "a\0"}}}),
    ("target.headers.X Y", {"target": {"url": "http://example.com", "headers": {"X Y": "a"}}}),
    ("target.headers.Host", {"target": {"url": "http://example.com", "headers": {"Host": "a"}}}),
    ("target.headers.Webhook-Id", {"target": {"url": "http://example.com", "headers": {"Webhook-Id": "a"}}}),
    ("target.headers.duetime-x", {"target": {"url": "http://example.com", "headers": {"duetime-x": "a"}}}),
    ("target.headers", {"target": {"url": "http://example.com", "headers": {"X": "a" * 17_000}}}),
    ("target.headers", {"target": {"url": "http://example.com", "headers": {f"X{n}": "" for n in range(65)}}}),
    ("target.timeout", {"target": {"url": "http://example.com", "timeout": "2d"}}),
    ("requires", {"target": {"url": "http://example.com"}, "requires": ["gpu"]}),
]


async def test_what_is_wrong_is_a_422_with_its_path_and_what_would_be_right(api: Api) -> None:
    """One server for all of them: each case costs a millisecond."""
    for path, fields in BAD:
        answer = await api.post("/v1/tasks", {"type": "test.task", **fields})

        assert answer.status == 422, (fields, answer.body)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json["code"] == "invalid"
        assert answer.json["errors"][0]["message"]
        assert [found.split("\n")[0] for found in answer.paths] == [path], (fields, answer.json)
    assert await api.stored() == 0


async def test_everything_that_is_wrong_is_said_at_once(api: Api) -> None:
    answer = await api.post("/v1/tasks", {"type": "-", "queue": "-", "run_at": _time(days=4000), "labels": {"-": ""}})

    assert answer.paths == ["queue", "type", "run_at", "labels.-"]


async def test_a_missing_type_is_named(api: Api) -> None:
    answer = await api.post("/v1/tasks", {"payload": 1})

    assert answer.json["errors"] == [{"path": "type", "message": "is required"}]


async def test_a_payload_over_64_kib_is_a_413(api: Api) -> None:
    just_right = await api.post("/v1/tasks", {"type": "a", "payload": "x" * (64 * 1024 - 2)})
    too_large = await api.post("/v1/tasks", {"type": "a", "payload": "x" * (64 * 1024 - 1)})

    assert (just_right.status, too_large.status) == (202, 413)
    assert too_large.paths == ["payload"]


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"1e999", 422),
        (b"9" * 5000, 422),
        (b"[" * 101 + b"]" * 101, 422),
        (b"[" * 100 + b"]" * 100, 202),
        (b"[" * 100_000 + b"]" * 100_000, 400),
        (b"NaN", 400),
        (b"Infinity", 400),
        (b'"\\ud800"', 400),
        (b'"\xff"', 400),
        (b'"\xc3\xa9"', 202),
        (b"01", 400),
    ],
)
async def test_a_payload_is_json_that_any_worker_can_read(api: Api, payload: bytes, status: int) -> None:
    answer = await api.post("/v1/tasks", data=b'{"type":"a","payload":' + payload + b"}")

    assert answer.status == status, answer.body


@pytest.mark.parametrize("body", [b"", b"{", b'{"type":"a"', b"hello", b'{"type":"a"} x', b"\xff", b'{"type":5,"x":'])
async def test_a_body_that_is_not_json_is_a_400(api: Api, body: bytes) -> None:
    answer = await api.post("/v1/tasks", data=body)

    assert answer.status == 400
    assert answer.json["code"] == "malformed"
    assert await api.stored() == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"])
async def test_another_content_type_is_a_415(api: Api, kind: str) -> None:
    answer = await api.post("/v1/tasks", data=b'{"type":"a"}', headers={"Content-Type": kind})

    assert answer.status == 415


async def test_json_may_come_with_a_charset(api: Api) -> None:
    answer = await api.post(
        "/v1/tasks", data=b'{"type":"a"}', headers={"Content-Type": "Application/JSON; charset=utf-8"}
    )

    assert answer.status == 202


# Batches


async def test_a_batch_gives_a_result_for_each_in_order(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch", [{"type": "a"}, {"type": "b", "delay": 60}, {"type": "c"}])

    results = answer.json["results"]
    assert answer.status == 200
    assert [each["state"] for each in results] == ["ready", "scheduled", "ready"]
    assert (answer.json["accepted"], answer.json["rejected"]) == (3, 0)
    types = [(await api.get(f"/v1/tasks/{each['id']}")).json["type"] for each in results]
    assert types == ["a", "b", "c"]


async def test_the_times_of_a_batch_are_kept_and_none_is_early(api: Api) -> None:
    now = datetime.now(UTC)
    times = [now + timedelta(hours=2, microseconds=123), now + timedelta(days=400), now + timedelta(hours=1)]
    tasks = [{"type": "mail", "run_at": at.isoformat()} for at in times]

    # The second time, the names are known.
    for _ in range(2):
        results = (await api.post("/v1/tasks/batch", tasks)).json["results"]

        assert [each["state"] for each in results] == ["scheduled"] * 3
        stored = [(await api.get(f"/v1/tasks/{each['id']}")).json for each in results]
        assert [datetime.fromisoformat(each["run_at"]) for each in stored] == times
        waits = [datetime.fromisoformat(each["next_run_at"]) - at for each, at in zip(stored, times, strict=True)]
        assert all(timedelta(0) <= wait < timedelta(milliseconds=1) for wait in waits)


async def test_a_batch_of_past_times_is_ready_and_one_of_both_says_which(api: Api) -> None:
    await api.submit()
    past, epoch = "2001-01-01T00:00:00Z", "1970-01-01T00:00:00Z"

    all_past = await api.post("/v1/tasks/batch", [{"type": "test.task", "run_at": at} for at in (past, epoch)])
    times = ({"run_at": past}, {"delay": "1h"})
    mixed = await api.post("/v1/tasks/batch", [{"type": "test.task", **time} for time in times])

    assert [each["state"] for each in all_past.json["results"]] == ["ready", "ready"]
    assert [each["state"] for each in mixed.json["results"]] == ["ready", "scheduled"]
    stored = [(await api.get(f"/v1/tasks/{each['id']}")).json for each in all_past.json["results"]]
    assert [each["run_at"] for each in stored] == [past, epoch]


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"run_at": "2200-01-01T00:00:00Z"}, "run_at"),
        ({"run_at": "2030-01-01T00:00:00Z", "delay": 5}, "delay"),
        ({"delay": "1h", "run_at": 7}, "run_at"),
    ],
)
async def test_a_wrong_time_in_a_batch_is_refused_in_its_place(api: Api, wrong: dict[str, Any], path: str) -> None:
    await api.submit()

    answer = await api.post("/v1/tasks/batch", [{"type": "test.task", "delay": 60}, {"type": "test.task", **wrong}])

    right, refused = answer.json["results"]
    assert right["state"] == "scheduled"
    assert [each["path"] for each in refused["error"]["errors"]] == [path]


@pytest.mark.parametrize(
    "tasks",
    [
        [{"type": "mail", "payload": place} for place in range(5)],
        [{"type": "mail", "payload": "é"}, {"type": "mail", "queue": "slow"}, {"type": "sms", "priority": "high"}],
        [{"type": "mail"}, {"type": "mail", "delay": 60}, {"type": "mail", "labels": {"a": "b"}}],
    ],
)
async def test_a_batch_that_is_repeated_gives_the_same_tasks_in_order(api: Api, tasks: list[dict[str, Any]]) -> None:
    headers = {"Idempotency-Key": str(make_uuid7())}
    # Once before, so that nothing is new to the reader.
    await api.post("/v1/tasks/batch", tasks)

    first = (await api.post("/v1/tasks/batch", tasks, headers=headers)).json["results"]
    again = (await api.post("/v1/tasks/batch", tasks, headers=headers)).json["results"]

    assert [each["id"] for each in again] == [each["id"] for each in first]
    assert [each.get("repeated", False) for each in first + again] == [False] * len(tasks) + [True] * len(tasks)
    for result, task in zip(first, tasks, strict=True):
        view = (await api.get(f"/v1/tasks/{result['id']}")).json
        assert view["state"] == result["state"] == ("scheduled" if "delay" in task else "ready")
        assert view["payload"] == task.get("payload")
        assert (view["queue"], view["priority"]) == (task.get("queue", "default"), task.get("priority", "normal"))


@pytest.mark.parametrize("kind", ["application/x-ndjson", "application/jsonl"])
async def test_a_batch_may_be_one_task_a_line(api: Api, kind: str) -> None:
    answer = await api.post("/v1/tasks/batch", data=b'{"type":"a"}\r\n\n{"type":"b"}\n', headers={"Content-Type": kind})

    assert (answer.status, answer.json["accepted"]) == (200, 2)


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_wrong_item_has_its_error_in_its_place_and_the_others_are_stored(api: Api, kind: str) -> None:
    items: list[Any] = [
        {"type": "a"},
        {"type": "b", "delay": -1},
        5,
        {"type": "c", "payload": "x" * 70_000},
        {"type": "-"},
        {"type": "d"},
    ]
    lines = [json.dumps(item).encode() for item in items]
    data = b"[" + b",".join(lines) + b"]" if kind == "application/json" else b"\n".join(lines)

    answer = await api.post("/v1/tasks/batch", data=data, headers={"Content-Type": kind})

    results = answer.json["results"]
    assert answer.status == 200
    assert [each["error"]["status"] if "error" in each else 202 for each in results] == [202, 422, 422, 413, 422, 202]
    assert results[1]["error"]["errors"][0]["path"] == "delay"
    assert (answer.json["accepted"], answer.json["rejected"]) == (2, 4)
    assert await api.stored() == 2


async def test_an_atomic_batch_with_a_wrong_item_stores_none(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch?atomic=true", [{"type": "a"}, {"type": "b", "delay": -1}])

    assert answer.status == 422
    assert answer.paths == ["[1].delay"]
    assert answer.json["results"][0] is None
    assert answer.json["results"][1]["error"]["code"] == "invalid"
    assert await api.stored() == 0


async def test_an_atomic_batch_that_is_right_is_stored(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch?atomic=true", [{"type": "a"}, {"type": "b"}])

    assert (answer.status, await api.stored()) == (200, 2)


async def test_a_key_conflict_in_a_batch_stays_with_its_item(api: Api) -> None:
    await api.submit(idempotency_key="k")

    answer = await api.post("/v1/tasks/batch", [{"type": "a"}, {"type": "other", "idempotency_key": "k"}])

    assert answer.json["results"][1]["error"]["code"] == "idempotency_conflict"
    assert answer.json["accepted"] == 1


@pytest.mark.parametrize(
    "data", [b'{"type":"a"}\n{"type":"b"', b'{"type":"a"}\n{"type":5,"payload":', b'{"type":"a"}\nhello\n']
)
async def test_a_truncated_ndjson_is_a_400_and_nothing_is_stored(api: Api, data: bytes) -> None:
    answer = await api.post("/v1/tasks/batch", data=data, headers={"Content-Type": "application/x-ndjson"})

    assert answer.status == 400
    assert "line 2" in answer.json["detail"]
    assert await api.stored() == 0


@pytest.mark.parametrize("data", [b'[{"type":"a"}', b'[{"type":5},{"type":"b"', b"[", b""])
async def test_a_truncated_array_is_a_400_and_nothing_is_stored(api: Api, data: bytes) -> None:
    answer = await api.post("/v1/tasks/batch", data=data)

    assert answer.status == 400
    assert await api.stored() == 0


async def test_an_empty_batch_has_no_results(api: Api) -> None:
    answer = await api.post("/v1/tasks/batch", [])

    assert (answer.status, answer.json) == (200, {"results": [], "accepted": 0, "rejected": 0})


@pytest.mark.parametrize("data", [b"{}", b"5", b'"a"'])
async def test_a_batch_is_an_array(api: Api, data: bytes) -> None:
    answer = await api.post("/v1/tasks/batch", data=data)

    assert answer.status == 422


async def test_5000_tasks_fit_into_a_batch_and_5001_do_not(api: Api) -> None:
    fits = await api.post("/v1/tasks/batch", [{"type": "a"}] * 5000)
    too_many = await api.post("/v1/tasks/batch", [{"type": "a"}] * 5001)
    hostile = await api.post("/v1/tasks/batch", data=b"[" + b"1," * 2_000_000 + b"1]")
    lines = await api.post(
        "/v1/tasks/batch", data=b'{"type":"a"}\n' * 5001, headers={"Content-Type": "application/jsonl"}
    )

    assert (fits.status, fits.json["accepted"]) == (200, 5000)
    assert (too_many.status, hostile.status, lines.status) == (413, 413, 413)
    assert await api.stored() == 5000


async def test_an_atomic_batch_whose_key_stands_for_another_task_stores_none(api: Api) -> None:
    await api.post("/v1/tasks", {"type": "a", "idempotency_key": "taken"})

    answer = await api.post("/v1/tasks/batch?atomic=true", [{"type": "new"}, {"type": "b", "idempotency_key": "taken"}])

    assert answer.status == 409
    assert [result["error"]["code"] for result in answer.json["results"]] == ["conflict", "idempotency_conflict"]
    assert (await api.get("/v1/tasks?type=new")).json["items"] == []
