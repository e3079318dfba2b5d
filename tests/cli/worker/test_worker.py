"""`duetime worker`, as a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import Client, RetryPolicy
from nodes import NodeProcess, node

__all__ = ["node"]

MODULE = """
import asyncio, logging, sys, time
from duetime import Worker

worker = Worker(shutdown_timeout=20)
nothing = Worker()
number = 5

@worker.task("quick")
async def quick(payload):
    return payload

@worker.task("broken")
def broken(payload):
    logging.getLogger("urllib3.connectionpool").debug("Starting new HTTPS connection")
    logging.getLogger("work").info("looking for %s", payload, extra={"user": 17})
    raise LookupError("no such user\\n2030-01-01T00:00:00.000Z ERROR   all is lost \\x1b[31m")

@worker.task("slow")
async def slow(payload):
    print("begun", flush=True)
    await asyncio.sleep(payload)
    return "finished"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(MODULE)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "broken.py").write_text("def divide():\n    1 / 0\n\ndivide()\n")
    (tmp_path / "needy.py").write_text("import surely_not_installed\n")
    (tmp_path / "chained.py").write_text(
        "try:\n    import broken\nexcept Exception as error:\n    raise ValueError('no') from error\n"
    )
    (tmp_path / "misspelt.py").write_text("worker = Worker(\n")
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


