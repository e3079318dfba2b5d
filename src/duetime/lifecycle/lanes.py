"""The lanes there are: read once, kept in memory, made on first use.

A lane is never changed or deleted, so what is in memory stays true; a lane that
another node made is found by asking again.
"""

from collections.abc import Awaitable, Callable, Sequence

import asyncpg

from duetime.database.pool import Database
from duetime.errors import InvalidInput
from duetime.model.task import Kind, LaneKey, PriorityClass

MAX_LANES_PER_TENANT = 1_000

_COLUMNS = "id, tenant, queue, class, kind, requires"
_READ_ALL = f"SELECT {_COLUMNS} FROM lane"
_READ_ONE = f"SELECT {_COLUMNS} FROM lane WHERE id = $1"
_READ_OF_TENANT = f"SELECT {_COLUMNS} FROM lane WHERE tenant = $1"
_MAKE = f"""
INSERT INTO lane ({_COLUMNS})
SELECT nextval('lane_index') * 256 + tenant.shard, tenant.id, $2, $3, $4, $5
  FROM tenant
 WHERE tenant.id = $1
    ON CONFLICT DO NOTHING
"""


class Lanes:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_key: dict[LaneKey, int] = {}
        self._by_id: dict[int, LaneKey] = {}
        #: Tells the nodes that share the shards of a new lane, before anything is in it.
        self.announce: Callable[[int], Awaitable[None]] | None = None

    async def load(self) -> None:
        """Read every lane; again once in a while, for those that other nodes made."""
        self._take(await self._database.fetch(_READ_ALL))

    def find(self, key: LaneKey) -> int | None:
        return self._by_key.get(key)

    async def ensure(self, key: LaneKey) -> int:
        lane = self._by_key.get(key)
        if lane is None:
            held = sum(1 for known in self._by_key if known.tenant == key.tenant)
            if held >= MAX_LANES_PER_TENANT:
                raise InvalidInput.at(
                    "queue",
                    f"a tenant has at most {MAX_LANES_PER_TENANT} lanes (queue, priority, requires); use fewer queues",
                )
            requires = list(key.requires)
            await self._database.fetch(_MAKE, key.tenant, key.queue, int(key.priority), int(key.kind), requires)
            self._take(await self._database.fetch(_READ_OF_TENANT, key.tenant))
            lane = self._by_key[key]
            if self.announce is not None:
                await self.announce(lane)
        return lane

    def key_of(self, lane: int) -> LaneKey | None:
        return self._by_id.get(lane)

    async def resolve(self, lane: int) -> LaneKey | None:
        """The lane's key, asking the database if this process has not met it."""
        if lane not in self._by_id:
            self._take(await self._database.fetch(_READ_ONE, lane) if lane < 1 << 31 else [])
        return self._by_id.get(lane)

    async def of_tenant(self, tenant: int) -> dict[int, LaneKey]:
        return {lane: key for lane, key in self._by_id.items() if key.tenant == tenant}

    def all(self) -> dict[int, LaneKey]:
        return self._by_id

    def _take(self, rows: Sequence[asyncpg.Record]) -> None:
        for row in rows:
            key = LaneKey(
                row["tenant"], row["queue"], PriorityClass(row["class"]), Kind(row["kind"]), tuple(row["requires"])
            )
            self._by_key[key] = row["id"]
            self._by_id[row["id"]] = key
