"""The first admin key, the way back when the last is lost, and what is never printed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

import services
from cli.conftest import Run
from duetime.passwords import hide_passwords
from faults.processes import ServeProcess, status_of
from services import wait_until

ADVICE = "duetime keys bootstrap --database-url"


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as found:
        yield found


@pytest.fixture
def served(folder: Path, database_url: str) -> Iterator[ServeProcess]:
    """A node on a database that has just been migrated."""
    node = ServeProcess(folder, "node", database_url)
    node.start()
    yield node
    node.stop()


def is_let_in(node: ServeProcess, key: str) -> bool:
    return status_of(f"{node.url}/v1/keys", key) == 200


def test_a_node_without_a_key_says_how_to_get_one_and_takes_it_at_once(
    run: Run, served: ServeProcess, database_url: str
) -> None:
    assert [ADVICE in line for line in served.output().splitlines() if "admin key" in line] == [True]

    made = run("keys", "bootstrap", "--database-url", database_url)

    key = made.out.strip()
    assert (made.code, key[:3]) == (0, "dt_")
    assert "shown only this once" in made.err
    assert is_let_in(served, key)


def test_it_is_the_way_back_when_every_key_was_revoked(run: Run, served: ServeProcess, database_url: str) -> None:
    lost = run("keys", "bootstrap", "--database-url", database_url, "--json").json
    ask = ("--url", served.url, "--key")
    assert run("keys", "revoke", str(lost["id"]), *ask, lost["key"]).code == 0
    assert not is_let_in(served, lost["key"])

    found = run("keys", "bootstrap", "--database-url", database_url, "--json").json

    assert set(found) == {"id", "key", "role", "tenant", "notes"}
    assert (found["role"], found["tenant"]) == ("admin", "default")
    assert is_let_in(served, found["key"])
    acts = run("audit", "--json", *ask, found["key"]).lines
    assert [(act["action"], act["actor"], act["subject"]) for act in acts[:3]] == [
        ("key.bootstrap", "database", str(found["id"])),
        ("key.revoke", "key", str(lost["id"])),
        ("key.bootstrap", "database", str(lost["id"])),
    ]
    assert "database" in run("audit", *ask, found["key"]).out


def test_a_database_without_the_schema_is_sent_to_migrate(run: Run, database_url: str) -> None:
    run("migrate", "--database-url", database_url, "--to", "0")

    said = run("keys", "bootstrap", "--database-url", database_url)

    assert (said.code, said.out) == (2, "")
    assert "run duetime migrate first" in said.err


def test_the_folder_of_up_is_a_database_too(run: Run, folder: Path) -> None:
    assert run("migrate", "--data", str(folder / "data")).code == 0

    assert run("keys", "bootstrap", "--data", str(folder / "data")).code == 0


@pytest.mark.parametrize(
    "ending", ["revoked_at = clock_timestamp()", "expires_at = clock_timestamp()", "role = 'operator'"]
)
def test_doctor_says_that_no_admin_key_is_valid(run: Run, database_url: str, ending: str) -> None:
    def keys() -> list[str]:
        checks = run("doctor", "--database-url", database_url, "--json").json["checks"]
        (problems,) = [check["problems"] for check in checks if check["check"] == "keys"]
        return list(problems)

    run("migrate", "--database-url", database_url)
    assert [ADVICE in problem for problem in keys()] == [True]
    run("keys", "bootstrap", "--database-url", database_url)
    assert keys() == []
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"UPDATE duetime.api_key SET {ending}".encode())
    assert [ADVICE in problem for problem in keys()] == [True]


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """What `duetime up` prints until it is up, and the process."""
    command = [sys.executable, "-m", "duetime.cli.main", "up", "--port", "0", "--data", str(folder), *arguments]
    environment = {**os.environ, "DUETIME_LOG_LEVEL": "info"}
    output = folder.with_suffix(".out")
    with output.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_until(lambda: "Ctrl-C stops it" in output.read_text() or process.poll() is not None, 60.0)
        assert process.poll() is None, output.read_text()
        yield output.read_text(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(40)


def test_no_password_is_printed_and_the_key_only_when_it_is_made(
    folder: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = urlsplit(database_url).password
    assert password
    monkeypatch.setenv("DUETIME_DATABASE_URL", database_url)

    with up(folder / "data", "--processes", "2") as (first, process):
        seen = [" ".join(each.cmdline()) for each in (process, *process.children(recursive=True))]
    key = (folder / "data" / "key").read_text().strip()
    with up(folder / "data") as (second, _):
        pass

    assert len(seen) >= 3
    assert [password in text for text in (first, second, *seen)] == [False] * (2 + len(seen))
    assert f"data       {hide_passwords(database_url)}" in first
    assert (first.count(key), second.count(key)) == (1, 0)
    assert f"API key    in {folder / 'data' / 'key'}" in second


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://u:p@h:5/d?x=1.", "at postgresql://u:…@h:5/d?x=1."),
        ("postgres://u:p%40/w@rd@h/d", "postgres://u:…@h/d"),
        ("redis://:p@h/0 and rediss://:q@i/1", "redis://:…@h/0 and rediss://:…@i/1"),
        ('{"dsn": "postgresql://h/d?user=u&password=p&sslpassword=q"}', None),
        ("https://u:p@h/x", "https://u:…@h/x"),
        ("http://127.0.0.1:8080/v1/tasks?a=@b c@d", "http://127.0.0.1:8080/v1/tasks?a=@b c@d"),
        ("no address, user:password@host", "no address, user:password@host"),
    ],
)
def test_what_is_shown_of_an_address_has_no_password(text: str, shown: str | None) -> None:
    wanted = '{"dsn": "postgresql://h/d?user=u&password=…&sslpassword=…"}' if shown is None else shown
    assert hide_passwords(text) == wanted


@pytest.mark.parametrize("command", ["migrate", "doctor", "keys bootstrap", "serve"])
@pytest.mark.parametrize("url", ["postgresql://u:hunter/2@127.0.0.1:1/x", "postgresql://u:hunter2@127.0.0.1:1/x"])
def test_an_error_about_the_database_has_no_password(
    run: Run, command: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUETIME_PORT", "0")

    said = run(*command.split(), "--database-url", url)

    assert (said.code, said.out) == (2, "")
    assert "the database does not answer" in said.err
    assert "hunter" not in said.err


def test_a_misspelt_option_does_not_show_the_password(run: Run) -> None:
    said = run("migrate", "--database-ulr", "postgresql://u:hunter2@h/d")

    assert said.code == 2
    assert "postgresql://u:…@h/d" in said.err
