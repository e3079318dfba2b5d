"""Schedules over HTTP: look at them, and see beforehand when they fire."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.client import Api, until
from api.schedule_calls import act, fire_times_of, in_seconds, make_schedule, put_calendar, read, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Looking


async def test_next_fires_are_five_and_in_order(api: Api) -> None:
    made = await make_schedule(api, "nightly", timezone="Europe/Berlin")

    times = [datetime.fromisoformat(each["at"]) for each in made["next_fires"]]
    assert len(times) == 5
    assert times == sorted(set(times))
    assert times[0] > datetime.now(UTC)
    assert made["next_fires"][0]["at"] == made["next_fire_time"]
    assert all("T02:00:00+0" in each["local"] for each in made["next_fires"])


async def test_next_fires_end_with_the_schedule(api: Api) -> None:
    limited = await make_schedule(api, "limited", max_fires=2)
    dated = await make_schedule(api, "dated", spec={"dates": ["2031-01-01T00:00", "2032-01-01T00:00"]})
    follows = await make_schedule(api, "follows", spec={"after": "10m"}, start_at="2031-01-01T00:00:00Z")

    assert len(limited["next_fires"]) == 2
    assert fire_times_of(dated["next_fires"]) == ["2031-01-01T00:00:00Z", "2032-01-01T00:00:00Z"]
    assert fire_times_of(follows["next_fires"]) == [follows["next_fire_time"]] == ["2031-01-01T00:00:00Z"]


async def test_a_list_has_filters_and_pages(api: Api) -> None:
    for name in ("a.1", "a.2", "a.3"):
        await make_schedule(api, name)
    await make_schedule(api, "b.file", origin="file", source="x")
    await make_schedule(api, "b.paused", paused=True)

    async def names(query: str) -> list[str]:
        return [each["name"] for each in (await read(api, f"?{query}"))["items"]]

    first = await read(api, "?limit=2")
    second = await read(api, f"?limit=2&cursor={first['next']}")
    third = await read(api, f"?limit=2&cursor={second['next']}")
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
    await make_schedule(api, "once", spec={"dates": [text_of(in_seconds(2))]})

    async def has_ended() -> bool:
        return [each["name"] for each in (await read(api, "?state=ended"))["items"]] == ["once"]

    await until(has_ended)
    ended = await read(api, "/once")
    assert (ended["state"], ended["next_fire_time"], ended["next_fires"]) == ("ended", None, [])
    assert ended["counters"]["fired"] == 1


# Preview


async def test_a_preview_says_what_a_clock_change_does(api: Api) -> None:
    body = {"spec": {"cron": "30 2 * * *"}, "timezone": "Europe/Berlin", "from": "2027-03-27T00:00:00Z", "count": 3}

    shifted = await act(api, "/preview", body)
    skipped = await act(api, "/preview", {**body, "dst": {"gap": "skip"}})

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

    assert (await act(api, "/preview", whole))["words"] == "at 02:00 every day, UTC"
    refused = await api.post("/v1/schedules/preview", {**whole, "task": {"type": "no good"}})
    assert (refused.status, refused.paths) == (422, ["task.type"])


async def test_a_preview_shows_what_is_left_out_and_why(api: Api) -> None:
    await put_calendar(api, "holidays", "2027-12-24")
    spec = {"cron": "0 9 * * *", "exclude": [{"calendar": "holidays"}, {"cron": "* * * * SAT,SUN"}]}
    await make_schedule(api, "workdays", spec=spec)

    asked = await act(api, "/preview", {"spec": spec, "from": "2027-12-23T00:00:00Z", "count": 2})
    stored = await read(api, "/workdays/preview?from=2027-12-23T00:00:00Z&count=2")

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
        [at] = fire_times_of((await act(api, "/preview", {**body, "name": name}))["fires"])
        return at

    slots = {name: await slot(name) for name in map("job-{}".format, range(10))}
    await make_schedule(api, "job-3", spec=spec)
    stored = await read(api, "/job-3/preview?from=2027-01-01T00:00:00Z&count=1")

    assert {name: await slot(name) for name in slots} == slots
    assert len(set(slots.values())) > 5
    assert fire_times_of(stored["fires"]) == [slots["job-3"]]


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
    await make_schedule(api, "nightly")

    answer = await api.get(f"/v1/schedules/nightly/preview?{query}")

    assert (answer.status, answer.paths) == (422, [field])
