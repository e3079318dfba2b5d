"""Wrong words: exit code 2 and one sentence that says what would be right, and nothing is sent."""

from pathlib import Path

import pytest

from cli.conftest import Run

SERVER = ("--url", "http://127.0.0.1:1", "--key", "dt_any")
TASK = "0199a3c4-6f00-8123-9abc-def000000101"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["tasks", "lst"], "invalid choice: 'lst'"),
        (["submit"], "say what to submit"),
        (["submit", "x", "{oops"], "the payload is not JSON"),
        (["submit", "x", "hello"], "quote it for the shell"),
        (["submit", "x", "--delay", "5x"], "'5x' is not a duration"),
        (["submit", "x", "--delay", "nan"], "'nan' is not a duration"),
        (["submit", "x", "--delay=-5"], "'-5' is negative"),
        (["submit", "x", "--run-at", "tomorrow"], "'tomorrow' is not a time such as"),
        (["submit", "x", "--run-at", "0001-01-01T00:00+14:00"], "is not a time such as"),
        (["submit", "x", "--delay", "5m", "--run-at", "2030-01-31T12:00:00Z"], "give one of them"),
        (["submit", "x", "--priority", "urgent"], "invalid choice: 'urgent'"),
        (["submit", "x", "--label", "blue"], "write name=value"),
        (["submit", "x", "--label", "a=1", "--label", "a=2"], "a is given two values"),
        (["submit", "x", "--header", "X-Team"], "write 'Name: value'"),
        (["submit", "x", "--method", "GET"], "give --target URL as well"),
        (["submit", "x", "--target-timeout", "3"], "--target-timeout is for an HTTP endpoint"),
        (["submit", "x", "--max-attempts", "none"], "'none' is not a number from 1 on"),
        (["submit", "x", "--unique", "--unique-key", "k"], "give one of them"),
        (["submit", "x", "--unique-state", "asleep"], "invalid choice: 'asleep'"),
        (["submit", "x", "--unique-period", "soon"], "'soon' is not a duration"),
        (["submit", "x", "--unique-key", "k", "--debounce-key", "k"], "a task is unique or debounced, not both"),
        (["submit", "x", "--debounce-key", "k"], "--debounce-key needs --debounce-period as well"),
        (["submit", "x", "--debounce-timeout", "5m"], "--debounce-timeout needs --debounce-key as well"),
        (
            ["submit", "x", "--debounce-key", "k", "--debounce-period", "30", "--debounce-timeout", "5"],
            "--debounce-timeout must not be less than --debounce-period",
        ),
        (["submit", "x", "--debounce-key", "k", "--debounce-period", "5", "--delay", "1m"], "--delay: a debounced"),
        (["submit", "x", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["submit", "x", "--del", "5m"], "unrecognized arguments"),
        (["tasks", "list", "--frobnicate"], "unrecognized arguments: --frobnicate; see duetime tasks list --help"),
        (["submit", "--file", "there-is-none.ndjson"], "cannot be read: No such file"),
        (["submit", "--file", "."], "cannot be read: Is a directory"),
        (["submit", "x", "1", "--file", "-"], "PAYLOAD is for one task"),
        (["submit", "--file", "-", "--wait", "5"], "--wait is for one task"),
        (["submit", "--file", "-", "--idempotency-key", "k"], "--idempotency-key is for one task"),
        (["tasks", "list", "--state", "asleep"], "invalid choice: 'asleep'"),
        (["tasks", "list", "--limit", "0"], "'0' is not a number from 1 on"),
        (["tasks", "list", "--limit", "5", "--all"], "contradict"),
        (["tasks", "list", "--from", "noon"], "'noon' is not a time"),
        (["tasks", "get"], "required: ID"),
        (["tasks", "get", "17"], "'17' is not a task id"),
        (["tasks", "cancel"], "say which tasks"),
        (["tasks", "cancel", TASK, "--type", "x"], "not both"),
        (["tasks", "cancel", "--type", "x"], "nobody to ask: add --yes"),
        (["tasks", "reschedule", TASK], "reschedule to when?"),
        (["tasks", "reschedule", TASK, "--delay", "1", "--run-at", "2030-01-31"], "one of the two"),
        (["limits", "put", "", "--rate", "1"], "KEY: must not be empty"),
        (["types", "show", ""], "NAME: must not be empty"),
        (["tasks", "list", "--tenant", "a b"], "is not the name of a tenant"),
        (["dead", "redrive"], "say which dead letters"),
        (["dead", "redrive", "--all"], "nobody to ask: add --yes"),
        (["dead", "redrive", "--all", "--rate", "0"], "is not a rate"),
        (["schedules", "lst"], "invalid choice: 'lst'"),
        (["schedules", "show"], "required: NAME"),
        (["schedules", "list", "--state", "asleep"], "invalid choice: 'asleep'"),
        (["schedules", "put", "x"], "say when it fires"),
        (["schedules", "put", "x", "--every", "5m"], "say what it starts"),
        (["schedules", "put", "x", "--every", "soon"], "'soon' is not a duration"),
        (["schedules", "put", "x", "--every", "5m", "--type", "a", "--payload", "{"], "the payload is not JSON"),
        (["schedules", "put", "x", "--every", "5m", "--type", "a", "--overlap", "no"], "invalid choice: 'no'"),
        (["schedules", "put", "x", "--every", "5m", "--type", "a", "--method", "PUT"], "give --target URL as well"),
        (["schedules", "put", "x", "--file", "a.yaml", "--cron", "* * * * *"], "--cron and --file are two definitions"),
        (["schedules", "put", "x", "--file", "there-is-none.yaml"], "cannot be read: No such file"),
        (["schedules", "delete", "x", "--tasks", "burn"], "invalid choice: 'burn'"),
        (["schedules", "trigger", "x", "--as-of", "noon"], "'noon' is not a time"),
        (["schedules", "backfill", "x"], "required: --from, --to"),
        (["schedules", "backfill", "x", "--from", "2026-02-01", "--to", "2026-01-01"], "--from must be before --to"),
        (["schedules", "preview"], "preview what?"),
        (["schedules", "preview", "x", "--cron", "* * * * *"], "--cron is for a schedule that is not stored"),
        (["schedules", "apply"], "required: -f/--file"),
        (["schedules", "apply", "-f", "there-is-none.yaml"], "there-is-none.yaml cannot be read: No such file"),
        (["schedules", "apply", "-f", "pyproject.toml"], "is not known here"),
        (["schedules", "apply", "-f", "README.md"], "a schedules file ends in .yaml, .yml or .toml"),
        (["schedules", "apply", "-f", "tests"], "there is no .yaml, .yml or .toml file in this folder"),
        (["schedules", "apply", "-f", "a.yaml", "--exit-code"], "--exit-code is for --dry-run"),
        (["schedules", "apply", "-f", "a.yaml", "--source", ""], "--source must not be empty"),
        (["schedules", "import", "anacron"], "invalid choice: 'anacron'"),
        (["schedules", "import", "crontab", "there-is-none"], "cannot be read: No such file"),
        (["schedules", "import", "crontab", "-", "--prune"], "--prune is for --apply"),
        (["schedules", "import", "crontab", "-", "--apply", "-o", "x"], "--apply and --output are two ways"),
        (["schedules", "import", "crontab", "-"], "there is no entry that can be carried over"),
        (["schedules", "import", "kubernetes", "-"], "there is no CronJob that can be carried over"),
        (["calendars", "put", "x"], "say what is in it"),
        (["calendars", "put", "x", "--date", "soon"], "--date: 'soon' is not a day such as"),
        (["keys", "revoke", "mine"], "'mine' is not a number"),
        (["keys", "create", "--role", "boss"], "invalid choice: 'boss'"),
    ],
)
def test_wrong_words_are_one_sentence(run: Run, words: list[str], sentence: str) -> None:
    said = run(*words, *(SERVER if len(words) > 1 or words[0] == "submit" else ()))

    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.startswith("duetime: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("command", ["tasks", "dead", "schedules", "calendars", "keys"])
def test_a_noun_alone_shows_what_it_can_do(run: Run, command: str) -> None:
    said = run(command)

    assert said.code == 2
    assert "list" in said.out
    assert said.err == ""


def test_a_file_that_is_not_what_its_name_says_is_refused_whole(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text('[{"type": "a"},')

    said = run("submit", "--file", str(file), *SERVER)

    assert said.code == 2
    assert "is not a JSON array of tasks" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is no API key for http://127.0.0.1:8080: give --key, set DUETIME_KEY"),
        (["--url", "ftp://there", "--key", "k"], "is not a server address"),
        (["--url", "here", "--key", "k"], "is not a server address"),
        (["--key", "two words"], "characters that no key has"),
    ],
)
def test_a_server_that_cannot_be_named_is_one_sentence(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)

    said = run("tasks", "list", *words)

    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_a_server_that_does_not_answer_is_one_sentence(run: Run) -> None:
    said = run("tasks", "list", *SERVER)

    assert (said.code, said.out) == (1, "")
    assert "no server answers at http://127.0.0.1:1 (Connection refused)" in said.err


def test_a_key_of_a_folder_is_not_sent_to_another_machine(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".duetime").mkdir()
    (tmp_path / ".duetime" / "key").write_text("dt_secret\n")

    said = run("tasks", "list", "--url", "https://elsewhere.invalid")

    assert said.code == 2
    assert "there is no API key for https://elsewhere.invalid" in said.err
