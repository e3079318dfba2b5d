"""`duetime queues` and `duetime limits`, on a real node."""

import uuid

import pytest

from cli.conftest import Run


@pytest.fixture
def name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def test_a_queue_is_limited_paused_resumed_and_forgotten(duetime: Run, name: str) -> None:
    made = duetime("queues", "put", name, "--max-running", "0", "--rate", "2.5", "--burst", "7", "--strict")
    assert (made.code, made.out) == (0, f"Queue {name}: active, max running 0 strict, rate 2.5/s, burst 7.\n")
    assert "nothing of the queue starts" in made.err

    assert "paused" in duetime("queues", "pause", name).out
    shown = duetime("queues", "show", name, "--json").json
    assert (shown["state"], shown["limits"]["rate"]) == ("paused", 2.5)
    (row,) = [line for line in duetime("queues", "list").out.splitlines() if line.startswith(name)]
    assert row.split() == [name, "paused", "0", "strict", "2.5/s", "7", "-"]
    assert duetime("queues", "put", name, "--unlimited", "--json").json["limits"] == {}
    assert duetime("queues", "resume", name).out == f"Queue {name}: active, max running -, rate -, burst -.\n"
    assert name in [each["name"] for each in duetime("queues", "list", "--json").lines]

    assert duetime("queues", "delete", name).code == 0
    again = duetime("queues", "delete", name, "--json")
    assert (again.code, again.out) == (1, "")
    assert "no state or limits" in again.err


def test_the_workers_of_a_queue_may_be_silent_for_longer(duetime: Run, name: str) -> None:
    made = duetime("queues", "put", name, "--rate", "2")
    patient = duetime("queues", "put", name, "--max-silence", "2m")

    assert made.code == 0
    assert patient.out == f"Queue {name}: active, max running -, rate 2/s, burst -, max silence 2m.\n"
    assert duetime("queues", "show", name, "--json").json["max_silence"] == 120
    (row,) = [line for line in duetime("queues", "list").out.splitlines() if line.startswith(name)]
    assert row.split() == [name, "active", "-", "2/s", "-", "2m"]
    usual = duetime("queues", "put", name, "--max-silence", "default")
    assert usual.out == f"Queue {name}: active, max running -, rate 2/s, burst -.\n"


def test_a_key_is_limited_shown_and_freed(duetime: Run, name: str) -> None:
    made = duetime("limits", "put", f"{name}-*", "--max-running", "3")
    assert (made.code, made.out) == (0, f"Key {name}-*: max running 3, rate -, burst -.\n")
    assert duetime("limits", "put", f"{name}/x y", "--rate", "0.001").code == 0

    assert duetime("limits", "show", f"{name}/x y").out == f"Key {name}/x y: max running -, rate 0.001/s, burst -.\n"
    assert duetime("limits", "show", f"{name}-*", "--json").json["max_running"] == 3
    (row,) = [line for line in duetime("limits", "list").out.splitlines() if line.startswith(f"{name}-*")]
    assert row.split()[:4] == [f"{name}-*", "3", "-", "-"]
    assert f"{name}-*" in [each["name"] for each in duetime("limits", "list", "--json").lines]

    assert duetime("limits", "delete", f"{name}-*").out == f"Lifted the limit of {name}-*.\n"
    assert duetime("limits", "show", f"{name}-*").code == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("queues", "put", "q"), "--unlimited"),
        (("queues", "put", "q", "--rate", "1", "--unlimited"), "--unlimited"),
        (("queues", "put", "q", "--max-silence", "5s"), "not between 6s and 10m"),
        (("queues", "put", "q", "--max-silence", "long"), "not a duration"),
        (("limits", "put", "k"), "--max-running, --rate"),
        (("limits", "put", "k", "--max-running", "-1"), "--max-running"),
        (("limits", "put", "k", "--max-running", "1000001"), "0 to 1,000,000"),
        (("limits", "put", "k", "--rate", "0"), "not a rate"),
        (("limits", "put", "k", "--rate", "nan"), "not a rate"),
        (("limits", "put", "k", "--max-running", "1", "--burst", "2"), "--burst goes with --rate"),
        (("limits", "put", "k", "--rate", "1", "--strict"), "--strict goes with --max-running"),
        (("queues", "pause", "-"), "name"),
        (("keys", "create", "--name", "\udcff"), "not text: write it in UTF-8"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(duetime: Run, words: tuple[str, ...], complaint: str) -> None:
    said = duetime(*words)
    assert (said.code, said.out) == (2, "")
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_a_name_that_is_no_text_is_refused_in_one_sentence(duetime: Run) -> None:
    said = duetime("queues", "show", "\udcff")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
