"""`duetime bench` on a real node, small and short: what it says and leaves behind, never how fast it is."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cli.conftest import Run
from duetime.cli.bench.limits import Limit, Setting, judge
from duetime.cli.bench.machine import Cpu, Machine
from duetime.cli.bench.phases import SHARES, Phase, Sent, find_clock_difference
from nodes import NodeProcess
from services import wait_until

OPEN = ("running", "retrying", "scheduled", "ready")


def open_tasks(duetime: Run, queue: str) -> int:
    return sum(
        len(duetime("tasks", "list", "--queue", queue, "--state", state, "--limit", "1", "--json").json["items"])
        for state in OPEN
    )


def test_it_measures_every_phase_and_leaves_nothing_open(duetime: Run) -> None:
    said = duetime("bench", "--seconds", "6", "--workers", "1", "--json")

    assert said.code == 0
    assert [phase["name"] for phase in said.json["phases"]] == list(SHARES)
    assert all(phase["count"] > 0 for phase in said.json["phases"])
    assert {limit["of"] for limit in said.json["limits"]} == set(SHARES) - {"round_trip"}
    assert said.json["queue"].startswith("duetime-bench-")
    assert open_tasks(duetime, said.json["queue"]) == 0


def test_people_get_a_table_and_sentences(duetime: Run) -> None:
    said = duetime("bench", "--seconds", "1")

    assert said.code == 0
    assert said.out.startswith("MEASURED")
    table, sentences = said.out.split("What limits it\n")
    assert len(table.strip().splitlines()) == 1 + len(SHARES)
    assert all(line.endswith((".", "?")) for line in sentences.strip().splitlines())


def start(node: NodeProcess) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "duetime.cli.main", "bench", "--json"],
        env={**os.environ, "DUETIME_URL": node.url, "DUETIME_KEY": node.key},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cleans_up(duetime: Run, node: NodeProcess, number: int, code: int) -> None:
    queues: set[str] = set()

    def has_submitted() -> bool:
        words = ("--state", "ready", "--type", "duetime-bench", "--limit", "1", "--json")
        queues.update(task["queue"] for task in duetime("tasks", "list", *words).json["items"])
        return bool(queues)

    bench = start(node)
    wait_until(has_submitted, 30.0)

    bench.send_signal(number)
    out, err = bench.communicate(timeout=60)

    assert (bench.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert [open_tasks(duetime, queue) for queue in queues] == [0]


class _NoRights(http.server.BaseHTTPRequestHandler):
    """A server that takes the key for one that may only look."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, {"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(403, {"status": 403, "code": "forbidden", "detail": "a viewer key cannot submit"})

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def no_rights() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoRights) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_key_that_may_only_look_is_wrong_usage(run: Run, no_rights: str) -> None:
    said = run("bench", "--url", no_rights, "--key", "dt_any")

    assert (said.code, said.out) == (2, "")
    assert "this key may not do what is measured (a viewer key cannot submit)" in said.err
    assert said.err.count("\n") == 1


def test_a_key_that_is_not_valid_and_a_server_that_is_not_there_are_refusals(duetime: Run) -> None:
    wrong_key = duetime("bench", "--key", "dt_wrong")
    assert (wrong_key.code, wrong_key.out) == (1, "")
    assert "the API key is not valid" in wrong_key.err

    nobody = duetime("bench", "--url", "http://127.0.0.1:9")
    assert (nobody.code, nobody.out) == (1, "")
    assert "no server answers" in nobody.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seconds", "0"], "--seconds: give 1 to 3,600"),
        (["--seconds", "2h"], "--seconds: give 1 to 3,600"),
        (["--workers", "65"], "--workers: at most 64"),
        (["--workers", "0"], "'0' is not a number from 1 on"),
    ],
)
def test_wrong_words_are_one_sentence(run: Run, words: list[str], sentence: str) -> None:
    said = run("bench", *words, "--url", "http://127.0.0.1:1", "--key", "dt_any")

    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_the_node_is_found_by_its_port(node: NodeProcess) -> None:
    machine = Machine(node.url)

    assert machine.is_local
    assert node.pid in machine.node_pids
    assert not Machine("http://192.0.2.1:8080").is_local


HERE = Setting(cores=4, workers=2, is_local=True)
AWAY = Setting(cores=4, workers=2, is_local=False)


def limits_of(setting: Setting, *phases: Phase) -> dict[str, Limit]:
    return {limit.of: limit for limit in judge(list(phases), setting)}


def measured(name: str, rate: float | None = 1000.0, cpu: Cpu | None = None, **times: float) -> Phase:
    return Phase(name, 5.0, 5_000, rate, times.get("p50"), times.get("p99"), cpu=cpu or Cpu(machine=1.0, node=0.2))


