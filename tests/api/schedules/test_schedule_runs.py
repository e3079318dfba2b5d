"""Schedules over HTTP: backfills, and what became of each time.

The server fires for real.  Where nothing must happen, a second schedule of the
same times says when it would have happened.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import Api, until
from api.schedule_calls import DAY, HOURLY, TASK, act, in_seconds, make_schedule, read, read_runs, text_of
from duetime.clock import to_ms_rounded_up
from duetime.model.schedule import moment_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Backfill


async def test_a_backfill_makes_every_task_of_its_range_once(api: Api) -> None:
    await make_schedule(api, "hourly", spec=HOURLY, task={**TASK, "payload": "{{fire_time}}"})
    begun = await act(api, "/hourly/backfill", {**DAY, "rate": 20}, 202)
    seen = [begun]

    async def is_done() -> bool:
        await api.serving.firing.backfill()
        seen.append(await read(api, f"/hourly/backfills/{begun['id']}"))
        return bool(seen[-1]["state"] != "running")

    await until(is_done)

    start = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [text_of(start + timedelta(hours=hour)) for hour in range(24)]
    done = seen[-1]
    assert (begun["state"], begun["created_count"], begun["rate"], begun["ended_at"]) == ("running", 0, 20, None)
    assert {name: done[name] for name in ("from", "to", "state", "created_count")} == {
        **DAY,
        "state": "done",
        "created_count": 24,
    }
    assert done["ended_at"] is not None
    # How far it has come is the last time of which it made the task.
    partly = [each for each in seen if 0 < each["created_count"] < 24]
    assert partly, "the rate does not allow all at once"
    assert all(each["reached"] == hours[each["created_count"] - 1] for each in partly)
    runs = await read_runs(api, "hourly")
    assert sorted(run["fire_time"] for run in runs) == hours
    assert {(run["cause"], run["outcome"]) for run in runs} == {("backfill", "fired")}
    leased: list[Any] = []

    async def are_due() -> bool:
        leased.extend(await api.lease())
        return len(leased) >= 24

    await until(are_due)
    assert sorted(task["payload"] for task in leased) == hours
    assert await read(api, "/hourly/backfills") == {"items": [done], "next": None}


async def test_a_backfill_keeps_its_rate_and_ends_when_it_is_cancelled(api: Api) -> None:
    await make_schedule(api, "hourly", spec=HOURLY)
    begun = await act(api, "/hourly/backfill", {**DAY, "rate": 0.01}, 202)

    async def has_begun() -> bool:
        await api.serving.firing.backfill()
        return bool((await read(api, f"/hourly/backfills/{begun['id']}"))["created_count"])

    await until(has_begun)
    for _ in range(5):
        await api.serving.firing.backfill()
    slow = await read(api, f"/hourly/backfills/{begun['id']}")
    cancelled = await act(api, f"/hourly/backfills/{begun['id']}/cancel")
    await api.serving.firing.backfill()
    again = await act(api, f"/hourly/backfills/{begun['id']}/cancel")

    assert (slow["state"], slow["created_count"]) == ("running", 1), "a task in a hundred seconds"
    assert (cancelled["state"], cancelled["created_count"]) == ("cancelled", 1)
    assert cancelled["ended_at"] is not None
    assert again == cancelled
    assert await api.stored() == 1


async def test_a_backfill_that_is_done_cannot_be_cancelled(api: Api) -> None:
    await make_schedule(api, "hourly", spec=HOURLY)
    empty = {"from": "2026-01-01T00:00:01Z", "to": "2026-01-01T00:30:00Z"}
    begun = await act(api, "/hourly/backfill", empty, 202)

    async def is_done() -> bool:
        await api.serving.firing.backfill()
        return bool((await read(api, f"/hourly/backfills/{begun['id']}"))["state"] == "done")

    await until(is_done)
    answer = await api.post(f"/v1/schedules/hourly/backfills/{begun['id']}/cancel")

    assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert (await read(api, f"/hourly/backfills/{begun['id']}"))["created_count"] == 0


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"from": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2199-01-01T00:00:00Z"}, "to"),
        ({"from": "1969-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "from"),
        ({**DAY, "rate": 0}, "rate"),
        ({**DAY, "rate": 1_001}, "rate"),
        ({**DAY, "speed": 5}, "speed"),
    ],
)
async def test_a_wrong_backfill_is_a_422(api: Api, body: Any, path: str) -> None:
    await make_schedule(api, "hourly", spec=HOURLY)

    answer = await api.post("/v1/schedules/hourly/backfill", body)

    assert (answer.status, answer.paths) == (422, [path])
    assert (await read(api, "/hourly/backfills"))["items"] == []


async def test_a_schedule_that_follows_its_runs_has_no_past(api: Api) -> None:
    await make_schedule(api, "follows", spec={"after": "10m"}, start_at="2031-01-01T00:00:00Z")

    assert (await api.post("/v1/schedules/follows/backfill", DAY)).status == 422


@pytest.mark.parametrize("number", ["0", "999999", "x", "-1", "9" * 30])
async def test_a_backfill_that_is_not_there_is_a_404(api: Api, number: str) -> None:
    await make_schedule(api, "hourly", spec=HOURLY)

    assert (await api.get(f"/v1/schedules/hourly/backfills/{number}")).status == 404
    assert (await api.post(f"/v1/schedules/hourly/backfills/{number}/cancel")).status == 404


# Runs


@pytest.mark.parametrize(("overlap", "outcome"), [("skip", "skipped"), ("buffer_one", "buffered")])
async def test_runs_say_what_became_of_each_time(api: Api, overlap: str, outcome: str) -> None:
    await make_schedule(api, "busy", spec={"every": "1s"}, overlap=overlap)

    async def is_met() -> bool:
        return any(run["outcome"] == outcome for run in await read_runs(api, "busy"))

    await until(is_met)
    await act(api, "/busy/pause")
    runs = await read_runs(api, "busy")

    first = runs[-1]
    assert (first["cause"], first["outcome"], first["state"]) == ("schedule", "fired", "ready")
    [met, *_] = [run for run in reversed(runs) if run["outcome"] == outcome]
    assert (met["task"], met["state"], met["reason"]) == (None, None, "the run before it is still ready")
    assert [run["fire_time"] for run in runs] == sorted((run["fire_time"] for run in runs), reverse=True)
    shown = await read(api, "/busy")
    assert shown["counters"]["fired"] == 1
    assert shown["counters"][outcome] == sum(run["outcome"] == outcome for run in runs)
    if skips := [run for run in runs if run["outcome"] == "skipped"]:
        assert shown["last_skip"] == {name: skips[0][name] for name in ("at", "fire_time", "reason")}
    else:
        assert shown["last_skip"] is None


async def test_a_run_that_is_over_lets_the_buffered_one_start(api: Api) -> None:
    await make_schedule(api, "busy", spec={"every": "1s"}, overlap="buffer_one")

    async def is_buffered() -> bool:
        return bool((await read(api, "/busy"))["buffered_now"])

    await until(is_buffered)
    [first] = await api.lease()
    buffered = next(run for run in reversed(await read_runs(api, "busy")) if run["outcome"] == "buffered")
    await api.settle(first)

    [second] = await api.lease()
    run = next(each for each in await read_runs(api, "busy") if each["fire_time"] == buffered["fire_time"])
    assert (run["outcome"], run["task"], run["reason"]) == ("fired", second["id"], "waited for the run before it")


async def test_runs_have_pages(api: Api) -> None:
    await make_schedule(api, "nightly")
    for day in range(1, 6):
        await act(api, "/nightly/trigger", {"as_of": f"2026-01-0{day}T00:00:00Z"}, 202)

    days, cursor = [], ""
    while True:
        page = await read(api, f"/nightly/runs?limit=2{cursor}")
        days.append([run["fire_time"][8:10] for run in page["items"]])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"

    assert days == [["05", "04"], ["03", "02"], ["01"]]


@pytest.mark.parametrize(("query", "field"), [("limit=0", "limit"), ("cursor=x", "cursor"), ("state=dead", "state")])
async def test_a_wrong_page_of_runs_is_a_422(api: Api, query: str, field: str) -> None:
    await make_schedule(api, "nightly")

    answer = await api.get(f"/v1/schedules/nightly/runs?{query}")

    assert (answer.status, answer.paths) == (422, [field])


async def test_a_run_that_ended_before_its_time_says_why(api: Api) -> None:
    await make_schedule(api, "nightly")
    hand = await act(api, "/nightly/trigger", None, 202)
    [leased] = await api.lease()
    await api.settle(leased)
    dropped = await act(api, "/nightly/trigger", {"as_of": "2026-01-01T00:00:00Z"}, 202)
    await api.post(f"/v1/tasks/{dropped['task']}/cancel")
    # As if they had been made ahead of times that have not come.
    for place, run in enumerate((hand, dropped)):
        ahead = moment_of(to_ms_rounded_up(in_seconds(60 + place)))
        await api.serving.database.execute(
            "INSERT INTO fire (schedule, moment, task, outcome, reason, at)"
            " SELECT schedule, $2, task, outcome, reason, at FROM fire WHERE task = $1",
            uuid.UUID(run["task"]),
            ahead,
        )

    [cancelled, ran, *_] = await read_runs(api, "nightly")

    assert (ran["task"], ran["state"]) == (hand["task"], "succeeded")
    assert ran["ended_at"] < ran["fire_time"]
    assert ran["reason"] == "it ran before its time, because somebody had it run at once"
    assert (cancelled["task"], cancelled["state"]) == (dropped["task"], "cancelled")
    assert cancelled["ended_at"] < cancelled["fire_time"]
    assert cancelled["reason"] == "cancelled before its time"


async def test_a_run_that_is_not_over_has_no_end(api: Api) -> None:
    await make_schedule(api, "nightly")
    await act(api, "/nightly/trigger", None, 202)

    [run] = await read_runs(api, "nightly")

    assert (run["state"], run["ended_at"], run["reason"]) == ("ready", None, None)
