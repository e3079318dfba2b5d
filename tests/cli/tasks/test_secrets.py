"""Secret headers on a real node: in the call, and nowhere else; keys that are missing, added, made."""

import http.server
import json
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from cli.conftest import Run
from duetime.secret_keys import FILE_NAME
from faults.processes import embedded_url
from nodes import NodeProcess
from services import wait_until

TOKEN, COOKIE, MARKED = "tok3n-2f9c41d07b", "c00kie-77ab01cd", "mark3d-90ffe21a"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Cookie": f"a=b; session={COOKIE}", "X-Pass": MARKED, "X-Team": "core"}
ALL = ("--header", f"Authorization: Bearer {TOKEN}", "--header", f"Cookie: a=b; session={COOKIE}")
ALL += ("--secret-header", f"X-Pass: {MARKED}", "--header", "X-Team: core")


@dataclass
class Hook:
    """A target that says in its answer what it was sent."""

    port: int = 0
    calls: list[dict[str, str]] = field(default_factory=list)
    status: int = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def count(self, type: str) -> int:
        return sum(call["duetime-type"] == type for call in self.calls)


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            found.calls.append({name.lower(): value for name, value in self.headers.items()})
            body = json.dumps({"echo": dict(self.headers.items())}).encode()
            self.send_response(400 if self.headers["duetime-type"] == "fails" else found.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Request-Id", self.headers.get("authorization", ""))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def dump_of(url: str) -> str:
    """Every row of every table, bytes in hexadecimal as in a dump."""
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(names) > 30
        rows = [row for (name,) in names for row in connection.execute(f"SELECT t::text FROM {name} AS t".encode())]
    return "\n".join(str(text) for (text,) in rows)


def found_in(text: str) -> list[str]:
    """The secrets in a text, as they are or in hexadecimal."""
    return [each for each in (TOKEN, COOKIE, MARKED) if each in text or each.encode().hex() in text]


def test_a_secret_is_in_the_call_and_nowhere_else(run: Run, fresh_node: NodeProcess, hook: Hook) -> None:
    server = ("--url", fresh_node.url, "--key", fresh_node.key)
    target = {"url": hook.url, "headers": HEADERS, "secret_headers": ["X-Pass"]}
    to_hook = ("--target", hook.url, *ALL)

    said = [
        run("submit", "single", "--json", "--wait", "30", "--idempotency-key", "k", *to_hook, *server),
        run("submit", "fails", "--json", "--wait", "30", *to_hook, *server),
        run("submit", "later", "--delay", "1h", "--json", *to_hook, *server),
        run("schedules", "put", "s", "--every", "1s", "--type", "fired", *to_hook, *server),
        run("types", "put", "single", "--file", "-", *server, stdin='{"defaults": {"queue": "mail"}}'),
    ]
    with psycopg.connect(embedded_url(fresh_node), autocommit=True) as connection:
        task = {"type": "outbox", "target": target}
        connection.execute("SELECT duetime.enqueue('default', %s::json)", [json.dumps(task)])
    wait_until(lambda: hook.count("fired") > 0 and hook.count("outbox") > 0)

    assert [each.code for each in said] == [0, 1, 0, 0, 0]
    for call in hook.calls:
        assert {name: call[name.lower()] for name in HEADERS} == HEADERS
    ids = [said[place].json["id"] for place in range(3)]
    shown = [
        *said,
        *(run("tasks", verb, each, "--json", *server) for verb in ("get", "explain") for each in ids),
        *(run("tasks", verb, each, *server) for verb in ("get", "explain") for each in ids),
        run("tasks", "list", "--all", "--json", *server),
        run("dead", "list", "--all", "--json", *server),
        run("schedules", "list", "--json", *server),
        run("schedules", "show", "s", "--json", *server),
        run("schedules", "show", "s", *server),
        run("schedules", "runs", "s", "--json", *server),
        run("types", "list", "--json", *server),
        run("audit", "--json", *server),
        run("outbox", "list", "--json", *server),
        run("breakers", "list", "--json", *server),
    ]
    assert [found_in(each.out + each.err) for each in shown] == [[]] * len(shown)
    kept = run("tasks", "get", ids[0], "--json", *server).json
    assert kept["result"]["echo"]["X-Team"] == "core"
    assert "***" in kept["result"]["echo"]["Authorization"]
    assert found_in(dump_of(embedded_url(fresh_node))) == []
    assert found_in(fresh_node.log.read_text()) == []


def test_a_call_waits_for_a_key_that_is_missing_and_is_made_when_it_is_added(
    run: Run, fresh_node: NodeProcess, hook: Hook
) -> None:
    file = fresh_node.data / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    right = file.read_text()
    server = ("--url", fresh_node.url, "--key", fresh_node.key)
    data = ("--data", str(fresh_node.data))
    task = run("submit", "a", "--json", "--delay", "1h", "--target", hook.url, *ALL, *server).json["id"]
    assert run("doctor", *data).code == 0

    fresh_node.stop()
    file.write_text("00" * 32 + "\n")
    fresh_node.start()
    run("tasks", "run-now", task, *server)

    def error() -> Any:
        attempts = run("tasks", "get", task, "--json", *server).json["attempts"]
        return attempts[0]["error"] if attempts else None

    wait_until(lambda: error() is not None)
    assert error()["kind"] == "transient"
    assert error()["detail"]["reason"] == "secrets"
    assert "cannot be decrypted" in error()["message"]
    checks = {each["check"]: each for each in run("doctor", "--json", *data).json["checks"]}
    assert "is none of those given here" in checks["secrets"]["problems"][0]
    assert hook.calls == []

    fresh_node.stop()
    file.write_text(f"# The new one first.\n{'00' * 32}\n{right}")
    fresh_node.start()
    run("tasks", "run-now", task, *server)
    wait_until(lambda: hook.count("a") == 1)
    assert {name: hook.calls[0][name.lower()] for name in HEADERS} == HEADERS
    assert run("doctor", *data).code == 0
    assert found_in(fresh_node.log.read_text()) == []


def test_applying_a_file_shows_no_secret_and_sees_another_one(
    run: Run, fresh_node: NodeProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("schedules") / "s.yaml"
    server = ("--url", fresh_node.url, "--key", fresh_node.key)

    def apply(token: str, *words: str) -> tuple[int, str]:
        headers = f"{{Authorization: 'Bearer {token}', X-Pass: {MARKED}}}"
        file.write_text(
            f"schedules:\n  s:\n    spec: {{cron: '0 2 * * *'}}\n    task:\n      type: a\n"
            f"      target: {{url: 'http://a.example', headers: {headers}, secret_headers: [x-pass]}}\n"
        )
        said = run("schedules", "apply", "-f", str(file), "--source", "test", *words, *server)
        assert found_in(said.out + said.err) == []
        return said.code, said.out

    new = apply("first", "--dry-run", "--exit-code")
    apply(TOKEN)
    same = apply(TOKEN, "--dry-run", "--exit-code")
    other = apply("another-token", "--dry-run", "--exit-code", "--json")
    done = apply("another-token", "--json")
    after = apply("another-token", "--dry-run", "--exit-code")

    assert [each[0] for each in (new, same, other, done, after)] == [3, 0, 3, 0, 0]
    assert json.loads(other[1])["items"][0]["changes"][0]["path"] == "task.target.headers"
    assert json.loads(done[1])["done"]["change"] == 1
    assert "another-token" not in other[1] + done[1] + same[1]


def test_serve_without_a_key_refuses_a_wrong_one_and_says_where(run: Run, tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("# only a remark\n")
    url = ("--database-url", "postgresql://127.0.0.1:1/none")

    empty = run("serve", *url, "--secrets-key-file", str(file))
    file.write_text("hunter2\n")
    wrong = run("serve", *url, "--secrets-key-file", str(file))
    missing = run("serve", *url, "--secrets-key-file", str(tmp_path / "none"))

    assert [each.code for each in (empty, wrong, missing)] == [2, 2, 2]
    assert "holds no key" in empty.err
    assert "line 1 is not 32 bytes" in wrong.err
    assert "hunter2" not in wrong.err
    assert "cannot be read" in missing.err
