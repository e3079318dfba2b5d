"""Calendars over HTTP, and what other tenants see of them and of schedules."""

from datetime import date, datetime, timedelta
from typing import Any

import pytest

from api.client import Api
from api.schedule_calls import DAILY, DAY, HOURLY, act, make_schedule, put_calendar, put_schedule, read

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Calendars


async def test_calendars_are_put_got_listed_and_deleted(api: Api) -> None:
    entries = ["2027-12-24", {"from": "2027-12-27", "to": "2027-12-31"}, {"cron": "* * * * SUN"}]
    made = await put_calendar(api, "holidays", *entries)
    same = await put_calendar(api, "holidays", *entries)
    changed = await put_calendar(api, "holidays", "2027-12-24")
    await put_calendar(api, "empty")

    got = (await api.get("/v1/calendars/holidays")).json
    listed = (await api.get("/v1/calendars")).json
    deleted = await api.call("DELETE", "/v1/calendars/holidays")

    assert [each["version"] for each in (made, same, changed)] == [1, 1, 2]
    assert (got["name"], got["dates"], got["version"]) == ("holidays", ["2027-12-24"], 2)
    assert [(each["name"], each["dates"]) for each in listed["items"]] == [("empty", []), ("holidays", ["2027-12-24"])]
    assert (deleted.status, deleted.body) == (204, b"")
    for method in ("GET", "DELETE"):
        assert (await api.call(method, "/v1/calendars/holidays")).status == 404


