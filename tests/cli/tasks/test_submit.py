"""`duetime submit`: one task from the command line, or a file of them, on a real node."""

import re
import signal
import subprocess

from cli.conftest import CLOSED, Run, command, environment
from nodes import NodeProcess
from services import wait_until


def test_one_task_is_submitted_shown_and_cancelled(duetime: Run, name: str) -> None:
    said = duetime("submit", name, '{"to": "Ada", "big": 12345678901234567890123}', "--delay", "1h", "--label", "a=b")
    assert said.code == 0
    task = said.out.split()[0]
    assert f"{name}  scheduled, due " in said.out

    shown = duetime("tasks", "get", task)
    assert shown.code == 0
    assert f"Task {task}  scheduled" in shown.out
    assert '"to": "Ada"' in shown.out
    assert "a=b" in shown.out
    assert re.search(r"attempts left +20 of 20\n", shown.out)

    raw = duetime("tasks", "get", task, "--json")
    assert '"big": 12345678901234567890123' in raw.out
    assert raw.json["labels"] == {"a": "b"}

    explained = duetime("tasks", "explain", task)
    assert "attempt 1 of 20 is due at" in explained.out
    assert duetime("tasks", "explain", task, "--json").json["waiting_for"][0]["reason"] == "time"

    cancelled = duetime("tasks", "cancel", task)
    assert (cancelled.code, cancelled.out) == (0, f"{task}  cancelled\n")
    assert "cancelled" in duetime("tasks", "get", task).out


def test_every_option_reaches_the_task(duetime: Run, name: str) -> None:
    options = ["--run-at", "2031-05-01T12:00:00+02:00", "--expires-at", "2031-05-02", "--queue", "cli.q"]
    options += ["--priority", "high", "--target", "https://example.com/x", "--method", "PUT", "--header", "X-A: b: c"]
    options += ["--target-timeout", "5s", "--retry-on", "404", "--timeout", "1m", "--max-attempts", "7"]
    options += [
        "--min-backoff",
        "2",
        "--max-backoff",
        "1h30m",
        "--max-doublings",
        "3",
        "--max-retry-duration",
        "1d",
        "--max-crashes",
        "5",
    ]
    options += ["--idempotency-key", name, "--idempotency-ttl", "1h", "--sla", "30s", "--delivery", "at_most_once"]
    options += ["--concurrency-key", "customer 42", "--rate-key", "shop"]

    task = duetime("submit", name, "null", *options, "--json").json

    assert task["run_at"].startswith("2031-05-01T10:00:00")
    assert (task["queue"], task["priority"], task["timeout"], task["sla"]) == ("cli.q", "high", 60.0, 30.0)
    assert task["target"] == {
        "url": "https://example.com/x",
        "method": "PUT",
        "headers": {"X-A": "b: c"},
        "secret_headers": [],
        "timeout": 5.0,
        "retry_on": [404],
    }
    assert task["retry"] == {
        "max_attempts": 7,
        "min_backoff": 2.0,
        "max_backoff": 5400.0,
        "max_doublings": 3,
        "max_retry_duration": 86400.0,
        "max_crashes": 5,
    }
    assert (task["idempotency_key"], task["delivery"]) == (name, "at_most_once")
    assert (task["concurrency_key"], task["rate_key"]) == ("customer 42", "shop")
    assert duetime("submit", name, "null", *options, "--json").json["id"] == task["id"]

    conflict = duetime("submit", name, "1", *options)
    assert (conflict.code, conflict.out) == (1, "")
    assert "already stands for another task" in conflict.err


def test_a_worker_s_tags_are_required(duetime: Run, name: str) -> None:
    task = duetime("submit", name, "--requires", "gpu", "--requires", "eu", "--json").json

    assert sorted(task["requires"]) == ["eu", "gpu"]


def test_the_payload_comes_from_standard_input(duetime: Run, name: str) -> None:
    assert duetime("submit", name, "-", "--json", stdin='{"n": [1, 2]}\n').json["payload"] == {"n": [1, 2]}
    assert duetime("submit", name, "-", stdin="not json").code == 2


def test_options_may_stand_anywhere(duetime: Run, name: str) -> None:
    for words in ([name, "--delay", "1h", "[1]"], ["--delay", "1h", name, "[1]"], [name, "[1]", "--delay", "1h"]):
        task = duetime("submit", "--json", *words).json
        assert (task["type"], task["payload"], task["state"]) == (name, [1], "scheduled")


def test_waiting_ends_with_the_task(duetime: Run, node: NodeProcess, name: str) -> None:
    done = duetime("submit", name, "--target", f"{node.url}/healthz", "--method", "GET", "--wait", "20")
    assert done.code == 0
    assert "succeeded" in done.out
    assert '"status": "ok"' in done.out

    given_up = duetime("submit", name, "--target", CLOSED, "--max-attempts", "1", "--wait", "20", "--json")
    assert given_up.code == 1
    assert given_up.json["state"] == "dead"

    too_long = duetime("submit", name, "--wait", "0.1")
    assert too_long.code == 1
    assert "is still ready after 0.1s" in too_long.err


def test_a_refusal_of_wrong_fields_is_wrong_usage(duetime: Run, name: str) -> None:
    bad_type = duetime("submit", "no spaces")
    assert (bad_type.code, bad_type.out) == (2, "")
    assert bad_type.err.startswith("duetime: type: ")

    several = duetime("submit", name, "--queue", "a b", "--run-at", "2999-01-01")
    assert several.code == 2
    assert "queue: " in several.err
    assert "run_at: " in several.err
    assert several.err.count("\n") == 1


def test_ctrl_c_ends_a_wait_without_a_traceback(duetime: Run, node: NodeProcess, name: str) -> None:
    waiting = subprocess.Popen(
        command("submit", name, "--wait", "60"), env=environment(node), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: bool(duetime("tasks", "list", "--type", name, "--json").json["items"]))

    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)

    assert (waiting.returncode, out, err) == (130, b"", b"")
