"""`duetime doctor` on a database in order, on one that is not, and on what cannot be checked."""

from pathlib import Path

import psycopg
import pytest

from cli.conftest import Run, Said
from duetime.admin.invariants import RULES
from nodes import NodeProcess

CHECKS = ["server", "settings", "durability", "clock", "schema", "partitions", "nodes", "keys", "secrets", "tasks"]


def problems(said: Said) -> dict[str, list[str]]:
    return {check["check"]: check["problems"] for check in said.json["checks"] if not check["ok"]}


def test_a_node_in_order_is_well_while_it_runs_and_when_it_is_stopped(
    run: Run, fresh_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(fresh_node.data)
    assert run("submit", "x", "--data", folder).code == 0

    while_running = run("doctor", "--data", folder, "--deep", "--json")
    assert while_running.code == 0
    assert [check["check"] for check in while_running.json["checks"]] == CHECKS
    assert while_running.json["ok"] is True
    [settings] = [check for check in while_running.json["checks"] if check["check"] == "settings"]
    assert "search_path = duetime, public; enable_seqscan = off" in settings["detail"]

    fresh_node.stop()
    monkeypatch.setenv("DUETIME_DATA", folder)
    stopped = run("doctor")
    assert stopped.code == 0
    assert stopped.out.endswith("All is well.\n")


def test_what_is_wrong_is_said_in_one_sentence_each(run: Run, database_url: str) -> None:
    # A copy of a database has none of its settings.
    assert run("migrate", "--database-url", database_url).code == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"ALTER ROLE CURRENT_USER IN DATABASE {connection.info.dbname} RESET enable_hashjoin".encode()
        )
        (tomorrow,) = (
            connection.execute("SELECT to_char((now() + '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')").fetchone() or ()
        )
        connection.execute(f"DROP TABLE duetime.due_{tomorrow}_000000".encode())
        connection.execute(
            "INSERT INTO duetime.claim (lane, task, number, failures, crashes, releases, holder)"
            " VALUES (257, '0199a3c4-6f00-8123-9abc-def000000101', 1, 0, 0, 0, 7)"
        )

    said = run("doctor", "--database-url", database_url, "--json")

    assert said.code == 1
    wrong = problems(said)
    assert ["enable_hashjoin is on and has to be off" in text for text in wrong["settings"]] == [True]
    # The test's server is one that may lose what it promised.
    assert "fsync is off" in wrong["durability"][0]
    assert ["due has no partition for tomorrow" in text for text in wrong["partitions"]] == [True]
    assert any(text.startswith(RULES["no_task"]) and "0199a3c4-6f00-8123" in text for text in wrong["tasks"])
    assert any(text.startswith(RULES["no_holder"]) for text in wrong["tasks"])

    told = run("doctor", "--database-url", database_url)
    assert told.code == 1
    assert told.out.count("\nwrong  ") + told.out.startswith("wrong") == sum(map(len, wrong.values()))
    assert told.out.endswith("things wrong.\n")


def test_a_schema_that_is_not_there_is_the_last_thing_looked_at(run: Run, database_url: str) -> None:
    assert run("migrate", "--database-url", database_url, "--to", "0").code == 0

    said = run("doctor", "--database-url", database_url, "--json")

    assert said.code == 1
    assert [check["check"] for check in said.json["checks"]] == CHECKS[:5]
    assert "run duetime migrate" in problems(said)["schema"][0]


def test_the_oldest_server_is_checked(run: Run, postgres15_url: str) -> None:
    assert run("migrate", "--database-url", postgres15_url).code == 0
    assert run("keys", "bootstrap", "--database-url", postgres15_url).code == 0
    said = run("doctor", "--database-url", postgres15_url, "--deep", "--json")

    assert set(problems(said)) == {"durability"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--database-url", "postgresql://127.0.0.1:1/none"], "the database does not answer"),
        (["--database-url", "no address"], "the database does not answer"),
        (["--database-url", "postgresql://127.0.0.1/x", "--data", "y"], "give one of them"),
        (["--data", "no-such-folder"], "no-such-folder is no data folder of `duetime up`"),
        ([], ".duetime is no data folder of `duetime up`"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)

    said = run("doctor", *words)

    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "no-such-folder").exists()


def test_the_version_of_the_server_is_its_own_word(run: Run, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None

    said = run("doctor", "--database-url", database_url, "--json")

    [server] = [check for check in said.json["checks"] if check["check"] == "server"]
    assert server["detail"] == f"PostgreSQL {row[0]}"
