"""Migrations: there and back, once, and never over something unknown."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

import services
from duetime.admin.rules import read_rules
from duetime.admin.tenants import find_tenant
from duetime.database.migrate import Migration, check_server, migrate, read_migrations, read_settings, split_statements
from duetime.database.pool import Database
from duetime.database.settings import PLANNER_SETTINGS
from duetime.errors import UsageError
from duetime.model.quotas import LEAST_DEFAULTS, NO_QUOTAS
from services import Server

SCHEMA = Path(__file__).parents[2] / "src" / "duetime" / "database" / "schema.sql"
LATEST = len(read_migrations())
#: Rows that the tables held before a step, so that it is taken over data.
ROWS = """
INSERT INTO tenant (name, shard, signing_secret) VALUES ('default', 0, 'x');
INSERT INTO lane (id, tenant, queue, class, kind) VALUES (256, 1, 'default', 2, 1);
CREATE TABLE task_all PARTITION OF task DEFAULT;
CREATE TABLE due_all PARTITION OF due DEFAULT;
CREATE TABLE attempt_all PARTITION OF attempt DEFAULT;
INSERT INTO task (lane, id, type, payload, run_at)
SELECT 256, gen_random_uuid(), 'email.send', '{}', now() FROM generate_series(1, 100);
INSERT INTO due (lane, wake, task, number) SELECT lane, id, id, 1 FROM task;
INSERT INTO attempt (lane, task, number, outcome, final) SELECT lane, id, 1, 1, true FROM task;
INSERT INTO dead (lane, task, number, reason) SELECT lane, id, 1, 'failed' FROM task;
"""
#: Half of what is due waits at a gate, all since the same moment.
PARKED = """
INSERT INTO lane (id, tenant, queue, class, kind, gate) VALUES (512, 1, 'default', 2, 1, '[["key","a",""]]');
UPDATE due
   SET lane = 512, home = 256, wake = mint_wake(1000000, 512, place)
  FROM (SELECT task AS parked, row_number() OVER () AS place FROM due LIMIT 50) AS half
 WHERE task = parked
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """An empty database, and the pg_dump of its server's version."""

    url: str
    pg_dump: Path

    def dump(self) -> str:
        return services.dump_schema(self.pg_dump, self.url)


