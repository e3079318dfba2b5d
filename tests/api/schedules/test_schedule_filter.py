"""Tasks by the schedule that made them."""

from typing import Any

import pytest

from api.client import Api
from api.schedule_calls import TASK, act, make_schedule

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAYS = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3, 4, 5)]


async def fill(api: Api) -> list[str]:
    """Two schedules with five runs each, and thousands of other tasks; the ids of one, the latest fire time first."""
    for name in ("nightly", "other"):
        await make_schedule(api, name, task={**TASK, "type": name, "labels": {"team": "a"}}, overlap="allow")
    made = [(await act(api, "/nightly/trigger", {"as_of": day}, 202))["task"] for day in DAYS]
    for day in DAYS:
        await act(api, "/other/trigger", {"as_of": day}, 202)
    await api.post("/v1/tasks/batch", [{"type": "hay", "queue": "hay"}] * 3_000)
    return made[::-1]


async def ids_of(api: Api, query: str) -> list[str]:
    items: list[Any] = []
    cursor = ""
    while True:
        answer = await api.get(f"/v1/tasks?{query}{cursor}")
        assert answer.status == 200, answer.body
        assert answer.json["items"] or answer.json["next"] is None
        items += answer.json["items"]
        if answer.json["next"] is None:
            return [each["id"] for each in items]
        cursor = f"&cursor={answer.json['next']}"


async def test_a_list_of_a_schedule_has_what_it_made(api: Api) -> None:
    made = await fill(api)

    assert await ids_of(api, "schedule=nightly") == made
    assert await ids_of(api, "schedule=nightly&limit=2") == made
    assert await ids_of(api, "schedule=nightly&type=nightly&label=team%3Da&queue=default&state=ready") == made
    assert await ids_of(api, "schedule=nightly&type=other") == []
    assert await ids_of(api, "schedule=nightly&queue=hay") == []
    assert await ids_of(api, "schedule=nightly&to=2020-01-01T00:00:00Z") == []
    assert await ids_of(api, "schedule=nobody") == []
    assert (await api.get("/v1/tasks?schedule=%00")).paths == ["schedule"]


async def test_verbs_and_dead_letters_go_by_schedule_and_state(api: Api) -> None:
    made = await fill(api)
    leased = await api.lease(max=1)
    await api.settle(leased[0], "failed", error={"message": "no", "kind": "permanent"})

    paused = (await api.post("/v1/tasks/bulk/cancel", {"filter": {"schedule": "nightly", "state": "paused"}})).json
    by_limit = {"filter": {"schedule": "nightly", "state": "ready"}, "limit": 2}
    first = (await api.post("/v1/tasks/bulk/cancel", by_limit)).json
    rest = (await api.post("/v1/tasks/bulk/cancel", {**by_limit, "limit": 100, "cursor": first["next"]})).json
    dead = (await api.get("/v1/dead?schedule=nightly")).json["items"]

    assert (paused["matched"], paused["next"]) == (0, None)
    assert [each["id"] for each in dead] == [leased[0]["id"]]
    assert leased[0]["id"] in made
    assert (first["matched"], first["changed"]) == (2, 2)
    assert (rest["matched"], rest["changed"], rest["next"]) == (2, 2, None)
    assert len(await ids_of(api, "schedule=nightly&state=cancelled")) == 4
    assert len(await ids_of(api, "schedule=other&state=ready")) == 5
    redriven = (await api.post("/v1/dead/redrive", {"filter": {"schedule": "nightly"}})).json
    assert (redriven["matched"], redriven["redriven"]) == (1, 1)
