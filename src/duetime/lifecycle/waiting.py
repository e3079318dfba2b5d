"""How many tasks of a tenant wait."""

from duetime.database.pool import Database
from duetime.database.statements import load

_SQL = load(__package__, "waiting.sql")


async def count_waiting(database: Database, tenant: int, most: int) -> int:
    """Those that are due or held back, counted up to a bound."""
    [row] = await database.run(_SQL["count_waiting"], tenant=tenant, most=most)
    waiting: int = row["waiting"]
    return waiting
