"""Schedules and calendars over HTTP: make, look at, steer, and what their tasks become.

The server fires for real.  Where nothing must happen, a second schedule of the
same times says when it would have happened.
"""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from api.client import Api, Reply, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

_TASK = {"type": "test.task"}
_DAILY = {"spec": {"cron": "0 2 * * *"}, "task": _TASK}


async def _put(api: Api, name: str, **fields: Any) -> Reply:
    return await api.call("PUT", f"/v1/schedules/{name}", {**_DAILY, **fields})


async def _made(api: Api, name: str, **fields: Any) -> Any:
    answer = await _put(api, name, **fields)
    assert answer.status == 201, answer.body
    return answer.json


async def _get(api: Api, path: str) -> Any:
    answer = await api.get(f"/v1/schedules{path}")
    assert answer.status == 200, answer.body
    return answer.json


async def _act(api: Api, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await api.post(f"/v1/schedules{path}", body)
    assert answer.status == status, answer.body
    return answer.json


async def _runs(api: Api, name: str) -> list[Any]:
    items: list[Any] = (await _get(api, f"/{name}/runs?limit=200"))["items"]
    return items


async def _put_calendar(api: Api, name: str, *dates: Any) -> Any:
    answer = await api.call("PUT", f"/v1/calendars/{name}", {"dates": dates})
    assert answer.status == 200, answer.body
    return answer.json


def _soon(seconds: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def _text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def _fire_times(lines: list[Any]) -> list[str]:
    return [line["at"] for line in lines if not line["excluded"]]


# Making


async def test_a_schedule_is_made_then_replaced_then_unchanged(api: Api) -> None:
    made = await _put(api, "nightly", timezone="Europe/Berlin")
    replaced = await _put(api, "nightly", timezone="Asia/Tokyo")
    unchanged = await _put(api, "nightly", timezone="Asia/Tokyo")

    answers = (made, replaced, unchanged)
    assert [(each.status, each.json["version"]) for each in answers] == [(201, 1), (200, 2), (200, 2)]
    assert made.json["words"] == "at 02:00 every day, Europe/Berlin"
    assert replaced.json["words"] == "at 02:00 every day, Asia/Tokyo"
    assert replaced.json["next_fire_time"] != made.json["next_fire_time"]
    assert unchanged.json == replaced.json


async def test_the_answer_has_the_defaults_filled_in(api: Api) -> None:
    made = await _made(api, "nightly")

    assert made["spec"]["cron"] == ["0 2 * * *"]
    assert (made["timezone"], made["dst"]) == ("UTC", {"gap": "shift", "overlap": "first"})
    assert (made["overlap"], made["misfire"], made["catchup_window"]) == ("skip", "fire_latest", 86_400)
    assert (made["state"], made["origin"], made["source"], made["version"]) == ("active", "api", "", 1)
    assert made["counters"] == {"fired": 0, "skipped": 0, "missed": 0, "buffered": 0}
    assert (made["task"]["queue"], made["task"]["payload"]) == ("default", None)
    assert made == await _get(api, "/nightly")


async def test_what_was_given_is_shown_again(api: Api) -> None:
    fields: dict[str, Any] = {
        "spec": {"every": "15m", "phase": "5m", "exclude": ["2027-12-24", {"cron": "* * * * SAT,SUN"}]},
        "jitter": "30s",
        "start_at": "2027-01-01T00:00:00Z",
        "end_at": "2028-01-01T00:00:00Z",
        "max_fires": 7,
        "overlap": "buffer_all",
        "misfire": "fire_all",
        "catchup_window": "2d",
        "catchup_rate": 2.5,
        "pause_on_failure": True,
        "origin": "file",
        "source": "jobs.yaml",
        "note": "for the month's end",
        "task": {"type": "report", "payload": ["{{fire_date}}"], "labels": {"team": "core"}, "expires_after": "1h"},
    }

    made = await _made(api, "fine", **fields)

    spec = {"every": 900, "phase": 300, "exclude": fields["spec"]["exclude"]}
    seconds = {"spec": spec, "jitter": 30, "catchup_window": 172_800}
    task = {**fields["task"], "expires_after": 3600}
    assert {name: made[name] for name in fields if name != "task"} == {
        name: value for name, value in (fields | seconds).items() if name != "task"
    }
    assert {name: made["task"][name] for name in task} == task


async def test_a_schedule_made_paused_stays_so_until_it_is_told_otherwise(api: Api) -> None:
    made = await _made(api, "nightly", paused=True)
    kept = (await _put(api, "nightly", jitter=5)).json
    resumed = (await _put(api, "nightly", jitter=5, paused=False)).json

    assert [each["state"] for each in (made, kept, resumed)] == ["paused", "paused", "active"]
    assert (made["next_fire_time"], made["next_fires"]) == (None, [])
    assert resumed["next_fire_time"] is not None


async def test_a_schedule_is_replaced_only_at_the_version_that_was_seen(api: Api) -> None:
    none_there = await _put(api, "nightly", version=1)
    await _made(api, "nightly", version=0)
    there_already = await _put(api, "nightly", version=0, jitter=1)
    outdated = await _put(api, "nightly", version=2, jitter=1)
    unchanged = (await _get(api, "/nightly"))["version"]
    right = await _put(api, "nightly", version=1, jitter=1)

    for refused in (none_there, there_already, outdated):
        assert (refused.status, refused.json["code"]) == (409, "version_conflict")
    assert unchanged == 1
    assert (right.status, right.json["version"]) == (200, 2)


async def test_of_many_that_make_one_schedule_one_does(api: Api) -> None:
    answers = await asyncio.gather(*(_put(api, "nightly", version=0, jitter=number) for number in range(8)))

    assert sorted(each.status for each in answers) == [201] + [409] * 7
    [made] = [each.json for each in answers if each.status == 201]
    assert await _get(api, "/nightly") == made


async def test_many_changes_at_once_do_not_wait_for_each_others_connections(api: Api) -> None:
    await _put_calendar(api, "holidays", "2027-12-24")
    spec = {"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]}
    names = [f"s{number}" for number in range(60)]
    await _act(api, "/batch", {"items": [{"name": name, "spec": spec, "task": _TASK} for name in names]})

    async def all_at_once(method: str, verb: str = "", body: Any = None) -> set[int]:
        # Each of them has to read the calendars.
        api.serving.firing._recurrences._calendars.clear()
        calls = (api.call(method, f"/v1/schedules/{name}{verb}", body) for name in names)
        return {each.status for each in await asyncio.gather(*calls)}

    assert await all_at_once("PUT", body={"spec": spec, "task": _TASK, "jitter": 5}) == {200}
    assert await all_at_once("POST", "/pause") == {200}
    assert await all_at_once("POST", "/resume") == {200}


async def test_a_schedule_of_another_origin_is_taken_over_only_by_force(api: Api) -> None:
    await _made(api, "nightly", origin="file", source="a.yaml")
    by_api = await _put(api, "nightly", jitter=1)
    by_another_file = await _put(api, "nightly", origin="file", source="b.yaml")
    kept = await _get(api, "/nightly")
    by_force = await _put(api, "nightly", force=True)

    assert {(each.status, each.json["code"]) for each in (by_api, by_another_file)} == {(409, "other_origin")}
    assert "a.yaml" in by_api.json["detail"]
    assert (kept["origin"], kept["source"], kept["version"]) == ("file", "a.yaml", 1)
    assert (by_force.status, by_force.json["origin"], by_force.json["source"]) == (200, "api", "")


async def test_a_name_may_hold_a_slash(api: Api) -> None:
    made = await _put(api, "team%2Fnightly")

    assert (made.status, made.json["name"]) == (201, "team/nightly")
    assert (await _get(api, "/team%2Fnightly"))["name"] == "team/nightly"


@pytest.mark.parametrize("name", ["-a", "a%20b", "%C3%A9", "a" * 129, "a%00", "batch%0A"])
async def test_a_name_with_other_characters_is_a_422(api: Api, name: str) -> None:
    answer = await _put(api, name)

    assert (answer.status, answer.paths) == (422, ["name"])


@pytest.mark.parametrize("name", ["batch", "preview"])
async def test_the_name_of_a_call_is_no_name_of_a_schedule(api: Api, name: str) -> None:
    """No path would lead to it."""
    [result] = (await _act(api, "/batch", {"items": [{"name": name, **_DAILY}]}))["results"]

    assert [error["path"] for error in result["error"]["errors"]] == ["name"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"spec": {"cron": ["0 2 * * *", "0 0 30 2 *"]}}, "spec.cron[1]"),
        ({"spec": {"cron": "0 0 30 2 *"}}, "spec.cron[0]"),
        ({"spec": {"cron": "0 2 * *"}}, "spec.cron[0]"),
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
    answer = await _put(api, "wrong", **fields)

    assert (answer.status, answer.paths) == (422, [path]), answer.body
    assert (await api.get("/v1/schedules/wrong")).status == 404


async def test_a_wrong_change_leaves_the_schedule_as_it_was(api: Api) -> None:
    made = await _made(api, "nightly")

    answer = await _put(api, "nightly", spec={"dates": ["2020-01-01T00:00"]})

    assert (answer.status, answer.paths) == (422, ["spec"])
    assert await _get(api, "/nightly") == made


async def test_every_wrong_policy_and_template_is_named_at_once(api: Api) -> None:
    answer = await _put(api, "wrong", task={"type": "-"}, misfire="skip", catchup_window="1d", catchup_rate=1)

    assert (answer.status, set(answer.paths)) == (422, {"task.type", "catchup_window", "catchup_rate"})


# Many at once


async def test_a_batch_answers_for_each_in_order(api: Api) -> None:
    await _made(api, "changed")
    await _made(api, "same")
    items = [
        {"name": "new", **_DAILY},
        {"name": "wrong", **_DAILY, "spec": {"cron": "0 0 30 2 *"}},
        {"name": "changed", **_DAILY, "jitter": 5},
        {"name": "unreadable", "spec": {"cron": {}}},
        {"name": "same", **_DAILY},
        {"name": "new", **_DAILY, "jitter": 9},
        {"name": "changed too late", **_DAILY},
        {"name": "same", **_DAILY, "version": 5},
        7,
    ]

    answer = await _act(api, "/batch", {"items": items})

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
    assert paths == [["spec.cron[0]"], ["spec.cron"], ["name"], ["name"], ["name"], [""]]
    assert (answer["accepted"], answer["rejected"]) == (3, 6)
    assert [each["name"] for each in (await _get(api, ""))["items"]] == ["changed", "new", "same"]
    assert (await _get(api, "/new"))["jitter"] == 0


async def test_a_batch_says_which_schedule_is_anothers(api: Api) -> None:
    await _made(api, "filed", origin="file")
    await _made(api, "seen")

    items = [{"name": "filed", **_DAILY}, {"name": "seen", **_DAILY, "version": 9, "jitter": 1}]
    answer = await _act(api, "/batch", {"items": items})

    assert [each["error"]["code"] for each in answer["results"]] == ["other_origin", "version_conflict"]


async def test_a_large_batch_is_stored_whole(api: Api) -> None:
    items = [{"name": f"s{number:04}", **_DAILY} for number in range(1_000)]

    answer = await _act(api, "/batch", {"items": items})
    too_many = await api.post("/v1/schedules/batch", {"items": [*items, {"name": "more", **_DAILY}]})

    assert (answer["accepted"], answer["rejected"]) == (1_000, 0)
    assert (too_many.status, too_many.paths) == (422, ["items"])


# Looking


async def test_next_fires_are_five_and_in_order(api: Api) -> None:
    made = await _made(api, "nightly", timezone="Europe/Berlin")

    times = [datetime.fromisoformat(each["at"]) for each in made["next_fires"]]
    assert len(times) == 5
    assert times == sorted(set(times))
    assert times[0] > datetime.now(UTC)
    assert made["next_fires"][0]["at"] == made["next_fire_time"]
    assert all("T02:00:00+0" in each["local"] for each in made["next_fires"])


async def test_next_fires_end_with_the_schedule(api: Api) -> None:
    limited = await _made(api, "limited", max_fires=2)
    dated = await _made(api, "dated", spec={"dates": ["2031-01-01T00:00", "2032-01-01T00:00"]})
    follows = await _made(api, "follows", spec={"after": "10m"}, start_at="2031-01-01T00:00:00Z")

    assert len(limited["next_fires"]) == 2
    assert _fire_times(dated["next_fires"]) == ["2031-01-01T00:00:00Z", "2032-01-01T00:00:00Z"]
    assert _fire_times(follows["next_fires"]) == [follows["next_fire_time"]] == ["2031-01-01T00:00:00Z"]


async def test_a_list_has_filters_and_pages(api: Api) -> None:
    for name in ("a.1", "a.2", "a.3"):
        await _made(api, name)
    await _made(api, "b.file", origin="file", source="x")
    await _made(api, "b.paused", paused=True)

    async def names(query: str) -> list[str]:
        return [each["name"] for each in (await _get(api, f"?{query}"))["items"]]

    first = await _get(api, "?limit=2")
    second = await _get(api, f"?limit=2&cursor={first['next']}")
    third = await _get(api, f"?limit=2&cursor={second['next']}")
    pages = [[each["name"] for each in page["items"]] for page in (first, second, third)]

    assert pages == [["a.1", "a.2"], ["a.3", "b.file"], ["b.paused"]]
    assert third["next"] is None
    assert await names("prefix=a.") == ["a.1", "a.2", "a.3"]
    assert await names("prefix=a%25") == []
    assert await names("origin=file") == ["b.file"]
    assert await names("source=x") == ["b.file"]
    assert await names("source=y") == []
    assert await names("state=paused") == ["b.paused"]
    assert await names("state=active&prefix=b") == ["b.file"]
    assert await names("state=ended") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=done", "state"),
        ("origin=mail", "origin"),
        ("origin=", "origin"),
        ("source=%00", "source"),
        (f"source={'x' * 201}", "source"),
        (f"prefix={'x' * 129}", "prefix"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("cursor=!", "cursor"),
        ("cursor=AA", "cursor"),
        ("colour=red", "colour"),
    ],
)
async def test_a_wrong_filter_is_a_422_with_its_name(api: Api, query: str, field: str) -> None:
    answer = await api.get(f"/v1/schedules?{query}")

    assert (answer.status, answer.paths) == (422, [field])


async def test_the_last_date_ends_a_schedule(api: Api) -> None:
    await _made(api, "once", spec={"dates": [_text(_soon(2))]})

    async def has_ended() -> bool:
        return [each["name"] for each in (await _get(api, "?state=ended"))["items"]] == ["once"]

    await until(has_ended)
    ended = await _get(api, "/once")
    assert (ended["state"], ended["next_fire_time"], ended["next_fires"]) == ("ended", None, [])
    assert ended["counters"]["fired"] == 1


# Preview


async def test_a_preview_says_what_a_clock_change_does(api: Api) -> None:
    body = {"spec": {"cron": "30 2 * * *"}, "timezone": "Europe/Berlin", "from": "2027-03-27T00:00:00Z", "count": 3}

    shifted = await _act(api, "/preview", body)
    skipped = await _act(api, "/preview", {**body, "dst": {"gap": "skip"}})

    assert shifted["words"] == "at 02:30 every day, Europe/Berlin"
    assert [(each["local"], each["note"]) for each in shifted["fires"]] == [
        ("2027-03-27T02:30:00+01:00", None),
        ("2027-03-28T03:00:00+02:00", "shifted from 02:30, which does not exist"),
        ("2027-03-29T02:30:00+02:00", None),
    ]
    assert [each["at"] for each in skipped["fires"]] == [
        "2027-03-27T01:30:00Z",
        "2027-03-29T00:30:00Z",
        "2027-03-30T00:30:00Z",
    ]


async def test_a_preview_judges_a_whole_schedule(api: Api) -> None:
    whole = {"spec": {"cron": "0 2 * * *"}, "task": {"type": "report"}, "overlap": "allow", "origin": "file"}

    assert (await _act(api, "/preview", whole))["words"] == "at 02:00 every day, UTC"
    refused = await api.post("/v1/schedules/preview", {**whole, "task": {"type": "no good"}})
    assert (refused.status, refused.paths) == (422, ["task.type"])


async def test_a_preview_shows_what_is_left_out_and_why(api: Api) -> None:
    await _put_calendar(api, "holidays", "2027-12-24")
    spec = {"cron": "0 9 * * *", "exclude": [{"calendar": "holidays"}, {"cron": "* * * * SAT,SUN"}]}
    await _made(api, "workdays", spec=spec)

    asked = await _act(api, "/preview", {"spec": spec, "from": "2027-12-23T00:00:00Z", "count": 2})
    stored = await _get(api, "/workdays/preview?from=2027-12-23T00:00:00Z&count=2")

    assert [(each["at"][:10], each["excluded"], each["note"]) for each in asked["fires"]] == [
        ("2027-12-23", False, None),
        ("2027-12-24", True, 'calendar "holidays"'),
        ("2027-12-25", True, 'cron "* * * * SAT,SUN"'),
        ("2027-12-26", True, 'cron "* * * * SAT,SUN"'),
        ("2027-12-27", False, None),
    ]
    assert stored == asked


async def test_a_hashed_slot_follows_from_the_name_alone(api: Api) -> None:
    spec = {"cron": "H H * * *"}
    body = {"spec": spec, "from": "2027-01-01T00:00:00Z", "count": 1}

    async def slot(name: str) -> str:
        [at] = _fire_times((await _act(api, "/preview", {**body, "name": name}))["fires"])
        return at

    slots = {name: await slot(name) for name in map("job-{}".format, range(10))}
    await _made(api, "job-3", spec=spec)
    stored = await _get(api, "/job-3/preview?from=2027-01-01T00:00:00Z&count=1")

    assert {name: await slot(name) for name in slots} == slots
    assert len(set(slots.values())) > 5
    assert _fire_times(stored["fires"]) == [slots["job-3"]]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"spec": {"after": "5m"}}, "spec.after"),
        ({"spec": {"cron": "0 0 30 2 *"}}, "spec.cron[0]"),
        ({"timezone": "Mars"}, "timezone"),
        ({"count": 0}, "count"),
        ({"count": 1_001}, "count"),
        ({"name": "-"}, "name"),
        ({"from": "tomorrow"}, "from"),
        ({"task": {"type": "two words"}}, "task.type"),
    ],
)
async def test_a_wrong_preview_is_a_422(api: Api, fields: Any, path: str) -> None:
    answer = await api.post("/v1/schedules/preview", {"spec": {"cron": "0 2 * * *"}, **fields})

    assert (answer.status, answer.paths) == (422, [path])


