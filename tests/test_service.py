"""A loop goes on for as long as it takes, work that dies is started again, and services stop in reverse."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from duetime import metrics, service
from duetime.errors import Unavailable
from duetime.service import Background, Errands, Loop, Service, Services


async def test_a_loop_outlives_any_number_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """More failures than a float has doublings: a database that is away for hours."""
    monkeypatch.setattr(service, "_LONGEST_BACKOFF_SECONDS", 0.0)
    failures = 0
    recovered = asyncio.Event()

    async def step() -> timedelta:
        nonlocal failures
        await asyncio.sleep(0)
        if failures < 1_200:
            failures += 1
            raise Unavailable("away")
        recovered.set()
        return timedelta(seconds=60)

    loop = Loop("test", step)
    loop.start()
    async with asyncio.timeout(30):
        await recovered.wait()
    await loop.stop()


async def test_a_stop_cuts_the_wait_short() -> None:
    stepped = asyncio.Event()

    async def step() -> timedelta:
        stepped.set()
        return timedelta(hours=1)

    loop = Loop("test", step)
    loop.start()
    await stepped.wait()

    async with asyncio.timeout(4):
        await loop.stop()


def failures_of(work: str) -> float:
    for line in metrics.render("here", shows_tenants=True).decode().splitlines():
        if line.startswith("duetime_background_failures_total") and f'work="{work}"' in line:
            return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.parametrize("way", ["an error", "a cancel of what it waited for"])
async def test_work_that_dies_is_reported_and_started_again(way: str) -> None:
    lives = 0
    is_well = asyncio.Event()

    async def run() -> None:
        nonlocal lives
        lives += 1
        if lives < 3:
            if way == "an error":
                raise ValueError("it broke")
            waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited
        is_well.set()
        await asyncio.Event().wait()

    work = Background(f"test {way}", run)
    with capture_logs() as said:
        work.start()
        async with asyncio.timeout(30):
            await is_well.wait()

    died = [line for line in said if line["event"] == "background work died and is started again"]
    assert [(line["work"], line["deaths"]) for line in died] == [(f"test {way}", 1), (f"test {way}", 2)]
    assert all(line["exc_info"] is not None for line in died)
    assert failures_of(f"test {way}") == 2
    assert work.trouble is not None
    await work.stop(0.0)


async def test_work_that_is_stopped_is_not_started_again() -> None:
    lives = 0

    async def run() -> None:
        nonlocal lives
        lives += 1
        await asyncio.Event().wait()

    work = Background("test", run)
    work.start()
    await asyncio.sleep(0)

    work.cancel()
    await work.ended()

    assert lives == 1
    assert work.trouble is None


async def test_an_errand_that_fails_is_reported() -> None:
    errands = Errands("test errand")

    async def fail() -> None:
        raise ValueError("it broke")

    with capture_logs() as said:
        errands.begin(fail())
        await errands.finish()
        await asyncio.sleep(0)

    assert [(line["event"], line["work"]) for line in said] == [("background work failed", "test errand")]
    assert failures_of("test errand") == 1


class Recorder:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str, fails: bool = False) -> Callable[[], Awaitable[None]]:
        async def say() -> None:
            self.said.append(text)
            if fails:
                raise ValueError(text)

        return say

    def service(self, name: str, *, fails_to_start: bool = False, fails_to_stop: bool = False) -> Service:
        return Service(name, self.note(f"start {name}", fails_to_start), self.note(f"stop {name}", fails_to_stop))


async def test_services_start_in_order_and_stop_in_reverse_though_one_cannot_be_stopped() -> None:
    recorder = Recorder()
    services = Services(
        [
            recorder.service("a"),
            recorder.service("b", fails_to_stop=True),
            Service("only stops", stop=recorder.note("x")),
        ]
    )

    await services.start()
    with capture_logs() as said:
        await services.stop()
    await services.stop()

    assert recorder.said == ["start a", "start b", "x", "stop b", "stop a"]
    assert [(line["event"], line["service"]) for line in said] == [("a service could not be stopped", "b")]


async def test_what_was_not_started_is_not_stopped() -> None:
    recorder = Recorder()
    services = Services([recorder.service("a"), recorder.service("b", fails_to_start=True), recorder.service("c")])

    with pytest.raises(ValueError, match="start b"):
        await services.start()
    await services.stop()

    # The one that failed half way has something to stop.
    assert recorder.said == ["start a", "start b", "stop b", "stop a"]
