"""`duetime migrate` as a user meets it."""

import argparse
import json
from pathlib import Path

import pytest

from duetime.cli.server import migrate
from duetime.database.migrate import read_migrations
from duetime.errors import UsageError
from services import Server

LATEST = len(read_migrations())


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    migrate.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["migrate", *words])
    status: int = arguments.run(arguments)
    return status


def test_steps_are_shown_and_taken_there_and_back(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--database-url", database_url, "--to", "0", "--dry-run") == 0
    assert "would go down 0001 data_path" in capsys.readouterr().out

    assert run("--database-url", database_url, "--to", "0", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"][-1] == {"direction": "down", "number": 1, "name": "data_path"}
    assert shown["dry_run"] is False

    monkeypatch.setenv("DUETIME_DATABASE_URL", database_url)
    assert run() == 0
    assert capsys.readouterr().out.startswith("went up 0001 data_path")
    assert run() == 0
    assert capsys.readouterr().out == "Nothing to do: the schema is there already.\n"


def test_the_embedded_database_is_migrated_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--data", str(tmp_path / "data"), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["steps"]) == LATEST

    assert run("--data", str(tmp_path / "data"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == []


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/none", "no address at all", "mysql://127.0.0.1/x"])
def test_a_database_that_does_not_answer_is_one_sentence(url: str) -> None:
    with pytest.raises(UsageError, match="the database does not answer"):
        run("--database-url", url)


def test_a_wrong_password_is_one_sentence(postgres_server: Server) -> None:
    url = f"postgresql://duetime:wrong@127.0.0.1:{postgres_server.port}/postgres"

    with pytest.raises(UsageError, match="password authentication failed"):
        run("--database-url", url)


def test_two_databases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give one of them"):
        run("--database-url", "postgresql://127.0.0.1/x", "--data", str(tmp_path))