@pytest.mark.parametrize(("query", "field"), [("count=0", "count"), ("count=1001", "count"), ("from=now", "from")])
async def test_a_wrong_preview_of_a_stored_schedule_is_a_422(api: Api, query: str, field: str) -> None:
    await _made(api, "nightly")

    answer = await api.get(f"/v1/schedules/nightly/preview?{query}")

    assert (answer.status, answer.paths) == (422, [field])


# Pause and resume


async def test_a_pause_unmakes_the_task_that_waits_and_nothing_fires(api: Api) -> None:
    spec = {"dates": [_text(_soon(4))]}
    await _made(api, "control", spec=spec)
    await _made(api, "stopped", spec=spec)

    async def is_planned() -> bool:
        return bool(await _runs(api, "stopped")) and bool(await _runs(api, "control"))

    await until(is_planned)
    [planned] = await _runs(api, "stopped")
    [control] = await _runs(api, "control")
    assert planned["state"] == "scheduled", "the task is made ahead of its time"
    paused = await _act(api, "/stopped/pause", {"note": "the warehouse moves"})

    assert (paused["state"], paused["note"], paused["next_fires"]) == ("paused", "the warehouse moves", [])
    assert paused["counters"]["fired"] == 0
    assert (await api.get(f"/v1/tasks/{planned['task']}")).status == 404
    # The control's time is the time at which it would have fired.
    [leased] = await api.lease()
    assert leased["id"] == control["task"]
    assert await _runs(api, "stopped") == []
    assert await api.stored() == 1


