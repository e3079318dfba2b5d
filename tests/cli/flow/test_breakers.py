"""Breakers from the command line, on a real node whose executor reports to them."""

import http.server
import threading
import uuid
from collections.abc import Iterator

import pytest

from cli.conftest import Run
from services import wait_until


class _Overloaded(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "60")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return None


@pytest.fixture
def overloaded() -> Iterator[str]:
    """The URL of a target that wants a pause of a minute."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _Overloaded)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_target_that_asks_for_a_pause_is_listed(duetime: Run, overloaded: str) -> None:
    host = overloaded.split("/")[2]
    duetime("submit", f"test.{uuid.uuid4().hex}", "--target", overloaded, "--max-attempts", "1", "--wait", "20")

    wait_until(lambda: host in duetime("breakers", "list").out)

    shown = duetime("breakers", "list").out
    assert "slowed" in shown
    assert "it answered 503, and asked for a pause of 60 s" in shown
    [line] = [each for each in duetime("breakers", "list", "--json").lines if each["host"] == host]
    assert (line["state"], line["allowed_rate"]) == ("slowed", 0)


def test_a_breaker_is_held_and_let_go(duetime: Run) -> None:
    said = duetime("breakers", "open", "https://held.example/hook", "--note", "maintenance")
    assert (said.code, said.out) == (0, "Breaker of held.example:443: held open by hand.\n")
    assert "it is held open by hand: maintenance" in duetime("breakers", "list").out

    closed = duetime("breakers", "close", "held.example", "--json")
    assert (closed.json["host"], closed.json["forced"]) == ("held.example:443", "closed")

    free = duetime("breakers", "auto", "held.example:443")
    assert free.out == "Breaker of held.example:443: closed, deciding by itself.\n"
    assert "held.example" not in duetime("breakers", "list").out


def test_what_is_no_host_is_a_wrong_word(duetime: Run) -> None:
    said = duetime("breakers", "open", "a b")
    assert said.code == 2
    assert "is not a host" in said.err
    assert duetime("breakers").code == 2
