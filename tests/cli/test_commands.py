"""Submit, look and steer from the command line, on a real node."""

import asyncio
import http.server
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import urllib3

from cli.conftest import Run
from duetime import Context, Worker
from duetime.sdk.client.sync_client import Client
from faults.processes import embedded_url
from nodes import NodeProcess
from sdk.conftest import running
from services import wait_until

CLOSED = "http://127.0.0.1:9/"


@pytest.fixture
def name() -> str:
    """A type, queue or label that no other test uses."""
    return f"test.{uuid.uuid4().hex[:12]}"


def bury(duetime: Run, name: str, count: int = 1) -> list[str]:
    """Dead letters of a type."""
    options = ("--target", CLOSED, "--max-attempts", "1", "--wait", "20", "--json")
    return [duetime("submit", name, *options).json["id"] for _ in range(count)]


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


def test_a_wrong_key_is_refused(duetime: Run) -> None:
    said = duetime("tasks", "list", "--key", "dt_wrong")

    assert (said.code, said.out) == (1, "")
    assert "the API key is not valid" in said.err


def test_a_file_of_tasks_goes_in_with_a_word_for_each_that_is_refused(duetime: Run, name: str, tmp_path: Path) -> None:
    lines = [json.dumps({"type": name, "payload": place}) for place in range(5_100)]
    lines[1] = '{"type": '
    lines[2] = "[1]"
    lines[3] = ""
    lines[4] = '{"payload": 1, "type": "a b"}'
    lines[5_050] = '{"type": "x", "delay": "soon"}'
    file = tmp_path / "many.ndjson"
    file.write_text("\n".join(lines))

    said = duetime("submit", "--file", str(file), "--delay", "1h")

    assert said.code == 1
    assert said.out == "Accepted 5,095 of 5,099 tasks; refused 4.\n"
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["line 2", "line 3", "line 5", "line 5,051"]
    assert len(duetime("tasks", "list", "--type", name, "--all", "--json").lines) == 5_095

    moved = duetime("tasks", "reschedule", "--type", name, "--delay", "2h", "--yes")
    assert (moved.code, moved.out) == (0, "Rescheduled 5,095 of the 5,095 tasks that fit.\n")
    over = duetime("tasks", "cancel", "--type", name, "--state", "scheduled", "--json")
    assert over.json == {"matched": 5_095, "changed": 5_095, "next": None}


def test_what_a_line_leaves_out_comes_from_the_options(duetime: Run, name: str) -> None:
    tasks = [{"payload": 1}, {"type": "other", "run_at": "2030-01-31T12:00:00Z", "queue": "mine"}]

    said = duetime("submit", name, "--file", "-", "--queue", name, "--delay", "1h", "--json", stdin=json.dumps(tasks))

    assert said.code == 0
    assert [line["line"] for line in said.lines] == [1, 2]
    first, second = (duetime("tasks", "get", line["id"], "--json").json for line in said.lines)
    assert (first["type"], first["queue"], first["state"]) == (name, name, "scheduled")
    assert (second["type"], second["queue"]) == ("other", "mine")
    assert second["run_at"].startswith("2030-01-31T12:00:00")


def test_a_file_with_keys_can_be_sent_again(duetime: Run, name: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([{"type": name, "idempotency_key": f"{name}{place}"} for place in range(3)], indent=2))

    assert duetime("submit", "--file", str(file)).out == "Accepted 3 of 3 tasks.\n"
    assert duetime("submit", "--file", str(file)).out == "Accepted 3 of 3 tasks, 3 of them known already.\n"


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


def test_dead_letters_are_listed_redriven_and_dropped(duetime: Run, name: str) -> None:
    first, second, third = bury(duetime, name, 3)
    listed = duetime("dead", "list", "--type", name)
    assert listed.code == 0
    assert all(task in listed.out for task in (first, second, third))
    assert "REASON" in listed.out
    assert len(duetime("dead", "list", "--type", name, "--json").json["items"]) == 3

    assert duetime("dead", "redrive", first).out == "Redrove 1 of 1 dead letter.\n"
    wait_until(lambda: len(duetime("dead", "list", "--type", name, "--all", "--json").lines) == 3)
    assert duetime("tasks", "retry", second).code == 0
    wait_until(lambda: len(duetime("dead", "list", "--type", name, "--all", "--json").lines) == 3)

    spread = duetime("dead", "redrive", "--type", name, "--rate", "0.01", "--json").json
    assert spread == {"matched": 3, "redriven": 3, "next": None}
    waiting = duetime("tasks", "list", "--type", name, "--state", "scheduled", "--json").json["items"]
    assert len(waiting) == 2

    again = duetime("dead", "drop", *(task["id"] for task in waiting))
    assert again.code == 1
    assert again.out == "Dropped 0 of 2 dead letters.\n"
    assert again.err == "2 ids named no dead letter.\n"


