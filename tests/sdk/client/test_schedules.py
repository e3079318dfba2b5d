"""Schedules through both clients, against a real node."""

import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from duetime import AsyncClient
from duetime.sdk.errors import Conflict, InvalidRequest, NotFound
from nodes import NodeProcess
from sdk.proxies import proxy_to


@pytest.fixture
def name() -> str:
    """A name of the test's own; with a slash, which has to survive the path."""
    return f"team/{uuid.uuid4().hex[:12]}"


async def test_a_schedule_can_be_read_back(each_client: Any, name: str, queue: str) -> None:
    made = await each_client.schedule(
        name,
        "report.build",
        {"day": "{{fire_date}}"},
        cron=["0 2 * * *", "30 12 * * MON"],
        exclude=[date(2027, 12, 24), {"from": "2027-12-30", "to": "2028-01-02"}],
        timezone="Europe/Berlin",
        dst={"gap": "skip"},
        jitter=timedelta(seconds=30),
        end_at=datetime(2030, 1, 1, tzinfo=UTC),
        overlap="buffer_one",
        misfire="fire_all",
        misfire_threshold=timedelta(minutes=1),
        catchup_window="2h",
        catchup_rate=5,
        queue=queue,
        target="https://example.com/hook",
        retry={"max_attempts": 2},
        labels={"team": "a"},
        expires_after="1h",
        note="the nightly report",
    )

    read = await each_client.get_schedule(name)
    assert read == made
    assert (read.state, read.version, read.origin, read.note) == ("active", 1, "api", "the nightly report")
    assert read.spec["cron"] == ["0 2 * * *", "30 12 * * MON"]
    assert read.spec["exclude"] == ["2027-12-24", {"from": "2027-12-30", "to": "2028-01-02"}]
    assert (read.dst["gap"], read.jitter, read.catchup_window) == ("skip", 30.0, 7200.0)
    assert read.misfire_threshold == 60.0
    assert (read.task["queue"], read.task["target"]["url"]) == (queue, "https://example.com/hook")
    assert read.next_fires is not None
    assert len(read.next_fires) == 5
    assert read.words


async def test_putting_it_again_changes_nothing_and_something_else_makes_a_version(each_client: Any, name: str) -> None:
    await each_client.schedule(name, "a", every="1h")

    again = await each_client.schedule(name, "a", every=3600)
    changed = await each_client.schedule(name, "a", every=timedelta(hours=2), phase="30m", version=1)

    assert (again.version, changed.version) == (1, 2)
    assert changed.spec == {"every": 7200.0, "phase": 1800.0}
    with pytest.raises(Conflict) as caught:
        await each_client.schedule(name, "a", every="3h", version=1)
    assert caught.value.code == "version_conflict"


async def test_what_another_origin_made_is_refused_unless_forced(each_client: Any, name: str) -> None:
    await each_client.schedule(name, "a", every="1h", origin="file", source="jobs")

    with pytest.raises(Conflict) as caught:
        await each_client.schedule(name, "a", every="1h")
    taken = await each_client.schedule(name, "a", every="1h", force=True)

    assert caught.value.code == "other_origin"
    assert (taken.origin, taken.source) == ("api", "")


async def test_what_is_wrong_is_named(each_client: Any, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"spec.cron"):
        await each_client.schedule(name, "a", cron="61 * * * *")
    with pytest.raises(ValueError, match="start_at has no time zone"):
        await each_client.schedule(name, "a", every="1h", start_at=datetime(2027, 1, 1))
    with pytest.raises(NotFound):
        await each_client.get_schedule(name)


async def test_a_list_of_schedules_leads_through_all_pages(each_client: Any, name: str) -> None:
    names = [f"{name}/{number}" for number in range(5)]
    for each in names:
        await each_client.schedule(each, "a", every="1h", source=name)
    await each_client.pause_schedule(names[3])

    listed = [each.name async for each in each_client.list_schedules(prefix=name, page_size=2)]
    paused = [each.name async for each in each_client.list_schedules(source=name, state="paused")]

    assert listed == names
    assert paused == [names[3]]


async def test_pause_resume_and_delete(each_client: Any, name: str) -> None:
    await each_client.schedule(name, "a", every="1h")

    paused = await each_client.pause_schedule(name, "while we move")
    resumed = await each_client.resume_schedule(name)
    deleted = await each_client.delete_schedule(name)

    assert (paused.state, paused.note, paused.next_fires) == ("paused", "while we move", [])
    assert resumed.state == "active"
    assert (deleted.name, deleted.cancelled) == (name, 0)
    with pytest.raises(NotFound):
        await each_client.delete_schedule(name)


