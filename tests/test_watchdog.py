"""The watchdog: who held the event loop up, and when nobody did."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import structlog

from duetime import metrics, watchdog
from duetime.service import Loop
from duetime.watchdog import BEAT_SECONDS, Meter, Reason, Sample, Used, Watchdog, describe_by, judge, read_stack, tell


class Told:
    """What a watchdog reported, and its first report."""

    def __init__(self) -> None:
        self.all: list[tuple[Reason, float, Used, Sample | None]] = []
        self.is_there = asyncio.Event()

    def __call__(self, reason: Reason, late: float, used: Used, sample: Sample | None) -> None:
        self.all.append((reason, late, used, sample))
        self.is_there.set()


def hold_up(dog: Watchdog, tenant: str) -> None:
    """Use the processor until the watchdog has seen it, and for two tenths of a second at least."""
    assert tenant
    ends_at, begins_at = time.monotonic() + 20.0, time.thread_time()
    while time.monotonic() < ends_at and (dog.sample is None or time.thread_time() < begins_at + 0.2):
        sum(range(100))


def describe(variables: Mapping[str, Any]) -> tuple[str, str | None]:
    return "hold up", variables["tenant"]


describe_by(hold_up.__code__, describe)


async def test_who_uses_the_processor_for_too_long_is_named_with_its_tenant() -> None:
    told = Told()
    dog = Watchdog(told)
    dog.start()

    hold_up(dog, "acme")
    async with asyncio.timeout(20):
        await told.is_there.wait()
    dog.stop()

    reason, late, used, sample = told.all[0]
    assert reason == "busy"
    assert sample is not None
    assert (sample.operation, sample.tenant) == ("hold up", "acme")
    assert late >= 0.1
    assert used.cpu >= 0.1


async def test_a_step_of_a_loop_is_named_by_its_loop() -> None:
    told = Told()
    dog = Watchdog(told)

    async def step() -> timedelta:
        ends_at, begins_at = time.monotonic() + 20.0, time.thread_time()
        while time.monotonic() < ends_at and (dog.sample is None or time.thread_time() < begins_at + 0.2):
            sum(range(100))
        return timedelta(hours=1)

    dog.start()
    loop = Loop("slow", step)
    loop.start()
    async with asyncio.timeout(20):
        await told.is_there.wait()
    await loop.stop()
    dog.stop()

    sample = told.all[0][3]
    assert sample is not None
    assert sample.operation == "loop slow"
    assert any(frame.startswith("service:") for frame in sample.frames)


async def test_a_loop_that_goes_on_is_left_alone() -> None:
    """Beats come on time while others have their turns, however many they are."""
    told = Told()
    dog = Watchdog(told)
    dog.start()
    before = dog._beats

    async with asyncio.timeout(60):
        while dog._beats < before + 20:
            sum(range(1000))
            await asyncio.sleep(0)
    dog.stop()

    assert [each for each in told.all if each[0] != "starved"] == []


@pytest.mark.parametrize(
    ("late", "used", "is_looker_late", "reason"),
    [
        (0.30, Used(0.30, 0.0), False, "busy"),
        # The call kept Python's lock, so that nobody could look.
        (0.30, Used(0.30, 0.0), True, "busy"),
        # A busy machine makes it longer, but it was too long by itself.
        (0.90, Used(0.15, 0.75), True, "busy"),
        (0.30, Used(0.01, 0.0), False, "waiting"),
        (0.30, Used(0.01, 0.28), False, "starved"),
        # The process was stopped, or the machine slept.
        (9.00, Used(0.00, 0.0), True, "starved"),
    ],
)
def test_nobody_is_blamed_for_a_machine_that_is_busy(
    late: float, used: Used, is_looker_late: bool, reason: Reason
) -> None:
    assert judge(late, used, is_looker_late=is_looker_late) == reason


CHILD = """
import asyncio, json, sys
from duetime.watchdog import Watchdog

