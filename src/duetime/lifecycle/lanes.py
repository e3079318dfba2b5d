"""The lanes there are: read once, kept in memory, made on first use.

A lane that is home to tasks is never changed or deleted, so what is in memory stays
true; a lane that another node made is found by asking again.  The lane of a gate is
given to another gate of its part when it is empty.

A tenant has at most 1,000 lanes, homes and gates of all its parts together.  They are
counted where they are made, under the tenant's lock, whoever makes them.
"""

import hashlib
import time
from collections.abc import Sequence

import asyncpg
import msgspec

from duetime.clock import Monotonic
from duetime.database.changing import changing, run_once_with
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput
from duetime.ids import SHARDS
from duetime.model.task import Kind, LaneKey, PriorityClass
from duetime.signals import AwaitedSignal

MAX_LANES_PER_TENANT = 1_000
#: Of these, how many may be homes of tasks.
MAX_HOMES_PER_TENANT = 750
#: From this many homes on, a tenant that is spread gets no more in its other parts: new queues need the rest.
MAX_HOMES_TO_SPREAD = 500
#: Lanes of gates, divided between the parts. A gate that is open for good needs none any more.
MAX_GATES_PER_TENANT = 250

#: All lanes of gates are in use: how long nobody looks for an empty one.
_ASK_AGAIN_SECONDS = 1.0
#: No lane may be added: how long nobody tries to.
_FULL_SECONDS = 60.0
#: A longer gate has no lane: with the rest of the key it may not fit into an index entry.
_MAX_GATE_BYTES = 1_500

SQL = load(__package__, "lanes.sql")


