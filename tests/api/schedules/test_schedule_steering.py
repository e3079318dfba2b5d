"""Schedules over HTTP: pause, resume, trigger, delete.

The server fires for real.  Where nothing must happen, a second schedule of the
same times says when it would have happened.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.client import Api, until
from api.schedule_calls import TASK, act, in_seconds, make_schedule, put_schedule, read, read_runs, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Pause and resume


async def test_a_pause_unmakes_the_task_that_waits_and_nothing_fires(api: Api) -> None:
    spec = {"dates": [text_of(in_seconds(4))]}
    await make_schedule(api, "control", spec=spec)
    await make_schedule(api, "stopped", spec=spec)

    async def is_planned() -> bool:
        return bool(await read_runs(api, "stopped")) and bool(await read_runs(api, "control"))

    await until(is_planned)
    [planned] = await read_runs(api, "stopped")
    [control] = await read_runs(api, "control")
    assert planned["state"] == "scheduled", "the task is made ahead of its time"
    paused = await act(api, "/stopped/pause", {"note": "the warehouse moves"})

    assert (paused["state"], paused["note"], paused["next_fires"]) == ("paused", "the warehouse moves", [])
    assert paused["counters"]["fired"] == 0
    assert (await api.get(f"/v1/tasks/{planned['task']}")).status == 404
    # The control's time is the time at which it would have fired.
    [leased] = await api.lease()
    assert leased["id"] == control["task"]
    assert await read_runs(api, "stopped") == []
    assert await api.stored() == 1


async def test_a_pause_taken_back_in_time_fires_after_all(api: Api) -> None:
    late = 0
    for number in range(5):
        name, at = f"hesitant-{number}", text_of(in_seconds(5))
        await make_schedule(api, name, spec={"dates": [at]})

        async def is_planned(name: str = name) -> bool:
            return bool(await read_runs(api, name))

        await until(is_planned)
        await act(api, f"/{name}/pause")
        resumed = await act(api, f"/{name}/resume")
        if resumed["next_fire_time"] is not None:
            break
        # This machine was so busy that the time had gone by, before the pause or during it: not what this is about.
        if await api.stored() > late:
            late += len(await api.lease())

    assert resumed["next_fire_time"] == at
    [leased] = await api.lease(wait=10)
    [run] = await read_runs(api, name)
    assert (run["task"], run["fire_time"], run["outcome"]) == (leased["id"], at, "fired")
    assert await api.stored() == late + 1


async def test_a_resume_goes_on_with_the_next_time_and_makes_nothing_up(api: Api) -> None:
    spec = {"every": "1s"}
    await make_schedule(api, "control", spec=spec, overlap="allow")
    await make_schedule(api, "stopped", spec=spec, overlap="allow", misfire="fire_all")

    async def has_fired(name: str, count: int) -> bool:
        now = datetime.now(UTC)
        return sum(datetime.fromisoformat(run["fire_time"]) <= now for run in await read_runs(api, name)) >= count

    await until(lambda: has_fired("stopped", 1))
    paused_at = datetime.fromisoformat((await act(api, "/stopped/pause", {"note": "wait"}))["updated_at"])
    before = await read_runs(api, "stopped")
    passed = len(await read_runs(api, "control"))
    await until(lambda: has_fired("control", passed + 3))
    resumed = await act(api, "/stopped/resume")
    resumed_at = datetime.fromisoformat(resumed["updated_at"])
    await until(lambda: has_fired("stopped", len(before) + 2))

    times = [datetime.fromisoformat(run["fire_time"]) for run in await read_runs(api, "stopped")]
    assert resumed_at - paused_at > timedelta(seconds=2)
    assert (resumed["state"], resumed["note"]) == ("active", None)
    assert [at for at in times if paused_at < at < resumed_at] == []
    assert max(at for at in times if at <= paused_at) == datetime.fromisoformat(before[0]["fire_time"])
    assert (await read(api, "/stopped"))["counters"]["missed"] == 0


async def test_pausing_again_changes_the_note(api: Api) -> None:
    await make_schedule(api, "nightly")
    await act(api, "/nightly/pause", {"note": "first"})
    again = await act(api, "/nightly/pause", {"note": "second"})
    shown = await read(api, "/nightly")
    resumed = await act(api, "/nightly/resume", {"note": "all is well"})

    assert (again["note"], shown["note"], resumed["note"]) == ("second", "second", "all is well")
    assert (resumed["state"], resumed["version"]) == ("active", 1)


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_wrong_note_is_a_422(api: Api, verb: str) -> None:
    await make_schedule(api, "nightly")

    for body, path in (({"note": "x" * 1_001}, "note"), ({"note": "\0"}, "note"), ({"reason": "x"}, "reason")):
        answer = await api.post(f"/v1/schedules/nightly/{verb}", body)
        assert (answer.status, answer.paths) == (422, [path])


# Trigger


async def test_a_trigger_makes_a_task_with_its_fields_filled_in(api: Api) -> None:
    payload = {
        "day": "{{fire_date}}",
        "times": ["{{fire_time}}", "{{ fire_time_unix }}", "{{fire_time_unix_ms}}"],
        "text": "{{schedule}} of {{fire_date}}",
        "task": "{{task_id}}",
    }
    await make_schedule(api, "nightly", task={**TASK, "payload": payload, "labels": {"team": "core"}})

    made = await act(api, "/nightly/trigger", {"as_of": "2026-01-02T03:04:05Z"}, 202)

    [leased] = await api.lease()
    assert (leased["id"], leased["labels"]) == (made["task"], {"team": "core"})
    assert leased["payload"] == {
        "day": "2026-01-02",
        "times": ["2026-01-02T03:04:05Z", 1_767_323_045, 1_767_323_045_000],
        "text": "nightly of 2026-01-02",
        "task": made["task"],
    }
    assert (await api.get(f"/v1/tasks/{made['task']}")).json["schedule"] == "nightly"
    [run] = await read_runs(api, "nightly")
    assert (run["cause"], run["outcome"], run["task"], run["state"]) == ("trigger", "fired", made["task"], "running")
    assert run["fire_time"] == made["fire_time"] == "2026-01-02T03:04:05Z"


async def test_a_trigger_without_a_time_stands_for_now_and_leaves_the_next_time(api: Api) -> None:
    before = await make_schedule(api, "nightly", paused=True)
    first = await act(api, "/nightly/trigger", None, 202)
    second = await act(api, "/nightly/trigger", {}, 202)

    assert abs(datetime.fromisoformat(first["fire_time"]) - datetime.now(UTC)) < timedelta(seconds=5)
    assert first["task"] != second["task"]
    after = await read(api, "/nightly")
    assert (after["state"], after["next_fire_time"]) == ("paused", before["next_fire_time"])
    assert {each["id"] for each in await api.lease()} == {first["task"], second["task"]}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"as_of": text_of(datetime.now(UTC) + timedelta(days=1))}, "as_of"),
        ({"as_of": "1969-12-31T23:59:59Z"}, "as_of"),
        ({"as_of": "2026-01-01"}, "as_of"),
        ({"at": "2026-01-01T00:00:00Z"}, "at"),
    ],
)
async def test_a_wrong_trigger_is_a_422(api: Api, body: Any, path: str) -> None:
    await make_schedule(api, "nightly")

    answer = await api.post("/v1/schedules/nightly/trigger", body)

    assert (answer.status, answer.paths) == (422, [path])
    assert await api.stored() == 0


# Delete


async def test_a_deleted_schedule_keeps_its_tasks_or_cancels_them(api: Api) -> None:
    tasks = {}
    for name in ("keeps", "cancels", "default"):
        await make_schedule(api, name)
        tasks[name] = [(await act(api, f"/{name}/trigger", None, 202))["task"] for _ in range(2)]

    kept = await api.call("DELETE", "/v1/schedules/keeps?tasks=keep")
    cancelled = await api.call("DELETE", "/v1/schedules/cancels?tasks=cancel")
    default = await api.call("DELETE", "/v1/schedules/default")

    assert [each.json for each in (kept, cancelled, default)] == [
        {"name": "keeps", "cancelled": 0},
        {"name": "cancels", "cancelled": 2},
        {"name": "default", "cancelled": 0},
    ]
    states = {name: {await api.state({"id": task}) for task in made} for name, made in tasks.items()}
    assert states == {"keeps": {"ready"}, "cancels": {"cancelled"}, "default": {"ready"}}
    assert (await read(api, ""))["items"] == []
    assert (await api.call("DELETE", "/v1/schedules/keeps")).status == 404


async def test_a_deleted_schedule_fires_no_more(api: Api) -> None:
    spec = {"dates": [text_of(in_seconds(4))]}
    await make_schedule(api, "control", spec=spec)
    await make_schedule(api, "gone", spec=spec)

    async def is_planned() -> bool:
        return bool(await read_runs(api, "gone")) and bool(await read_runs(api, "control"))

    await until(is_planned)
    assert (await api.call("DELETE", "/v1/schedules/gone")).status == 200

    [leased] = await api.lease()
    assert leased["id"] == (await read_runs(api, "control"))[0]["task"]
    assert await api.stored() == 1


async def test_a_schedule_is_deleted_only_at_the_version_that_was_seen(api: Api) -> None:
    await make_schedule(api, "nightly")
    await put_schedule(api, "nightly", jitter=1)

    outdated = await api.call("DELETE", "/v1/schedules/nightly?version=1")
    there = await api.get("/v1/schedules/nightly")
    right = await api.call("DELETE", "/v1/schedules/nightly?version=2")

    assert (outdated.status, outdated.json["code"]) == (409, "version_conflict")
    assert (there.status, right.status) == (200, 200)


@pytest.mark.parametrize(
    ("query", "field"),
    [("tasks=drop", "tasks"), ("version=0", "version"), ("version=x", "version"), ("force=1", "force")],
)
async def test_a_wrong_delete_is_a_422(api: Api, query: str, field: str) -> None:
    await make_schedule(api, "nightly")

    answer = await api.call("DELETE", f"/v1/schedules/nightly?{query}")

    assert (answer.status, answer.paths) == (422, [field])
    assert (await api.get("/v1/schedules/nightly")).status == 200