async def test_a_pause_taken_back_in_time_fires_after_all(api: Api) -> None:
    for number in range(5):
        name, at = f"hesitant-{number}", _text(_soon(5))
        await _made(api, name, spec={"dates": [at]})

        async def is_planned(name: str = name) -> bool:
            return bool(await _runs(api, name))

        await until(is_planned)
        await _act(api, f"/{name}/pause")
        resumed = await _act(api, f"/{name}/resume")
        if resumed["next_fire_time"] is not None:
            break
        # This machine was so busy that the time had gone by: not what this is about.
        assert await api.stored() == 0

    assert resumed["next_fire_time"] == at
    [leased] = await api.lease(wait=10)
    [run] = await _runs(api, name)
    assert (run["task"], run["fire_time"], run["outcome"]) == (leased["id"], at, "fired")
    assert await api.stored() == 1


async def test_a_resume_goes_on_with_the_next_time_and_makes_nothing_up(api: Api) -> None:
    spec = {"every": "1s"}
    await _made(api, "control", spec=spec, overlap="allow")
    await _made(api, "stopped", spec=spec, overlap="allow", misfire="fire_all")

    async def has_fired(name: str, count: int) -> bool:
        now = datetime.now(UTC)
        return sum(datetime.fromisoformat(run["fire_time"]) <= now for run in await _runs(api, name)) >= count

    await until(lambda: has_fired("stopped", 1))
    paused_at = datetime.fromisoformat((await _act(api, "/stopped/pause", {"note": "wait"}))["updated_at"])
    before = await _runs(api, "stopped")
    passed = len(await _runs(api, "control"))
    await until(lambda: has_fired("control", passed + 3))
    resumed = await _act(api, "/stopped/resume")
    resumed_at = datetime.fromisoformat(resumed["updated_at"])
    await until(lambda: has_fired("stopped", len(before) + 2))

    times = [datetime.fromisoformat(run["fire_time"]) for run in await _runs(api, "stopped")]
    assert resumed_at - paused_at > timedelta(seconds=2)
    assert (resumed["state"], resumed["note"]) == ("active", None)
    assert [at for at in times if paused_at < at < resumed_at] == []
    assert max(at for at in times if at <= paused_at) == datetime.fromisoformat(before[0]["fire_time"])
    assert (await _get(api, "/stopped"))["counters"]["missed"] == 0


