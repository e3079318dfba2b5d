"""All statements of the server that change something, and why a late copy of each does no harm.

python tests/database/changes.py     writes the table into docs/guarantees.md
"""

from pathlib import Path

from duetime.database.statements import Statement, load

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "duetime"
GUARANTEES = ROOT / "docs" / "guarantees.md"
BEGIN = "<!-- changes: written by tests/database/changes.py -->\n"
END = "<!-- end of changes -->\n"


def read_statements() -> dict[str, Statement]:
    """Every named statement, by its file and name: `lifecycle/steer.pause`."""
    statements = {}
    for file in sorted(PACKAGE.rglob("*.sql")):
        place = file.relative_to(PACKAGE)
        if "migrations" in place.parts or file.name in ("schema.sql", "fragments.sql"):
            continue
        package = ".".join(("duetime", *place.parent.parts))
        for name, statement in load(package, file.name).items():
            statements[f"{place.with_suffix('')}.{name}"] = statement
    return statements


def read_changes() -> dict[str, Statement]:
    return {name: statement for name, statement in read_statements().items() if statement.is_change}


def table() -> str:
    changes = read_changes()
    lines = ["| statement that commits itself | a late copy |", "| --- | --- |"]
    lines += [f"| `{name}` | {each.copies} |" for name, each in changes.items() if each.copies is not None]
    bound = [f"`{name}`" for name, each in changes.items() if each.copies is None]
    return "\n".join([*lines, "", "In a transaction, so that a late copy has no COMMIT: " + ", ".join(bound) + ".", ""])


def written() -> str:
    """The page with the table of now."""
    page = GUARANTEES.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + table() + "\n" + END + after


if __name__ == "__main__":
    GUARANTEES.write_text(written(), "utf-8")
