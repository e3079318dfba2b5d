"""Schedules that a worker's code declares, against a real node."""

import asyncio
import logging
import uuid
from typing import Any

import pytest

from duetime import AsyncClient, Worker
from duetime.sdk.errors import ConfigurationError, InvalidRequest
from duetime.sdk.worker.declared import name_of_program
from nodes import NodeProcess
from sdk.conftest import running
from sdk.worker.test_worker import make_worker

worker = Worker("http://127.0.0.1:9", "dt_key")


@pytest.fixture
def name() -> str:
    return f"declared-{uuid.uuid4().hex[:12]}"


async def test_a_declared_schedule_fires_its_handler(
    node: NodeProcess, client: AsyncClient, queue: str, name: str
) -> None:
    worker = make_worker(node, queue, name="reports")
    came: asyncio.Queue[Any] = asyncio.Queue()

    @worker.schedule(every="1s", name=name, payload={"at": "{{fire_time_unix}}"})
    @worker.task("report")
    async def report(payload: dict[str, int]) -> None:
        await came.put(payload["at"])

    async with running(worker):
        first = await asyncio.wait_for(came.get(), 20)
        second = await asyncio.wait_for(came.get(), 20)
        stored = await client.get_schedule(name)
    await client.delete_schedule(name)

    assert second > first
    assert (stored.origin, stored.source) == ("code", "reports")
    assert (stored.task["type"], stored.task["queue"]) == ("report", queue)


def test_the_order_of_the_decorators_does_not_matter() -> None:
    worker = Worker("http://127.0.0.1:9", "dt_key")

    @worker.task("below")
    @worker.schedule(every="1h")
    def first(payload: object) -> None: ...

    @worker.schedule(every="1h")
    @worker.task("above")
    def second(payload: object) -> None: ...

    @worker.task
    @worker.schedule(every="1h")
    def bare_above(payload: object) -> None: ...

    @worker.schedule(every="1h")
    @worker.task
    def bare_below(payload: object) -> None: ...

    @worker.schedule(cron="@daily", name="at night")
    @worker.schedule(cron="@hourly")
    def alone(payload: object) -> None: ...

    shaped = worker._shaped_schedules()
    assert worker.types == ["above", "alone", "below", f"{__name__}.bare_above", f"{__name__}.bare_below"]
    assert [(each["name"], each["task"]["type"]) for each in shaped] == [
        ("below", "below"),
        ("above", "above"),
        (f"{__name__}.bare_above", f"{__name__}.bare_above"),
        (f"{__name__}.bare_below", f"{__name__}.bare_below"),
        ("alone", "alone"),
        ("at night", "alone"),
    ]


def test_two_schedules_need_two_names_and_a_function_needs_one() -> None:
    worker = Worker("http://127.0.0.1:9", "dt_key")

    @worker.schedule(cron="@daily")
    @worker.schedule(cron="@hourly")
    def twice(payload: object) -> None: ...

    with pytest.raises(ConfigurationError, match="two schedules named twice"):
        worker._shaped_schedules()
    with pytest.raises(ConfigurationError, match=r"needs @worker.task"):
        worker.schedule(cron="@daily")(lambda payload: None)


def test_the_source_is_the_program_whatever_the_process_is_called() -> None:
    here = Worker("http://127.0.0.1:9", "dt_key", queues=["mail", "other"])

    @here.schedule(cron="@daily")
    def nightly(payload: object) -> None: ...

    here.configure(name="host-7", queues=["elsewhere"])

    [shaped] = here._shaped_schedules()
    assert name_of_program(worker, nightly) == f"{__name__}:worker"
    assert (shaped["source"], shaped["task"]["queue"]) == (__name__, "mail")


async def test_unchanged_schedules_stay_as_they_are_however_many_workers_start(
    node: NodeProcess, client: AsyncClient, queue: str, name: str
) -> None:
    def make() -> Worker:
        worker = make_worker(node, queue, name="crowd")

        @worker.schedule(cron="0 2 * * *", timezone="Europe/Berlin", name=name)
        def nightly(payload: object) -> None: ...

        return worker

    crowd = [make() for _ in range(5)]
    works = [asyncio.create_task(worker.run_async()) for worker in crowd]
    await _until_there(client, name)
    await client.pause_schedule(name, "by hand")
    for worker in crowd:
        worker.stop()
    await asyncio.gather(*works)
    async with running(make()):
        await asyncio.sleep(0)
    stored = await client.get_schedule(name)

    assert (stored.version, stored.state, stored.note) == (1, "paused", "by hand")


async def test_a_schedule_of_another_origin_is_left_alone_and_said(
    node: NodeProcess, client: AsyncClient, queue: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.schedule(name, "other", every="1h")
    worker = make_worker(node, queue, name="mine")

    @worker.schedule(every="1m", name=name)
    async def ours(payload: object) -> str:
        return "ran"

    with caplog.at_level(logging.INFO, "duetime.worker"):
        async with running(worker):
            task = await client.wait((await client.submit("ours", queue=queue)).id)

    assert task.result == "ran"
    assert (await client.get_schedule(name)).task["type"] == "other"
    assert f"schedule {name} is left as it is: schedule {name} was made by api" in caplog.text
    assert "(other_origin)" in caplog.text


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"cron": "61 2 * * *"}, "minute"), ({"every": "soon"}, "every"), ({"timezone": "Europe/Berlik"}, "timezone")],
)
async def test_a_wrong_schedule_stops_the_worker_with_the_servers_words(
    node: NodeProcess, queue: str, name: str, options: dict[str, Any], wrong: str
) -> None:
    worker = make_worker(node, queue)
    worker.schedule(name="right", cron="@daily", paused=True)(_handler)
    worker.schedule(name=name, **{"cron": "@daily", **options})(_handler)

    with pytest.raises(InvalidRequest) as caught:
        await asyncio.wait_for(worker.run_async(), 20)

    assert f"schedule {name}" in str(caught.value)
    assert wrong in str(caught.value)


async def test_a_worker_that_waits_for_the_server_can_be_stopped() -> None:
    waiting = Worker("http://127.0.0.1:9", "dt_key")
    waiting.schedule(cron="@daily")(_handler)

    work = asyncio.create_task(waiting.run_async())
    await asyncio.sleep(0.3)
    waiting.stop()

    await asyncio.wait_for(work, 5)


def _handler(payload: object) -> None: ...


async def _until_there(client: AsyncClient, name: str) -> None:
    async with asyncio.timeout(20):
        while name not in [each.name async for each in client.list_schedules(prefix=name)]:
            await asyncio.sleep(0.02)
