"""Which keys the stored secrets need. Their texts tell; no secret is opened."""

from duetime.database.pool import Database
from duetime.database.statements import load

_SQL = load(__package__, "secrets.sql")
_LOOKED_AT = 10_000
_DEEP_SECONDS = 3600.0


async def read_key_ids(database: Database, *, deep: bool = False) -> list[str]:
    """The ids of keys that schedules and tasks use: of some thousand tasks, with `deep` of all."""
    rows = await database.run(_SQL["read_key_ids"], limit=None if deep else _LOOKED_AT, timeout=_DEEP_SECONDS)
    return [row["key_id"] for row in rows]
