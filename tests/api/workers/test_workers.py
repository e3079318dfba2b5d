"""The pull protocol over HTTP: lease, settle, beat, and clients that go away."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from api.client import Api, Reply, until
from duetime.admin.keys import hash_key, revoke_key
from duetime.api.server.http import TRANSPORT
from duetime.lifecycle.holders.holders import BEGIN_WITHIN_SECONDS
from duetime.lifecycle.tasks.settle import MAX_ROWS_PER_COMMIT
from duetime.model.task import Kind, LeasedTask
from duetime.scheduler.feed import Ask

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _claims(api: Api) -> int:
    rows = await api.serving.database.fetch(
        "SELECT count(*) AS claims FROM claim JOIN lane ON lane.id = claim.lane WHERE lane.tenant = $1", api.tenant
    )
    claims: int = rows[0]["claims"]
    return claims


async def _open_poll(api: Api, **fields: Any) -> asyncio.StreamWriter:
    """A poll on a connection of its own, which the test can cut."""
    body = json.dumps({"worker": "cut", "max": 10, "wait": 30, **fields}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(
        b"POST /v1/workers/lease HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (api.key.encode(), len(body), body)
    )
    await writer.drain()
    return writer


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def _polls(api: Api) -> int:
    return len(api.serving.app._workers._polls)


def without_holder(beat: Reply) -> dict[str, Any]:
    """The answer to a beat, but what the server takes the worker for."""
    return {name: value for name, value in beat.json.items() if name != "holder"}


async def test_a_lease_carries_all_that_a_worker_needs(api: Api) -> None:
    task = await api.submit(payload={"n": 1}, labels={"a": "b"}, timeout=7, priority="high", queue="mail")

    answer = await api.post("/v1/workers/lease", {"worker": "w", "queues": ["mail"], "max": 5, "wait": "5s"})

    (leased,) = answer.json["tasks"]
    assert answer.json["beat_every"] == 3
    assert leased.pop("run_at")
    assert leased == {
        "id": task["id"],
        "type": "test.task",
        "queue": "mail",
        "payload": {"n": 1},
        "attempt": 1,
        "timeout": 7,
        "labels": {"a": "b"},
        "trace": None,
        "priority": "high",
        "delivery": "at_least_once",
        "recovered": False,
        "crashes": 0,
    }


async def test_a_task_of_defaults_has_the_default_timeout_and_no_labels(api: Api) -> None:
    await api.submit()

    (leased,) = await api.lease()

    assert (leased["timeout"], leased["labels"], leased["payload"]) == (300, {}, None)


async def test_the_trace_of_a_request_reaches_the_worker(api: Api) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await api.post("/v1/tasks", {"type": "a"}, headers={"traceparent": trace})
    await api.post("/v1/tasks", {"type": "a"}, headers={"traceparent": "nonsense"})

    assert sorted(str(each["trace"]) for each in await api.lease()) == [trace, "None"]


async def test_a_poll_waits_for_a_task_and_ends_empty_without_one(api: Api) -> None:
    assert await api.lease(wait=0.05) == []
    poll = asyncio.create_task(api.lease())
    await until(lambda: _true(_polls(api) == 1))

    task = await api.submit()

    assert [each["id"] for each in await poll] == [task["id"]]


async def test_a_poll_that_does_not_wait_gets_what_is_due(api: Api) -> None:
    task = await api.submit()

    assert [each["id"] for each in await api.lease(wait=0)] == [task["id"]]


async def test_only_tasks_of_the_asked_queues_and_tags_are_leased(api: Api) -> None:
    mail, gpu = await api.submit(queue="mail"), await api.submit(queue="render", requires=["gpu"])

    assert [each["id"] for each in await api.lease(queues=["mail", "other"])] == [mail["id"]]
    assert await api.lease(wait=0.05) == []
    assert [each["id"] for each in await api.lease(tags=["gpu", "eu"])] == [gpu["id"]]


async def test_only_tasks_of_the_asked_types_are_leased(api: Api) -> None:
    mail, sms = await api.submit(type="mail"), await api.submit(type="sms")

    assert [each["id"] for each in await api.lease(types=["mail", "other"])] == [mail["id"]]
    assert await api.lease(types=["mail"], wait=0.05) == []
    assert (await api.get(f"/v1/tasks/{sms['id']}")).json["state"] == "ready"
    assert [(each["id"], each["attempt"]) for each in await api.lease(types=["sms"])] == [(sms["id"], 1)]


@pytest.mark.parametrize(
    ("types", "path"),
    [
        ([], "types"),
        (["no type!"], "types[0]"),
        (["a"] * 1_001, "types"),
        ("mail", "types"),
        ([f"{number:0100}" for number in range(700)], "types"),
    ],
)
async def test_types_that_cannot_be_are_refused(api: Api, types: object, path: str) -> None:
    refused = await api.post("/v1/workers/lease", {"worker": "w", "types": types})

    assert refused.status == 422
    assert [error["path"] for error in refused.json["errors"]] == [path]


async def test_a_worker_gets_no_other_tenants_tasks(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    await other.submit()

    assert await api.lease(wait=0.05) == []


async def test_a_client_that_goes_while_it_waits_takes_its_question_back(api: Api) -> None:
    writer = await _open_poll(api)
    await until(lambda: _true(_polls(api) == 1))

    await _close(writer)

    await until(lambda: _true(_polls(api) == 0))
    task = await api.submit()
    assert [each["id"] for each in await api.lease()] == [task["id"]]


async def test_no_task_is_lost_when_a_client_goes_as_its_answer_comes(api: Api) -> None:
    for number in range(20):
        writer = await _open_poll(api, queues=[f"q{number}"])
        await until(lambda: _true(_polls(api) == 1))
        submitting = asyncio.create_task(api.submit(queue=f"q{number}"))
        for _ in range(number):
            await asyncio.sleep(0)
        await _close(writer)
        await submitting
        await until(lambda: _true(_polls(api) == 0))
    leased: list[Any] = []
    async with asyncio.timeout(20):
        while len(leased) < 20:
            # An answer that left before the connection was seen to close: its attempt is not named by any beat.
            await api.post("/v1/workers/beat", {"worker": "cut"})
            leased += await api.lease(wait=1)

    assert len({each["id"] for each in leased}) == 20


class Closing(asyncio.Transport):
    """A connection whose other end has gone, before the protocol has heard of it."""

    def is_closing(self) -> bool:
        return True


def _ask_directly(api: Api, send: Any, **more: Any) -> Any:
    """A poll that goes around the server, to be awaited."""
    body = json.dumps({"worker": "w", "max": 10, "wait": 5}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/workers/lease",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer " + api.key.encode())],
    }
    return api.serving.app({**scope, **more}, receive, send)


async def test_what_could_not_be_sent_is_given_back_at_once(api: Api) -> None:
    task = await api.submit()

    async def send(message: Any) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await _ask_directly(api, send)

    assert await _claims(api) == 0
    (again,) = await api.lease()
    assert (again["id"], again["attempt"]) == (task["id"], 2)


async def test_what_comes_for_a_client_that_has_just_gone_is_given_back_at_once(api: Api) -> None:
    task = await api.submit()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await _ask_directly(api, send, **{TRANSPORT: Closing()})

    assert sent == []
    assert await _claims(api) == 0
    (again,) = await api.lease()
    assert (again["id"], again["attempt"]) == (task["id"], 2)


async def test_polls_end_when_the_server_stops(api: Api) -> None:
    poll = asyncio.create_task(api.lease(wait=60))
    await until(lambda: _true(_polls(api) == 1))

    api.serving.app.end_polls()

    assert await poll == []


async def test_a_settlement_ends_the_task_with_its_result(api: Api) -> None:
    task = await api.submit()
    (leased,) = await api.lease()

    answer = await api.settle(leased, result={"sent": True}, started_at="2026-01-01T00:00:00Z")

    assert answer == {"settled": 1, "lost": [], "cancelled": []}
    stored = (await api.get(f"/v1/tasks/{task['id']}")).json
    assert (stored["state"], stored["result"]) == ("succeeded", {"sent": True})
    assert stored["attempts"][0]["worker"] == "w"
    # The same report again gets the same answer.
    assert await api.settle(leased, result={"sent": True}) == answer


@pytest.mark.parametrize("as_microseconds", [False, True])
async def test_times_of_a_settlement_are_kept_however_they_are_given(api: Api, as_microseconds: bool) -> None:
    task = await api.submit()
    (leased,) = await api.lease()
    # Between the claim and the report: what lies outside is cut off.
    started = datetime.now(UTC)
    given: Any = round(started.timestamp() * 1e6) if as_microseconds else started.isoformat()

    await api.settle(leased, started_at=given, completed_at=given)

    attempt = (await api.get(f"/v1/tasks/{task['id']}")).json["attempts"][0]
    assert datetime.fromisoformat(attempt["started_at"]) == started
    assert datetime.fromisoformat(attempt["completed_at"]) == started


async def test_many_reports_at_once_are_stored_in_parts_and_answered_together(api: Api) -> None:
    count = MAX_ROWS_PER_COMMIT + 20
    answer = await api.post("/v1/tasks/batch", [{"type": "test.task"}] * count)
    assert answer.json["accepted"] == count
    leased: list[Any] = []
    while len(leased) < count:
        leased += await api.lease(max=1_000)
    reports = [{"id": each["id"], "attempt": each["attempt"], "outcome": "succeeded"} for each in leased]
    strangers = [{**reports[0], "attempt": 7}, {**reports[-1], "attempt": 7}]

    told = await api.post("/v1/workers/settle", {"worker": "w", "settlements": [strangers[0], *reports, strangers[1]]})

    lost = {
        "lost": [each["id"] for each in strangers],
        "lost_attempts": [{"id": each["id"], "attempt": 7} for each in strangers],
    }
    assert told.json == {"settled": count, "cancelled": [], **lost}
    assert await _claims(api) == 0


async def test_a_failure_of_an_unknown_kind_is_tried_again(api: Api) -> None:
    task = await api.submit()
    (leased,) = await api.lease()

    await api.settle(leased, "failed", error={"message": "what was that?", "kind": "unknown"}, retry_after="1h")

    assert await api.state(task) == "retrying"
    error = (await api.get(f"/v1/tasks/{task['id']}")).json["attempts"][0]["error"]
    assert (error["message"], error["kind"]) == ("what was that?", "unknown")


async def test_failures_are_tried_again_unless_they_are_permanent(api: Api) -> None:
    transient, permanent = await api.submit(queue="a"), await api.submit(queue="b")
    (first,), (second,) = await api.lease(queues=["a"]), await api.lease(queues=["b"])

    await api.settle(first, "failed", error={"message": "busy", "detail": {"code": 7}}, retry_after="1h")
    await api.settle(second, "failed", error={"message": "no", "kind": "permanent"})

    assert (await api.state(transient), await api.state(permanent)) == ("retrying", "dead")
    error = (await api.get(f"/v1/tasks/{transient['id']}")).json["attempts"][0]["error"]
    assert error == {"message": "busy", "kind": "transient", "detail": {"code": 7}}


async def test_a_snoozed_task_waits_and_a_released_one_is_due_at_once(api: Api) -> None:
    snoozed, released = await api.submit(queue="a"), await api.submit(queue="b")
    (first,), (second,) = await api.lease(queues=["a"]), await api.lease(queues=["b"])

    await api.settle(first, "snoozed", retry_after=3600)
    await api.settle(second, "released")

    assert await api.state(snoozed) == "scheduled"
    (again,) = await api.lease()
    assert (again["id"], again["attempt"]) == (released["id"], 2)


async def test_a_worker_that_settles_what_it_does_not_hold_is_told_so(api: Api) -> None:
    task = await api.submit()
    (leased,) = await api.lease()
    other = await api.serving.tenant(f"{api.tenant_name}-thief")

    assert (await api.settle(leased, worker="somebody-else"))["lost"] == [task["id"]]
    assert (await other.settle(leased))["lost"] == [task["id"]]
    assert (await api.settle({**leased, "attempt": 2}))["lost"] == [task["id"]]
    nobody = {"id": "ffffffff-ffff-8fff-bfff-ffffffffffff", "attempt": 1}
    assert (await api.settle(nobody))["lost"] == [nobody["id"]]
    assert await api.state(task) == "running"


async def test_a_cancelled_task_is_named_by_settle_and_beat(api: Api) -> None:
    task = await api.submit()
    (leased,) = await api.lease()
    await api.post(f"/v1/tasks/{task['id']}/cancel")

    beat = await api.post("/v1/workers/beat", {"worker": "w", "attempts": [{"id": task["id"], "attempt": 1}]})
    settled = await api.settle(leased)

    which = {"cancelled": [task["id"]], "cancelled_attempts": [{"id": task["id"], "attempt": 1}]}
    assert without_holder(beat) == {"lost": [], **which}
    assert settled == {"settled": 0, "lost": [], **which}


async def test_of_several_attempts_of_a_task_those_that_are_lost_are_named(api: Api) -> None:
    task = await api.submit()
    (first,) = await api.lease()
    await api.settle(first, "released")
    (second,) = await api.lease()
    held = [{"id": task["id"], "attempt": number} for number in (1, 2)]

    beat = await api.post("/v1/workers/beat", {"worker": "w", "attempts": [*held, {"id": task["id"], "attempt": 3}]})
    await api.settle(second)
    settled = await api.settle(first)

    lost = [{"id": task["id"], "attempt": number} for number in (1, 3)]
    assert without_holder(beat) == {"lost": [task["id"]] * 2, "cancelled": [], "lost_attempts": lost}
    assert settled == {"settled": 0, "lost": [task["id"]], "cancelled": [], "lost_attempts": lost[:1]}


async def test_leases_and_beats_say_what_the_worker_is_taken_for(api: Api) -> None:
    """It is another one after it has counted as dead."""
    said = []
    for leaving in (False, True, False):
        beat = await api.post("/v1/workers/beat", {"worker": "w", "leaving": leaving})
        lease = await api.post("/v1/workers/lease", {"worker": "w", "max": 1, "wait": 0})
        said.append((beat.json.get("holder"), lease.json["holder"]))
    other = await api.post("/v1/workers/beat", {"worker": "other"})

    (before, asked), (none, anew), after = said
    assert before == asked
    assert none is None
    assert after == (anew, anew)
    assert len({before, anew, other.json["holder"]}) == 3


async def test_a_lease_says_by_when_its_tasks_must_begin(api: Api) -> None:
    """Counted from the request: the time that the poll waited comes on top."""
    empty = await api.post("/v1/workers/lease", {"worker": "w", "max": 1, "wait": 1})
    await api.submit()
    at_once = await api.post("/v1/workers/lease", {"worker": "w", "max": 1, "wait": 0})

    assert (empty.json["tasks"], len(at_once.json["tasks"])) == ([], 1)
    assert empty.json["begin_within"] >= 1 + BEGIN_WITHIN_SECONDS
    assert 0 < at_once.json["begin_within"] < empty.json["begin_within"]


async def test_a_lease_that_was_claimed_long_ago_must_begin_sooner(api: Api) -> None:
    task = await api.submit()
    workers = api.serving.app._workers
    (leased,) = await workers.feeder.lease(
        Ask(await workers.holders.register(api.tenant, "w"), api.tenant, Kind.PULL, None, frozenset(), 1), 5.0
    )
    assert str(leased.id) == task["id"]
    older = structs.replace(leased, picked_at=leased.picked_at - timedelta(seconds=1))
    ancient = structs.replace(leased, picked_at=leased.picked_at - timedelta(seconds=60))

    now = time.monotonic()
    assert workers._begin_within([older], now) < workers._begin_within([leased], now) <= BEGIN_WITHIN_SECONDS
    assert workers._begin_within([leased, ancient], now) == 0.0


async def test_a_beat_keeps_what_it_names(api: Api) -> None:
    task = await api.submit()
    await api.lease()
    held = [{"id": task["id"], "attempt": 1, "started": False}]

    for _ in range(3):
        answer = await api.post("/v1/workers/beat", {"worker": "w", "attempts": held})
        assert without_holder(answer) == {"lost": [], "cancelled": []}

    assert await _claims(api) == 1


async def test_a_worker_that_signs_off_is_gone_at_once(api: Api) -> None:
    begun, waiting = await api.submit(), await api.submit()
    await api.lease()
    poll = asyncio.create_task(api.lease(wait=60, queues=["default", "elsewhere"]))
    await until(lambda: _true(_polls(api) == 1))
    held = [{"id": begun["id"], "attempt": 1}, {"id": waiting["id"], "attempt": 1, "started": False}]

    answer = await api.post("/v1/workers/beat", {"worker": "w", "attempts": held, "leaving": True})
    explained = await api.get(f"/v1/tasks/{begun['id']}/explain")

    assert answer.json == {"lost": [], "cancelled": []}
    assert await poll == []
    assert [reason["reason"] for reason in explained.json["waiting_for"]] == ["no_worker", "position"]
    again = await api.lease("other")
    assert {(task["id"], task["attempt"], task["recovered"]) for task in again} == {
        (begun["id"], 2, False),
        (waiting["id"], 2, False),
    }


async def test_a_beat_after_the_last_one_begins_anew(api: Api) -> None:
    await api.post("/v1/workers/beat", {"worker": "w"})
    for _ in range(2):
        answer = await api.post("/v1/workers/beat", {"worker": "w", "leaving": True})
        assert (answer.status, answer.json) == (200, {"lost": [], "cancelled": []})

    task = await api.submit()
    (leased,) = await api.lease()
    answer = await api.post("/v1/workers/beat", {"worker": "w", "attempts": [{"id": task["id"], "attempt": 1}]})

    assert without_holder(answer) == {"lost": [], "cancelled": []}
    assert (await api.settle(leased))["settled"] == 1


async def _max_silence(api: Api, worker: str, **fields: Any) -> Any:
    answer = await api.post("/v1/workers/lease", {"worker": worker, "max": 1, "wait": 0, **fields})
    assert answer.status == 200, answer.body
    [row] = await api.serving.database.fetch(
        "SELECT max_silence FROM holder WHERE tenant = $1 AND name = $2", api.tenant, worker
    )
    assert row["max_silence"] in (None, answer.json["max_silence"])
    return answer.json["max_silence"], row["max_silence"] is not None


async def test_how_long_a_worker_may_be_silent_is_said_by_itself_or_by_its_queues(api: Api) -> None:
    assert await _max_silence(api, "w") == (9.0, False)

    for queue, silence in (("slow", "2m"), ("slower", 300), ("quick", 6)):
        put = await api.call("PUT", f"/v1/queues/{queue}", {"max_silence": silence})
        assert put.status == 201, put.body
    assert (await api.get("/v1/queues/slow")).json["max_silence"] == 120.0

    assert await _max_silence(api, "w", queues=["other"]) == (9.0, False)
    assert await _max_silence(api, "w", queues=["slow", "other"]) == (120.0, True)
    assert await _max_silence(api, "w", queues=["slow", "slower"]) == (300.0, True)
    assert await _max_silence(api, "w") == (300.0, True)
    assert await _max_silence(api, "w", queues=["quick"]) == (6.0, True)
    assert await _max_silence(api, "w", queues=["slow"], max_silence="30s") == (30.0, True)
    assert await _max_silence(api, "w", queues=["other"]) == (9.0, False)

    again = await api.call("PUT", "/v1/queues/slow", {"state": "paused"})
    assert again.json["max_silence"] == 120.0
    again = await api.call("PUT", "/v1/queues/slow", {"max_silence": None})
    assert (again.json["max_silence"], again.json["state"]) == (None, "paused")
    assert await _max_silence(api, "w", queues=["slow"]) == (9.0, False)
    noted = (await api.get("/v1/audit")).json["items"]
    assert noted[0]["before"] == {"state": "paused", "limits": {}, "max_silence": 120}
    assert noted[0]["after"] == {"state": "paused", "limits": {}}


async def test_a_wrong_silence_is_refused(api: Api) -> None:
    for silence in (5, 601, "11m", "long"):
        put = await api.call("PUT", "/v1/queues/q", {"max_silence": silence})
        assert (put.status, put.paths) == (422, ["max_silence"])


BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("lease", "worker", {"worker": ""}),
    ("lease", "worker", {"worker": "a\n"}),
    ("lease", "worker", {"worker": "a" * 201}),
    ("lease", "worker", {}),
    ("lease", "max", {"worker": "w", "max": 0}),
    ("lease", "max", {"worker": "w", "max": 1001}),
    ("lease", "wait", {"worker": "w", "wait": 61}),
    ("lease", "wait", {"worker": "w", "wait": -1}),
    ("lease", "queues[1]", {"worker": "w", "queues": ["a", ""]}),
    ("lease", "tags[0]", {"worker": "w", "tags": [" "]}),
    ("lease", "max_silence", {"worker": "w", "max_silence": 5.9}),
    ("lease", "max_silence", {"worker": "w", "max_silence": "11m"}),
    ("lease", "rooms", {"worker": "w", "rooms": 1}),
    ("settle", "settlements", {"worker": "w"}),
    ("settle", "settlements[0].id", {"worker": "w", "settlements": [{"id": "x", "attempt": 1, "outcome": "failed"}]}),
    ("beat", "leaving", {"worker": "w", "leaving": "yes"}),
    ("beat", "attempts[0].attempt", {"worker": "w", "attempts": [{"id": "0" * 32, "attempt": 0}]}),
    ("beat", "attempts[0].attempt", {"worker": "w", "attempts": [{"id": "0" * 32, "attempt": 2**31}]}),
]
BAD_SETTLEMENTS: list[tuple[int, str, dict[str, Any]]] = [
    (422, "outcome", {"outcome": "lapsed"}),
    (422, "error.kind", {"outcome": "failed", "error": {"message": "m", "kind": "fatal"}}),
    (422, "error.message", {"outcome": "failed", "error": {}}),
    (422, "retry_after", {"outcome": "failed", "retry_after": -1}),
    (422, "started_at", {"outcome": "succeeded", "started_at": "0001-01-01T00:00:00+14:00"}),
    (422, "started_at", {"outcome": "succeeded", "started_at": -1}),
    (422, "completed_at", {"outcome": "succeeded", "completed_at": 1 << 62}),
    (422, "completed_at", {"outcome": "succeeded", "completed_at": "9999-12-31T23:59:59-14:00"}),
    (413, "result", {"outcome": "succeeded", "result": "x" * 70_000}),
    (413, "error.detail", {"outcome": "failed", "error": {"message": "m", "detail": "x" * 70_000}}),
]


async def test_wrong_requests_are_a_422_with_the_path(api: Api) -> None:
    for call, path, body in BAD:
        answer = await api.post(f"/v1/workers/{call}", body)

        assert (answer.status, answer.paths) == (422, [path]), (body, answer.body)
    fine = {"id": "0199f6b8-2f40-8a3c-9d11-3b5f00000100", "attempt": 1}
    for status, path, fields in BAD_SETTLEMENTS:
        answer = await api.post("/v1/workers/settle", {"worker": "w", "settlements": [{**fine, **fields}]})

        assert (answer.status, answer.paths) == (status, [f"settlements[0].{path}"]), (fields, answer.body)


async def _true(value: bool) -> bool:
    return value


async def test_a_running_task_shows_since_when_it_runs(api: Api) -> None:
    task = await api.submit(timeout="40s")
    (leased,) = await api.lease()

    async def attempt() -> Any:
        (shown,) = (await api.get(f"/v1/tasks/{task['id']}")).json["attempts"]
        return shown

    async def beat(*, started: bool) -> None:
        held = {"id": leased["id"], "attempt": leased["attempt"], "started": started}
        assert (await api.post("/v1/workers/beat", {"worker": "w", "attempts": [held]})).status == 200

    await beat(started=False)
    assert ((await attempt())["started_at"], (await attempt())["outcome"]) == (None, None)

    await beat(started=True)
    shown = await attempt()
    assert shown["picked_at"] < shown["started_at"]
    (reason,) = (await api.get(f"/v1/tasks/{task['id']}/explain")).json["waiting_for"]
    started_at = datetime.fromisoformat(shown["started_at"])
    assert abs(datetime.fromisoformat(reason["until"]) - started_at - timedelta(seconds=40)) < timedelta(milliseconds=1)


async def _waiting_poll(api: Api, key: str, **fields: Any) -> asyncio.Task[Reply]:
    """A poll of that key that waits by now."""
    before = _polls(api)
    body = {"worker": f"w-{key[:8]}", "max": 10, "wait": 30, **fields}
    poll = asyncio.create_task(api.post("/v1/workers/lease", body, key=key))
    await until(lambda: _true(_polls(api) == before + 1))
    return poll


async def test_a_poll_ends_when_its_key_is_revoked(api: Api) -> None:
    made = (await api.post("/v1/keys", {"role": "worker"})).json
    poll = await _waiting_poll(api, made["key"])

    assert (await api.call("DELETE", f"/v1/keys/{made['id']}")).status == 204

    async with asyncio.timeout(5):
        refused = await poll
    assert (refused.status, refused.json["code"]) == (401, "unauthorized")
    assert "revoked" in refused.json["detail"]
    await api.submit()
    assert await _claims(api) == 0
    assert _polls(api) == 0


async def test_a_poll_ends_at_the_next_look_when_its_key_was_revoked_elsewhere(api: Api) -> None:
    revoked, other = [(await api.post("/v1/keys", {"role": "worker"})).json for _ in range(2)]
    poll, stays = await _waiting_poll(api, revoked["key"]), await _waiting_poll(api, other["key"])
    database, keys = api.serving.database, api.serving.app._keys
    # So long after its call no other would have it looked up again.
    keys._callers.clear()

    await revoke_key(database, api.tenant, revoked["id"])
    await keys.refresh()

    async with asyncio.timeout(5):
        assert (await poll).status == 401
    assert not stays.done()
    task = await api.submit()
    assert [each["id"] for each in (await stays).json["tasks"]] == [task["id"]]


async def test_a_poll_is_asked_again_when_its_key_allows_something_else(api: Api) -> None:
    made = (await api.post("/v1/keys", {"role": "worker"})).json
    poll = await _waiting_poll(api, made["key"], queues=["payments"])

    await api.serving.database.fetch("UPDATE api_key SET queues = '{mail}' WHERE id = $1", made["id"])
    await api.serving.app._keys.refresh()

    async with asyncio.timeout(5):
        answer = await poll
    assert (answer.status, answer.json["tasks"]) == (200, [])
    await api.submit(queue="payments")
    asked = {"worker": "w", "queues": ["payments"], "wait": 0}
    assert (await api.post("/v1/workers/lease", asked, key=made["key"])).status == 403


async def test_a_task_that_was_found_for_a_key_that_has_ended_is_given_back(api: Api) -> None:
    made = (await api.post("/v1/keys", {"role": "worker"})).json
    keys = api.serving.app._keys
    poll = await _waiting_poll(api, made["key"])
    held = api.serving.feeder.polls
    answer = held.answer

    def revoke_as_it_comes(number: int, tasks: list[LeasedTask]) -> None:
        answer(number, tasks)
        keys.forget(hash_key(made["key"]))

    held.answer = revoke_as_it_comes
    try:
        task = await api.submit()
        async with asyncio.timeout(5):
            assert (await poll).status == 401
    finally:
        held.answer = answer

    assert [each["id"] for each in await api.lease()] == [task["id"]]


async def test_a_key_that_ends_while_its_request_arrives_does_not_lease(api: Api) -> None:
    made = (await api.post("/v1/keys", {"role": "worker"})).json
    await api.get("/v1/tasks", key=made["key"])
    task = await api.submit()
    body = json.dumps({"worker": "slow", "max": 10, "wait": 5}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.serving.port)
    writer.write(
        b"POST /v1/workers/lease HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (made["key"].encode(), len(body))
    )
    await writer.drain()
    # The head of the request has been read once another request on another connection was answered.
    assert await api.state(task) == "ready"

    await api.call("DELETE", f"/v1/keys/{made['id']}")
    writer.write(body)

    async with asyncio.timeout(5):
        assert (await reader.readline()).split()[1] == b"401"
    await _close(writer)
    assert await api.state(task) == "ready"


# Whose worker it is


async def _key(api: Api, **fields: Any) -> str:
    key: str = (await api.post("/v1/keys", {"role": "worker", **fields})).json["key"]
    return key


async def _ask(api: Api, key: str, call: str, **fields: Any) -> Reply:
    return await api.post(f"/v1/workers/{call}", {"worker": "payer", **fields}, key=key)


@pytest.mark.parametrize("attacker", [{"queues": ["mail"]}, {}, {"role": "operator"}, {"role": "admin"}])
async def test_a_key_does_nothing_under_the_name_of_another_keys_worker(api: Api, attacker: Any) -> None:
    payments, others = await _key(api, queues=["payments"]), await _key(api, **attacker)
    task = await api.submit(queue="payments")
    await _ask(api, payments, "lease", queues=["payments"], max=1, wait=5)
    named = {"id": task["id"], "attempt": 1}

    answers = [
        await _ask(api, others, "settle", settlements=[{**named, "outcome": "succeeded"}]),
        await _ask(api, others, "beat", attempts=[]),
        await _ask(api, others, "beat", attempts=[]),
        await _ask(api, others, "beat", attempts=[], leaving=True),
        await _ask(api, others, "lease", queues=["mail"], wait=0),
    ]

    assert {(answer.status, answer.json["code"]) for answer in answers} == {(409, "worker_name_taken")}
    assert "choose another name" in answers[0].json["detail"]
    assert await api.state(task) == "running"
    assert (await _ask(api, payments, "beat", attempts=[named])).json["lost"] == []
    settled = await _ask(api, payments, "settle", settlements=[{**named, "outcome": "succeeded"}])
    assert settled.json["settled"] == 1


async def test_a_worker_goes_on_with_the_key_that_replaced_its_own(api: Api) -> None:
    first = await _key(api, queues=["payments"])
    task = await api.submit(queue="payments")
    await _ask(api, first, "lease", queues=["payments"], max=1, wait=5)
    key = first
    for _ in range(2):
        number = (await api.get("/v1/keys")).json["items"][-1]["id"]
        key = (await api.post(f"/v1/keys/{number}/rotate", {"overlap": 0})).json["key"]
        beaten = await _ask(api, key, "beat", attempts=[{"id": task["id"], "attempt": 1}])
        assert (beaten.status, beaten.json["lost"]) == (200, [])

    settlement = {"id": task["id"], "attempt": 1, "outcome": "succeeded"}
    assert (await _ask(api, key, "settle", settlements=[settlement])).json["settled"] == 1


async def test_a_name_is_free_for_any_key_once_its_worker_has_signed_off(api: Api) -> None:
    first, second = await _key(api), await _key(api)
    await _ask(api, first, "lease", wait=0)
    assert (await _ask(api, second, "lease", wait=0)).status == 409

    await _ask(api, first, "beat", leaving=True)

    assert (await _ask(api, second, "lease", wait=0)).status == 200
    assert (await _ask(api, first, "beat")).status == 409


@pytest.mark.parametrize("narrower", [{"queues": ["mail"]}, {"types": ["email.*"]}])
async def test_a_key_settles_and_names_only_what_it_reaches(api: Api, narrower: Any) -> None:
    made = (await api.post("/v1/keys", {"role": "worker"})).json
    reached = await api.submit(type="email.send", queue="mail")
    beyond = await api.submit(type="pay", queue="payments")
    await _ask(api, made["key"], "lease", max=2, wait=5)
    for column, patterns in narrower.items():
        await api.serving.database.fetch(f"UPDATE api_key SET {column} = $1 WHERE id = $2", patterns, made["id"])
    await api.serving.app._keys.refresh()

    named = [{"id": each["id"], "attempt": 1} for each in (reached, beyond)]
    beaten = await _ask(api, made["key"], "beat", attempts=named)
    settlements = [{**each, "outcome": "succeeded"} for each in named]
    settled = await _ask(api, made["key"], "settle", settlements=settlements)

    assert (beaten.status, beaten.json["lost"]) == (200, [beyond["id"]])
    assert (settled.json["settled"], settled.json["lost"]) == (1, [beyond["id"]])
    assert await api.state(reached) == "succeeded"
    assert await api.state(beyond) == "running"


async def test_a_key_of_types_leases_only_these(api: Api) -> None:
    key = await _key(api, types=["email.*"])
    await api.submit(type="pay")
    task = await api.submit(type="email.send")

    everything = await _ask(api, key, "lease", wait=0)
    beyond = await _ask(api, key, "lease", types=["email.send", "pay"], wait=0)
    right = await _ask(api, key, "lease", types=["email.send"], wait=5)

    assert (everything.status, beyond.status) == (403, 403)
    assert "email.*" in everything.json["detail"]
    assert "pay" in beyond.json["detail"]
    assert [each["id"] for each in right.json["tasks"]] == [task["id"]]
