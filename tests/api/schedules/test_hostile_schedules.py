"""Schedules and calendars that mean harm: refused clearly or evaluated in pieces, and others are served between.

The server and both tenants share one loop; steps and pieces are counted, and so are the rounds of the loop.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from api.client import Api, Reply, Serving
from api.schedule_calls import TASK, make_schedule, put_calendar, put_schedule, read
from duetime.lifecycle.schedules.calendars import KEPT_BYTES, KEPT_BYTES_OF_A_TENANT
from duetime.lifecycle.schedules.recurrences import Recurrences

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIXTY = ",".join(str(number) for number in range(60))
#: All minutes, each by many lines.
EVERYTHING = [{"cron": f"{number % 60} * * * *"} for number in range(1_000)]
NOTHING_LEFT = {"cron": "* * * * *", "exclude": EVERYTHING}
#: 0.86 MB as it is sent, and a third of a second to read.
LONG = f"{SIXTY},{','.join(str(number % 60) for number in range(230))}"
LARGE = [{"cron": f"{LONG} {number % 24} 1 1 *"} for number in range(1_000)]
#: Each nearly as long as a cron may be: more than the steps that reading a definition has.
LARGER = [{"cron": f"{LONG},{','.join(map(str, range(50)))} 1 1 1 *"} for _ in range(1_000)]


@pytest_asyncio.fixture(loop_scope="module")
async def victim(serving: Serving, api: Api) -> Api:
    return await serving.tenant(f"beside-{api.tenant_name}")


def recurrences_of(api: Api) -> Recurrences:
    return api.serving.firing._recurrences


@asynccontextmanager
async def beside(victim: Api) -> AsyncIterator[list[int]]:
    """The other tenant submits all the while; for each of its tasks, how many pieces were done before."""
    evaluations = recurrences_of(victim).evaluations
    accepted: list[int] = []
    is_over = asyncio.Event()

    async def submit() -> None:
        while not is_over.is_set():
            await victim.submit()
            accepted.append(evaluations.pieces)

    submitting = asyncio.create_task(submit())
    try:
        yield accepted
    finally:
        is_over.set()
        await submitting


@asynccontextmanager
async def in_pieces(api: Api, at_least: int) -> AsyncIterator[None]:
    """The loop goes on between any two pieces: another task of it has a round for each."""
    evaluations = recurrences_of(api).evaluations
    began, pieces_at = evaluations.pieces, []

    async def look() -> None:
        while True:
            pieces_at.append(evaluations.pieces)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
    assert evaluations.pieces - began >= at_least
    assert set(range(began, evaluations.pieces)) <= set(pieces_at), "two pieces were done in one round"


def refusal(reply: Reply) -> tuple[int, str, list[str]]:
    return reply.status, reply.json["code"], [error["path"] for error in reply.json["errors"]]


TOO_COMPLEX = (422, "schedule_too_complex", ["spec.exclude"])


async def test_exclusions_of_everything_are_refused_wherever_they_come(api: Api, victim: Api) -> None:
    item = {"spec": NOTHING_LEFT, "task": TASK}
    async with beside(victim) as accepted:
        preview = await api.post("/v1/schedules/preview", {"spec": NOTHING_LEFT, "count": 1_000})
        put = await put_schedule(api, "nothing", spec=NOTHING_LEFT)
        batch = await api.post("/v1/schedules/batch", {"items": [{"name": "n", **item}, {"name": "fine", **TIMES}]})
        trial = await api.post("/v1/schedules/batch?dry_run=true", {"items": [{"name": "n", **item}]})

    assert [refusal(each) for each in (preview, put)] == [TOO_COMPLEX] * 2
    assert "20,000 steps" in preview.json["detail"]
    assert "leave out whole days" in preview.json["detail"]
    assert [each.get("error", {}).get("code") for each in batch.json["results"]] == ["schedule_too_complex", None]
    assert trial.json["results"][0]["error"]["code"] == "schedule_too_complex"
    assert (await api.get("/v1/schedules/nothing")).status == 404
    assert len(set(accepted)) >= 3, "the other tenant was served between"


TIMES = {"spec": {"cron": "0 2 * * *"}, "task": TASK}


async def test_many_at_once_of_one_tenant_are_done_one_after_the_other(api: Api, victim: Api) -> None:
    preview = {"spec": {"cron": "* * * * *", "exclude": [{"cron": "*/2 * * * *"}]}, "count": 1_000}
    async with beside(victim) as accepted, in_pieces(api, 100):
        answers = await asyncio.gather(*(api.post("/v1/schedules/preview", preview) for _ in range(10)))

    assert {each.status for each in answers} == {200}
    assert len(set(accepted)) >= 5


async def test_a_preview_that_takes_too_long_as_a_whole_says_to_ask_for_fewer(api: Api) -> None:
    spec = {"cron": "* * * * *", "exclude": [{"cron": f"1-59 {number % 24} * * *"} for number in range(24)]}

    many = await api.post("/v1/schedules/preview", {"spec": spec, "count": 1_000})
    few = await api.post("/v1/schedules/preview", {"spec": spec, "count": 10})

    assert refusal(many) == (422, "schedule_too_complex", ["count"])
    assert (few.status, len([each for each in few.json["fires"] if not each["excluded"]])) == (200, 10)


async def test_a_calendar_is_named_once(api: Api) -> None:
    await put_calendar(api, "holidays", "2027-12-24")
    spec = {"cron": "0 2 * * *", "exclude": [{"calendar": "holidays"}] * 1_000}

    answers = [await put_schedule(api, "s", spec=spec), await api.post("/v1/schedules/preview", {"spec": spec})]

    for answer in answers:
        status, code, paths = refusal(answer)
        assert (status, code, paths[0], len(paths)) == (422, "invalid", "spec.exclude[1].calendar", 20)
    assert "named before" in answers[0].json["detail"]


async def test_reading_a_schedule_evaluates_nothing_anew(api: Api) -> None:
    crons = [{"cron": f"{number % 60} {number % 24} * * SUN"} for number in range(200)]
    # Its times are other ones from one year to the next only: no time passes while they are read.
    made = await make_schedule(api, "dear", spec={"cron": "0 0 1 1 *", "exclude": crons})
    recurrences = recurrences_of(api)
    [recurrence] = [
        kept
        for body, kept in (entry.value for entry in recurrences.kept._entries.values())
        if len(body.spec.exclude) == 200
    ]
    before = recurrence.spent, recurrences.evaluations.pieces

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(read(api, "/dear"))
    again = await read(api, "/dear")

    assert (recurrence.spent, recurrences.evaluations.pieces) == before
    assert len(again["next_fires"]) == 5
    assert again["words"] == made["words"]
    assert "except 200 exclusions" in again["words"]


async def test_a_stored_schedule_that_takes_too_long_can_be_read_and_previewed_within_bounds(
    api: Api, victim: Api
) -> None:
    await make_schedule(api, "old")
    [row] = await api.serving.database.fetch("SELECT definition FROM schedule WHERE tenant = $1", api.tenant)
    body = {**json.loads(row["definition"]), "spec": {**NOTHING_LEFT, "cron": ["* * * * *"]}}
    await api.serving.database.execute(
        "UPDATE schedule SET definition = $2, version = version + 1 WHERE tenant = $1",
        api.tenant,
        json.dumps(body).encode(),
    )

    async with beside(victim) as accepted, in_pieces(api, 3):
        shown = await read(api, "/old")
        preview = await api.get("/v1/schedules/old/preview?count=1000")
        resumed = [await api.post(f"/v1/schedules/old/{verb}") for verb in ("pause", "resume")]
        listed = await read(api, "?limit=10")

    assert shown["state"] == "active"
    assert "next_fires" not in shown
    assert refusal(preview) == TOO_COMPLEX
    assert [each.status for each in resumed] == [200, 422]
    assert [each["name"] for each in listed["items"]] == ["old"]
    assert accepted


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"rrule": ["FREQ=DAILY;COUNT=10000"] * 10}, id="counted rules"),
        pytest.param({"cron": "0 0 * * *", "exclude": LARGER}, id="long crons"),
        pytest.param({"rrule": "FREQ=HOURLY;INTERVAL=8761;BYYEARDAY=200,201;BYHOUR=5"}, id="days of years"),
        pytest.param(
            {"calendar": [{"month": 2, "day": 29, "weekday": "MON", "hour": n % 24} for n in range(100)]}, id="seldom"
        ),
        pytest.param({"dates": ["2027-03-01T09:00"] * 999 + ["never"]}, id="dates"),
        pytest.param({"cron": "0 0 * * *", "exclude": [*LARGE[:998], "never"]}, id="wrong at the end"),
    ],
)
async def test_whatever_takes_long_to_read_is_refused_in_pieces(api: Api, victim: Api, spec: Any) -> None:
    recurrences = recurrences_of(api)
    async with beside(victim), in_pieces(api, 0 if "dates" in spec else 1):
        answer = await put_schedule(api, "s", spec=spec)

    assert answer.status == 422, answer.body[:300]
    assert answer.json["code"] in ("invalid", "schedule_too_complex")
    assert len(recurrences.evaluations._locks) == 0


async def test_a_large_calendar_is_read_in_pieces(api: Api, victim: Api) -> None:
    assert len(json.dumps(LARGE)) > 750_000
    async with beside(victim) as accepted, in_pieces(api, 20):
        await put_calendar(api, "large", *LARGE)
        await make_schedule(api, "s", spec={"cron": "0 2 * * *", "exclude": [{"calendar": "large"}]}, paused=True)

    assert len(set(accepted)) >= 5


async def test_calendars_are_kept_within_bytes(api: Api) -> None:
    crons = [{"cron": f"{number % 60} {number % 24} * * *"} for number in range(1_000)]
    kept = recurrences_of(api).calendars.kept
    for number in range(12):
        await put_calendar(api, f"c{number}", *crons)
        spec = {"cron": "30 9 * * *", "exclude": [{"calendar": f"c{number}"}], "every": "1d"}
        assert (await api.post("/v1/schedules/preview", {"spec": spec, "count": 1})).status in (200, 422)

    assert kept.bytes_of(api.tenant) <= KEPT_BYTES_OF_A_TENANT < 12 * 1_000_000
    assert kept.bytes <= KEPT_BYTES
    assert len([key for key in kept._entries if key[0] == api.tenant]) >= 3


async def test_a_schedule_that_names_too_much_is_refused_before_it_is_read(api: Api) -> None:
    for number in range(3):
        await put_calendar(api, f"large{number}", *LARGE)
    exclude = [{"calendar": f"large{number}"} for number in range(3)]
    before = recurrences_of(api).evaluations.pieces

    answer = await put_schedule(api, "s", spec={"cron": "0 2 * * *", "exclude": exclude})

    assert refusal(answer) == TOO_COMPLEX
    assert "name fewer" in answer.json["detail"]
    assert recurrences_of(api).evaluations.pieces == before


async def test_what_is_no_cursor_is_refused(api: Api) -> None:
    assert (await api.get("/v1/calendars?cursor=%00")).status == 422