async def test_a_triggered_run_is_a_task_and_is_listed(each_client: Any, name: str, queue: str) -> None:
    await each_client.schedule(name, "a", {"at": "{{fire_time}}"}, every="1d", queue=queue)

    first = await each_client.trigger_schedule(name)
    second = await each_client.trigger_schedule(name, datetime(2026, 1, 1, 9, tzinfo=UTC))

    assert (await each_client.get(second.task)).payload == {"at": "2026-01-01T09:00:00Z"}
    runs = [run async for run in each_client.schedule_runs(name, page_size=1)]
    assert [run.task for run in runs] == [first.task, second.task]
    assert {(run.cause, run.outcome) for run in runs} == {("trigger", "fired")}
    assert (await each_client.delete_schedule(name, tasks="cancel")).cancelled == 2
    assert (await each_client.get(first.task)).state == "cancelled"


async def test_a_backfill_makes_the_tasks_of_a_range(each_client: Any, name: str, queue: str) -> None:
    await each_client.schedule(name, "a", every="1h", queue=queue)

    backfill = await each_client.backfill_schedule(name, "2026-01-01T00:00:00Z", "2026-01-01T05:00:00Z", rate=100)
    slow = await each_client.backfill_schedule(name, "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", rate=0.01)
    cancelled = await each_client.cancel_backfill(name, slow.id)

    assert (backfill.rate, cancelled.state) == (100.0, "cancelled")
    assert {each.id for each in await each_client.list_backfills(name)} == {backfill.id, slow.id}
    while (done := await each_client.get_backfill(name, backfill.id)).state == "running":
        assert done.created_count <= 5
    assert (done.state, done.created_count) == ("done", 5)


async def test_a_preview_of_what_is_stored_and_of_what_is_not(each_client: Any, name: str) -> None:
    await each_client.schedule(name, "a", cron="H 3 * * *")

    stored = await each_client.preview_schedule(name, count=3, from_=datetime(2027, 1, 1, tzinfo=UTC))
    described = await each_client.preview_schedule(name, cron="H 3 * * *", count=3, from_="2027-01-01T00:00:00Z")
    spring = await each_client.preview_schedule(
        cron="30 2 * * *", timezone="Europe/Berlin", count=1, from_="2027-03-27T23:00:00Z", exclude=["2027-03-29"]
    )

    assert stored == described
    assert len(stored.fires) == 3
    assert spring.fires[0].note == "shifted from 02:30, which does not exist"
    with pytest.raises(ValueError, match="preview_schedule"):
        await each_client.preview_schedule()


async def test_calendars(each_client: Any, name: str) -> None:
    put = await each_client.put_calendar(name, [date(2027, 12, 24), "2027-12-25", {"cron": "* * * * SUN"}])
    await each_client.schedule(name, "a", cron="0 9 * * *", exclude=[{"calendar": name}])
    again = await each_client.put_calendar(name, ["2027-12-25"])

    assert (put.version, again.version, again.replanned) == (1, 2, 1)
    assert (await each_client.get_calendar(name)).dates == ["2027-12-25"]
    assert name in [each.name for each in await each_client.list_calendars()]
    with pytest.raises(Conflict):
        await each_client.delete_calendar(name)
    await each_client.delete_schedule(name)
    await each_client.delete_calendar(name)
    with pytest.raises(NotFound):
        await each_client.get_calendar(name)


async def test_a_list_of_large_calendars_is_read_to_its_end(each_client: Any, name: str) -> None:
    # Each is more than half a page.
    crons = [{"cron": f"{','.join(str(n % 60) for n in range(230))} {n % 24} 1 1 *"} for n in range(1_000)]
    names = [f"{name}-{number}" for number in range(3)]
    for each in names:
        await each_client.put_calendar(each, crons)

    listed = [each.name for each in await each_client.list_calendars()]

    assert [each for each in listed if each in names] == names
    for each in names:
        await each_client.delete_calendar(each)


async def test_a_trigger_whose_answer_is_lost_is_repeated_and_happens_once(
    node: NodeProcess, client: AsyncClient, name: str, queue: str
) -> None:
    await client.schedule(name, "a", every="1d", queue=queue)

    async with proxy_to(node.url) as proxy, AsyncClient(proxy.url, node.key) as cut:
        proxy.cut_answers_to = [b"/trigger"]
        triggered = await cut.trigger_schedule(name)

    [run] = [run async for run in client.schedule_runs(name)]
    assert run.task == triggered.task