@pytest.fixture(params=["18", "15"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.param == "18":
        server: Server = request.getfixturevalue("postgres_server")
        pg_dump = services.find_pg_dump()
    else:
        server = request.getfixturevalue("postgres15_server")
        pg_dump = services.POSTGRES_15 / "pg_dump"
    name = server.make_database("template0")
    yield Target(server.url_of(name), pg_dump)
    server.drop_database(name)


@pytest.fixture
async def connection(target: Target) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(target.url)
    yield connection
    await connection.close()


async def test_every_way_down_leaves_what_was_before_with_rows_in_the_tables(
    connection: asyncpg.Connection, target: Target
) -> None:
    dumps = [target.dump()]
    await migrate(connection)
    latest = target.dump()
    await migrate(connection, to=0)
    for number in range(1, LATEST + 1):
        await migrate(connection, to=number)
        if number == 1:
            # Partitions come with the rows, and stay on the way down.
            await connection.execute("SET search_path = duetime, public")
            await connection.execute(ROWS)
        dumps.append(target.dump())
    assert await connection.fetchval("SELECT count(*) FROM due") == 100

    for number in range(LATEST - 1, -1, -1):
        await migrate(connection, to=number)
        assert target.dump() == dumps[number]

    await migrate(connection)
    assert target.dump() == latest
    await migrate(connection, to=0)
    assert target.dump() == dumps[0]
    assert await read_settings(connection) == {}


async def test_what_waits_at_a_gate_goes_home_on_the_way_down(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute("SET search_path = duetime, public")
    await connection.execute(ROWS)
    await connection.execute(PARKED)

    await migrate(connection, to=5)

    rows = await connection.fetch("SELECT lane, count(DISTINCT task) AS tasks, count(*) AS all FROM due GROUP BY lane")
    assert [tuple(row) for row in rows] == [(256, 100, 100)]


async def test_the_way_down_is_refused_where_a_tenant_is_spread(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute("SET search_path = duetime, public")
    await connection.execute(ROWS)
    await connection.execute(PARKED)
    await connection.execute("INSERT INTO lane (id, tenant, queue, class, kind, part) VALUES (768, 1, 'b', 2, 1, 1)")

    with pytest.raises(UsageError) as refused:
        await migrate(connection, to=0)

    told = str(refused.value)
    assert "migration 6 (gates, down) failed: tenants are spread over several shards" in told
    assert "Restore a backup from before they were" in told
    assert told.endswith("The database is at migration 6.")
    assert await connection.fetchval("SELECT count(*) FROM due WHERE home = 256") == 50
    assert await connection.fetchval("SELECT count(*) FROM lane") == 3
    await migrate(connection)


async def test_tenants_that_are_there_get_no_default_quotas_and_new_ones_do(
    connection: asyncpg.Connection, target: Target
) -> None:
    [number] = [each.number for each in read_migrations() if each.name == "default_quotas"]
    await migrate(connection, to=number - 1)
    await connection.execute("SET search_path = duetime, public")
    await connection.execute("INSERT INTO tenant (name, shard, signing_secret) VALUES ('old', 0, 'x')")
    await connection.execute("""INSERT INTO tier (name, quotas) VALUES ('default', '{"max_waiting": 5}')""")

    await migrate(connection)
    await connection.execute("INSERT INTO tenant (name, shard, signing_secret) VALUES ('new', 0, 'x')")

    database = await Database.open(target.url, size=2)
    try:
        old, new = [await find_tenant(database, name) for name in ("old", "new")]
        rules = await read_rules(database)
    finally:
        await database.close()
    assert old is not None
    assert new is not None
    assert (old.effective.quotas, rules.quotas[old.id]) == (LEAST_DEFAULTS, NO_QUOTAS)
    assert (new.effective.quotas.max_waiting, new.id in rules.quotas, rules.default.max_waiting) == (5, False, 5)


async def test_the_migrations_give_the_schema_that_is_written_down(
    connection: asyncpg.Connection, target: Target
) -> None:
    await connection.execute(SCHEMA.read_text())
    await connection.execute("RESET ALL")
    written = target.dump()
    await connection.execute("DROP SCHEMA duetime CASCADE")

    await migrate(connection)

    assert target.dump() == written, "the schema has changed: run `make schema`"


def test_the_schema_that_is_written_down_is_a_dump(postgres_server: services.Server) -> None:
    dump = services.dump_schema(services.find_pg_dump(), postgres_server.url_of(services.BARE_TEMPLATE))

    assert dump == SCHEMA.read_text(), "the schema has changed: run `make schema`"


async def test_a_repeated_migration_does_nothing(connection: asyncpg.Connection) -> None:
    first = await migrate(connection)
    second = await migrate(connection)

    assert [(step.direction, step.migration.number) for step in first] == [("up", n + 1) for n in range(LATEST)]
    assert second == []


async def test_a_dry_run_shows_the_steps_and_takes_none(connection: asyncpg.Connection, target: Target) -> None:
    empty = target.dump()

    assert len(await migrate(connection, dry_run=True)) == LATEST
    assert target.dump() == empty

    await migrate(connection)
    full = target.dump()
    assert [step.direction for step in await migrate(connection, to=0, dry_run=True)] == ["down"] * LATEST
    assert target.dump() == full


async def test_many_nodes_may_migrate_at_once(target: Target) -> None:
    connections = [await asyncpg.connect(target.url) for _ in range(8)]

    steps = await asyncio.gather(*(migrate(connection) for connection in connections))

    assert sorted(map(len, steps)) == [0] * 7 + [LATEST]
    for connection in connections:
        await connection.close()


async def test_later_sessions_have_the_settings_that_the_plans_rely_on(
    connection: asyncpg.Connection, target: Target
) -> None:
    await migrate(connection)

    later = await asyncpg.connect(target.url)
    shown = {name: await later.fetchval(f"SHOW {name}") for name in PLANNER_SETTINGS}
    await later.close()
    assert shown == PLANNER_SETTINGS
    assert await read_settings(connection) == PLANNER_SETTINGS


async def test_settings_that_somebody_changed_are_set_again(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET enable_seqscan = on")

    await migrate(connection)

    assert await read_settings(connection) == PLANNER_SETTINGS


async def test_an_applied_migration_that_changed_is_refused(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    changed = [dataclasses.replace(each, up=each.up + "-- changed") for each in read_migrations()]

    with pytest.raises(UsageError, match="an applied migration never changes"):
        await migrate(connection, migrations=changed)


async def test_line_ends_are_no_change(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    same = [dataclasses.replace(each, up=each.up.replace("\n", "\r\n")) for each in read_migrations()]

    assert await migrate(connection, migrations=same) == []


async def test_a_database_that_is_newer_than_the_code_is_refused(connection: asyncpg.Connection) -> None:
    newer = [*read_migrations(), Migration(LATEST + 1, "newer", "CREATE TABLE newer ()", "DROP TABLE newer")]
    await migrate(connection, migrations=newer)

    with pytest.raises(UsageError, match=f"the database is at migration {LATEST + 1} and this version"):
        await migrate(connection)


@pytest.mark.parametrize("number", [-1, LATEST + 1])
async def test_a_migration_that_does_not_exist_is_refused(connection: asyncpg.Connection, number: int) -> None:
    with pytest.raises(UsageError, match=f"there is no migration {number}"):
        await migrate(connection, to=number)


async def test_a_migration_that_fails_leaves_nothing(connection: asyncpg.Connection, target: Target) -> None:
    await migrate(connection)
    before = target.dump()
    broken = [*read_migrations(), Migration(LATEST + 1, "broken", "CREATE TABLE half (); SELECT 1 / 0", "")]

    with pytest.raises(UsageError, match=r"\(broken, up\) failed: division by zero"):
        await migrate(connection, migrations=broken)

    assert target.dump() == before
    assert await migrate(connection) == []


async def test_a_migration_outside_a_transaction_may_build_an_index_beside_the_traffic(
    connection: asyncpg.Connection, target: Target
) -> None:
    up = """-- outside a transaction
    CREATE INDEX CONCURRENTLY IF NOT EXISTS tenant_weight ON tenant (weight);
    COMMENT ON INDEX tenant_weight IS 'a semicolon; and -- two dashes';
    """
    indexed = [*read_migrations(), Migration(LATEST + 1, "indexed", up, "DROP INDEX tenant_weight")]

    # One waits for the other without a snapshot, which the index would wait for.
    other = await asyncpg.connect(target.url)
    await asyncio.gather(migrate(connection, migrations=indexed), migrate(other, migrations=indexed))
    await other.close()

    assert await connection.fetchval("SELECT to_regclass('duetime.tenant_weight') IS NOT NULL")
    await migrate(connection, to=LATEST, migrations=indexed)
    assert await connection.fetchval("SELECT to_regclass('duetime.tenant_weight') IS NULL")


def test_statements_are_split_where_they_end() -> None:
    sql = """-- outside a transaction
    SELECT 'a;''b'; -- a comment; with a semicolon
    /* and ; another */ SELECT ";" FROM "a;b";
    CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $body$ BEGIN RETURN 1; END; $body$;
    SELECT $1;
    -- the end;
    """

    statements = split_statements(sql)

    assert [statement.splitlines()[-1].strip() for statement in statements] == [
        "SELECT 'a;''b'",
        """/* and ; another */ SELECT ";" FROM "a;b\"""",
        "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $body$ BEGIN RETURN 1; END; $body$",
        "SELECT $1",
    ]


def test_every_migration_has_a_way_back() -> None:
    assert all(each.up.strip() and each.down.strip() for each in read_migrations())


def test_a_server_that_is_too_old_is_refused() -> None:
    class OldServer:
        def get_server_version(self) -> asyncpg.types.ServerVersion:
            return asyncpg.types.ServerVersion(14, 9, 0, "final", 0)

    with pytest.raises(UsageError, match="needs PostgreSQL 15 or newer, and this server is 14"):
        check_server(OldServer())