async def test_pausing_again_changes_the_note(api: Api) -> None:
    await _made(api, "nightly")
    await _act(api, "/nightly/pause", {"note": "first"})
    again = await _act(api, "/nightly/pause", {"note": "second"})
    shown = await _get(api, "/nightly")
    resumed = await _act(api, "/nightly/resume", {"note": "all is well"})

    assert (again["note"], shown["note"], resumed["note"]) == ("second", "second", "all is well")
    assert (resumed["state"], resumed["version"]) == ("active", 1)


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_wrong_note_is_a_422(api: Api, verb: str) -> None:
    await _made(api, "nightly")

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
    await _made(api, "nightly", task={**_TASK, "payload": payload, "labels": {"team": "core"}})

    made = await _act(api, "/nightly/trigger", {"as_of": "2026-01-02T03:04:05Z"}, 202)

    [leased] = await api.lease()
    assert (leased["id"], leased["labels"]) == (made["task"], {"team": "core"})
    assert leased["payload"] == {
        "day": "2026-01-02",
        "times": ["2026-01-02T03:04:05Z", 1_767_323_045, 1_767_323_045_000],
        "text": "nightly of 2026-01-02",
        "task": made["task"],
    }
    assert (await api.get(f"/v1/tasks/{made['task']}")).json["schedule"] == "nightly"
    [run] = await _runs(api, "nightly")
    assert (run["cause"], run["outcome"], run["task"], run["state"]) == ("trigger", "fired", made["task"], "running")
    assert run["fire_time"] == made["fire_time"] == "2026-01-02T03:04:05Z"


