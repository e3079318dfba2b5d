"""What is in the database, to compare two moments."""

from duetime.database.pool import Database

#: They change by themselves, or only say how a change was made.
_LEFT_OUT = {"migration", "operation", "node", "write_proof", "api_key_use"}
_TABLES = (
    "SELECT relname AS name FROM pg_class"
    " WHERE relnamespace = 'duetime'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
)

Rows = dict[str, list[str]]


async def read_tables(database: Database) -> Rows:
    """All rows of all tables, as text."""
    names = sorted({row["name"] for row in await database.fetch(_TABLES)} - _LEFT_OUT)
    return {
        name: sorted(row["row"] for row in await database.fetch(f"SELECT t::text AS row FROM duetime.{name} AS t"))
        for name in names
    }
