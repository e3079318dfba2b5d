"""No statement that may do harm when it is carried out late can be run so that it could be."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from database.changes import GUARANTEES, PACKAGE, read_changes, written
from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.lifecycle.tasks.steer import SQL

#: Where a connection is taken for something else than one transaction.
_WITHOUT_TRANSACTION = {
    "admin/invariants.py": "reads",
    "database/partitions.py": "reads; partitions are made in a transaction",
    "lifecycle/tasks/retire.py": "as above; partitions are swapped in a transaction",
    "lifecycle/submission/storing.py": "the probe is rolled back",
    "scheduler/upkeep.py": "an advisory lock",
    "database/changing.py": "this is the transaction",
    "database/pool.py": "runs what others give",
}


def test_the_guarantees_list_every_change() -> None:
    assert written() == GUARANTEES.read_text("utf-8"), "run: python tests/database/changes.py"


def test_what_changes_something_is_recognised() -> None:
    changes = read_changes()

    assert {
        "lifecycle/tasks/steer.pause",
        "lifecycle/submission/submit.submit_one",
        "lifecycle/lanes.make",
    } <= changes.keys()
    assert {
        "lifecycle/tasks/state.read_states",
        "lifecycle/lanes.lock_tenant",
        "lifecycle/tasks/claim.peek",
    }.isdisjoint(changes)


async def test_a_change_that_does_not_say_why_cannot_commit_itself(database: Database) -> None:
    with pytest.raises(TypeError, match="pause may be carried out late"):
        await database.run(SQL["pause"], lanes=[], tasks=[])
    with pytest.raises(TypeError, match="pause may be carried out late"):
        await database.run_with(SQL["pause"], {"lanes": [], "tasks": []})

    assert await run_once(database, SQL["pause"], lanes=[], tasks=[]) == []


def test_no_module_runs_such_a_change_by_itself() -> None:
    """Also where no test comes along."""
    found = 0
    for file, call in _calls("run", "run_with"):
        for statement in _statements_of(file, call):
            found += 1
            assert statement.commits_itself, f"{file}: {statement.name}"
    assert found > 100


def test_no_module_runs_a_text_that_is_no_statement() -> None:
    """`Database.fetch` and `execute` ask nothing about late copies."""
    raw = set()
    for file, call in _calls("fetch", "execute"):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if owner is not None and "database" in ast.unparse(owner):
            raw.add(_place(file))

    assert raw == set()


def test_connections_are_taken_for_transactions() -> None:
    """What is run on a connection of its own is not seen by `Database.run`."""
    without = set()
    for file in _files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.AsyncWith):
                items = [ast.unparse(item.context_expr) for item in node.items]
                if re.search(r"\.connection\(", items[0]) and not any(".transaction(" in item for item in items):
                    without.add(_place(file))

    assert without == _WITHOUT_TRANSACTION.keys()


def _files() -> list[Path]:
    server = (file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] not in ("sdk", "cli"))
    return sorted(server)


def _place(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def _calls(*names: str) -> Iterator[tuple[Path, ast.Call]]:
    for file in _files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                yield file, node


def _module_of(file: Path) -> object:
    return importlib.import_module(".".join(("duetime", *file.relative_to(PACKAGE).with_suffix("").parts)))


def _statements_of(file: Path, call: ast.Call) -> list[Statement]:
    """The statements that are named in the first argument."""
    if not call.args:
        return []
    module, found = _module_of(file), []
    for node in ast.walk(call.args[0]):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            named = getattr(module, node.value.id, {})
            keys = [part.value for part in ast.walk(node.slice) if isinstance(part, ast.Constant)]
            found += [named[key] for key in keys if key in named]
        elif isinstance(node, ast.Name) and isinstance(statement := getattr(module, node.id, None), Statement):
            found.append(statement)
    return found
