"""`duetime types`, against a real node."""

import uuid
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Run


@pytest.fixture
def name() -> str:
    return f"type.{uuid.uuid4().hex[:12]}"


def test_a_type_is_put_from_a_file_shown_as_such_a_file_and_forgotten(duetime: Run, name: str, tmp_path: Path) -> None:
    said = {
        "schema": {"type": "object"},
        "defaults": {"queue": "mail"},
        "throttle": {"limit": 10, "period": "1m"},
        "unique": {"key": "order"},
    }
    file = tmp_path / "type.json"
    file.write_bytes(msgspec.json.encode(said))

    told = f"Type {name}, version 1: schema, defaults, throttle, unique.\n"
    assert duetime("types", "put", name, "--file", str(file)).out == told
    shown = duetime("types", "show", name)
    again = duetime("types", "put", name, "--file", "-", stdin=shown.out)
    [listed] = [line for line in duetime("types", "list").out.splitlines() if line.startswith(name)]

    assert msgspec.json.decode(shown.out) == said | {"throttle": {"limit": 10, "period": 60.0}}
    assert again.out == told
    assert "schema, defaults, throttle, unique" in listed
    assert duetime("types", "delete", name).code == 0
    assert duetime("types", "show", name).code == 1


def test_a_file_that_is_no_type_is_a_schema(duetime: Run, name: str) -> None:
    duetime("types", "put", name, "--file", "-", stdin='{"type": "string"}')

    assert msgspec.json.decode(duetime("types", "show", name).out) == {"schema": {"type": "string"}}
    assert duetime("submit", name, "7").code == 2


def test_a_wrong_rule_is_wrong_usage(duetime: Run, name: str) -> None:
    wrong = duetime("types", "put", name, "--file", "-", stdin='{"throttle": {"limit": 0, "period": 1}}')

    misspelt = duetime("types", "put", name, "--file", "-", stdin='{"unique": {"key": "a"}, "throttel": {"limit": 1}}')

    assert (wrong.code, wrong.out) == (2, "")
    assert "throttle.limit" in wrong.err
    assert misspelt.code == 2
    assert "throttel: there is no such field" in misspelt.err


def test_a_refused_submission_says_when_there_is_room(duetime: Run, name: str) -> None:
    duetime("types", "put", name, "--file", "-", stdin='{"rate_limit": {"limit": 1, "period": "1d"}}')
    assert duetime("submit", name).code == 0

    refused = duetime("submit", name)

    assert refused.code == 1
    assert "there is room again in" in refused.err


def test_a_preview_shows_what_would_not_match(duetime: Run, name: str) -> None:
    task = duetime("submit", name, '{"to": 7}', "--delay", "1h", "--json").json["id"]
    schema = '{"properties": {"to": {"type": "string"}}}'

    said = duetime("types", "preview", name, "--file", "-", stdin=schema)

    first, second = said.out.splitlines()
    assert first == f"{name} is a new type. 1 of 1 waiting tasks that were looked at would not match."
    assert second.startswith(f"{task}  payload.to: ")
    assert duetime("types", "show", name).code == 1
    assert duetime("types", "preview", name, "--file", "-", stdin='{"type": "nothing"}').code == 2