async def main():
    over, is_ready = asyncio.Event(), False
    def report(reason, late, used, sample):
        print(json.dumps([reason, late]), flush=True)
        if is_ready and late > 0.5:
            over.set()
    dog = Watchdog(report)
    dog.start()
    await asyncio.sleep(0.2)
    is_ready = True
    print("ready", flush=True)
    await asyncio.wait_for(over.wait(), 60)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_blames_nobody() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert any("ready" in line for line in iter(child.stdout.readline, ""))
        os.kill(child.pid, signal.SIGSTOP)
        # This is how long it does not run: what is tested, and not a wait for something.
        time.sleep(1.0)
        os.kill(child.pid, signal.SIGCONT)
        lines = [json.loads(line) for line in child.stdout]
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()

    assert max(lines, key=lambda line: line[1])[0] == "starved"


def test_a_line_names_operation_tenant_and_place_and_the_metrics_the_operation() -> None:
    sample = Sample("submit_tasks", "acme", ("api.tasks:1 submit",), 1, False)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            tell("busy", 0.25, Used(0.2, 0.0), sample)
        tell("starved", 0.5, Used(0.0, 0.0), sample)
    shown = metrics.render("here", shows_tenants=False).decode()

    assert [{**line, "left_out": 0} for line in lines] == [
        {
            "event": "the event loop was blocked",
            "log_level": "warning",
            "operation": "submit_tasks",
            "tenant": "acme",
            "reason": "busy",
            "seconds": 0.25,
            "cpu_seconds": 0.2,
            "at": ("api.tasks:1 submit",),
            "left_out": 0,
        }
    ]
    assert 'duetime_loop_blocked_total{node="here",operation="submit_tasks"} 3.0' in shown
    assert 'duetime_loop_blocked_seconds_total{node="here",operation="submit_tasks"} 0.75' in shown
    assert 'duetime_loop_starved_total{node="here"}' in shown
    assert 'duetime_loop_delay_seconds_bucket{le="0.05",node="here"}' in shown


CALLBACK = """
import asyncio, sys, time
from duetime import ids, watchdog

def main():
    asyncio.run(watch())

async def watch():
    over = asyncio.Event()
    dog = watchdog.Watchdog(lambda reason, late, used, sample: (print(sample.operation), over.set()))
    dog.start()
    while not dog._starters:
        await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_soon(hold_up, dog)
    await asyncio.wait_for(over.wait(), 60)
    dog.stop()

def hold_up(dog):
    ends_at, begins_at = time.monotonic() + 20.0, time.thread_time()
    while time.monotonic() < ends_at and (dog.sample is None or time.thread_time() < begins_at + 0.2):
        sum(range(100))

# As if it were a module of the node that starts the loop.
exec(compile("def start(main): main()", ids.__file__, "exec"))
start(main)
"""


def test_what_starts_the_loop_is_blamed_for_nothing() -> None:
    child = subprocess.run([sys.executable, "-c", CALLBACK], capture_output=True, text=True, timeout=90)

    assert child.stdout.split() == ["other"], child.stderr


def test_a_stack_without_anything_of_ours_is_something_else() -> None:
    assert read_stack(None) == ("other", None, ())


def test_a_thread_that_waits_for_the_processor_is_told_from_one_that_sleeps() -> None:
    meter = Meter()
    before = meter.read()
    threading.Event().wait(BEAT_SECONDS)
    after = meter.read()
    meter.close()

    assert after.cpu >= before.cpu
    assert after.queued >= before.queued


async def test_a_loop_that_never_goes_on_is_told_of_while_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "STUCK_SECONDS", 0.2)
    dog = Watchdog(Told())
    dog.start()

    with structlog.testing.capture_logs() as lines:
        ends_at = time.monotonic() + 20.0
        while time.monotonic() < ends_at and not lines:
            sum(range(100))
    dog.stop()

    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("the event loop is blocked and does not go on", "error")
    ]
