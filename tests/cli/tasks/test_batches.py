"""`duetime submit --file`, on a real node."""

import json
import subprocess
import threading
from pathlib import Path

import urllib3

from cli.conftest import Run, command, environment
from duetime.sdk.client.sync_client import Client
from nodes import NodeProcess


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
