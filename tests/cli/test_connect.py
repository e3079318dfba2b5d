"""Which server a command speaks to, and what is said when that refuses or is another one."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from cli.conftest import Run
from nodes import NodeProcess


def test_a_wrong_key_is_refused(duetime: Run) -> None:
    said = duetime("tasks", "list", "--key", "dt_wrong")

    assert (said.code, said.out) == (1, "")
    assert "the API key is not valid" in said.err


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
