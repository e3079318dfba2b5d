"""Schedules over HTTP: make them, one by one and many at once."""

import asyncio
from typing import Any

import pytest

from api.client import Api
from api.schedule_calls import (
    DAILY,
    TASK,
    act,
    make_schedule,
    put_calendar,
    put_schedule,
    read,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Making


async def test_a_schedule_is_made_then_replaced_then_unchanged(api: Api) -> None:
    made = await put_schedule(api, "nightly", timezone="Europe/Berlin")
    replaced = await put_schedule(api, "nightly", timezone="Asia/Tokyo")
    unchanged = await put_schedule(api, "nightly", timezone="Asia/Tokyo")

    answers = (made, replaced, unchanged)
    assert [(each.status, each.json["version"]) for each in answers] == [(201, 1), (200, 2), (200, 2)]
    assert made.json["words"] == "at 02:00 every day, Europe/Berlin"
    assert replaced.json["words"] == "at 02:00 every day, Asia/Tokyo"
    assert replaced.json["next_fire_time"] != made.json["next_fire_time"]
    assert unchanged.json == replaced.json


async def test_the_answer_has_the_defaults_filled_in(api: Api) -> None:
    made = await make_schedule(api, "nightly")

    assert made["spec"]["cron"] == ["0 2 * * *"]
    assert (made["timezone"], made["dst"]) == ("UTC", {"gap": "shift", "overlap": "first"})
    assert (made["overlap"], made["misfire"], made["catchup_window"]) == ("skip", "fire_latest", 86_400)
    assert made["misfire_threshold"] == 10
    assert (made["state"], made["origin"], made["source"], made["version"]) == ("active", "api", "", 1)
    assert made["counters"] == {"fired": 0, "skipped": 0, "missed": 0, "buffered": 0}
    assert (made["task"]["queue"], made["task"]["payload"]) == ("default", None)
    assert made == await read(api, "/nightly")


async def test_what_was_given_is_shown_again(api: Api) -> None:
    fields: dict[str, Any] = {
        "spec": {"every": "15m", "phase": "5m", "exclude": ["2027-12-24", {"cron": "* * * * SAT,SUN"}]},
        "jitter": "30s",
        "start_at": "2027-01-01T00:00:00Z",
        "end_at": "2028-01-01T00:00:00Z",
        "max_fires": 7,
        "overlap": "buffer_all",
        "misfire": "fire_all",
        "misfire_threshold": "1m",
        "catchup_window": "2d",
        "catchup_rate": 2.5,
        "pause_on_failure": True,
        "origin": "file",
        "source": "jobs.yaml",
        "note": "for the month's end",
        "task": {"type": "report", "payload": ["{{fire_date}}"], "labels": {"team": "core"}, "expires_after": "1h"},
    }

    made = await make_schedule(api, "fine", **fields)

    spec = {"every": 900, "phase": 300, "exclude": fields["spec"]["exclude"]}
    seconds = {"spec": spec, "jitter": 30, "misfire_threshold": 60, "catchup_window": 172_800}
    task = {**fields["task"], "expires_after": 3600}
    assert {name: made[name] for name in fields if name != "task"} == {
        name: value for name, value in (fields | seconds).items() if name != "task"
    }
    assert {name: made["task"][name] for name in task} == task


async def test_a_schedule_made_paused_stays_so_until_it_is_told_otherwise(api: Api) -> None:
    made = await make_schedule(api, "nightly", paused=True)
    kept = (await put_schedule(api, "nightly", jitter=5)).json
    resumed = (await put_schedule(api, "nightly", jitter=5, paused=False)).json

    assert [each["state"] for each in (made, kept, resumed)] == ["paused", "paused", "active"]
    assert (made["next_fire_time"], made["next_fires"]) == (None, [])
    assert resumed["next_fire_time"] is not None


async def test_a_schedule_is_replaced_only_at_the_version_that_was_seen(api: Api) -> None:
    none_there = await put_schedule(api, "nightly", version=1)
    await make_schedule(api, "nightly", version=0)
    there_already = await put_schedule(api, "nightly", version=0, jitter=1)
    outdated = await put_schedule(api, "nightly", version=2, jitter=1)
    unchanged = (await read(api, "/nightly"))["version"]
    right = await put_schedule(api, "nightly", version=1, jitter=1)

    for refused in (none_there, there_already, outdated):
        assert (refused.status, refused.json["code"]) == (409, "version_conflict")
    assert unchanged == 1
    assert (right.status, right.json["version"]) == (200, 2)


async def test_of_many_that_make_one_schedule_one_does(api: Api) -> None:
    answers = await asyncio.gather(*(put_schedule(api, "nightly", version=0, jitter=number) for number in range(8)))

    assert sorted(each.status for each in answers) == [201] + [409] * 7
    [made] = [each.json for each in answers if each.status == 201]
    assert await read(api, "/nightly") == made


async def test_many_changes_at_once_do_not_wait_for_each_others_connections(api: Api) -> None:
    await put_calendar(api, "holidays", "2027-12-24")
    spec = {"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]}
    names = [f"s{number}" for number in range(60)]
    await act(api, "/batch", {"items": [{"name": name, "spec": spec, "task": TASK} for name in names]})

    async def all_at_once(method: str, verb: str = "", body: Any = None) -> set[int]:
        # Each of them has to read the calendars.
        api.serving.firing._recurrences.calendars._heads.clear()
        calls = (api.call(method, f"/v1/schedules/{name}{verb}", body) for name in names)
        return {each.status for each in await asyncio.gather(*calls)}

    assert await all_at_once("PUT", body={"spec": spec, "task": TASK, "jitter": 5}) == {200}
    assert await all_at_once("POST", "/pause") == {200}
    assert await all_at_once("POST", "/resume") == {200}


async def test_a_schedule_of_another_origin_is_taken_over_only_by_force(api: Api) -> None:
    await make_schedule(api, "nightly", origin="file", source="a.yaml")
    by_api = await put_schedule(api, "nightly", jitter=1)
    by_another_file = await put_schedule(api, "nightly", origin="file", source="b.yaml")
    kept = await read(api, "/nightly")
    by_force = await put_schedule(api, "nightly", force=True)

    assert {(each.status, each.json["code"]) for each in (by_api, by_another_file)} == {(409, "other_origin")}
    assert "a.yaml" in by_api.json["detail"]
    assert (kept["origin"], kept["source"], kept["version"]) == ("file", "a.yaml", 1)
    assert (by_force.status, by_force.json["origin"], by_force.json["source"]) == (200, "api", "")


async def test_a_name_may_hold_a_slash(api: Api) -> None:
    made = await put_schedule(api, "team%2Fnightly")

    assert (made.status, made.json["name"]) == (201, "team/nightly")
    assert (await read(api, "/team%2Fnightly"))["name"] == "team/nightly"


@pytest.mark.parametrize("name", ["-a", "a%20b", "%C3%A9", "a" * 129, "a%00", "batch%0A"])
async def test_a_name_with_other_characters_is_a_422(api: Api, name: str) -> None:
    answer = await put_schedule(api, name)

    assert (answer.status, answer.paths) == (422, ["name"])


@pytest.mark.parametrize("name", ["batch", "preview"])
async def test_the_name_of_a_call_is_no_name_of_a_schedule(api: Api, name: str) -> None:
    """No path would lead to it."""
    [result] = (await act(api, "/batch", {"items": [{"name": name, **DAILY}]}))["results"]

    assert [error["path"] for error in result["error"]["errors"]] == ["name"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"spec": {"cron": ["0 2 * * *", "0 0 30 2 *"]}}, "spec.cron[1]"),
        ({"spec": {"cron": "0 0 30 2 *"}}, "spec.cron[0]"),
        ({"spec": {"cron": "0 2 * *"}}, "spec.cron[0]"),
        ({"spec": {"cron": "0 0 9 * * ? 1969"}}, "spec.cron[0]"),
        ({"spec": {"cron": "0 0 9 * * ? 2020"}}, "spec"),
        ({"spec": {"cron": 5}}, "spec.cron"),
        ({"spec": {}}, "spec"),
        ({"spec": {"cron": []}}, "spec"),
        ({"spec": {"every": 0.999}}, "spec.every"),
        ({"spec": {"every": "1 fortnight"}}, "spec.every"),
        ({"spec": {"every": "1m", "phase": "1m"}}, "spec.phase"),
        ({"spec": {"after": 0}}, "spec.after"),
        ({"spec": {"after": "1m", "cron": "0 2 * * *"}}, "spec.after"),
        ({"spec": {"rrule": "FREQ=MINUTELY;INTERVAL=1441;BYHOUR=3;BYMINUTE=7;COUNT=10000"}}, "spec.rrule[0]"),
        ({"spec": {"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}}, "spec.rrule[0]"),
        ({"spec": {"calendar": [{"hour": 24}]}}, "spec.calendar[0].hour"),
        ({"spec": {"calendar": [{"weekday": "FUNDAY"}]}}, "spec.calendar[0].weekday"),
        ({"spec": {"dates": ["2027-03-01"]}}, "spec.dates[0]"),
        ({"spec": {"dates": ["2020-01-01T00:00"]}}, "spec"),
        ({"end_at": "2020-01-01T00:00:00Z"}, "spec"),
        ({"spec": {"cron": "0 2 * * *", "exclude": [{"cron": "* * * * *"}]}}, "spec"),
        ({"spec": {"cron": "0 2 * * *", "exclude": ["24.12."]}}, "spec.exclude[0]"),
        ({"spec": {"every": 60, "exclude": [{"from": "2027-01-02", "to": "2027-01-01"}]}}, "spec.exclude[0].to"),
        ({"spec": {"cron": "0 2 * * *", "exclude": ["2027-01-01", {"calendar": "x"}]}}, "spec.exclude[1].calendar"),
        ({"spec": {"crom": "0 2 * * *"}}, "spec.crom"),
        ({"timezone": "Europe/Berln"}, "timezone"),
        ({"timezone": "localtime"}, "timezone"),
        ({"dst": {"gap": "jump"}}, "dst.gap"),
        ({"start_at": "2030-01-02T00:00:00Z", "end_at": "2030-01-01T00:00:00Z"}, "end_at"),
        ({"start_at": "2030-01-02T00:00:00Z", "end_at": "2030-01-02T00:00:00Z"}, "end_at"),
        ({"start_at": "2030-01-02T00:00:00"}, "start_at"),
        ({"start_at": "0001-01-01T00:00:00Z"}, "start_at"),
        ({"end_at": "9999-12-31T23:59:59Z"}, "end_at"),
        ({"jitter": "2d"}, "jitter"),
        ({"max_fires": 0}, "max_fires"),
        ({"overlap": "pile_up"}, "overlap"),
        ({"spec": {"after": "1m"}, "overlap": "allow"}, "overlap"),
        ({"spec": {"after": "1m"}, "misfire": "fire_all"}, "misfire"),
        ({"spec": {"after": "1m"}, "misfire_threshold": "1m"}, "misfire_threshold"),
        ({"misfire_threshold": "0.5s"}, "misfire_threshold"),
        ({"misfire_threshold": "2d"}, "misfire_threshold"),
        ({"misfire": "skip", "catchup_window": "1d"}, "catchup_window"),
        ({"catchup_window": "1s"}, "catchup_window"),
        ({"catchup_rate": 5}, "catchup_rate"),
        ({"misfire": "fire_all", "catchup_rate": 0}, "catchup_rate"),
        ({"task": {}}, "task.type"),
        ({"task": {"type": "two words"}}, "task.type"),
        ({"task": {"type": "a", "run_at": "2030-01-01T00:00:00Z"}}, "task.run_at"),
        ({"task": {"type": "a", "payload": {"deep": ["{{nope}}"]}}}, "task.payload"),
        ({"task": {"type": "a", "payload": "x" * 70_000}}, "task.payload"),
        ({"task": {"type": "a", "target": {"url": "ftp://a.example"}}}, "task.target.url"),
        ({"note": "\0"}, "note"),
        ({"source": "\0"}, "source"),
        ({"origin": "mail"}, "origin"),
        ({"version": -1}, "version"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_wrong_is_a_422_that_names_it(api: Api, fields: Any, path: str) -> None:
    answer = await put_schedule(api, "wrong", **fields)

    assert (answer.status, answer.paths) == (422, [path]), answer.body
    assert (await api.get("/v1/schedules/wrong")).status == 404


async def test_a_wrong_change_leaves_the_schedule_as_it_was(api: Api) -> None:
    made = await make_schedule(api, "nightly")

    answer = await put_schedule(api, "nightly", spec={"dates": ["2020-01-01T00:00"]})

    assert (answer.status, answer.paths) == (422, ["spec"])
    assert await read(api, "/nightly") == made


async def test_every_wrong_policy_and_template_is_named_at_once(api: Api) -> None:
    answer = await put_schedule(api, "wrong", task={"type": "-"}, misfire="skip", catchup_window="1d", catchup_rate=1)

    assert (answer.status, set(answer.paths)) == (422, {"task.type", "catchup_window", "catchup_rate"})


# Many at once


async def test_a_batch_answers_for_each_in_order(api: Api) -> None:
    await make_schedule(api, "changed")
    await make_schedule(api, "same")
    items = [
        {"name": "new", **DAILY},
        {"name": "wrong", **DAILY, "spec": {"cron": "0 0 30 2 *"}},
        {"name": "changed", **DAILY, "jitter": 5},
        {"name": "unreadable", "spec": {"cron": {}}},
        {"name": "same", **DAILY},
        {"name": "new", **DAILY, "jitter": 9},
        {"name": "changed too late", **DAILY},
        {"name": "same", **DAILY, "version": 5},
        7,
    ]

    answer = await act(api, "/batch", {"items": items})

    assert [(each["name"], each.get("result")) for each in answer["results"]] == [
        ("new", "created"),
        ("wrong", None),
        ("changed", "changed"),
        ("unreadable", None),
        ("same", "unchanged"),
        ("new", None),
        ("changed too late", None),
        ("same", None),
        ("", None),
    ]
    assert [each.get("version") for each in answer["results"]] == [1, None, 2, None, 1, None, None, None, None]
    paths = [[error["path"] for error in each["error"]["errors"]] for each in answer["results"] if "error" in each]
    assert paths == [["spec.cron[0]"], ["spec.cron", "task"], ["name"], ["name"], ["name"], [""]]
    assert (answer["accepted"], answer["rejected"]) == (3, 6)
    assert [each["name"] for each in (await read(api, ""))["items"]] == ["changed", "new", "same"]
    assert (await read(api, "/new"))["jitter"] == 0


async def test_a_batch_says_which_schedule_is_anothers(api: Api) -> None:
    await make_schedule(api, "filed", origin="file")
    await make_schedule(api, "seen")

    items = [{"name": "filed", **DAILY}, {"name": "seen", **DAILY, "version": 9, "jitter": 1}]
    answer = await act(api, "/batch", {"items": items})

    assert [each["error"]["code"] for each in answer["results"]] == ["other_origin", "version_conflict"]


async def test_a_large_batch_is_stored_whole(api: Api) -> None:
    items = [{"name": f"s{number:04}", **DAILY} for number in range(1_000)]

    answer = await act(api, "/batch", {"items": items})
    too_many = await api.post("/v1/schedules/batch", {"items": [*items, {"name": "more", **DAILY}]})

    assert (answer["accepted"], answer["rejected"]) == (1_000, 0)
    assert (too_many.status, too_many.paths) == (422, ["items"])
