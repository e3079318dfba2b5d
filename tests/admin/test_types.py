"""Types as nodes read them: what has changed and nothing else, and schemas only when a payload has to be judged."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from duetime.admin.schemas import JudgeLaterError, Schemas, StoredSchema
from duetime.admin.tenants import create_tenant
from duetime.admin.types import Types
from duetime.database.pool import Database
from duetime.errors import InvalidInput, NotFound
from duetime.model.flow import TypeRules
from duetime.model.limits import TypeLimits
from duetime.model.payload_schema import PayloadSchema

pytestmark = pytest.mark.asyncio

SCHEMA = b'{"type": "object"}'
LIMITED = TypeRules(limits=TypeLimits(max_running=1))
#: Holds about a megabyte.
LARGE = b'{"pattern": "^[a-z]{4000}%d$"}'


@pytest_asyncio.fixture
async def tenants(database: Database) -> AsyncIterator[tuple[int, int]]:
    yield ((await create_tenant(database, "one")).id, (await create_tenant(database, "two")).id)


async def test_another_node_reads_what_has_changed_and_nothing_else(
    database: Database, tenants: tuple[int, int]
) -> None:
    one, two = tenants
    here, there = Types(database), Types(database)
    for number in range(30):
        await here.put(one, f"t{number}", SCHEMA, [])
    await there.refresh()
    assert there.read_count == 30

    await here.put(two, "mine", SCHEMA, [])
    await there.refresh()
    assert there.read_count == 31
    for number in range(3):
        await here.put(two, "mine", b'{"minimum": %d}' % number, [])
    await there.refresh()
    assert there.read_count == 32

    before = there.kind(one, "t0")
    await here.put(one, "t1", None, [], rules=LIMITED)
    await here.delete(one, "t2")
    await there.refresh()

    assert there.read_count == 33
    assert there.kind(one, "t0") is before
    assert there.limits(one, "t1") == LIMITED.limits
    assert there.limited_tenants() == {one}
    assert there.kind(one, "t2") is None
    assert there.kind(two, "mine") is not None


async def test_what_is_deleted_and_made_again_between_two_looks_is_another(
    database: Database, tenants: tuple[int, int]
) -> None:
    one, _ = tenants
    here, there = Types(database), Types(database)
    for name in ("a", "b", "c"):
        await here.put(one, name, SCHEMA, [], rules=LIMITED)
    await there.refresh()
    old = there.kind(one, "a")

    await here.delete(one, "a")
    await here.put(one, "a", SCHEMA, [])
    await here.delete(one, "b")
    await here.put(one, "d", SCHEMA, [])
    await there.refresh()

    assert there.kind(one, "a") not in (None, old)
    assert [name for name in "abcd" if there.kind(one, name)] == ["a", "c", "d"]
    for name in ("a", "c", "d"):
        await here.delete(one, name)
    await there.refresh()
    assert not there
    assert there.limited_tenants() == frozenset()


async def test_a_change_of_which_nobody_noted_whose_it_is_is_seen(database: Database, tenants: tuple[int, int]) -> None:
    one, two = tenants
    here, there = Types(database), Types(database)
    await here.put(one, "a", SCHEMA, [])
    await here.put(one, "b", SCHEMA, [])
    await there.refresh()

    # As a release does that knows of nothing but the number of changes.
    await database.fetch(f"INSERT INTO task_type (tenant, name) VALUES ({two}, 'by-hand')")
    await database.fetch("DELETE FROM task_type WHERE name = 'a'")
    await database.fetch("UPDATE rule_change SET change = change + 1 WHERE kind = 'types'")
    await here.put(one, "c", SCHEMA, [])
    await there.refresh()

    assert there.kind(two, "by-hand") is not None
    assert there.kind(one, "a") is None
    assert there.kind(one, "c") is not None


async def test_limits_are_told_only_when_they_have_changed(database: Database, tenants: tuple[int, int]) -> None:
    one, _ = tenants
    types = Types(database)
    await types.put(one, "a", SCHEMA, [], rules=LIMITED)
    before = types.limits_change

    await types.put(one, "a", b"true", [], rules=LIMITED)
    await types.put(one, "b", SCHEMA, [])
    assert types.limits_change == before

    await types.put(one, "a", b"true", [])
    assert types.limits_change != before


async def test_a_node_compiles_what_a_payload_needs(database: Database, tenants: tuple[int, int]) -> None:
    one, _ = tenants
    here, there = Types(database), Types(database)
    for number in range(5):
        await here.put(one, f"t{number}", SCHEMA, [])
    await there.refresh()
    assert there.schemas.held_bytes == 0

    schema = stored(there, one, "t3")
    with pytest.raises(JudgeLaterError):
        there.schemas.find(schema)
    await asyncio.gather(*(there.schemas.prepare(schema) for _ in range(10)))

    found = there.schemas.find(schema)
    assert found.is_valid({}, 2)
    assert there.schemas.held_bytes == found.held_bytes
    await here.put(one, "t3", b"true", [])
    await there.refresh()
    assert there.schemas.held_bytes == 0
    await there.schemas.prepare(schema)
    assert there.schemas.held_bytes == 0


async def test_what_was_not_used_for_longest_is_given_up_first(database: Database, tenants: tuple[int, int]) -> None:
    one, _ = tenants
    size = PayloadSchema(LARGE % 0).held_bytes
    types = Types(database, Schemas(database, tenant_bytes=3 * size))
    for number in range(3):
        await types.put(one, f"t{number}", LARGE % number, [])
    types.schemas.find(stored(types, one, "t0"))

    await types.put(one, "t3", LARGE % 3, [])

    compiled = [name for name in ("t0", "t1", "t2", "t3") if stored(types, one, name).compiled is not None]
    assert compiled == ["t0", "t2", "t3"]
    assert types.schemas.held_bytes <= 3 * size
    await types.schemas.prepare(stored(types, one, "t1"))
    assert types.schemas.find(stored(types, one, "t1")).is_valid("a", 3) is False


async def test_who_holds_the_most_makes_room(database: Database, tenants: tuple[int, int]) -> None:
    one, two = tenants
    size = PayloadSchema(LARGE % 0).held_bytes
    types = Types(database, Schemas(database, node_bytes=3 * size))
    await types.put(two, "small", SCHEMA, [])

    for number in range(6):
        await types.put(one, f"t{number}", LARGE % number, [])

    assert types.schemas.held_bytes <= 3 * size
    assert stored(types, two, "small").compiled is not None
    assert stored(types, one, "t0").compiled is None
    assert stored(types, one, "t5").compiled is not None


async def test_what_a_tenants_schemas_would_hold_together_is_bounded(
    database: Database, tenants: tuple[int, int]
) -> None:
    one, two = tenants
    types = Types(database)
    await types.put(one, "a", SCHEMA, [])
    await types.put(one, "b", SCHEMA, [])
    await database.fetch("UPDATE task_type SET held_bytes = 128 * 1024 * 1024 - 20000 WHERE name = 'a'")

    with pytest.raises(InvalidInput) as caught:
        await types.put(one, "c", SCHEMA, [])
    with pytest.raises(InvalidInput):
        await types.preview(one, "c", SCHEMA, [])

    assert [error.path for error in caught.value.errors] == ["schema"]
    assert "type c" in caught.value.errors[0].message
    with pytest.raises(NotFound):
        await types.get(one, "c")
    # What replaces one that counts is counted instead of it, and what has no schema counts nothing.
    await types.put(one, "c", None, [], rules=LIMITED)
    await types.put(one, "a", b"true", [])
    await types.put(one, "c", SCHEMA, [])
    await types.put(two, "c", SCHEMA, [])


async def test_a_stored_schema_that_is_too_large_by_now_says_so_and_hurts_nobody(
    database: Database, tenants: tuple[int, int]
) -> None:
    one, _ = tenants
    types = Types(database)
    for name in ("good", "bad"):
        await types.put(one, name, SCHEMA, [])
    patterns = ", ".join(f'{{"pattern": "^.{{1000}}{number}$"}}' for number in range(300))
    await database.fetch("UPDATE task_type SET schema = $1 WHERE name = 'bad'", f'{{"allOf": [{patterns}]}}'.encode())
    node = Types(database)
    await node.refresh()

    await node.schemas.prepare(stored(node, one, "bad"))
    await node.schemas.prepare(stored(node, one, "good"))

    with pytest.raises(InvalidInput) as caught:
        node.schemas.find(stored(node, one, "bad"))
    assert [error.path for error in caught.value.errors] == ["type"]
    assert "register the type again" in caught.value.errors[0].message
    assert node.schemas.find(stored(node, one, "good")).is_valid({}, 2)
    assert node.schemas.held_bytes == node.schemas.find(stored(node, one, "good")).held_bytes


def stored(types: Types, tenant: int, name: str) -> StoredSchema:
    kind = types.kind(tenant, name)
    assert kind is not None
    assert kind.schema is not None
    return kind.schema