async def test_a_change_of_a_calendar_moves_the_next_time_of_its_schedules(api: Api) -> None:
    await put_calendar(api, "holidays")
    made = await make_schedule(api, "user", spec={"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]})
    other = await make_schedule(api, "other")
    first = datetime.fromisoformat(made["next_fire_time"])

    excluded = await put_calendar(api, "holidays", first.date().isoformat())
    moved = await read(api, "/user")
    again = await put_calendar(api, "holidays", first.date().isoformat())
    await put_calendar(api, "holidays", {"cron": "* * * * *"})
    swallowed = await read(api, "/user")
    await put_calendar(api, "holidays")
    back = await read(api, "/user")

    assert made["next_fire_time"] == other["next_fire_time"]
    assert (excluded["replanned"], again["replanned"]) == (1, 0)
    assert datetime.fromisoformat(moved["next_fire_time"]) == first + timedelta(days=1)
    assert moved["next_fires"][0]["at"] == moved["next_fire_time"]
    assert (swallowed["state"], swallowed["next_fire_time"]) == ("ended", None)
    assert (back["state"], back["next_fire_time"]) == ("active", made["next_fire_time"])
    assert await read(api, "/other") == other


async def test_a_calendar_that_is_used_cannot_be_deleted(api: Api) -> None:
    await put_calendar(api, "holidays", "2027-12-24")
    await make_schedule(api, "user", spec={"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]}, paused=True)

    used = await api.call("DELETE", "/v1/calendars/holidays")
    await api.call("DELETE", "/v1/schedules/user")
    unused = await api.call("DELETE", "/v1/calendars/holidays")

    assert (used.status, used.json["code"], unused.status) == (409, "conflict", 204)
    assert "user" in used.json["detail"]


@pytest.mark.parametrize(
    ("dates", "path"),
    [
        (["2027-12-24", "2027-12-32"], "dates[1]"),
        (["2027-12-24T09:00"], "dates[0]"),
        ([{"from": "2027-12-24"}], "dates[0]"),
        ([{"from": "2027-12-24", "to": "2027-12-23"}], "dates[0].to"),
        ([{"cron": "0 0 30 2 *"}], "dates[0].cron"),
        ([{"calendar": "another"}], "dates[0].calendar"),
        ([{"day": "2027-12-24"}], "dates[0].day"),
        ([date(2027, 1, 1).toordinal()], "dates[0]"),
        (["2027-12-24"] * 1_001, "dates"),
    ],
)
async def test_a_wrong_calendar_is_a_422_that_names_the_entry(api: Api, dates: Any, path: str) -> None:
    answer = await api.call("PUT", "/v1/calendars/wrong", {"dates": dates})

    assert (answer.status, answer.paths) == (422, [path]), answer.body
    assert (await api.get("/v1/calendars")).json["items"] == []


async def test_a_calendar_with_a_wrong_name_is_a_422(api: Api) -> None:
    answer = await api.call("PUT", "/v1/calendars/a%20b", {"dates": []})

    assert (answer.status, answer.paths) == (422, ["name"])


# Isolation

_CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/schedules/mine", None),
    ("DELETE", "/v1/schedules/mine", None),
    ("DELETE", "/v1/schedules/mine?tasks=cancel", None),
    ("POST", "/v1/schedules/mine/pause", None),
    ("POST", "/v1/schedules/mine/resume", None),
    ("POST", "/v1/schedules/mine/trigger", None),
    ("POST", "/v1/schedules/mine/backfill", DAY),
    ("GET", "/v1/schedules/mine/backfills", None),
    ("GET", "/v1/schedules/mine/backfills/{id}", None),
    ("POST", "/v1/schedules/mine/backfills/{id}/cancel", None),
    ("GET", "/v1/schedules/mine/runs", None),
    ("GET", "/v1/schedules/mine/preview", None),
    ("GET", "/v1/calendars/mine", None),
    ("DELETE", "/v1/calendars/mine", None),
]


async def test_another_tenant_sees_none_of_it(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    await put_calendar(api, "mine", "2027-12-24")
    await make_schedule(api, "mine", spec=HOURLY)
    begun = await act(api, "/mine/backfill", {**DAY, "rate": 0.01}, 202)
    before = await read(api, "/mine")

    for method, path, body in _CALLS:
        answer = await other.call(method, path.format(id=begun["id"]), body)
        assert (answer.status, answer.json["code"]) == (404, "not_found"), path
    assert (await other.get("/v1/schedules")).json["items"] == []
    assert (await other.get("/v1/calendars")).json["items"] == []
    uses = {"spec": {"cron": "0 2 * * *", "exclude": [{"calendar": "mine"}]}}
    for refused in (await put_schedule(other, "uses", **uses), await other.post("/v1/schedules/preview", uses)):
        assert (refused.status, refused.paths) == (422, ["spec.exclude[0].calendar"])

    after = await read(api, "/mine")
    assert (after["state"], after["version"]) == ("active", 1)
    assert (after["next_fire_time"], after["updated_at"]) == (before["next_fire_time"], before["updated_at"])
    assert (await read(api, f"/mine/backfills/{begun['id']}"))["state"] == "running"


async def test_two_tenants_may_use_one_name(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    await make_schedule(api, "mine", spec=HOURLY)
    begun = await act(api, "/mine/backfill", {**DAY, "rate": 0.01}, 202)

    theirs = await make_schedule(other, "mine", jitter=7)
    by_batch = await act(other, "/batch", {"items": [{"name": "mine", **DAILY, "jitter": 8}]})

    assert (theirs["version"], by_batch["results"][0]["result"]) == (1, "changed")
    # A backfill belongs to its schedule, not to whoever has one of the same name.
    assert (await other.get(f"/v1/schedules/mine/backfills/{begun['id']}")).status == 404
    assert (await other.post(f"/v1/schedules/mine/backfills/{begun['id']}/cancel")).status == 404
    assert (await read(api, "/mine"))["jitter"] == 0
    assert (await other.call("DELETE", "/v1/schedules/mine")).status == 200
    assert (await api.get("/v1/schedules/mine")).status == 200


async def test_what_does_not_exist_is_a_404(api: Api) -> None:
    for method, path, body in _CALLS:
        assert (await api.call(method, path.format(id=1), body)).status == 404, path
