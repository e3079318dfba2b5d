"""The loader of SQL files: fragments are written once, and what does not fit together is an error at load."""

import re

import pytest

from database.changes import PACKAGE, read_statements
from duetime.database.statements import SqlFileError, parse, shared_fragments

SHARED = {"started": "started AS (SELECT @now::timestamptz AS at)"}


def test_a_statement_has_the_text_of_its_fragments() -> None:
    text = """
-- fragment: fresh
-- Holds: what began lately.
{started},
fresh AS (SELECT at FROM started WHERE at > @since)

-- name: read
-- Gives: {nothing} that is put in.
WITH {fresh}
SELECT @id, at
  FROM fresh;
"""

    statement = parse("file.sql", text, SHARED)["read"]

    assert statement.sql == (
        "WITH started AS (SELECT $1::timestamptz AS at),\n"
        "fresh AS (SELECT at FROM started WHERE at > $2)\nSELECT $3, at\n  FROM fresh"
    )
    assert statement.parameters == ("now", "since", "id")


def test_a_change_in_a_fragment_makes_the_statement_a_change() -> None:
    text = """
-- fragment: gone
gone AS (DELETE FROM claim RETURNING task)

-- name: end
WITH {gone}
SELECT task FROM gone;

-- name: read
SELECT '{}'::text[];
"""

    statements = parse("file.sql", text, {})

    assert statements["end"].is_change
    assert not statements["end"].commits_itself
    assert not statements["read"].is_change
    assert statements["read"].sql == "SELECT '{}'::text[]"


def test_names_and_values_are_put_in_quoted_where_no_parameter_may_stand() -> None:
    text = """
-- name: add
ALTER TABLE :"table" ATTACH PARTITION :"part" FOR VALUES FROM (:'start') TO (@end::uuid);
"""
    statement = parse("file.sql", text, {})["add"]

    assert statement.spelled(table="due", part='a"b', start="it's").sql == (
        """ALTER TABLE "due" ATTACH PARTITION "a""b" FOR VALUES FROM ('it''s') TO ($1::uuid)"""
    )
    assert statement.parameters == ("end",)
    assert statement.is_change
    with pytest.raises(TypeError, match=r"add has places for \['part', 'start', 'table'\], not for \['table'\]"):
        statement.spelled(table="due")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- name: read\nSELECT {fresh};", "file.sql: read: there is no fragment fresh"),
        ("-- fragment: fresh\nat\n-- name: read\nSELECT 1;", "no statement uses the fragment fresh: remove it"),
        ("-- fragment: a\n{b}\n-- fragment: b\n{a}\n-- name: read\nSELECT {a};", "the fragment a uses itself"),
        ("-- fragment: a\n1\n-- fragment: a\n2\n-- name: read\nSELECT {a};", "two blocks begin with -- fragment: a"),
        ("-- name: read\nSELECT 1;\n-- name: read\nSELECT 2;", "two blocks begin with -- name: read"),
        ("-- fragment: started\n1\n-- name: read\nSELECT {started};", "started is in fragments.sql too"),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused(text: str, message: str) -> None:
    with pytest.raises(SqlFileError, match=message):
        parse("file.sql", text, SHARED)


def test_no_statement_keeps_the_name_of_a_fragment() -> None:
    for name, statement in read_statements().items():
        assert not re.search(r"\{[a-z]", statement.sql.replace("'{target", "")), name


def test_shared_fragments_are_used_by_several_files() -> None:
    """A fragment that one file uses stands in that file."""
    shared = (PACKAGE / "database" / "fragments.sql").read_text("utf-8")
    texts = [file.read_text("utf-8") for file in PACKAGE.rglob("*.sql") if file.name != "fragments.sql"]
    for name in shared_fragments():
        files = sum(f"{{{name}}}" in text for text in texts)
        assert files > 1 or f"{{{name}}}" in shared, f"{name}: {files} files use it"
