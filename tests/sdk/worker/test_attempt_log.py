"""What a worker says of its attempts, through the logging of the program that it runs in."""

import logging
import sys
from typing import Any

import pytest

from duetime import AsyncClient, Permanent, Retry, RetryPolicy, Snooze, Task, Worker
from duetime.sdk.worker import attempt_log, handlers
from duetime.sdk.worker.context import Held
from duetime.sdk.worker.handlers import Handler
from duetime.sdk.worker.protocol import LeasedTask
from nodes import NodeProcess
from sdk.conftest import running

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, min_backoff=0)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "duetime.worker")
    return caplog


def about(said: pytest.LogCaptureFixture, task: Task) -> list[logging.LogRecord]:
    return [record for record in said.records if getattr(record, "task", None) == task.id]


def trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def levels(records: list[logging.LogRecord]) -> list[str]:
    return [record.levelname for record in records]


@pytest.fixture
def worker(node: NodeProcess, queue: str) -> Worker:
    worker = Worker(node.url, node.key, queues=[queue], shutdown_timeout=10)

    @worker.task("log.fine")
    async def fine(payload: object) -> object:
        return payload

    @worker.task("log.broken")
    def broken(payload: object) -> None:
        raise LookupError("no such user")

    @worker.task("log.signals")
    async def signals(payload: str) -> None:
        match payload:
            case "snooze":
                raise Snooze(600)
            case "retry":
                try:
                    raise TimeoutError("the mail server is away")
                except TimeoutError as error:
                    raise Retry("busy", after=600) from error
            case _:
                raise Permanent("there is no such address")

    @worker.task("log.long")
    def long(payload: object) -> None:
        raise ValueError("begin " + "x" * 1_000_000 + " end")

    return worker


async def test_a_success_is_its_start_and_its_end_with_a_duration(
    worker: Worker, client: AsyncClient, queue: str, said: pytest.LogCaptureFixture
) -> None:
    async with running(worker):
        task = await client.submit("log.fine", 5, queue=queue)
        await client.wait(task.id)

    start, end = about(said, task)
    assert levels([start, end]) == ["DEBUG", "INFO"]
    assert start.getMessage() == f"task {task.id} (log.fine) attempt 1 started"
    assert end.getMessage().startswith(f"task {task.id} (log.fine) attempt 1 succeeded in 0.")
    fields: dict[str, Any] = vars(end)
    assert (fields["type"], fields["queue"], fields["attempt"], fields["outcome"]) == (
        "log.fine",
        queue,
        1,
        "succeeded",
    )
    assert 0 <= fields["duration"] < 60


async def test_a_failure_has_its_traceback_and_the_last_one_is_an_error(
    worker: Worker, client: AsyncClient, queue: str, said: pytest.LogCaptureFixture
) -> None:
    async with running(worker):
        task = await client.submit("log.broken", 5, queue=queue, retry=TWICE)
        await client.wait(task.id)

    records = [record for record in about(said, task) if record.levelno > logging.DEBUG]
    assert levels(records) == ["WARNING", "WARNING", "ERROR"]
    first, second, dead = records
    assert "attempt 1 failed after" in first.getMessage()
    assert first.getMessage().endswith("LookupError: no such user")
    assert "in broken" in trace(first)
    assert "handler_pool.py" not in trace(first)
    assert "attempt 2 failed" in second.getMessage()
    assert "attempt 2 was the last one; the task is a dead letter: LookupError: no such user" in dead.getMessage()
    assert "in broken" in vars(dead)["exception"]


@pytest.mark.parametrize(
    ("payload", "level", "says"),
    [
        ("snooze", "INFO", "snoozed for 600 s"),
        ("retry", "WARNING", "and is tried again in 600 s: busy"),
        ("permanent", "ERROR", "for good: there is no such address"),
    ],
)
async def test_what_a_handler_asks_for_is_said_once(
    worker: Worker,
    client: AsyncClient,
    queue: str,
    said: pytest.LogCaptureFixture,
    payload: str,
    level: str,
    says: str,
) -> None:
    async with running(worker):
        task = await client.submit("log.signals", payload, queue=queue)
        while [attempt.outcome for attempt in (await client.get(task.id)).attempts] in ([], [None]):
            pass

    [record] = [record for record in about(said, task) if record.levelno > logging.DEBUG]
    assert record.levelname == level
    assert says in record.getMessage()
    assert ("the mail server is away" in trace(record)) == (payload == "retry")


async def test_nothing_is_said_at_levels_that_nobody_wants(
    worker: Worker, client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "duetime.worker")

    async with running(worker):
        fine = await client.submit("log.fine", 5, queue=queue)
        dead = await client.submit("log.broken", 5, queue=queue, retry=ONCE)
        await client.wait(fine.id)
        await client.wait(dead.id)

    assert about(caplog, fine) == []
    assert levels(about(caplog, dead)) == ["ERROR"]


async def test_a_traceback_of_a_megabyte_is_kept_with_its_end(worker: Worker, client: AsyncClient, queue: str) -> None:
    async with running(worker):
        task = await client.submit("log.long", 5, queue=queue, retry=ONCE)
        done = await client.wait(task.id)

    error = done.attempts[0].error
    assert error is not None
    assert error.message.startswith("ValueError: begin x")
    assert error.message.endswith("x end")
    assert error.detail.startswith("Traceback (most recent call last):")
    assert "in long" in error.detail
    assert error.detail.endswith("x end\n")
    assert len(error.detail) <= 8 * 1024


def fail(function: Any) -> Held:
    """The handler's exception as the worker catches it."""
    held = Held(LeasedTask("task-1", "test", 1), Handler("test", function))
    held.begin()
    try:
        held.handler.function(None)
    except Exception as error:
        held.settlement = handlers.failed(held, error)
    return held


def detail_of(held: Held) -> str:
    assert held.settlement is not None
    assert held.settlement.error is not None
    return held.settlement.error.detail or ""


def test_of_a_deep_recursion_the_innermost_frames_are_kept() -> None:
    def even(depth: int) -> None:
        odd(depth - 1)

    def odd(depth: int) -> None:
        if depth < 0:
            raise ValueError("at the bottom")
        even(depth - 1)

    detail = detail_of(fail(lambda payload: even(sys.getrecursionlimit() // 2)))

    assert 'raise ValueError("at the bottom")' in detail


def test_what_a_signal_was_raised_from_shows_where_it_was_raised() -> None:
    def handle(payload: object) -> None:
        try:
            raise TimeoutError("away")
        except TimeoutError as error:
            raise Retry("busy") from error

    assert 'raise TimeoutError("away")' in detail_of(fail(handle))


def test_an_exception_that_cannot_be_written_is_no_reason_not_to_log(caplog: pytest.LogCaptureFixture) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def handle(payload: object) -> None:
        raise Unspeakable

    held = fail(handle)
    assert held.settlement is not None

    attempt_log.ended(held, held.settlement)

    assert "its message cannot be read: ValueError" in caplog.records[-1].getMessage()
