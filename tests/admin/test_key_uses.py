"""When keys were last used: gathered in memory, stored once a minute, the newest of all nodes."""

from datetime import timedelta
from typing import cast

import asyncpg
import pytest

from duetime.admin import key_uses
from duetime.admin.key_uses import WRITE_EVERY_SECONDS, KeyUses
from duetime.admin.keys import Caller, KeyInfo, create_key, hash_key, list_keys, rotate_key
from duetime.admin.tenants import create_tenant
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.errors import Unavailable

pytestmark = pytest.mark.asyncio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A database that counts the statements, and may fail."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.clock = database.clock
        self.rows: list[int] = []
        self.error: Exception | None = None

    async def run(self, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
        self.rows.append(len(cast(list[int], parameters["keys"])))
        if self.error is not None:
            raise self.error
        return await self._database.run(statement, **parameters)


class World:
    """A tenant with three keys, as two nodes see them."""

    def __init__(self, database: Database, tenant: int, callers: list[Caller]) -> None:
        self.database = database
        self.tenant = tenant
        self.callers = callers
        self.clock = Clock()
        self.counting = Counting(database)
        self.here = KeyUses(cast(Database, self.counting), self.clock)
        self.there = KeyUses(database, self.clock)

    async def read(self) -> list[KeyInfo]:
        return await list_keys(self.database, self.tenant, 0, 100)

    async def peers(self) -> list[str | None]:
        return [info.last_used_from for info in await self.read()]


@pytest.fixture
async def world(database: Database) -> World:
    tenant = await create_tenant(database, "a")
    made = [await create_key(database, tenant.id) for _ in range(3)]
    return World(
        database,
        tenant.id,
        [Caller(tenant.id, "a", info.id, "admin", hash=hash_key(key)) for info, key in made],
    )


async def test_all_keys_that_were_used_are_stored_in_one_statement_a_minute(world: World) -> None:
    for caller in world.callers:
        world.here.note(caller, "192.0.2.1")
    await world.here.step()
    assert (world.counting.rows, await world.peers()) == ([], [None] * 3)

    world.clock.now += WRITE_EVERY_SECONDS
    await world.here.step()
    await world.here.step()

    assert (world.counting.rows, await world.peers()) == ([3], ["192.0.2.1"] * 3)
    used_at = [info.last_used_at for info in await world.read()]
    assert all(at is not None and abs(at - world.database.clock.now()) < timedelta(minutes=1) for at in used_at)


async def test_a_key_is_noted_again_after_every_look(world: World) -> None:
    caller = world.callers[0]
    assert caller.hash not in world.here.noted
    world.here.note(caller, "192.0.2.1")
    assert caller.hash in world.here.noted

    await world.here.step()

    assert caller.hash not in world.here.noted
    world.here.note(caller, "192.0.2.2")
    await world.here.write()
    assert (await world.peers())[0] == "192.0.2.2"


async def test_the_newest_use_of_all_nodes_stays(world: World) -> None:
    caller = world.callers[0]
    world.here.note(caller, "192.0.2.1")
    world.there.note(caller, "192.0.2.2")

    await world.there.write()
    await world.here.write()
    assert (await world.peers())[0] == "192.0.2.2"

    world.here.note(caller, "192.0.2.3")
    await world.here.write()
    assert (await world.peers())[0] == "192.0.2.3"


async def test_what_cannot_be_stored_is_kept(world: World) -> None:
    world.here.note(world.callers[0], "192.0.2.1")
    world.here.note(world.callers[1], "192.0.2.1")
    world.counting.error = Unavailable("the database is away")
    with pytest.raises(Unavailable):
        await world.here.write()
    await world.here.close()
    world.here.note(world.callers[0], "192.0.2.9")

    world.counting.error = None
    await world.here.close()

    assert await world.peers() == ["192.0.2.9", "192.0.2.1", None]


async def test_many_keys_are_stored_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_uses, "_ROWS_AT_ONCE", 2)
    for caller in world.callers:
        world.here.note(caller, "192.0.2.1")

    await world.here.write()

    assert (world.counting.rows, await world.peers()) == ([2, 1], ["192.0.2.1"] * 3)


async def test_memory_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_uses, "NOTED_AT_MOST", 2)
    for caller in world.callers:
        world.here.note(caller, "192.0.2.1")

    await world.here.write()
    assert await world.peers() == ["192.0.2.1", "192.0.2.1", None]
    world.here.note(world.callers[2], "192.0.2.1")
    await world.here.write()
    assert await world.peers() == ["192.0.2.1"] * 3


async def test_unused_keys_are_those_that_are_valid_and_were_not_used_for_so_long(world: World) -> None:
    used, unused, new = (caller.key for caller in world.callers)
    database, day = world.database, 86_400.0
    ended, _ = await create_key(database, world.tenant)
    await database.execute(
        "UPDATE api_key SET created_at = created_at - interval '200 days', watched_since = now() - interval '100 days'"
        " WHERE id <> $1",
        new,
    )
    await database.execute("UPDATE api_key SET revoked_at = now() WHERE id = $1", ended.id)

    async def unused_for(days: float) -> list[int]:
        return [info.id for info in await list_keys(database, world.tenant, 0, 100, unused_seconds=days * day)]

    world.here.note(world.callers[0], "192.0.2.1")
    await world.here.write()

    assert await unused_for(90) == [unused]
    # Nobody knows whether it was used before its use was noted.
    assert await unused_for(101) == []
    await database.execute("UPDATE api_key_use SET used_at = now() - interval '91 days'")
    assert await unused_for(90) == [used, unused]
    rotated, _ = await rotate_key(database, world.tenant, used, 0.0)
    assert await unused_for(90) == [unused]
    assert rotated.id not in await unused_for(1)