async def test_a_trigger_without_a_time_stands_for_now_and_leaves_the_next_time(api: Api) -> None:
    before = await _made(api, "nightly", paused=True)
    first = await _act(api, "/nightly/trigger", None, 202)
    second = await _act(api, "/nightly/trigger", {}, 202)

    assert abs(datetime.fromisoformat(first["fire_time"]) - datetime.now(UTC)) < timedelta(seconds=5)
    assert first["task"] != second["task"]
    after = await _get(api, "/nightly")
    assert (after["state"], after["next_fire_time"]) == ("paused", before["next_fire_time"])
    assert {each["id"] for each in await api.lease()} == {first["task"], second["task"]}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"as_of": _text(datetime.now(UTC) + timedelta(days=1))}, "as_of"),
        ({"as_of": "1969-12-31T23:59:59Z"}, "as_of"),
        ({"as_of": "2026-01-01"}, "as_of"),
        ({"at": "2026-01-01T00:00:00Z"}, "at"),
    ],
)
async def test_a_wrong_trigger_is_a_422(api: Api, body: Any, path: str) -> None:
    await _made(api, "nightly")

    answer = await api.post("/v1/schedules/nightly/trigger", body)

    assert (answer.status, answer.paths) == (422, [path])
    assert await api.stored() == 0


