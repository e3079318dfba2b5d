"""Decorated functions: called, submitted, and named."""

import asyncio
import inspect
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duetime import AsyncClient, Client, Context, Worker
from duetime.sdk.errors import ConfigurationError
from duetime.sdk.testing import make_context
from nodes import NodeProcess
from sdk.conftest import running

local = Worker("http://127.0.0.1:9", "dt_key")


@local.task
def double(payload: int) -> int:
    """Twice as much."""
    return 2 * payload


@local.task("functions.halve", timeout="30s")
async def halve(payload: int, context: Context) -> list[float]:
    return [payload / 2, context.attempt]


async def test_a_decorated_function_can_be_called() -> None:
    assert double(21) == 42
    assert await halve(3, make_context("functions.halve", attempt=2)) == [1.5, 2]
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert list(inspect.signature(halve).parameters) == ["payload", "context"]


def test_without_a_type_it_is_the_module_and_the_name_of_the_function() -> None:
    assert double.type == f"{__name__}.double"
    assert local.types == ["functions.halve", f"{__name__}.double"]


def test_another_process_gets_a_decorated_function_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double


async def test_what_is_submitted_runs(node: NodeProcess, client: AsyncClient, queue: str) -> None:
    # Beside a queue that is not `default`: it is the worker's own that tasks go to.
    worker = Worker(node.url, node.key, queues=[queue])

    @worker.task
    def plain(payload: dict[str, int]) -> int:
        return payload["n"] + 1

    @worker.task(timeout="10s")
    async def asynchronous(payload: int) -> Any:
        # A handler submits what follows.
        return (await plain_again.submit_async({"n": payload})).id

    @worker.task("plain.again")
    def plain_again(payload: dict[str, int]) -> int:
        return plain(payload) + 1

    async with running(worker):
        first = await asyncio.to_thread(plain.submit, {"n": 1})
        second = await asynchronous.submit_async(5, labels={"kind": "chain"})
        done = await client.wait(first), await client.wait(second)
        last = await client.wait(done[1].result)

    assert (done[0].type, done[0].queue, done[0].result) == (f"{__name__}.plain", queue, 2)
    assert (done[1].type, done[1].labels) == (f"{__name__}.asynchronous", {"kind": "chain"})
    assert (last.type, last.queue, last.result) == ("plain.again", queue, 7)


async def test_the_options_are_those_of_submit(node: NodeProcess, queue: str) -> None:
    worker = Worker(queues=["not-this-one"])
    worker.configure(url=node.url, key=node.key)

    @worker.task("later")
    def later(payload: object) -> None: ...

    task = await later.submit_async(delay="1h", queue=queue, priority="high", idempotency_key=queue)
    again = await asyncio.to_thread(later.submit, delay="1h", queue=queue, priority="high", idempotency_key=queue)

    assert (task.state, task.queue, task.priority, again.id) == ("scheduled", queue, "high", task.id)
    assert task.run_at is not None
    assert task.run_at > datetime.now(UTC) + timedelta(minutes=59)


def test_one_function_may_have_two_types() -> None:
    worker = Worker("http://127.0.0.1:9", "dt_key")

    def work(payload: int) -> int:
        return payload + 1

    first = worker.task("first")(work)
    second = worker.task("second")(first)

    assert (first.type, second.type, worker.types) == ("first", "second", ["first", "second"])
    assert second.function is work


@pytest.mark.parametrize(
    "wrong", [lambda payload: None, type("Callable", (), {"__call__": lambda self, payload: None})()]
)
def test_what_has_no_name_of_its_own_needs_a_type(wrong: Any) -> None:
    worker = Worker("http://127.0.0.1:9", "dt_key")

    with pytest.raises(ConfigurationError, match="give it one"):
        worker.task(wrong)
    assert worker.task("named")(wrong).type == "named"


def test_a_type_that_is_no_text_is_said() -> None:
    with pytest.raises(TypeError, match="the type of a task is a string, not 17"):
        Worker().task(17)  # type: ignore[call-overload]


def test_two_functions_of_one_name_need_types() -> None:
    with pytest.raises(ConfigurationError, match=r"two handlers for .*\.double"):
        local.task(another_double())


def another_double() -> Any:
    def double(payload: int) -> int:
        return payload

    return double


PROGRAM = """
from duetime import Worker

worker = Worker(queues=["QUEUE"])

@worker.task
def send(payload):
    worker.stop()
    return [payload, __name__]

if __name__ == "__main__":
    worker.run()
"""


@pytest.mark.parametrize("arguments", [["letters.py"], ["-m", "letters"]])
def test_a_script_has_the_types_by_which_others_import_it(
    node: NodeProcess, queue: str, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "letters.py").write_text(PROGRAM.replace("QUEUE", queue))
    environment = {**os.environ, "DUETIME_URL": node.url, "DUETIME_KEY": node.key}
    submit = "import letters; print(letters.send.submit('x').id)"

    submitted = subprocess.run(
        [sys.executable, "-c", submit], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, check=True, timeout=60)

    with Client(node.url, node.key) as client:
        done = client.get(submitted.stdout.strip())
    assert (done.type, done.state, done.result) == ("letters.send", "succeeded", ["x", "__main__"])
