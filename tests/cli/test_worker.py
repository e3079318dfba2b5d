"""`duetime worker`, as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import Client
from nodes import NodeProcess, node

__all__ = ["node"]

MODULE = """
import asyncio, sys, time
from duetime import Worker

worker = Worker(shutdown_timeout=20)
nothing = Worker()
number = 5

@worker.task("quick")
async def quick(payload):
    return payload

@worker.task("slow")
async def slow(payload):
    print("begun", flush=True)
    await asyncio.sleep(payload)
    return "finished"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import surely_not_installed")
    return tmp_path


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.url, node.key) as client:
        yield client


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    return subprocess.Popen(
        [sys.executable, "-m", "duetime.cli.main", "worker", *arguments],
        cwd=folder,
        env={**clean, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_takes_its_address_and_key_from_the_environment(
    node: NodeProcess, client: Client, folder: Path
) -> None:
    worker = start(folder, "work:worker", "--queues", "env", DUETIME_URL=node.url, DUETIME_KEY=node.key)
    task = client.submit("quick", 5, queue="env")

    done = client.wait(task.id)
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=20)

    assert (done.state, done.result, worker.returncode) == ("succeeded", 5, 0)
    assert "Traceback" not in errors


def test_a_signal_lets_what_runs_finish(node: NodeProcess, client: Client, folder: Path) -> None:
    worker = start(folder, "work", "--queues", "sig", "--url", node.url, "--key", node.key, "--name", "mine")
    task = client.submit("slow", 0.5, queue="sig")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"

    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=20)

    done = client.get(task.id)
    assert (worker.returncode, done.state, done.result) == (0, "succeeded", "finished")
    assert (done.attempts[0].worker or "").startswith(f"mine-{worker.pid}-")


def test_a_second_signal_ends_it_at_once(node: NodeProcess, client: Client, folder: Path) -> None:
    worker = start(folder, "work:worker", "--queues", "twice", "--url", node.url, "--key", node.key)
    task = client.submit("slow", 600, queue="twice")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"

    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    while "once more" not in worker.stderr.readline():
        pass
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=5)

    assert worker.returncode == 128 + signal.SIGTERM
    assert client.get(task.id).state == "running"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere:worker"], "there is no module nowhere"),
        (["needy:worker"], "there is no module surely_not_installed"),
        (["work:missing"], "work has no missing"),
        (["work:number"], "work:number is not a Worker but a int"),
        (["broken"], "broken cannot be imported: ZeroDivisionError"),
        ([":worker"], "names no module"),
        (["work:worker"], "there is no server address"),
        (["work:worker", "--url", "http://127.0.0.1:9"], "there is no API key"),
        (["work:worker", "--url", "gopher:", "--key", "k"], "is not a server address"),
        (["work:nothing", "--url", "http://127.0.0.1:9", "--key", "k"], "no handlers"),
        (["work:worker", "--url", "http://127.0.0.1:9", "--key", "k", "--threads", "0"], "of 1 or more"),
        (["work:worker", "--concurrency", "many"], "invalid int value"),
        (["work:worker", "--shutdown-timeout", "soon"], "is not a duration"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], says: str) -> None:
    worker = start(folder, *arguments)

    output, errors = worker.communicate(timeout=20)

    assert worker.returncode == 2
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert output == ""


def test_a_wrong_key_is_said_and_ends_it(node: NodeProcess, folder: Path) -> None:
    worker = start(folder, "work:worker", "--url", node.url, "--key", "dt_wrong")

    _, errors = worker.communicate(timeout=20)

    assert worker.returncode == 2
    assert len(errors.strip().splitlines()) == 1