# Backfill

_HOURLY = {"cron": "0 * * * *"}
_DAY = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}


async def test_a_backfill_makes_every_task_of_its_range_once(api: Api) -> None:
    await _made(api, "hourly", spec=_HOURLY, task={**_TASK, "payload": "{{fire_time}}"})
    begun = await _act(api, "/hourly/backfill", {**_DAY, "rate": 20}, 202)
    seen = [begun]

    async def is_done() -> bool:
        await api.serving.firing.backfill()
        seen.append(await _get(api, f"/hourly/backfills/{begun['id']}"))
        return bool(seen[-1]["state"] != "running")

    await until(is_done)

    start = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [_text(start + timedelta(hours=hour)) for hour in range(24)]
    done = seen[-1]
    assert (begun["state"], begun["created_count"], begun["rate"], begun["ended_at"]) == ("running", 0, 20, None)
    assert {name: done[name] for name in ("from", "to", "state", "created_count")} == {
        **_DAY,
        "state": "done",
        "created_count": 24,
    }
    assert done["ended_at"] is not None
    # How far it has come is the last time of which it made the task.
    partly = [each for each in seen if 0 < each["created_count"] < 24]
    assert partly, "the rate does not allow all at once"
    assert all(each["reached"] == hours[each["created_count"] - 1] for each in partly)
    runs = await _runs(api, "hourly")
    assert sorted(run["fire_time"] for run in runs) == hours
    assert {(run["cause"], run["outcome"]) for run in runs} == {("backfill", "fired")}
    leased: list[Any] = []

    async def are_due() -> bool:
        leased.extend(await api.lease())
        return len(leased) >= 24

    await until(are_due)
    assert sorted(task["payload"] for task in leased) == hours
    assert await _get(api, "/hourly/backfills") == {"items": [done], "next": None}


async def test_a_backfill_keeps_its_rate_and_ends_when_it_is_cancelled(api: Api) -> None:
    await _made(api, "hourly", spec=_HOURLY)
    begun = await _act(api, "/hourly/backfill", {**_DAY, "rate": 0.01}, 202)

    async def has_begun() -> bool:
        await api.serving.firing.backfill()
        return bool((await _get(api, f"/hourly/backfills/{begun['id']}"))["created_count"])

    await until(has_begun)
    for _ in range(5):
        await api.serving.firing.backfill()
    slow = await _get(api, f"/hourly/backfills/{begun['id']}")
    cancelled = await _act(api, f"/hourly/backfills/{begun['id']}/cancel")
    await api.serving.firing.backfill()
    again = await _act(api, f"/hourly/backfills/{begun['id']}/cancel")

    assert (slow["state"], slow["created_count"]) == ("running", 1), "a task in a hundred seconds"
    assert (cancelled["state"], cancelled["created_count"]) == ("cancelled", 1)
    assert cancelled["ended_at"] is not None
    assert again == cancelled
    assert await api.stored() == 1


async def test_a_backfill_that_is_done_cannot_be_cancelled(api: Api) -> None:
    await _made(api, "hourly", spec=_HOURLY)
    empty = {"from": "2026-01-01T00:00:01Z", "to": "2026-01-01T00:30:00Z"}
    begun = await _act(api, "/hourly/backfill", empty, 202)

    async def is_done() -> bool:
        await api.serving.firing.backfill()
        return bool((await _get(api, f"/hourly/backfills/{begun['id']}"))["state"] == "done")

    await until(is_done)
    answer = await api.post(f"/v1/schedules/hourly/backfills/{begun['id']}/cancel")

    assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert (await _get(api, f"/hourly/backfills/{begun['id']}"))["created_count"] == 0


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"from": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to"),
        ({"from": "2026-01-01T00:00:00Z", "to": "2199-01-01T00:00:00Z"}, "to"),
        ({"from": "1969-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "from"),
        ({**_DAY, "rate": 0}, "rate"),
        ({**_DAY, "rate": 1_001}, "rate"),
        ({**_DAY, "speed": 5}, "speed"),
    ],
)
async def test_a_wrong_backfill_is_a_422(api: Api, body: Any, path: str) -> None:
    await _made(api, "hourly", spec=_HOURLY)

    answer = await api.post("/v1/schedules/hourly/backfill", body)

    assert (answer.status, answer.paths) == (422, [path])
    assert (await _get(api, "/hourly/backfills"))["items"] == []