def test_dead_letters_are_dropped_by_filter(duetime: Run, name: str) -> None:
    bury(duetime, name, 2)

    assert duetime("dead", "drop", "--type", name, "--yes").out == "Dropped 2 of 2 dead letters.\n"
    assert duetime("dead", "drop", "--type", name, "--yes").out == "No dead letter fits.\n"


def test_a_single_node_feeds_all_shards(duetime: Run) -> None:
    listed = duetime("cluster", "--json").json

    [node] = listed["items"]
    assert (node["shards"], node["answers"], listed["next"]) == (256, True, None)
    assert node["name"] in duetime("cluster").out


def test_keys_are_made_listed_and_revoked(duetime: Run) -> None:
    made = duetime("keys", "create")
    key = made.out.strip()
    assert made.code == 0
    assert "shown only this once" in made.err
    assert duetime("tasks", "list", "--limit", "1", "--key", key).code == 0

    number = made.err.split()[1]
    assert number in duetime("keys", "list").out
    assert key not in duetime("keys", "list").out
    assert any(str(each["id"]) == number for each in duetime("keys", "list", "--json").json["items"])

    assert duetime("keys", "revoke", number).out == f"Revoked key {number}.\n"
    assert duetime("tasks", "list", "--key", key).code == 1
    unknown = duetime("keys", "revoke", "123456")
    assert (unknown.code, unknown.complaint) == (1, "duetime: there is no key 123456\n")


def test_a_key_for_some_addresses_is_made_and_shown(duetime: Run) -> None:
    made = duetime("keys", "create", "--role", "viewer", "--allow-ip", "10.0.0.0/8", "--allow-ip", "2001:db8::1")
    key, number = made.out.strip(), made.err.split()[1]

    assert "Note: this request came from 127.0.0.1, from which the new key is not allowed." in made.err
    refused = duetime("tasks", "list", "--key", key)
    assert (refused.code, "127.0.0.1" in refused.err) == (1, True)
    [line] = [line for line in duetime("keys", "list").out.splitlines() if line.split()[0] == number]
    assert "10.0.0.0/8 2001:db8::1" in line
    wrong = duetime("keys", "create", "--allow-ip", "office")
    assert (wrong.code, "allowed_ips[0]" in wrong.err) == (2, True)


def test_keys_that_are_not_used_are_listed(duetime: Run) -> None:
    titles = duetime("keys", "list").out.splitlines()[0]
    assert "LAST USED" in titles
    assert "USED FROM" in titles
    assert duetime("keys", "list", "--unused-for", "90d", "--json").json == {"items": [], "next": None}
    wrong = duetime("keys", "list", "--unused-for", "soon")
    assert (wrong.code, "unused_for" in wrong.err) == (2, True)


def test_the_signing_secret_is_printed(duetime: Run) -> None:
    secret = duetime("keys", "signing-secret").out.strip()

    assert secret.startswith("whsec_")
    assert duetime("keys", "signing-secret", "--json").json == {"secret": secret, "former_until": None}


def test_the_folder_of_a_node_is_enough(run: Run, node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("tasks", "list", "--data", str(node.data)).code == 0

    monkeypatch.setenv("DUETIME_DATA", str(node.data))
    assert run("keys", "list").code == 0


def test_another_kind_of_server_is_told_apart(run: Run, other_server: str) -> None:
    said = run("tasks", "list", "--url", other_server, "--key", "k")

    assert (said.code, said.out) == (1, "")
    assert "is it a duetime server?" in said.err


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "duetime.cli.main", *words]


def environment(node: NodeProcess) -> dict[str, str]:
    return {**os.environ, "DUETIME_URL": node.url, "DUETIME_KEY": node.key}


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


def test_ctrl_c_ends_a_wait_without_a_traceback(duetime: Run, node: NodeProcess, name: str) -> None:
    waiting = subprocess.Popen(
        command("submit", name, "--wait", "60"), env=environment(node), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: bool(duetime("tasks", "list", "--type", name, "--json").json["items"]))

    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)

    assert (waiting.returncode, out, err) == (130, b"", b"")


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


