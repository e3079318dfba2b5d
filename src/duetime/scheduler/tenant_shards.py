"""Which shards have tasks of a tenant: its own, and those over which its lanes were spread."""

import time

from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load

REMEMBER_SECONDS = 30.0
_SQL = load(__package__, "tenant_shards.sql")


class TenantShards:
    """Remembers them for a while; a new lane makes the caller `forget` them."""

    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._known: dict[int, tuple[frozenset[int], float]] = {}

    async def of(self, tenant: int) -> frozenset[int]:
        known = self._known.get(tenant)
        if known is None or known[1] < self._monotonic():
            rows = await self._database.run(_SQL["read_shards"], tenant=tenant)
            known = frozenset(row["shard"] for row in rows), self._monotonic() + REMEMBER_SECONDS
            self._known[tenant] = known
        return known[0]

    def forget(self, tenant: int) -> None:
        self._known.pop(tenant, None)
