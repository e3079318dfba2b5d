"""`duetime dead`, on a real node."""

from cli.conftest import Run, bury
from services import wait_until


def test_dead_letters_are_listed_redriven_and_dropped(duetime: Run, name: str) -> None:
    first, second, third = bury(duetime, name, 3)
    listed = duetime("dead", "list", "--type", name)
    assert listed.code == 0
    assert all(task in listed.out for task in (first, second, third))
    assert "REASON" in listed.out
    assert len(duetime("dead", "list", "--type", name, "--json").json["items"]) == 3

    assert duetime("dead", "redrive", first).out == "Redrove 1 of 1 dead letter.\n"
    wait_until(lambda: len(duetime("dead", "list", "--type", name, "--all", "--json").lines) == 3)
    assert duetime("tasks", "retry", second).code == 0
    wait_until(lambda: len(duetime("dead", "list", "--type", name, "--all", "--json").lines) == 3)

    spread = duetime("dead", "redrive", "--type", name, "--rate", "0.01", "--json").json
    assert spread == {"matched": 3, "redriven": 3, "next": None}
    waiting = duetime("tasks", "list", "--type", name, "--state", "scheduled", "--json").json["items"]
    assert len(waiting) == 2

    again = duetime("dead", "drop", *(task["id"] for task in waiting))
    assert again.code == 1
    assert again.out == "Dropped 0 of 2 dead letters.\n"
    assert again.err == "2 ids named no dead letter.\n"


def test_dead_letters_are_dropped_by_filter(duetime: Run, name: str) -> None:
    bury(duetime, name, 2)

    assert duetime("dead", "drop", "--type", name, "--yes").out == "Dropped 2 of 2 dead letters.\n"
    assert duetime("dead", "drop", "--type", name, "--yes").out == "No dead letter fits.\n"