def test_an_import_outlives_a_restart_of_the_node(fresh_node: NodeProcess, tmp_path: Path) -> None:
    """Batches are repeated under their key until the node is back: nothing is lost, nothing twice."""
    importing = subprocess.Popen(
        command("submit", "--file", "-", "--json"),
        env=environment(fresh_node),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert importing.stdin is not None
    lines = [json.dumps({"type": "import", "payload": place, "delay": "1h"}).encode() for place in range(10_000)]
    importing.stdin.write(b"\n".join(lines[:5_001]) + b"\n")
    importing.stdin.flush()
    assert importing.stdout is not None
    results = [json.loads(importing.stdout.readline())]

    fresh_node.kill()
    sent = threading.Thread(target=_send_rest, args=(importing, lines[5_001:]))
    sent.start()
    fresh_node.start()
    results += [json.loads(line) for line in importing.stdout]
    sent.join()

    assert importing.wait(60) == 0
    assert len({result["id"] for result in results}) == 10_000
    assert importing.stderr is not None
    importing.stdout.close()
    importing.stderr.close()


def _send_rest(importing: "subprocess.Popen[bytes]", lines: list[bytes]) -> None:
    assert importing.stdin is not None
    importing.stdin.write(b"\n".join(lines))
    importing.stdin.close()


def test_what_the_outbox_refused_is_listed_judged_again_and_thrown_away(
    duetime: Run, node: NodeProcess, name: str
) -> None:
    with psycopg.connect(embedded_url(node)) as connection:
        body = json.dumps({"type": name, "priority": "urgent"})
        first, second = (
            connection.execute("SELECT duetime.enqueue('default', %s)", (body,)).fetchone() for _ in range(2)
        )
    assert first is not None
    assert second is not None
    number, other = str(first[0]), str(second[0])
    wait_until(lambda: duetime("outbox", "show", other).out.startswith(f"Number {other}  refused"))

    listed = duetime("outbox", "list")
    assert number in listed.out
    assert name in listed.out
    assert "priority" in duetime("outbox", "show", number).out
    assert [each["id"] for each in duetime("outbox", "list", "--json").json["items"]] == [int(number), int(other)]

    assert duetime("outbox", "delete", number).out == "Deleted 1 task.\n"
    assert duetime("outbox", "show", number).code == 1
    assert duetime("outbox", "retry", "--all").out == "Retried 1 task.\n"
    wait_until(lambda: duetime("outbox", "show", other, "--json").json["state"] == "refused")
    assert duetime("outbox", "delete", "--all", "--json").json == {"deleted": [int(other)]}

    assert duetime("outbox", "retry").code == 2
    assert duetime("outbox", "retry", "1", "--all").code == 2


# Tenants and tiers


def test_a_tenant_that_is_not_there_is_not_made_by_suspending_it(duetime: Run) -> None:
    for verb in ("suspend", "resume"):
        said = duetime("tenants", verb, "misspelt")

        assert (said.code, said.complaint) == (1, "duetime: there is no tenant misspelt\n")


def test_an_admin_key_acts_for_another_tenant(duetime: Run, name: str) -> None:
    duetime("tenants", "put", "team-b")

    key = duetime("keys", "create", "--role", "producer", "--tenant", "team-b").out.strip()
    task = duetime("submit", name, "--key", key, "--json").json
    refused = duetime("tasks", "list", "--key", key, "--tenant", "default")

    assert task["tenant"] == "team-b"
    assert duetime("tasks", "list", "--type", name, "--tenant", "team-b", "--json").json["items"][0]["id"] == task["id"]
    assert duetime("tasks", "list", "--type", name, "--json").json["items"] == []
    assert duetime("submit", "--file", "-", "--tenant", "team-b", stdin=f'{{"type": "{name}"}}').code == 0
    assert len(duetime("tasks", "list", "--type", name, "--tenant", "team-b", "--json").json["items"]) == 2
    assert refused.code == 1
    assert duetime("tasks", "list", "--tenant", "nobody").code == 1


def test_the_audit_shows_values_as_json(duetime: Run, name: str) -> None:
    for rules in ("{}", '{"throttle": {"limit": 5, "period": 60}}'):
        duetime("types", "put", name, "--file", "-", stdin=rules)

    changed, made = duetime("audit", "-n", "2").out.splitlines()[1:]

    assert changed.endswith('throttle (none) → {"limit":5,"period":60.0}')
    assert made.endswith(f"type.create  {name}")


def test_quotas_are_set_shown_and_unset(duetime: Run) -> None:
    made = duetime("tiers", "put", "gold", "--weight", "4", "--max-running", "50")
    put = duetime(
        "tenants", "put", "acme", "--tier", "gold", "--spread", "2", "--submit-rate", "2.5", "--max-waiting", "0"
    )
    shown = duetime("tenants", "show", "acme")
    listed = duetime("tenants", "list")
    unset = duetime("tenants", "put", "acme", "--unset", "submit-rate", "--unset", "tier", "--json")

    assert made.out == "Tier gold: weight 4, max_running=50; 0 tenants.\n"
    assert (
        shown.out
        == put.out
        == (
            "Tenant acme: active, weight 4, tier gold, over 2 shards, submit_rate=2.5 max_waiting=0.\n"
            "From tier gold: max_running=50.\n"
            "Defaults: submit_bytes_rate=67,108,864 submit_bytes_burst=268,435,456 max_schedules=100,000 "
            "max_types=1,000 max_keys=1,000 max_calendars=1,000 max_calendar_bytes=67,108,864.\n"
        )
    )
    assert "submit_rate=2.5" in listed.out
    assert (unset.json["tier"], unset.json["quotas"]) == (None, {"max_waiting": 0})
    assert "max_waiting is 0" in duetime("tenants", "put", "acme", "--weight", "2").err
    held = duetime(
        "tenants", "put", "acme", "--max-schedules", "100", "--max-keys", "20", "--unset", "max-types", "--json"
    )
    assert held.json["quotas"] == {"max_waiting": 0, "max_schedules": 100, "max_keys": 20}
    breaker = duetime("tenants", "put", "acme", "--breaker-window", "10m", "--breaker-probe-every", "5", "--json")
    assert (breaker.json["quotas"]["breaker_window"], breaker.json["quotas"]["breaker_probe_every"]) == (600, 5)
    assert [tier["name"] for tier in duetime("tiers", "list", "--json").lines] == ["default", "gold"]
    assert duetime("tiers", "list", "--json").lines[1]["tenants"] == 0
    assert duetime("tiers", "delete", "gold").out == "Deleted tier gold.\n"


def test_defaults_are_lifted_one_by_one_or_all_together(duetime: Run) -> None:
    lifted = duetime("tenants", "put", "free", "--max-waiting", "unlimited", "--max-keys", "5000")
    none = duetime("tenants", "put", "free", "--no-defaults")
    again = duetime("tenants", "put", "free", "--defaults", "--unset", "quotas", "--json")
    listed = duetime("tiers", "show", "default")
    kept = duetime("tiers", "delete", "default")
    wrong = duetime("tenants", "put", "free", "--max-types", "unlimited")

    assert lifted.out.startswith("Tenant free: active, weight 1, max_waiting=unlimited max_keys=5,000.\nDefaults: ")
    assert none.out.endswith("max_keys=5,000.\nDefaults: max_types=1,000 max_calendars=1,000.\n")
    assert "without default quotas" in none.out
    assert (again.json["defaults"], again.json["quotas"]) == (True, {})
    assert again.json["effective"]["sources"]["max_waiting"] == "default"
    assert "max_waiting=10,000,000" in listed.out
    assert (kept.code, "cannot be deleted" in kept.err) == (1, True)
    assert (wrong.code, "--max-types cannot be unlimited" in wrong.err) == (2, True)


def test_a_wrong_quota_is_said_before_anything_is_sent(run: Run) -> None:
    for words, said in (
        (("--submit-rate", "fast"), "'fast' is not a rate"),
        (("--max-waiting", "-1"), "--max-waiting"),
        (("--unset", "colour"), "--unset"),
    ):
        assert said in run("tenants", "put", "acme", *words).err
    both = run(
        "tenants", "put", "acme", "--rate", "1", "--unset", "quotas", "--url", "http://127.0.0.1:1", "--key", "k"
    )
    assert "both set and unset" in both.err


def test_what_a_quota_refuses_of_a_file_is_sent_again(duetime: Run, node: NodeProcess, tmp_path: Path) -> None:
    duetime("tenants", "put", "slow", "--submit-rate", "100", "--submit-burst", "50")
    asked = urllib3.request(
        "POST",
        f"{node.url}/v1/keys",
        json={},
        headers={"Authorization": f"Bearer {node.key}", "Duetime-Tenant": "slow"},
    )
    key = asked.json()["key"]
    with Client(node.url, key, retry_for=0) as client:
        # A batch larger than the burst is accepted until the node has heard of the quota.
        while not client.submit_many([{"type": "a", "delay": "1h"}] * 60).rejected:
            pass
    file = tmp_path / "tasks.ndjson"
    file.write_text('{"type": "a", "delay": "1h"}\n' * 120)

    said = duetime("submit", "--file", str(file), "--key", key)

    assert (said.code, said.out) == (0, "Accepted 120 of 120 tasks.\n")
