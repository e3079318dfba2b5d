"""The rules of CONTRIBUTING.md that a program can check; each failure says where, and what to do."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "duetime"
#: How SQL begins.  "DELETE" alone is a method of HTTP.
_SQL = re.compile(
    r"\s*(?:(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|MERGE|WITH|VALUES|SET|RESET|SHOW|DECLARE|FETCH|COPY|CALL|DO"
    r"|CREATE|ALTER|DROP|TRUNCATE|COMMENT ON|GRANT|REVOKE|LOCK|VACUUM|ANALYZE|REINDEX|EXPLAIN|LISTEN|UNLISTEN|NOTIFY"
    r"|PREPARE|EXECUTE|DEALLOCATE|DISCARD|SAVEPOINT|RELEASE)\s|(?:BEGIN|COMMIT|ROLLBACK|ABORT|START TRANSACTION)\b)"
)
#: Where SQL stands in a module all the same, and why.
SQL_IN_PYTHON = {
    "outbox.py": "runs on the producer's own connection: each driver marks parameters in its own way",
    "sdk/once.py": "as outbox.py",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package, by its place in it."""
    for file in sorted(PACKAGE.rglob("*.py")):
        yield str(file.relative_to(PACKAGE)), ast.parse(file.read_text("utf-8"))


def texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module that are not documentation."""
    documentation = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node


def test_sql_lies_in_files_of_its_own() -> None:
    found = [(place, node.lineno) for place, tree in modules() for node in texts(tree) if _SQL.match(str(node.value))]

    surplus = [f"{place}:{line}" for place, line in found if place not in SQL_IN_PYTHON]
    assert surplus == [], "move the statement into a .sql file beside the module"
    assert SQL_IN_PYTHON.keys() <= {place for place, _ in found}, "take what holds no SQL any more from the list"


def test_the_documented_layers_are_those_that_import_linter_checks() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text()
    documented = re.search(r"^## Layers\n+```\n(.*?)```", page, re.MULTILINE | re.DOTALL)

    assert documented is not None, "docs/architecture.md: the section Layers has to begin with a block of the layers"
    assert " ".join(documented[1].split()) == " > ".join(layers), (
        "docs/architecture.md: write the layers as pyproject.toml has them"
    )
