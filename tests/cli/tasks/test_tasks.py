"""`duetime tasks`, on a real node."""

import asyncio
import json
import os
import pty
import re
import subprocess

import pytest

from cli.conftest import Run, command, environment
from duetime import Context, Worker
from nodes import NodeProcess
from sdk.conftest import running


async def test_a_failed_task_is_shown_with_its_traceback(duetime: Run, node: NodeProcess, name: str) -> None:
    worker = Worker(node.url, node.key, queues=[name])

    @worker.task(name)
    def broken(payload: object, context: Context) -> None:
        raise LookupError(f"no such user {context.attempt} \x1b[31m")

    options = ("--queue", name, "--max-attempts", "2", "--min-backoff", "0", "--wait", "20", "--json")
    async with running(worker):
        task = (await asyncio.to_thread(duetime, "submit", name, *options)).json["id"]

    last, every = duetime("tasks", "get", task).out, duetime("tasks", "get", task, "--attempts").out

    assert "Traceback of attempt 2\n  Traceback (most recent call last):" in last
    assert "in broken\n" in last
    assert "  LookupError: no such user 2 �[31m\n" in last
    assert "Traceback of attempt 1" not in last
    assert every[every.index("Traceback of attempt 1") :].count("LookupError: no such user") == 2
    assert every.endswith(last[last.index("Traceback of attempt 2") :])


def test_a_list_is_a_table_or_the_server_s_pages(duetime: Run, name: str) -> None:
    duetime("submit", "--file", "-", stdin="\n".join([json.dumps({"type": name, "labels": {"n": name}})] * 5))

    table = duetime("tasks", "list", "--label", f"n={name}", "--limit", "3")
    assert table.code == 0
    titles, *rows = table.out.splitlines()
    assert titles.split() == ["ID", "STATE", "DUE", "TRIES", "TYPE", "QUEUE", "CLASS", "LABELS"]
    assert len(rows) == 3
    assert "There are more: add --all, or --cursor " in table.err

    cursor = table.err.split("--cursor ")[1].strip()
    rest = duetime("tasks", "list", "--label", f"n={name}", "--cursor", cursor)
    assert len(rest.out.splitlines()) == 1 + 2
    assert rest.err == ""

    page = duetime("tasks", "list", "--type", name, "--limit", "3", "--json").json
    assert (len(page["items"]), page["next"] is None) == (3, False)
    assert len(duetime("tasks", "list", "--type", name, "--all", "--json").lines) == 5

    none = duetime("tasks", "list", "--type", name, "--state", "dead")
    assert (none.code, none.out, none.err) == (0, "", "No task fits.\n")
    assert duetime("tasks", "list", "--cursor", "elsewhere").code == 2


def test_each_verb_steers_by_id(duetime: Run, name: str) -> None:
    task = duetime("submit", name, "--delay", "1h", "--json").json["id"]
    stranger = "0199a3c4-6f00-8123-9abc-def000000101"

    assert duetime("tasks", "pause", task).out.startswith(f"{task}  paused")
    assert duetime("tasks", "resume", task).out.startswith(f"{task}  scheduled, due ")
    moved = duetime("tasks", "reschedule", task, "--run-at", "2030-01-31T12:00:00Z", "--json").json
    assert moved["next_run_at"].startswith("2030-01-31T12:00:00")
    assert re.search(r"run at +2030-01-31 .*\n +first run at +20", duetime("tasks", "get", task).out)
    assert duetime("tasks", "run-now", task).out.startswith(f"{task}  ready")

    both = duetime("tasks", "cancel", stranger, task)
    assert both.code == 1
    assert both.out == f"{task}  cancelled\n"
    assert both.complaint == f"duetime: there is no task {stranger}\n"

    again = duetime("tasks", "pause", task)
    assert (again.code, again.out) == (1, "")
    assert again.complaint == f"duetime: {task}: a task that is cancelled cannot be paused\n"


@pytest.mark.parametrize(("answer", "code", "state"), [("y", 0, "paused"), ("n", 1, "scheduled"), ("", 1, "scheduled")])
def test_a_person_is_asked_before_many_tasks_change(
    duetime: Run, node: NodeProcess, name: str, answer: str, code: int, state: str
) -> None:
    task = duetime("submit", name, "--delay", "1h", "--json").json["id"]
    # What the verb cannot take is not counted.
    over = duetime("submit", name, "--delay", "1h", "--json").json["id"]
    assert duetime("tasks", "cancel", over).code == 0
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        asked = subprocess.run(
            command("tasks", "pause", "--type", name),
            env=environment(node),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)

    assert asked.returncode == code
    assert f"This will pause 1 task (type {name}). Go on? [y/N] " in asked.stderr
    assert duetime("tasks", "get", task, "--json").json["state"] == state


def test_a_reader_that_has_had_enough_is_no_error_message(duetime: Run, node: NodeProcess, name: str) -> None:
    duetime("submit", "--file", "-", stdin="\n".join([json.dumps({"type": name, "payload": "x" * 500})] * 1_000))
    listing = subprocess.Popen(
        command("tasks", "list", "--type", name, "--all", "--json"),
        env=environment(node),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.readline()
    listing.stdout.close()

    assert listing.wait(30) == 1
    assert listing.stderr.read() == b""
    listing.stderr.close()
