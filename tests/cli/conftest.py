"""The command line as a user has it: words in; exit code, output and complaints out."""

import io
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from cli.schedule_server import ScheduleServer, running
from duetime.cli.main import main
from nodes import NodeProcess

CLOSED = "http://127.0.0.1:9/"


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it complains of, without the id of the request."""
        return re.sub(r" \(request [0-9a-f-]+\)\n", "\n", self.err)

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Said]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in this process, with an environment that names no server."""
    for name in ("DUETIME_URL", "DUETIME_KEY", "DUETIME_DATA", "DUETIME_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str, stdin: str = "") -> Said:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main(list(words))
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    # `serve` sets the logs up, to write where only this test can be heard.
    logs = structlog.get_config()
    yield call
    structlog.configure(**logs)
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def duetime(run: Run, node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same, on the node of this module."""
    monkeypatch.setenv("DUETIME_URL", node.url)
    monkeypatch.setenv("DUETIME_KEY", node.key)
    return run


@pytest.fixture
def server() -> Iterator[ScheduleServer]:
    """A server that knows nothing but schedules."""
    with running() as found:
        yield found


@pytest.fixture
def schedules(run: Run, server: ScheduleServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`duetime schedules` on that server."""
    monkeypatch.setenv("DUETIME_URL", server.url)
    monkeypatch.setenv("DUETIME_KEY", "dt_any")

    def call(*words: str, stdin: str = "") -> Said:
        return run("schedules", *words, stdin=stdin)

    return call


@pytest.fixture
def name() -> str:
    """A type, queue or label that no other test uses."""
    return f"test.{uuid.uuid4().hex[:12]}"


def bury(duetime: Run, name: str, count: int = 1) -> list[str]:
    """Dead letters of a type."""
    options = ("--target", CLOSED, "--max-attempts", "1", "--wait", "20", "--json")
    return [duetime("submit", name, *options).json["id"] for _ in range(count)]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "duetime.cli.main", *words]


def environment(node: NodeProcess) -> dict[str, str]:
    return {**os.environ, "DUETIME_URL": node.url, "DUETIME_KEY": node.key}
