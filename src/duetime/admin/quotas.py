"""Read the quotas of one tenant from the tables, for limits on what it may have.

Whoever adds to what a tenant has locks the tenant first, so that all nodes
count one after the other: such a limit is exact.
"""

import asyncpg
import msgspec

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.quotas import DEFAULTS, NO_QUOTAS, Layers, Quotas, defaults_of

_SQL = load(__package__, "quotas.sql")
_decode = msgspec.json.Decoder(Quotas).decode


async def read_quotas(database: Database, tenant: int) -> Quotas:
    """The tenant's quotas as they are now."""
    rows = await database.run(_SQL["read"], tenant=tenant)
    return _enforced(rows[0]) if rows else DEFAULTS


async def lock_quotas(connection: asyncpg.Connection, tenant: int) -> Quotas:
    """The same. Nobody else adds to what the tenant has until the transaction ends."""
    lock, read = _SQL["lock"], _SQL["read"]
    await connection.fetch(lock.sql, *lock.arguments({"tenant": tenant}))
    # A statement of its own: it sees what was committed while this one waited.
    row = await connection.fetchrow(read.sql, *read.arguments({"tenant": tenant}))
    return DEFAULTS if row is None else _enforced(row)


def read_layers(row: asyncpg.Record) -> Layers:
    """The quotas of a row with `quotas`, `tier_quotas`, `default_quotas` and `defaults`."""
    tier, default = (
        NO_QUOTAS if row[name] is None else _decode(row[name]) for name in ("tier_quotas", "default_quotas")
    )
    return Layers(_decode(row["quotas"]), tier, defaults_of(default, has_defaults=row["defaults"]))


def _enforced(row: asyncpg.Record) -> Quotas:
    return read_layers(row).together.enforced
