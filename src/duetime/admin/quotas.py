"""What holds for one tenant, read from the tables: for limits on what it may have.

Whoever adds to what a tenant has locks the tenant first, so that all nodes
count one after the other: such a limit is exact.
"""

import asyncpg
import msgspec

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.quotas import NO_QUOTAS, Quotas

_SQL = load(__package__, "quotas.sql")
_decode = msgspec.json.Decoder(Quotas).decode


async def read_quotas(database: Database, tenant: int) -> Quotas:
    """The tenant's quotas as they are now."""
    rows = await database.run(_SQL["read"], tenant=tenant)
    return effective(rows[0]) if rows else NO_QUOTAS


async def lock_quotas(connection: asyncpg.Connection, tenant: int) -> Quotas:
    """The same; nobody else adds to what the tenant has until the transaction ends."""
    lock, read = _SQL["lock"], _SQL["read"]
    await connection.fetch(lock.sql, *lock.arguments({"tenant": tenant}))
    # A statement of its own: it sees what was committed while this one waited.
    row = await connection.fetchrow(read.sql, *read.arguments({"tenant": tenant}))
    return NO_QUOTAS if row is None else effective(row)


def effective(row: asyncpg.Record) -> Quotas:
    """What holds by a row with `quotas` and `tier_quotas`."""
    tier = NO_QUOTAS if row["tier_quotas"] is None else _decode(row["tier_quotas"])
    return _decode(row["quotas"]).over(tier)