class Lanes:
    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        #: Also the keys of parts that have no lane of their own, with the lane that serves them.
        self._by_key: dict[LaneKey, int] = {}
        self._by_id: dict[int, LaneKey] = {}
        #: Per tenant, its homes and its lanes of gates. Neither becomes the other.
        self._homes: dict[int, set[int]] = {}
        self._gates: dict[int, set[int]] = {}
        #: The names of the tenants of these lanes. Tenants are never renamed.
        self._names: dict[int, str] = {}
        #: By gates of a tenant's part: until when nobody tries to add a lane, or to find an empty one.
        self._full_until: dict[tuple[int, int], float] = {}
        self._none_until: dict[tuple[int, int], float] = {}
        #: Called with new lanes. Listeners tell the nodes that share the shards before a lane holds anything.
        self.made = AwaitedSignal[int]()

    async def load(self) -> None:
        """Read every lane. Called again once in a while, for lanes that other nodes made."""
        self._take(await self._database.run(SQL["read_all"]))

    def find(self, key: LaneKey) -> int | None:
        return self._by_key.get(key)

    async def ensure(self, key: LaneKey) -> int:
        """The home lane of tasks, made if there is none.  If there are too many, it is the home of another part."""
        lane = self._by_key.get(key)
        if lane is None and self._has_room(key, len(self._homes.get(key.tenant, ())), self._count_known(key.tenant)):
            lane = await self._make(key)
        if lane is not None:
            return lane
        if not key.part:
            raise InvalidInput.at(
                "queue",
                f"a tenant has at most {MAX_HOMES_PER_TENANT} lanes for its tasks (queue, priority, kind, requires); "
                "use fewer queues",
            )
        lane = self._by_key[key] = await self._fold(key)
        return lane

    async def ensure_gate(self, key: LaneKey) -> int | None:
        """The lane of a gate; an empty one is used if there are enough. None: all are in use."""
        lane = self._by_key.get(key)
        if lane is not None:
            return lane
        place, now = (key.tenant, key.part), self._monotonic()
        if len(key.gate.encode()) > _MAX_GATE_BYTES or now < self._none_until.get(place, 0.0):
            return None
        if now >= self._full_until.get(place, 0.0):
            lane = await self._make(key)
            if lane is not None:
                return lane
            self._full_until[place] = now + _FULL_SECONDS
        try:
            rows = await run_once_with(self._database, SQL["give"], _columns(key))
        except asyncpg.UniqueViolationError:
            # Another node has made one for this gate.
            self._take(await self._database.run(SQL["read_of_tenant"], tenant=key.tenant))
            return self._by_key.get(key)
        if not rows:
            self._none_until[place] = now + _ASK_AGAIN_SECONDS
            return None
        given: int = rows[0]["id"]
        await self.learn(given)
        await self.made(given)
        return given

    async def learn(self, lane: int) -> None:
        """Read a lane that is new, or that was given to another gate."""
        self._take(await self._database.run(SQL["read_one"], lane=lane))

    async def _fold(self, key: LaneKey) -> int:
        """A part without a lane of its own shares that of another part, so that all are used alike."""
        home = msgspec.structs.replace(key, part=0)
        found = [
            lane
            for lane in sorted(self._homes.get(key.tenant, ()))
            if msgspec.structs.replace(self._by_id[lane], part=0) == home
        ]
        return found[key.part % len(found)] if found else await self.ensure(home)

    async def _make(self, key: LaneKey) -> int | None:
        """A lane that is new, or that another node has just made. None: there are too many."""
        async with changing(self._database) as connection:
            lock, count, make = SQL["lock_tenant"], SQL["count"], SQL["make"]
            [tenant] = await connection.fetch(lock.sql, *lock.arguments({"tenant": key.tenant}))
            # A statement of its own counts: it sees what the last holder of the lock has made.
            [held] = await connection.fetch(count.sql, *count.arguments({"tenant": key.tenant, "part": key.part}))
            if key.gate:
                has_room = held["gates_of_part"] < max(1, MAX_GATES_PER_TENANT // tenant["spread"])
                has_room = has_room and held["homes"] + held["gates"] < MAX_LANES_PER_TENANT
            else:
                has_room = self._has_room(key, held["homes"], held["homes"] + held["gates"])
            if has_room:
                shard = shard_of_part(tenant["name"], key.part) if key.part else tenant["shard"]
                await connection.execute(make.sql, *make.arguments({**_columns(key), "shard": shard}))
        self._take(await self._database.run(SQL["read_of_tenant"], tenant=key.tenant))
        lane = self._by_key.get(key)
        if lane is not None:
            await self.made(lane)
        return lane

    def _has_room(self, key: LaneKey, homes: int, lanes: int) -> bool:
        """Whether one more home may be made."""
        most = MAX_HOMES_TO_SPREAD if key.part else MAX_HOMES_PER_TENANT
        return homes < most and lanes < MAX_LANES_PER_TENANT

    def _count_known(self, tenant: int) -> int:
        return len(self._homes.get(tenant, ())) + len(self._gates.get(tenant, ()))

    def key_of(self, lane: int) -> LaneKey | None:
        return self._by_id.get(lane)

    async def resolve(self, lane: int) -> LaneKey | None:
        """The lane's key. Asks the database if this process does not know it."""
        if lane not in self._by_id and lane < 1 << 31:
            await self.learn(lane)
        return self._by_id.get(lane)

    async def of_tenant(self, tenant: int) -> dict[int, LaneKey]:
        return {lane: key for lane, key in self._by_id.items() if key.tenant == tenant}

    def tenant_name(self, tenant: int) -> str | int:
        """What log lines call a tenant. Only its number, before this process knows a lane of it."""
        return self._names.get(tenant, tenant)

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
            (self._gates if key.gate else self._homes).setdefault(key.tenant, set()).add(row["id"])
            self._by_key[key] = row["id"]
            self._by_id[row["id"]] = key
            if row["name"] is not None:
                self._names[key.tenant] = row["name"]


def shard_of_part(tenant: str, part: int) -> int:
    """The shard of a part of a tenant that is spread; the same on every node and machine."""
    return int.from_bytes(hashlib.blake2b(f"{tenant} {part}".encode(), digest_size=8).digest(), "big") % SHARDS


def _columns(key: LaneKey) -> dict[str, object]:
    return {
        "tenant": key.tenant,
        "queue": key.queue,
        "class": int(key.priority),
        "kind": int(key.kind),
        "requires": list(key.requires),
        "gate": key.gate,
        "part": key.part,
    }
