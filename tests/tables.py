"""What is in the database, to compare two moments."""

from typing import Protocol

import asyncpg

#: They change by themselves, or only say how a change was made.
_LEFT_OUT = {"migration", "operation"}
_TABLES = (
    "SELECT relname AS name FROM pg_class"
    " WHERE relnamespace = 'duetime'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
)

Rows = dict[str, list[str]]


class Source(Protocol):
    async def fetch(self, sql: str) -> list[asyncpg.Record]: ...


async def read_tables(source: Source) -> Rows:
    """All rows of all tables, as text."""
    names = sorted({row["name"] for row in await source.fetch(_TABLES)} - _LEFT_OUT)
    return {
        name: sorted(row["row"] for row in await source.fetch(f"SELECT t::text AS row FROM duetime.{name} AS t"))
        for name in names
    }
