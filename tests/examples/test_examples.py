"""The examples do what they say, against a real node."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from duetime import Client
from nodes import NodeProcess

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.url, node.key) as client:
        yield client


@pytest.fixture
def environment(node: NodeProcess) -> dict[str, str]:
    return {**os.environ, "DUETIME_URL": node.url, "DUETIME_KEY": node.key}


@contextmanager
def started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, cwd=EXAMPLES.parent, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert b"Traceback" not in errors, errors.decode()


def test_the_shell_worker_runs_tasks_and_reports_them(client: Client, environment: dict[str, str]) -> None:
    queue = f"sh-{uuid.uuid4().hex[:8]}"
    command = (
        'read -r payload; case $1 in fail) echo "no way" >&2; exit 1;; *) printf "{\\"got\\": %s}" "$payload";; esac'
    )

    with started(["sh", str(EXAMPLES / "worker.sh"), queue, command], environment):
        good = client.submit("echo", {"text": 'a "quoted" \\ line\n'}, queue=queue)
        bad = client.submit("fail", None, queue=queue)
        done, dead = client.wait(good.id), client.wait(bad.id)

    assert (done.state, done.result) == ("succeeded", {"got": {"text": 'a "quoted" \\ line\n'}})
    assert dead.state == "dead"
    error = dead.attempts[0].error
    assert error is not None
    assert (error.message, error.detail) == ("exit code 1", "no way\n")


def test_the_shell_worker_keeps_the_time_limit_and_hears_of_a_cancel(
    client: Client, environment: dict[str, str]
) -> None:
    queue = f"sh-{uuid.uuid4().hex[:8]}"

    with started(["sh", str(EXAMPLES / "worker.sh"), queue, "exec sleep 600"], environment):
        slow = client.submit("sleep", queue=queue, timeout=1, retry={"max_attempts": 1})
        assert client.wait(slow.id).attempts[0].outcome == "failed"
        endless = client.submit("sleep", queue=queue)
        while client.get(endless.id).state != "running":
            pass
        client.cancel(endless.id)
        after = client.submit("sleep", queue=queue, timeout=1, retry={"max_attempts": 1})
        # It is taken up only when the cancelled one has been stopped.
        assert client.wait(after.id).state == "dead"


def test_the_shell_worker_runs_what_another_lost(
    client: Client, environment: dict[str, str], node: NodeProcess
) -> None:
    queue = f"sh-{uuid.uuid4().hex[:8]}"
    task = client.submit("echo", 7, queue=queue)

    def call(path: str, **body: object) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {node.key}"}
        answer = urllib3.request("POST", f"{node.url}/v1/workers/{path}", json=body, headers=headers)
        assert answer.status == 200
        return dict(answer.json())

    assert call("lease", worker=f"lost-{queue}", queues=[queue], max=1, wait=5)["tasks"]
    # Beats that do not name it: it never reached its holder.
    while [attempt.outcome for attempt in client.get(task.id).attempts] != ["released"]:
        call("beat", worker=f"lost-{queue}", attempts=[])

    with started(["sh", str(EXAMPLES / "worker.sh"), queue, "cat"], environment):
        done = client.wait(task.id)

    assert ([attempt.outcome for attempt in done.attempts], done.result) == (["released", "succeeded"], 7)


def test_the_email_worker_and_its_submitter(client: Client, environment: dict[str, str]) -> None:
    with started(
        [sys.executable, "-m", "duetime.cli.main", "worker", "examples.email_worker:worker"], environment
    ) as worker:
        answer = subprocess.run(
            [sys.executable, str(EXAMPLES / "submit_emails.py"), "5"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        bad = client.submit("email.send", {"to": "nobody"}, queue="mail")
        dead = client.wait(bad.id)

    assert worker.returncode == 0
    assert answer.stdout.splitlines()[0] == "5 accepted, 0 rejected"
    assert "succeeded, result 4999950000" in answer.stdout
    assert dead.state == "dead"
    assert dead.attempts[0].error is not None
    assert dead.attempts[0].error.message == "nobody is not an address"