async def test_a_schedule_that_follows_its_runs_has_no_past(api: Api) -> None:
    await _made(api, "follows", spec={"after": "10m"}, start_at="2031-01-01T00:00:00Z")

    assert (await api.post("/v1/schedules/follows/backfill", _DAY)).status == 422


@pytest.mark.parametrize("number", ["0", "999999", "x", "-1", "9" * 30])
async def test_a_backfill_that_is_not_there_is_a_404(api: Api, number: str) -> None:
    await _made(api, "hourly", spec=_HOURLY)

    assert (await api.get(f"/v1/schedules/hourly/backfills/{number}")).status == 404
    assert (await api.post(f"/v1/schedules/hourly/backfills/{number}/cancel")).status == 404


# Runs


@pytest.mark.parametrize(("overlap", "outcome"), [("skip", "skipped"), ("buffer_one", "buffered")])
async def test_runs_say_what_became_of_each_time(api: Api, overlap: str, outcome: str) -> None:
    await _made(api, "busy", spec={"every": "1s"}, overlap=overlap)

    async def is_met() -> bool:
        return any(run["outcome"] == outcome for run in await _runs(api, "busy"))

    await until(is_met)
    await _act(api, "/busy/pause")
    runs = await _runs(api, "busy")

    first = runs[-1]
    assert (first["cause"], first["outcome"], first["state"]) == ("schedule", "fired", "ready")
    [met, *_] = [run for run in reversed(runs) if run["outcome"] == outcome]
    assert (met["task"], met["state"], met["reason"]) == (None, None, "the run before it is still ready")
    assert [run["fire_time"] for run in runs] == sorted((run["fire_time"] for run in runs), reverse=True)
    shown = await _get(api, "/busy")
    assert shown["counters"]["fired"] == 1
    assert shown["counters"][outcome] == sum(run["outcome"] == outcome for run in runs)
    if skips := [run for run in runs if run["outcome"] == "skipped"]:
        assert shown["last_skip"] == {name: skips[0][name] for name in ("at", "fire_time", "reason")}
    else:
        assert shown["last_skip"] is None


async def test_a_run_that_is_over_lets_the_buffered_one_start(api: Api) -> None:
    await _made(api, "busy", spec={"every": "1s"}, overlap="buffer_one")

    async def is_buffered() -> bool:
        return bool((await _get(api, "/busy"))["buffered_now"])

    await until(is_buffered)
    [first] = await api.lease()
    buffered = next(run for run in reversed(await _runs(api, "busy")) if run["outcome"] == "buffered")
    await api.settle(first)

    [second] = await api.lease()
    run = next(each for each in await _runs(api, "busy") if each["fire_time"] == buffered["fire_time"])
    assert (run["outcome"], run["task"], run["reason"]) == ("fired", second["id"], "waited for the run before it")


async def test_runs_have_pages(api: Api) -> None:
    await _made(api, "nightly")
    for day in range(1, 6):
        await _act(api, "/nightly/trigger", {"as_of": f"2026-01-0{day}T00:00:00Z"}, 202)

    days, cursor = [], ""
    while True:
        page = await _get(api, f"/nightly/runs?limit=2{cursor}")
        days.append([run["fire_time"][8:10] for run in page["items"]])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"

    assert days == [["05", "04"], ["03", "02"], ["01"]]


@pytest.mark.parametrize(("query", "field"), [("limit=0", "limit"), ("cursor=x", "cursor"), ("state=dead", "state")])
async def test_a_wrong_page_of_runs_is_a_422(api: Api, query: str, field: str) -> None:
    await _made(api, "nightly")

    answer = await api.get(f"/v1/schedules/nightly/runs?{query}")

    assert (answer.status, answer.paths) == (422, [field])


# Delete


async def test_a_deleted_schedule_keeps_its_tasks_or_cancels_them(api: Api) -> None:
    tasks = {}
    for name in ("keeps", "cancels", "default"):
        await _made(api, name)
        tasks[name] = [(await _act(api, f"/{name}/trigger", None, 202))["task"] for _ in range(2)]

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
    assert (await _get(api, ""))["items"] == []
    assert (await api.call("DELETE", "/v1/schedules/keeps")).status == 404


async def test_a_deleted_schedule_fires_no_more(api: Api) -> None:
    spec = {"dates": [_text(_soon(4))]}
    await _made(api, "control", spec=spec)
    await _made(api, "gone", spec=spec)

    async def is_planned() -> bool:
        return bool(await _runs(api, "gone")) and bool(await _runs(api, "control"))

    await until(is_planned)
    assert (await api.call("DELETE", "/v1/schedules/gone")).status == 200

    [leased] = await api.lease()
    assert leased["id"] == (await _runs(api, "control"))[0]["task"]
    assert await api.stored() == 1


