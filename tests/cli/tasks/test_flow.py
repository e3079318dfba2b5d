"""The flow control options of `duetime submit`, against a real node."""

import json
import re
import uuid

import pytest

from cli.conftest import Run


@pytest.fixture
def name() -> str:
    return f"flow.{uuid.uuid4().hex[:12]}"


def test_a_unique_task_is_given_back_by_its_key_or_its_payload(duetime: Run, name: str) -> None:
    def submit(*words: str) -> str:
        return str(duetime("submit", name, *words, "--json").json["id"])

    by_key = submit("1", "--unique-key", "k", "--unique-period", "1h")
    by_payload = submit('{"a": 1}', "--unique")

    assert submit("2", "--unique-key", "k") == by_key
    assert submit('{"a":1}', "--unique") == by_payload
    assert len({submit("3", "--unique-key", "other"), by_key, by_payload, submit("1", "--unique")}) == 4


def test_a_task_that_was_there_already_is_said_to_be(duetime: Run, name: str) -> None:
    for words in (("--unique-key", "k"), ("--idempotency-key", name)):
        first, second = (duetime("submit", name, *words).out.rstrip("\n") for _ in range(2))
        assert second == f"{first}, was there already"


def test_a_unique_task_counts_only_in_the_states_that_are_named(duetime: Run, name: str) -> None:
    words = ("submit", name, "--unique-key", "k", "--unique-state", "running", "--unique-state", "ready")
    waiting = duetime("submit", name, "--unique-key", "k", "--delay", "1h", "--json").json["id"]

    ready = duetime(*words, "--json").json["id"]

    assert ready != waiting
    assert duetime(*words, "--json").json["id"] == ready


def test_a_debounced_task_says_which_one_it_replaces(duetime: Run, name: str) -> None:
    words = ("submit", name, "--debounce-key", "shop-7", "--debounce-period", "30m", "--debounce-timeout", "2h")
    first = duetime(*words, "--json").json

    second = duetime(*words)

    assert first["state"] == "scheduled"
    assert second.out.endswith(f", replaces {first['id']}\n")
    assert duetime("tasks", "get", first["id"], "--json").json["state"] == "cancelled"


def test_what_the_server_finds_wrong_is_wrong_usage(duetime: Run, name: str) -> None:
    too_short = duetime("submit", name, "--debounce-key", "k", "--debounce-period", "0")
    no_key = duetime("submit", name, "--unique-key", "")
    two_keys = duetime("submit", name, "--unique", "--idempotency-key", "k")

    assert [said.code for said in (too_short, no_key, two_keys)] == [2, 2, 2]
    assert too_short.complaint == "duetime: debounce.period: must be between 0.1s and 7d\n"
    assert no_key.complaint == "duetime: unique.key: use 1 to 255 printable characters\n"
    assert two_keys.err.startswith("duetime: idempotency_key: the task is unique")


def test_a_refusal_names_the_request_for_whoever_reads_the_server_s_log(duetime: Run, name: str) -> None:
    refused = duetime("submit", name, "--debounce-key", "k", "--debounce-period", "0")

    assert re.fullmatch(r"duetime: debounce.period: must be .* \(request [0-9a-f]{10}-[0-9a-f]+\)\n", refused.err)


def test_options_stand_in_for_what_a_line_of_a_file_leaves_out(duetime: Run, name: str) -> None:
    lines = [{"type": name}, {"type": name}, {"type": name, "debounce": {"key": "d", "period": "1h"}}]

    said = duetime("submit", "--file", "-", "--unique-key", "k", "--json", stdin="\n".join(map(json.dumps, lines)))

    first, again, debounced = said.lines
    assert (again["id"], again["repeated"]) == (first["id"], True)
    assert debounced["state"] == "scheduled"


def test_lines_that_a_rate_limit_refuses_are_listed_and_not_waited_for(duetime: Run, name: str) -> None:
    duetime("types", "put", name, "--file", "-", stdin='{"rate_limit": {"limit": 1, "period": "7d"}}')

    said = duetime("submit", name, "--file", "-", stdin="{}\n{}\n")

    assert (said.code, said.out) == (1, "Accepted 1 of 2 tasks; refused 1.\n")
    assert said.err.startswith("line 2: ")
