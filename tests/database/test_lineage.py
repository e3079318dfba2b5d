"""A `Database` belongs to one history of writes, and runs nothing on a server that continues another one."""

import asyncio
import shutil
from urllib.parse import urlsplit

import psycopg
import pytest
from structlog.testing import capture_logs

import services
from duetime.database.changing import changing
from duetime.database.lineage import TimelinePosition, failing_over
from duetime.database.pool import Database
from duetime.database.repeating import repeat
from duetime.errors import FailingOver, Unavailable, Unknown
from services import Postgres15, Server, wait_until


def replace_database(server: Server, name: str) -> None:
    """Another database has the name, with the same rows: as after a restore."""
    server.admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
    server.admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    sessions = "SELECT 1 FROM pg_stat_activity WHERE datname = %s"
    wait_until(lambda: server.admin.execute(sessions, [name]).fetchone() is None)
    server.admin.execute(f"CREATE DATABASE {name}_new TEMPLATE {name} STRATEGY file_copy".encode())
    server.admin.execute(f"DROP DATABASE {name}".encode())
    server.admin.execute(f"ALTER DATABASE {name}_new RENAME TO {name}".encode())


async def read_once_more(database: Database) -> None:
    """A first statement may find that its connection is gone."""
    for _ in range(2):
        try:
            await database.fetch("SELECT 1")
        except FailingOver:
            raise
        except Unavailable:
            continue


async def read_if_there(database: Database) -> list[str]:
    try:
        return [str(row["one"]) for row in await database.fetch("SELECT one FROM written")]
    except FailingOver:
        raise
    except Unavailable:
        return []


async def test_a_database_that_was_restored_under_its_name_ends_the_history(
    postgres_server: Server, database_url: str
) -> None:
    database = await Database.open(database_url)
    before = database.place

    await asyncio.to_thread(replace_database, postgres_server, urlsplit(database_url).path[1:])
    with pytest.raises(FailingOver):
        await read_once_more(database)
    following = await database.follow()

    assert before is not None
    assert following.place is not None
    assert (before.system, before.timeline) == (following.place.system, following.place.timeline)
    assert before.database != following.place.database
    await database.close()
    await following.close()


async def test_a_server_that_was_restarted_continues_the_history() -> None:
    with services.private_folder() as folder:
        postgres = Postgres15(folder, is_durable=True)
        await asyncio.to_thread(postgres.start)
        database = await Database.open(postgres.dsn_of("postgres"))
        await database.execute("CREATE TABLE written AS SELECT 1 AS one")
        await database.read_clock()

        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(60):
            while not (rows := await read_if_there(database)):
                await asyncio.sleep(0.05)

        assert rows == ["1"]
        assert not database.is_over.is_set()
        await database.close()
        await asyncio.to_thread(postgres.stop)


async def test_a_server_that_was_put_back_ends_the_history() -> None:
    """A copy of its files: the same system and timeline, with less written."""
    with services.private_folder() as folder:
        postgres = Postgres15(folder)
        await asyncio.to_thread(postgres.start)
        await asyncio.to_thread(postgres.stop)
        kept = folder / "kept"
        await asyncio.to_thread(shutil.copytree, postgres.files, kept)
        for file in [kept, *kept.rglob("*")]:
            shutil.chown(file, postgres.files.owner(), postgres.files.group())
        await asyncio.to_thread(postgres.start)
        database = await Database.open(postgres.dsn_of("postgres"))
        await database.execute("CREATE TABLE written AS SELECT generate_series(1, 10000) AS number")
        await database.execute("CHECKPOINT")
        await database.read_clock()

        await asyncio.to_thread(postgres.stop)
        shutil.rmtree(postgres.files)
        kept.rename(postgres.files)
        await asyncio.to_thread(postgres.start)
        with pytest.raises(FailingOver):
            await read_once_more(database)

        assert database.is_over.is_set()
        await database.close()
        await asyncio.to_thread(postgres.stop)


async def test_statements_under_way_end_with_the_history(database_url: str) -> None:
    database = await Database.open(database_url, size=1)
    assert database.place is not None
    under_way = asyncio.create_task(database.fetch("SELECT pg_sleep(60)"))
    waiting = asyncio.create_task(database.fetch("SELECT 1"))
    await asyncio.sleep(0)

    newer = TimelinePosition(database.place.system, database.place.database, database.place.timeline + 1, 0)
    database.hear(newer)
    # Long before the statement would end by itself.
    async with asyncio.timeout(30):
        ends = await asyncio.gather(under_way, waiting, return_exceptions=True)

    assert all(isinstance(end, Unavailable) for end in ends)
    assert database.place == newer
    with pytest.raises(FailingOver):
        await database.fetch("SELECT 1")
    await database.close()


async def test_an_ordinary_role_may_ask_where_a_server_stands(postgres15_server: Server, postgres15_url: str) -> None:
    name = f"plain_{urlsplit(postgres15_url).path[1:]}"
    postgres15_server.admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'test'".encode())
    url = urlsplit(postgres15_url)
    plain = url._replace(netloc=f"{name}:test@{url.netloc.rpartition('@')[2]}").geturl()

    with capture_logs() as said:
        database = await Database.open(plain)
    assert database.place is not None
    assert said == []
    await database.close()

    with psycopg.connect(postgres15_url, autocommit=True) as admin:
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    with capture_logs() as said:
        database = await Database.open(plain)
    await database.fetch("SELECT 1")
    assert database.place is None
    assert ["does not tell its timeline" in line["event"] for line in said] == [True]
    await database.close()
    postgres15_server.admin.execute(f"DROP ROLE {name}".encode())


async def test_what_became_of_a_change_is_not_looked_for_when_the_history_is_over(database: Database) -> None:
    place = database.place
    assert place is not None

    with pytest.raises(Unknown, match="it may have been done"):
        async with asyncio.timeout(30), changing(database, timeout=600.0):
            # Before it is committed.
            database.hear(TimelinePosition(place.system, place.database, place.timeline + 1, 0))


async def test_nothing_is_repeated_when_the_history_is_over() -> None:
    doubts: list[bool] = []

    async def work(was_in_doubt: bool) -> None:
        doubts.append(was_in_doubt)
        raise failing_over() if was_in_doubt else Unknown("the connection broke")

    with pytest.raises(Unknown, match="it may have been done"):
        await repeat(work, tries=5, lost="it may have been done")

    assert doubts == [False, True]
