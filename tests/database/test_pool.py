"""Connections that cannot be used any more are thrown away, and the server is never asked to cancel anything."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from duetime.database.pool import Database
from duetime.errors import Unavailable, Unknown

SLEEP = "SELECT pg_sleep(600)"


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of an operator's."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1", SLEEP)
    await connection.close()


async def sleeping(other: asyncpg.Connection) -> int:
    count: int = await other.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE query = $1 AND state = 'active'", SLEEP
    )
    return count


async def test_a_statement_that_takes_too_long_is_left_and_not_cancelled(
    database: Database, other: asyncpg.Connection
) -> None:
    async def ask() -> None:
        async with database.connection() as connection:
            try:
                await connection.fetch(SLEEP, timeout=0.1)
            finally:
                # The driver has time to do what it would.
                for _ in range(20):
                    await other.fetch("SELECT 1")

    with pytest.raises(Unknown):
        await ask()

    assert await sleeping(other) == 1


async def test_a_statement_whose_caller_goes_away_is_not_cancelled(
    database: Database, other: asyncpg.Connection
) -> None:
    async def ask() -> None:
        async with database.connection() as connection:
            try:
                await connection.fetch(SLEEP)
            finally:
                # The driver has time to do what it would.
                for _ in range(20):
                    await other.fetch("SELECT 1")

    asking = asyncio.create_task(ask())
    while not await sleeping(other):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])

    assert await sleeping(other) == 1


async def test_sessions_that_are_read_only_are_not_used_again(database: Database) -> None:
    await database.execute("CREATE TABLE note (id int)")
    async with database.connection() as first, database.connection() as second:
        for connection in (first, second):
            # As sessions are that were opened while default_transaction_read_only was on.
            await connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")

    with pytest.raises(Unavailable, match="the database is read-only") as refused:
        await database.execute("INSERT INTO note VALUES (1)")

    assert not isinstance(refused.value, Unknown)
    async with database.connection() as first, database.connection() as second:
        for connection in (first, second):
            await connection.execute("INSERT INTO note VALUES (2)")


async def test_a_server_that_was_read_only_for_a_while_is_written_to_as_soon_as_it_is_not(
    database: Database, database_url: str, other: asyncpg.Connection
) -> None:
    name = urlsplit(database_url).path[1:]
    await database.execute("CREATE TABLE note (id int)")
    await other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await other.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'duetime'")

    for _ in range(3):
        with pytest.raises(Unavailable):
            await database.execute("INSERT INTO note VALUES (1)")
    with pytest.raises(Unavailable, match="the database is read-only"):
        await database.execute("INSERT INTO note VALUES (1)")

    await other.execute("SET default_transaction_read_only = off")
    await other.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await database.execute("INSERT INTO note VALUES (2)")
