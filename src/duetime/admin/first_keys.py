"""Admin keys for whoever has access to the database: the first one, and the way back when the last one is lost."""

from duetime.admin.keys import KeyInfo, create_key
from duetime.admin.tenants import DEFAULT_TENANT, Tenant, create_tenant, find_tenant
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict

#: What to do when no admin key is valid.
MAKE_ONE = "make one with `duetime keys bootstrap --database-url …`"

_SQL = load(__package__, "keys.sql")


async def ensure_default(database: Database) -> tuple[Tenant, str | None]:
    """The tenant `default`; with a first admin key if it has none that is valid."""
    tenant = await _default_tenant(database)
    [row] = await database.run(_SQL["has_lasting_admin"], tenant=tenant.id)
    if row["has_one"]:
        return tenant, None
    _, key = await create_key(database, tenant.id, "admin")
    return tenant, key


async def bootstrap_key(database: Database) -> tuple[Tenant, KeyInfo, str]:
    """Make an admin key for whoever has access to the database, whatever keys exist."""
    tenant = await _default_tenant(database)
    info, key = await create_key(database, tenant.id, "admin", name="bootstrap", action="key.bootstrap")
    return tenant, info, key


async def count_admin_keys(database: Database) -> int:
    """How many keys can make other keys now. With none, nobody can get access over the API."""
    rows = await database.run(_SQL["count_admin"])
    count: int = rows[0]["keys"]
    return count


async def _default_tenant(database: Database) -> Tenant:
    tenant = await find_tenant(database, DEFAULT_TENANT)
    if tenant is None:
        try:
            tenant = await create_tenant(database, DEFAULT_TENANT)
        except Conflict:
            # Another process was quicker.
            tenant = await find_tenant(database, DEFAULT_TENANT)
    assert tenant is not None
    return tenant
