"""What breakers have learned about target hosts, stored for the node that calls them next."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import msgspec

from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.breaker_memory import BreakerMemory

#: A tenant, and a host.
Place = tuple[int, str]

#: When nobody has called a host for this long, what was learned about it no longer counts.
KEEP = timedelta(minutes=15)

_SQL = load(__package__, "breaker_states.sql")
_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(BreakerMemory).decode


class StoredMemory(msgspec.Struct, frozen=True):
    memory: BreakerMemory
    stored_at: datetime


async def put_memories(database: Database, memories: Mapping[Place, BreakerMemory]) -> dict[Place, StoredMemory]:
    """Store these states in one statement."""
    places = sorted(memories)
    rows = await run_once(
        database,
        _SQL["put"],
        tenants=[tenant for tenant, _ in places],
        hosts=[host for _, host in places],
        memories=[_encode(memories[place]).decode() for place in places],
    )
    stored = {(row["tenant"], row["host"]): row["stored_at"] for row in rows}
    return {place: StoredMemory(memories[place], stored[place]) for place in places}


async def remove_memories(database: Database, places: Mapping[Place, datetime]) -> None:
    """Remove these states, unless somebody has written newer ones since."""
    await database.run(
        _SQL["remove"],
        tenants=[tenant for tenant, _ in places],
        hosts=[host for _, host in places],
        stored_at=list(places.values()),
    )


async def read_memories(database: Database, tenants: Collection[int]) -> dict[Place, StoredMemory]:
    rows = await database.run(_SQL["read"], tenants=sorted(tenants), keep=KEEP)
    return {(row["tenant"], row["host"]): StoredMemory(_decode(row["memory"]), row["stored_at"]) for row in rows}


async def retire_memories(database: Database) -> None:
    """Remove states that nobody reads any more: of nodes that are gone, of hosts that nobody calls."""
    await database.run(_SQL["retire"], keep=4 * KEEP)
