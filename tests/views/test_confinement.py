"""The patterns of a confined key mean the same in this process and in the database."""

import pytest

from duetime.database.pool import Database
from duetime.model.confinement import Confinement
from duetime.views.filters import TaskFilter

pytestmark = pytest.mark.asyncio

NAMES = ["mail", "mail.send", "Mail", "m_il", "maiil", "a%b", "a.b", "a\\b", "mail\n", "", "x" * 128]
PATTERNS = [
    "mail",
    "mail*",
    "*",
    "?",
    "m?il",
    "m_il",
    "*.send",
    "a%b",
    "a?b",
    "a\\b",
    "MAIL",
    "m*i*l",
    "mail?",
    "*x*x*x*",
]


async def test_a_pattern_means_the_same_in_the_database(database: Database) -> None:
    for pattern in PATTERNS:
        within = Confinement(types=(pattern,))
        rows = await database.fetch(
            "SELECT name FROM unnest($1::text[]) AS asked (name) WHERE name LIKE ANY ($2::text[])",
            NAMES,
            within.type_likes,
        )
        assert [row["name"] for row in rows] == [name for name in NAMES if within.has_type(name)], pattern


async def test_without_patterns_all_are_reached() -> None:
    assert Confinement().has_type("a")
    assert Confinement().has_queue("a")
    assert not Confinement()
    assert Confinement(types=("a", "b")).has_type("b")
    assert not Confinement(types=("a", "b")).has_type("ab")
    assert Confinement(types=("a",)).has_queue("q")
    assert not Confinement(queues=("a",)).has_queue("q")


async def test_a_cursor_does_not_depend_on_the_confinement() -> None:
    assert TaskFilter(type="a").digest() == TaskFilter(type="a", within=Confinement(queues=("q",))).digest()
    assert TaskFilter(type="a").digest() != TaskFilter(type="b").digest()