@pytest.mark.parametrize(
    ("way", "whole", "by", "words"),
    [
        (40.0, 45.0, "network", "A round trip takes 40 ms of the 45 ms"),
        (0.5, 6.6, "commit", "One commit takes 6.1 ms"),
        (0.5, 1.4, "nothing", "nothing is slow here"),
        (6.0, 30.0, "commit", "One commit takes 24 ms"),
    ],
)
def test_single_submissions_are_limited_by_the_way_or_the_commit(way: float, whole: float, by: str, words: str) -> None:
    limits = limits_of(HERE, measured("round_trip", p50=way), measured("one_by_one", p50=whole))

    assert limits["one_by_one"].by == by
    assert words in limits["one_by_one"].sentence


@pytest.mark.parametrize(
    ("setting", "cpu", "by", "words"),
    [
        (HERE, Cpu(0.4, 1.0, 0.9, 0.9, 1.3, 3.9), "machine", "hardly any CPU left: of its 4 cores PostgreSQL 1.3, "),
        (HERE, Cpu(0.2, 0.5, 0.5, 0.5, 0.4, 1.6, 2.2), "machine", "are in use; its host gave 2.2 to others."),
        (HERE, Cpu(0.2, 0.5, 0.98, 0.98, 0.5, 2.2), "node", "The node's process is at 98 % of a core"),
        (HERE, Cpu(0.2, 1.9, 0.5, 0.5, 0.4, 3.0), "workers", "each of the 2 is at 95 % of a core"),
        (HERE, Cpu(0.95, 0.1, 0.5, 0.5, 0.4, 2.0), "client", "what one process can send"),
        (HERE, Cpu(0.2, 0.5, 0.5, 0.5, 0.4, 1.6), "commit", "wait for commits, of which one takes 6.0 ms"),
        (AWAY, Cpu(0.2, 0.5, None, None, None, 0.8), "server", "look at the CPU of the node and of the database"),
        (AWAY, Cpu(0.2, 1.9, None, None, None, 2.2), "workers", "each of the 2 is at 95 % of a core"),
    ],
)
def test_whoever_has_no_cpu_left_is_named(setting: Setting, cpu: Cpu, by: str, words: str) -> None:
    limits = limits_of(
        setting, measured("round_trip", p50=0.5), measured("one_by_one", p50=6.5), measured("drain", cpu=cpu)
    )

    assert limits["drain"].by == by
    assert words in limits["drain"].sentence


def test_a_long_way_is_named_before_commits() -> None:
    limits = limits_of(
        HERE,
        measured("round_trip", p50=42.0),
        measured("one_by_one", p50=45.0),
        measured("twenty_at_a_time"),
        measured("start_after_submit", p50=49.0, p99=135.0),
    )

    assert {limit.by for limit in limits.values()} == {"network"}


def test_nothing_done_is_not_called_a_limit() -> None:
    assert limits_of(HERE, measured("drain", None))["drain"].by == "unknown"


@pytest.mark.parametrize(
    ("p50", "p99", "by"), [(4.0, 12.0, "nothing"), (4.0, 300.0, "others"), (400.0, 900.0, "server")]
)
def test_late_starts_are_told_apart(p50: float, p99: float, by: str) -> None:
    phases = measured("round_trip", p50=0.5), measured("one_by_one", p50=1.5)

    assert limits_of(HERE, *phases, measured("start_after_submit", p50=p50, p99=p99))["start_after_submit"].by == by


def test_a_host_that_takes_its_processors_away_is_named() -> None:
    late = measured("start_after_submit", p50=4.0, p99=300.0, cpu=Cpu(machine=1.0, stolen=0.7))

    assert "this machine's host, which gave 0.7 cores to others" in limits_of(HERE, late)["start_after_submit"].sentence


def test_starts_that_did_not_happen_are_told() -> None:
    lost = Phase("start_after_run_at", 5.0, 100, None, 4.0, 5.0, missing=3)

    assert "3 of 100 tasks had not started" in limits_of(HERE, lost)["start_after_run_at"].sentence


@pytest.mark.parametrize("ahead", [0.0, 3.0, -7.5])
def test_the_server_s_clock_is_known_from_its_answers(ahead: float) -> None:
    # Sent at 100 + n, set by the server within the request, which takes longer or shorter.
    sent = [Sent(n, 100.0 + n, 100.01 + n + n / 100, 1.0, 101.005 + n + ahead) for n in range(5)]

    assert find_clock_difference(sent) == pytest.approx(ahead, abs=0.005)
