"""Keys and tenants."""

from collections.abc import Callable
from typing import cast

import asyncpg
import pytest

from duetime.admin.first_keys import ensure_default
from duetime.admin.keyring import IN_USE_SECONDS, REFRESH_EVERY, REMEMBER_SECONDS, Keys
from duetime.admin.keys import create_key, hash_key, revoke_key
from duetime.admin.signing import read_signing
from duetime.admin.tenants import create_tenant, find_tenant, page_tenants, shard_of_tenant
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.errors import Conflict, InvalidInput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_key_is_stored_as_its_hash_and_nothing_else(database: Database) -> None:
    tenant = await create_tenant(database, "a")

    info, key = await create_key(database, tenant.id)

    rows = await database.fetch("SELECT hash, hint FROM api_key")
    assert [row["hash"] for row in rows] == [hash_key(key)]
    assert len(key) == len("dt_") + 43
    assert info.hint == key[:8]


async def test_a_key_names_its_tenant_until_it_is_revoked(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    info, key = await create_key(database, tenant.id, "worker")
    keys = Keys(database)

    caller = await keys.resolve(key)
    assert caller is not None
    assert (caller.tenant, caller.tenant_name, caller.key, caller.role) == (tenant.id, "a", info.id, "worker")
    keys.forget(await revoke_key(database, tenant.id, info.id))
    assert await keys.resolve(key) is None


async def test_a_key_that_was_revoked_elsewhere_ends_within_seconds(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    info, key = await create_key(database, tenant.id)
    clock = Clock()
    keys = Keys(database, clock)
    await keys.resolve(key)

    await revoke_key(database, tenant.id, info.id)

    assert await keys.resolve(key) is not None
    clock.now += REMEMBER_SECONDS
    assert await keys.resolve(key) is None


class Counting:
    """A database that counts what it is asked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.calls = 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def run(self, statement: Statement, **parameters: object) -> list[asyncpg.Record]:
        self.calls += 1
        rows = await self._database.run(statement, **parameters)
        self.meanwhile()
        return rows


async def test_a_key_in_use_is_looked_up_before_a_call_has_to_wait_for_it(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    made = [await create_key(database, tenant.id) for _ in range(2)]
    clock, counting = Clock(), Counting(database)
    keys = Keys(cast(Database, counting), clock)
    for _, key in made:
        await keys.resolve(key)

    for _ in range(5):
        clock.now += REFRESH_EVERY.total_seconds()
        await keys.refresh()
        assert await keys.resolve(made[0][1]) is not None

    # Two calls found nothing remembered; each refresh is one, for both keys.
    assert counting.calls == 2 + 5


async def test_a_key_revoked_elsewhere_is_forgotten_by_the_next_refresh(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    info, key = await create_key(database, tenant.id)
    keys = Keys(database, Clock())
    await keys.resolve(key)

    await revoke_key(database, tenant.id, info.id)
    await keys.refresh()

    assert keys.recall(hash_key(key)) is None
    assert await keys.resolve(key) is None


async def test_a_key_revoked_here_during_a_refresh_does_not_come_back(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    _, key = await create_key(database, tenant.id)
    counting = Counting(database)
    keys = Keys(cast(Database, counting), Clock())
    await keys.resolve(key)
    counting.meanwhile = lambda: keys.forget(hash_key(key))

    await keys.refresh()

    assert keys.recall(hash_key(key)) is None


async def test_a_key_that_is_not_used_is_not_looked_up(database: Database) -> None:
    tenant = await create_tenant(database, "a")
    _, key = await create_key(database, tenant.id)
    clock, counting = Clock(), Counting(database)
    keys = Keys(cast(Database, counting), clock)
    await keys.resolve(key)

    clock.now += IN_USE_SECONDS
    await keys.refresh()

    assert counting.calls == 1
    assert keys.recall(hash_key(key)) is None


async def test_of_very_many_keys_those_used_last_are_looked_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.admin.keyring.REFRESH_AT_MOST", 1)
    tenant = await create_tenant(database, "a")
    made = [await create_key(database, tenant.id) for _ in range(2)]
    clock = Clock()
    keys = Keys(database, clock)
    for _, key in made:
        clock.now += 0.1
        await keys.resolve(key)

    clock.now += REMEMBER_SECONDS - 0.15
    await keys.refresh()
    clock.now += 0.1

    assert keys.recall(hash_key(made[0][1])) is None
    assert keys.recall(hash_key(made[1][1])) is not None


async def test_the_default_tenant_gets_one_first_key(database: Database) -> None:
    first, key = await ensure_default(database)
    second, none = await ensure_default(database)

    assert first == second
    assert first.name == "default"
    assert key is not None
    assert none is None


async def test_the_default_tenant_gets_a_new_key_when_all_are_revoked(database: Database) -> None:
    tenant, key = await ensure_default(database)
    assert key is not None
    caller = await Keys(database).resolve(key)
    assert caller is not None
    await revoke_key(database, tenant.id, caller.key)

    _, another = await ensure_default(database)

    assert another not in (None, key)


async def test_a_tenants_name_is_its_own(database: Database) -> None:
    tenant = await create_tenant(database, "a")

    with pytest.raises(Conflict):
        await create_tenant(database, "a")
    assert await find_tenant(database, "a") == tenant
    assert await find_tenant(database, "b") is None
    assert await page_tenants(database, "", 10) == [tenant]
    assert len((await read_signing(database, tenant.id)).secret) == 32


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a" * 64, "é", "a/b"])
async def test_a_tenants_name_is_plain(database: Database, name: str) -> None:
    with pytest.raises(InvalidInput):
        await create_tenant(database, name)


def test_a_tenants_shard_never_changes() -> None:
    # These are stored in every id; another hash would lose every tenant's lanes.
    assert [shard_of_tenant(name) for name in ("default", "a", "team-1")] == [162, 47, 12]
