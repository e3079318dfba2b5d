"""Look at tasks and steer them: one by one and by filter, and dead letters."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import Api, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _act(api: Api, verb: str, task: Any, body: Any = None) -> Any:
    answer = await api.post(f"/v1/tasks/{task['id']}/{verb}", body)
    assert answer.status == 200, answer.body
    return answer.json


async def test_pause_resume_reschedule_run_now_and_cancel(api: Api) -> None:
    task = await api.submit(delay="1h")
    later = (datetime.now(UTC) + timedelta(days=3)).isoformat()

    assert (await _act(api, "pause", task))["state"] == "paused"
    assert (await _act(api, "resume", task))["state"] == "scheduled"
    moved = await _act(api, "reschedule", task, {"run_at": later})
    assert abs(datetime.fromisoformat(moved["next_run_at"]) - datetime.fromisoformat(later)) < timedelta(seconds=1)
    assert (await _act(api, "reschedule", task, {"delay": "1d"}))["state"] == "scheduled"
    assert (await _act(api, "run-now", task))["state"] == "ready"
    assert (await _act(api, "cancel", task))["state"] == "cancelled"


async def test_a_rescheduled_task_has_its_new_time_wherever_it_is_shown(api: Api) -> None:
    first_at, now = "2031-01-31T09:00:00Z", datetime.now(UTC)
    task = await api.submit(run_at=first_at, sla="1h", labels={"part": "bulk"})
    other = await api.submit(run_at=first_at)
    assert (task["run_at"], task["first_run_at"]) == (first_at, None)

    answer = await api.post(
        "/v1/tasks/bulk/reschedule", {"filter": {"label": ["part=bulk"]}, "run_at": "2030-01-01T00:00:00Z"}
    )
    assert answer.json["changed"] == 1
    [shown] = [each for each in (await api.get("/v1/tasks")).json["items"] if each["id"] == task["id"]]
    assert (shown["run_at"], shown["first_run_at"]) == ("2030-01-01T00:00:00Z", first_at)

    moved = await _act(api, "reschedule", task, {"delay": 0})
    assert now - timedelta(seconds=5) < datetime.fromisoformat(moved["run_at"]) < now + timedelta(minutes=1)
    assert moved["first_run_at"] == first_at
    (leased,) = await api.lease()
    assert leased["run_at"] == moved["run_at"]
    await api.settle(leased, "failed", error={"message": "no", "kind": "permanent"})
    [letter] = (await api.get("/v1/dead")).json["items"]
    assert letter["run_at"] == moved["run_at"]
    kept = (await api.get(f"/v1/tasks/{other['id']}")).json
    assert (kept["run_at"], kept["first_run_at"]) == (first_at, None)


async def test_a_verb_whose_effect_is_there_already_is_answered_alike(api: Api) -> None:
    task = await api.submit(delay="1h")

    for verb, state in (("pause", "paused"), ("resume", "scheduled"), ("run-now", "ready"), ("cancel", "cancelled")):
        assert (await _act(api, verb, task))["state"] == state
        assert (await _act(api, verb, task))["state"] == state


async def test_a_verb_that_the_state_forbids_is_a_409_that_names_it(api: Api) -> None:
    task = await api.submit()
    (leased,) = await api.lease()
    running = await api.post(f"/v1/tasks/{task['id']}/pause")
    await api.settle(leased)
    done = [
        await api.post(f"/v1/tasks/{task['id']}/{verb}") for verb in ("pause", "resume", "cancel", "retry", "run-now")
    ]
    moved = await api.post(f"/v1/tasks/{task['id']}/reschedule", {"delay": 5})

    assert (running.status, running.json["detail"]) == (409, "a task that is running cannot be paused")
    assert [answer.status for answer in (*done, moved)] == [409] * 6
    assert {answer.json["code"] for answer in done} == {"wrong_state"}


async def test_another_tenants_task_is_a_404(api: Api) -> None:
    task = await api.submit(delay=60)
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")

    for method, rest in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/run-now")):
        assert (await other.call(method, f"/v1/tasks/{task['id']}{rest}")).status == 404
    assert (await other.post(f"/v1/tasks/{task['id']}/reschedule", {"delay": 5})).status == 404
    assert await api.state(task) == "scheduled"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "run_at"),
        ({"run_at": "2030-01-01T00:00:00Z", "delay": 5}, "run_at"),
        ({"delay": -5}, "delay"),
        ({"run_at": "2099-01-01T00:00:00Z"}, "run_at"),
        ({"at": 5}, "at"),
    ],
)
async def test_a_new_time_must_be_one_and_within_reach(api: Api, body: Any, path: str) -> None:
    task = await api.submit(delay=60)

    answer = await api.post(f"/v1/tasks/{task['id']}/reschedule", body)

    assert (answer.status, answer.paths) == (422, [path])


async def test_retry_gives_a_dead_letter_another_chance_and_a_waiting_one_its_turn(api: Api) -> None:
    dead = await api.bury()
    waiting = await api.submit()
    (leased,) = await api.lease()
    await api.settle(leased, "failed", error={"message": "busy"}, retry_after="1h")

    assert (await _act(api, "retry", dead))["state"] == "ready"
    assert (await _act(api, "retry", waiting))["state"] == "ready"


async def test_explain_says_why(api: Api) -> None:
    task = await api.submit(delay="1h")

    answer = await api.get(f"/v1/tasks/{task['id']}/explain")

    assert answer.json["state"] == "scheduled"
    assert answer.json["waiting_for"][0]["reason"] == "time"


# Lists


async def test_a_list_has_filters_and_pages(api: Api) -> None:
    for number in range(5):
        await api.submit(type="a", labels={"n": str(number)}, delay=60 + number)
    await api.submit(type="b", queue="other", priority="low")

    first = (await api.get("/v1/tasks?type=a&state=scheduled&limit=3")).json
    second = (await api.get(f"/v1/tasks?type=a&state=scheduled&limit=3&cursor={first['next']}")).json

    assert [each["labels"]["n"] for each in first["items"] + second["items"]] == list("01234")
    assert second["next"] is None
    for query, count in (
        ("queue=other", 1),
        ("priority=low", 1),
        ("state=ready", 1),
        ("label=n%3D3", 1),
        ("label=n%3D3&label=n%3D3", 1),
        ("from=2090-01-01T00:00:00Z", 0),
        ("to=2090-01-01T00:00:00%2B02:00", 6),
        ("to=2090-01-01T00:00:00+02:00", 6),
        ("state=dead", 0),
    ):
        assert len((await api.get(f"/v1/tasks?{query}")).json["items"]) == count, query


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=done", "state"),
        ("state=", "state"),
        ("state=dead&state=ready", "state"),
        ("priority=urgent", "priority"),
        ("type=%00", "type"),
        ("queue=-", "queue"),
        ("label=x", "label"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=ten", "limit"),
        ("limit=%D9%A1", "limit"),
        ("cursor=abc", "cursor"),
        ("cursor=%ED%95%9C", "cursor"),
        ("from=yesterday", "from"),
        ("from=2030-01-01", "from"),
        ("to=2030-01-01T00:00:00", "to"),
        ("from=2031-01-01T00:00:00Z&to=2030-01-01T00:00:00Z", "to"),
    ],
)
async def test_a_wrong_filter_is_a_422_with_its_name(api: Api, query: str, field: str) -> None:
    for path in ("/v1/tasks", "/v1/dead"):
        answer = await api.get(f"{path}?{query}")

        assert (answer.status, answer.paths) == (422, [field]), answer.body


async def test_tomorrows_cancelled_tasks_do_not_hide_what_happened(api: Api) -> None:
    first = await api.submit(type="first")
    tomorrow = [await api.submit(type="tomorrow", delay="1d") for _ in range(3)]
    planned = await api.submit(type="planned", delay="2d")
    await api.post("/v1/tasks/bulk/cancel", {"filter": {"type": "tomorrow"}})
    [leased] = await api.lease()
    await api.settle(leased)
    last = await api.submit(type="last")

    items = (await api.get("/v1/tasks")).json["items"]

    assert items[0]["id"] == last["id"]
    assert {each["id"] for each in items[1:4]} == {each["id"] for each in tomorrow}
    assert [each["id"] for each in items[4:]] == [first["id"], planned["id"]]


async def submit_haystack(api: Api) -> Any:
    """One of a type, the last in order among 5,000 others."""
    needle = await api.submit(type="needle", labels={"team": "core"}, delay=90)
    await api.post("/v1/tasks/batch", [{"type": "hay", "delay": 60}] * 5_000)
    return needle


async def test_filters_find_one_task_among_thousands(api: Api) -> None:
    needle = await submit_haystack(api)

    for query in ("type=needle", "label=team%3Dcore", "type=needle&state=scheduled"):
        answer = (await api.get(f"/v1/tasks?{query}")).json
        assert [each["id"] for each in answer["items"]] == [needle["id"]], query
        assert answer["next"] is None
    done = (await api.post("/v1/tasks/bulk/cancel", {"filter": {"type": "needle"}})).json

    assert done == {"matched": 1, "changed": 1, "next": None}
    assert await api.state(needle) == "cancelled"


async def test_a_search_that_takes_too_long_says_where_to_go_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    needle = await submit_haystack(api)
    monkeypatch.setattr(api.serving.app.patience, "empty_seconds", 0.0)
    path = "/v1/tasks?type=needle"
    answer = await api.get(path)
    steps = 0

    while answer.status == 503:
        assert answer.json["code"] == "search_incomplete"
        steps += 1
        answer = await api.get(f"{path}&cursor={answer.json['next']}")

    assert steps > 10
    assert [each["id"] for each in answer.json["items"]] == [needle["id"]]
    stopped = await api.post("/v1/tasks/bulk/cancel", {"filter": {"type": "none"}, "limit": 100})
    assert (stopped.status, stopped.json["code"]) == (503, "search_incomplete")


async def test_a_cursor_from_elsewhere_is_a_422(api: Api) -> None:
    for _ in range(3):
        await api.submit(type="a", delay=60)
    cursor = (await api.get("/v1/tasks?type=a&limit=1")).json["next"]
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")

    another_filter = await api.get(f"/v1/tasks?type=b&limit=1&cursor={cursor}")
    another_tenant = await other.get(f"/v1/tasks?type=a&limit=1&cursor={cursor}")
    in_a_body = await api.post("/v1/tasks/bulk/cancel", {"filter": {"type": "b"}, "cursor": cursor})

    assert [each.status for each in (another_filter, another_tenant, in_a_body)] == [422, 422, 422]
    assert another_filter.paths == another_tenant.paths == in_a_body.paths == ["cursor"]


# By filter


async def test_a_verb_by_filter_changes_what_matches_and_goes_on_by_cursor(api: Api) -> None:
    for number in range(5):
        await api.submit(type="a", labels={"team": "core"}, delay=60 + number)
    kept = await api.submit(type="b", delay=60)
    body: dict[str, Any] = {"filter": {"type": "a", "state": "scheduled", "label": ["team=core"]}, "limit": 2}

    changed, calls = 0, 0
    while True:
        answer = await api.post("/v1/tasks/bulk/pause", body)
        assert answer.status == 200, answer.body
        changed, calls = changed + answer.json["changed"], calls + 1
        if answer.json["next"] is None:
            break
        body["cursor"] = answer.json["next"]

    assert (changed, calls) == (5, 3)
    assert await api.state(kept) == "scheduled"
    again = await api.post("/v1/tasks/bulk/reschedule", {"filter": {"state": "paused"}, "delay": "2h"})
    assert (again.json["matched"], again.json["changed"]) == (5, 5)


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry", "run-now"])
async def test_every_verb_works_by_filter(api: Api, verb: str) -> None:
    await api.submit(delay=60)

    answer = await api.post(f"/v1/tasks/bulk/{verb}", {"filter": {}})

    assert (answer.status, answer.json["matched"]) == (200, 1)


@pytest.mark.parametrize(
    ("verb", "body", "path"),
    [
        ("cancel", {}, "filter"),
        ("cancel", {"filter": {"stat": "dead"}}, "filter.stat"),
        ("cancel", {"filter": {"state": "done"}}, "filter.state"),
        ("cancel", {"filter": {"type": "-"}}, "filter.type"),
        ("cancel", {"filter": {"from": "now"}}, "filter.from"),
        ("cancel", {"filter": {}, "limit": 10_001}, "limit"),
        ("cancel", {"filter": {}, "run_at": "2030-01-01T00:00:00Z"}, "run_at"),
        ("reschedule", {"filter": {}}, "run_at"),
    ],
)
async def test_a_wrong_bulk_request_is_a_422(api: Api, verb: str, body: Any, path: str) -> None:
    answer = await api.post(f"/v1/tasks/bulk/{verb}", body)

    assert (answer.status, answer.paths) == (422, [path]), answer.body


async def test_a_verb_that_does_not_exist_is_a_404(api: Api) -> None:
    assert (await api.post("/v1/tasks/bulk/explode", {"filter": {}})).status == 404


# Dead letters


async def test_dead_letters_are_listed_redriven_and_dropped(api: Api) -> None:
    first, second, third = [await api.bury(type=name) for name in ("a", "b", "c")]

    listed = (await api.get("/v1/dead")).json
    by_id = await api.post("/v1/dead/redrive", {"ids": [first["id"], first["id"]]})
    by_filter = await api.post("/v1/dead/drop", {"filter": {"type": "b"}})
    everything = await api.post("/v1/dead/redrive", {"all": True, "rate": 5})

    assert {each["id"] for each in listed["items"]} == {first["id"], second["id"], third["id"]}
    assert listed["items"][0]["error"]["message"] == "no such user"
    assert by_id.json["redriven"] == 1
    assert (by_filter.json["matched"], by_filter.json["dropped"]) == (1, 1)
    assert everything.json["redriven"] == 1
    assert [await api.state(each) for each in (first, second)] == ["ready", "cancelled"]


async def test_another_tenants_dead_letters_stay_dead(api: Api) -> None:
    task = await api.bury()
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")

    answer = await other.post("/v1/dead/redrive", {"ids": [task["id"]]})

    assert (answer.json["matched"], answer.json["redriven"]) == (0, 0)
    assert await api.state(task) == "dead"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": False},
        {"ids": [], "all": True},
        {"filter": {}, "all": True},
        {"ids": ["x"]},
        {"all": True, "rate": 0},
        {"all": True, "rate": -1},
        {"filter": {"state": "ready"}},
        {"ids": [], "cursor": "x"},
    ],
)
@pytest.mark.parametrize("verb", ["redrive", "drop"])
async def test_a_wrong_choice_of_dead_letters_is_a_422(api: Api, verb: str, body: Any) -> None:
    assert (await api.post(f"/v1/dead/{verb}", body)).status == 422


async def test_a_task_that_is_cancelled_before_it_ran_has_an_end_and_no_attempt(api: Api) -> None:
    task = await api.submit(delay="1h")

    cancelled = await _act(api, "cancel", task)

    assert cancelled["attempts"] == []
    assert cancelled["ended_at"] is not None
    assert cancelled["end_reason"] is None
    explained = (await api.get(f"/v1/tasks/{task['id']}/explain")).json
    assert explained["waiting_for"][0]["detail"].endswith(", before it ran")


async def test_a_task_that_is_cancelled_while_it_runs_shows_that_attempt(api: Api) -> None:
    task = await api.submit()
    leased: list[Any] = []

    async def is_leased() -> bool:
        leased.extend(await api.lease())
        return bool(leased)

    await until(is_leased)

    cancelled = await _act(api, "cancel", task)

    assert [attempt["outcome"] for attempt in cancelled["attempts"]] == ["cancelled"]
    assert cancelled["ended_at"] == cancelled["attempts"][0]["completed_at"]