@pytest.mark.parametrize("arguments", [[], ["--data", "elsewhere"]])
def test_a_worker_finds_a_server_of_this_machine_by_its_data_folder(
    node: NodeProcess, client: Client, folder: Path, arguments: list[str]
) -> None:
    data = folder / (arguments[1] if arguments else ".duetime")
    data.mkdir()
    (data / "url").write_text(node.url)
    (data / "key").write_text(node.key)
    # What is named is meant, whatever the environment says.
    environment = {"DUETIME_URL": "http://127.0.0.1:9", "DUETIME_KEY": "dt_wrong"} if arguments else {}
    queue = f"found-{len(arguments)}"
    worker = start(folder, "work:worker", "--queues", queue, *arguments, **environment)
    task = client.submit("quick", 5, queue=queue)

    done = client.wait(task)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=20)

    assert (done.result, worker.returncode) == (5, 0)


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
        (["package.nowhere:worker"], "there is no module package.nowhere"),
        (["work:missing"], "work has no missing"),
        (["work:number"], "work:number is not a Worker but a int"),
        ([":worker"], "names no module"),
        (["work:worker"], "there is no server address"),
        (["work:worker", "--url", "http://127.0.0.1:9"], "there is no API key"),
        (["work:worker", "--url", "gopher:", "--key", "k"], "is not a server address"),
        (["work:nothing", "--url", "http://127.0.0.1:9", "--key", "k"], "no handlers"),
        (["work:worker", "--url", "http://127.0.0.1:9", "--key", "k", "--threads", "0"], "of 1 or more"),
        (["work:worker", "--concurrency", "many"], "invalid int value"),
        (["work:worker", "--shutdown-timeout", "soon"], "is not a duration"),
        (["work:worker", "--url", "http://127.0.0.1:9", "--key", "k", "--max-silence", "2s"], 'from "6s" to "10m"'),
        (["work:worker", "--log-format", "xml"], "invalid choice: 'xml'"),
        (["work:worker", "--log-level", "loud"], "invalid choice: 'loud'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], says: str) -> None:
    worker = start(folder, *arguments)

    output, errors = worker.communicate(timeout=20)

    assert worker.returncode == 2
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert output == ""


@pytest.mark.parametrize(
    ("name", "shown", "last"),
    [
        (
            "broken",
            ['broken.py", line 4, in <module>', 'broken.py", line 2, in divide', "ZeroDivisionError: division by zero"],
            "broken cannot be imported: ZeroDivisionError: division by zero",
        ),
        ("needy:worker", ['needy.py", line 1, in <module>'], "No module named 'surely_not_installed'"),
        ("chained", ['broken.py", line 2', "direct cause of", 'chained.py", line 4'], "ValueError: no"),
        ("misspelt", ['misspelt.py", line 1', "worker = Worker("], "misspelt cannot be imported: SyntaxError"),
    ],
)
def test_what_fails_in_the_module_is_shown_where_it_fails(folder: Path, name: str, shown: list[str], last: str) -> None:
    worker = start(folder, name)

    output, errors = worker.communicate(timeout=20)

    assert (worker.returncode, output) == (2, "")
    places = [errors.index(each) for each in shown]
    assert places == sorted(places)
    assert last in errors.splitlines()[-1]
    assert errors.splitlines()[-1].startswith("duetime worker: ")
    # Nothing of how it came to be imported.
    assert "importlib" not in errors
    assert "duetime/cli" not in errors


def test_a_wrong_key_is_said_and_ends_it(node: NodeProcess, folder: Path) -> None:
    worker = start(folder, "work:worker", "--url", node.url, "--key", "dt_wrong")

    _, errors = worker.communicate(timeout=20)

    assert worker.returncode == 2
    assert len(errors.strip().splitlines()) == 1


def log_of(node: NodeProcess, client: Client, folder: Path, queue: str, *options: str, **environment: str) -> str:
    """What a worker wrote while it ran one task that fails."""
    words = ("work:worker", "--queues", queue, "--url", node.url, "--key", node.key, *options)
    worker = start(folder, *words, **environment)
    task = client.submit("broken", "ada", queue=queue, retry=RetryPolicy(max_attempts=1))
    client.wait(task.id)
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate(timeout=20)
    return errors


def test_a_failure_is_in_the_log_with_its_traceback(node: NodeProcess, client: Client, folder: Path) -> None:
    lines = log_of(node, client, folder, "logged").splitlines()

    [failed] = [line for line in lines if " WARNING " in line]
    assert "(broken) attempt 1 failed after" in failed
    assert "LookupError: no such user" in failed
    assert ["in broken" in line for line in lines].count(True) == 2
    # What an exception says cannot pass for a line of the log, nor steer a terminal.
    assert not any(line.startswith("2030") for line in lines)
    assert "\x1b" not in "".join(lines)
    assert [line for line in lines if " ERROR " in line and "dead letter" in line]


def test_json_lines_have_the_attempt_in_fields(node: NodeProcess, client: Client, folder: Path) -> None:
    lines = [json.loads(line) for line in log_of(node, client, folder, "json", "--log-format", "json").splitlines()]

    [failed] = [line for line in lines if line["level"] == "warning"]
    assert (failed["type"], failed["attempt"], failed["queue"], failed["outcome"]) == ("broken", 1, "json", "failed")
    assert failed["duration"] >= 0
    assert "in broken" in failed["exception"]
    [dead] = [line for line in lines if line["level"] == "error"]
    assert "in broken" in dead["exception"]
    assert "in broken" not in dead["event"]
    [own] = [line for line in lines if line["logger"] == "work"]
    assert (own["event"], own["user"]) == ("looking for ada", 17)


def test_verbose_shows_our_steps_and_not_those_of_libraries(node: NodeProcess, client: Client, folder: Path) -> None:
    said = log_of(node, client, folder, "verbose", "--verbose")

    assert "(broken) attempt 1 started" in said
    assert "Starting new HTTPS connection" not in said


def test_the_log_is_set_by_the_environment_too(node: NodeProcess, client: Client, folder: Path) -> None:
    said = log_of(node, client, folder, "environment", DUETIME_LOG_FORMAT="json", DUETIME_LOG_LEVEL="error")

    [line] = [json.loads(line) for line in said.splitlines()]
    assert (line["level"], line["type"]) == ("error", "broken")


def test_a_wrong_setting_of_the_log_is_said(folder: Path) -> None:
    worker = start(folder, "work:worker", DUETIME_LOG_LEVEL="loud")

    _, errors = worker.communicate(timeout=20)

    assert (worker.returncode, errors) == (
        2,
        "duetime: DUETIME_LOG_LEVEL: 'loud' is none of debug, info, warning, error\n",
    )