async def test_a_schedule_is_deleted_only_at_the_version_that_was_seen(api: Api) -> None:
    await _made(api, "nightly")
    await _put(api, "nightly", jitter=1)

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
    await _made(api, "nightly")

    answer = await api.call("DELETE", f"/v1/schedules/nightly?{query}")

    assert (answer.status, answer.paths) == (422, [field])
    assert (await api.get("/v1/schedules/nightly")).status == 200


# Calendars


async def test_calendars_are_put_got_listed_and_deleted(api: Api) -> None:
    entries = ["2027-12-24", {"from": "2027-12-27", "to": "2027-12-31"}, {"cron": "* * * * SUN"}]
    made = await _put_calendar(api, "holidays", *entries)
    same = await _put_calendar(api, "holidays", *entries)
    changed = await _put_calendar(api, "holidays", "2027-12-24")
    await _put_calendar(api, "empty")

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
    await _put_calendar(api, "holidays")
    made = await _made(api, "user", spec={"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]})
    other = await _made(api, "other")
    first = datetime.fromisoformat(made["next_fire_time"])

    excluded = await _put_calendar(api, "holidays", first.date().isoformat())
    moved = await _get(api, "/user")
    again = await _put_calendar(api, "holidays", first.date().isoformat())
    await _put_calendar(api, "holidays", {"cron": "* * * * *"})
    swallowed = await _get(api, "/user")
    await _put_calendar(api, "holidays")
    back = await _get(api, "/user")

    assert made["next_fire_time"] == other["next_fire_time"]
    assert (excluded["replanned"], again["replanned"]) == (1, 0)
    assert datetime.fromisoformat(moved["next_fire_time"]) == first + timedelta(days=1)
    assert moved["next_fires"][0]["at"] == moved["next_fire_time"]
    assert (swallowed["state"], swallowed["next_fire_time"]) == ("ended", None)
    assert (back["state"], back["next_fire_time"]) == ("active", made["next_fire_time"])
    assert await _get(api, "/other") == other


async def test_a_calendar_that_is_used_cannot_be_deleted(api: Api) -> None:
    await _put_calendar(api, "holidays", "2027-12-24")
    await _made(api, "user", spec={"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}]}, paused=True)

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
    ("POST", "/v1/schedules/mine/backfill", _DAY),
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
    await _put_calendar(api, "mine", "2027-12-24")
    await _made(api, "mine", spec=_HOURLY)
    begun = await _act(api, "/mine/backfill", {**_DAY, "rate": 0.01}, 202)
    before = await _get(api, "/mine")

    for method, path, body in _CALLS:
        answer = await other.call(method, path.format(id=begun["id"]), body)
        assert (answer.status, answer.json["code"]) == (404, "not_found"), path
    assert (await other.get("/v1/schedules")).json["items"] == []
    assert (await other.get("/v1/calendars")).json["items"] == []
    uses = {"spec": {"cron": "0 2 * * *", "exclude": [{"calendar": "mine"}]}}
    for refused in (await _put(other, "uses", **uses), await other.post("/v1/schedules/preview", uses)):
        assert (refused.status, refused.paths) == (422, ["spec.exclude[0].calendar"])

    after = await _get(api, "/mine")
    assert (after["state"], after["version"]) == ("active", 1)
    assert (after["next_fire_time"], after["updated_at"]) == (before["next_fire_time"], before["updated_at"])
    assert (await _get(api, f"/mine/backfills/{begun['id']}"))["state"] == "running"


async def test_two_tenants_may_use_one_name(api: Api) -> None:
    other = await api.serving.tenant(f"{api.tenant_name}-neighbour")
    await _made(api, "mine", spec=_HOURLY)
    begun = await _act(api, "/mine/backfill", {**_DAY, "rate": 0.01}, 202)

    theirs = await _made(other, "mine", jitter=7)
    by_batch = await _act(other, "/batch", {"items": [{"name": "mine", **_DAILY, "jitter": 8}]})

    assert (theirs["version"], by_batch["results"][0]["result"]) == (1, "changed")
    # A backfill belongs to its schedule, not to whoever has one of the same name.
    assert (await other.get(f"/v1/schedules/mine/backfills/{begun['id']}")).status == 404
    assert (await other.post(f"/v1/schedules/mine/backfills/{begun['id']}/cancel")).status == 404
    assert (await _get(api, "/mine"))["jitter"] == 0
    assert (await other.call("DELETE", "/v1/schedules/mine")).status == 200
    assert (await api.get("/v1/schedules/mine")).status == 200


async def test_what_does_not_exist_is_a_404(api: Api) -> None:
    for method, path, body in _CALLS:
        assert (await api.call(method, path.format(id=1), body)).status == 404, path
