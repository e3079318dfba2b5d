"""The lanes there are: read once, kept in memory, made on first use.

A lane that is home to tasks is never changed or deleted, so what is in memory stays
true; a lane that another node made is found by asking again.  The lane of a gate is
given to another gate when it is empty.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence

import asyncpg

from duetime.database.pool import Database
from duetime.errors import InvalidInput
from duetime.ids import SHARDS
from duetime.model.task import Kind, LaneKey, PriorityClass

MAX_LANES_PER_TENANT = 1_000

#: Lanes of gates beside them; a gate that is past needs none any more.
MAX_GATES_PER_TENANT = 500
_ASK_AGAIN_SECONDS = 1.0
#: A longer one has no lane: with the rest of the key it may not fit into an entry of an index.
_MAX_GATE_BYTES = 1_500

_COLUMNS = "id, tenant, queue, class, kind, requires, gate, part"
_READ_ALL = f"SELECT {_COLUMNS} FROM lane"
_READ_ONE = f"SELECT {_COLUMNS} FROM lane WHERE id = $1"
_READ_OF_TENANT = f"SELECT {_COLUMNS} FROM lane WHERE tenant = $1"
_MAKE = f"""
INSERT INTO lane ({_COLUMNS})
SELECT nextval('lane_index') * 256 + $8, tenant.id, $2, $3, $4, $5, $6, $7
  FROM tenant
 WHERE tenant.id = $1
    ON CONFLICT DO NOTHING
"""
# A gate's lane that is empty, for another gate; no task's id names it.
_GIVE = """
UPDATE lane
   SET queue = $3, class = $4, kind = $5, requires = $6, gate = $7
 WHERE id = (SELECT id
               FROM lane
              WHERE tenant = $1
                AND part = $2
                AND gate <> ''
                AND NOT EXISTS (SELECT FROM due WHERE due.lane = lane.id)
              LIMIT 1)
RETURNING id
"""
_SHARD = "SELECT name, shard FROM tenant WHERE id = $1"


class Lanes:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_key: dict[LaneKey, int] = {}
        self._by_id: dict[int, LaneKey] = {}
        #: Per tenant, its lanes of gates: a lane that is one stays one.
        self._gates: dict[int, set[int]] = {}
        self._no_gates_until: dict[int, float] = {}
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
            held = sum(
                1 for known in self._by_key if known.tenant == key.tenant and not known.gate and known.part == key.part
            )
            if held >= MAX_LANES_PER_TENANT:
                raise InvalidInput.at(
                    "queue",
                    f"a tenant has at most {MAX_LANES_PER_TENANT} lanes (queue, priority, requires); use fewer queues",
                )
            lane = await self._make(key)
        return lane

    async def ensure_gate(self, key: LaneKey) -> int | None:
        """The lane of a gate, one that is empty if there are enough; None: all are in use."""
        lane = self._by_key.get(key)
        if lane is not None:
            return lane
        if len(key.gate.encode()) > _MAX_GATE_BYTES:
            return None
        if len(self._gates.get(key.tenant, ())) < MAX_GATES_PER_TENANT:
            return await self._make(key)
        if time.monotonic() < self._no_gates_until.get(key.tenant, 0.0):
            return None
        values = (key.queue, int(key.priority), int(key.kind), list(key.requires), key.gate)
        try:
            rows = await self._database.fetch(_GIVE, key.tenant, key.part, *values)
        except asyncpg.UniqueViolationError:
            # Another node has made one for this gate.
            self._take(await self._database.fetch(_READ_OF_TENANT, key.tenant))
            return self._by_key.get(key)
        if not rows:
            self._no_gates_until[key.tenant] = time.monotonic() + _ASK_AGAIN_SECONDS
            return None
        given: int = rows[0]["id"]
        await self.learn(given)
        await self._tell(given)
        return given

    async def learn(self, lane: int) -> None:
        """Read a lane that is new, or that was given to another gate."""
        self._take(await self._database.fetch(_READ_ONE, lane))

    async def _make(self, key: LaneKey) -> int:
        [tenant] = await self._database.fetch(_SHARD, key.tenant)
        shard = tenant["shard"] if not key.part else shard_of_part(tenant["name"], key.part)
        values = (key.queue, int(key.priority), int(key.kind), list(key.requires), key.gate, key.part, shard)
        await self._database.fetch(_MAKE, key.tenant, *values)
        self._take(await self._database.fetch(_READ_OF_TENANT, key.tenant))
        lane = self._by_key[key]
        await self._tell(lane)
        return lane

    async def _tell(self, lane: int) -> None:
        if self.announce is not None:
            await self.announce(lane)

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
                row["tenant"],
                row["queue"],
                PriorityClass(row["class"]),
                Kind(row["kind"]),
                tuple(row["requires"]),
                row["gate"],
                row["part"],
            )
            before = self._by_id.get(row["id"])
            if before is not None and before != key and self._by_key.get(before) == row["id"]:
                del self._by_key[before]
            if key.gate:
                self._gates.setdefault(key.tenant, set()).add(row["id"])
            self._by_key[key] = row["id"]
            self._by_id[row["id"]] = key


def shard_of_part(tenant: str, part: int) -> int:
    """The shard of a part of a tenant that is spread; the same on every node and machine."""
    return int.from_bytes(hashlib.blake2b(f"{tenant} {part}".encode(), digest_size=8).digest(), "big") % SHARDS
