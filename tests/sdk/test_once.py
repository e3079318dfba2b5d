"""`once` on a real PostgreSQL, with every driver it knows."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duetime.sdk.errors import NotInTransaction
from duetime.sdk.once import once


@pytest.fixture
def key() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def engine(database_url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(_with_driver(database_url, "psycopg"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(_with_driver(database_url, request.param))
    yield engine
    await engine.dispose()


def _with_driver(url: str, driver: str) -> sqlalchemy.URL:
    parsed = sqlalchemy.make_url(url)
    # asyncpg does not know the words of libpq.
    return parsed.set(drivername=f"postgresql+{driver}", query={})


def test_psycopg_is_told_true_once(database_url: str, key: str) -> None:
    told = []
    for _ in range(3):
        with psycopg.connect(database_url, row_factory=dict_row) as connection:
            told.append(once(connection, key))

    assert told == [True, False, False]


def test_names_tell_effects_of_one_task_apart(database_url: str, key: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert [once(connection, key), once(connection, key, "mail"), once(connection, key, "mail")] == [
            True,
            True,
            False,
        ]


def test_a_rolled_back_effect_may_happen_again(database_url: str, key: str) -> None:
    with psycopg.connect(database_url) as connection:
        assert once(connection, key)
        connection.rollback()

        assert once(connection, key)


def test_a_concurrent_attempt_waits_for_the_other_transaction(database_url: str, key: str) -> None:
    with psycopg.connect(database_url) as connection:
        once(connection, "make the table")
    told: list[bool] = []

    def attempt() -> None:
        with psycopg.connect(database_url) as connection:
            told.append(once(connection, key))

    with psycopg.connect(database_url) as first, psycopg.connect(database_url, autocommit=True) as onlooker:
        assert once(first, key)
        second = threading.Thread(target=attempt)
        second.start()
        while not onlooker.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall():
            pass
        assert told == []
        first.commit()
        second.join()

    assert told == [False]


def test_a_concurrent_attempt_goes_ahead_when_the_other_fails(database_url: str, key: str) -> None:
    told: list[bool] = []

    def attempt() -> None:
        with psycopg.connect(database_url) as connection:
            told.append(once(connection, key))

    # The table is made in the transaction that is rolled back, too.
    with psycopg.connect(database_url) as first, psycopg.connect(database_url, autocommit=True) as onlooker:
        assert once(first, key)
        second = threading.Thread(target=attempt)
        second.start()
        while not onlooker.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall():
            pass
        first.rollback()
        second.join()

    assert told == [True]


def test_the_table_is_made_once_however_many_begin(database_url: str) -> None:
    told: list[bool] = []
    barrier = threading.Barrier(8)

    def attempt() -> None:
        with psycopg.connect(database_url) as connection:
            barrier.wait()
            told.append(once(connection, "same"))

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(told) == [False] * 7 + [True]


def test_psycopg_without_a_transaction_is_refused(database_url: str, key: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        with pytest.raises(NotInTransaction, match=r"connection\.transaction\(\)"):
            once(connection, key)
        with connection.transaction():
            assert once(connection, key)


async def test_psycopg_async(database_url: str, key: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        assert await once(connection, key)
        assert not await once(connection, key)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            await once(connection, key)


async def test_asyncpg(database_url: str, key: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(NotInTransaction, match=r"async with connection\.transaction"):
            await once(connection, key)
        async with connection.transaction():
            assert await once(connection, key)
        async with connection.transaction():
            assert not await once(connection, key)
    finally:
        await connection.close()


async def test_asyncpg_from_a_pool(database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=4, max_size=4) as pool:

        async def attempt() -> bool:
            async with pool.acquire() as connection, connection.transaction():
                return await once(connection, "pooled")

        told = await asyncio.gather(*(attempt() for _ in range(8)))

    assert sorted(told) == [False] * 7 + [True]


def test_sqlalchemy_connection(engine: sqlalchemy.Engine, key: str) -> None:
    with engine.begin() as connection:
        assert once(connection, key)
        assert not once(connection, key)
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(NotInTransaction):
        once(connection, key)


def test_sqlalchemy_sessions(engine: sqlalchemy.Engine, key: str) -> None:
    with Session(engine) as session, session.begin():
        assert once(session, key)
    sessions = scoped_session(sessionmaker(engine))
    assert not once(sessions, key)
    sessions.remove()


async def test_sqlalchemy_async_connection(async_engine: AsyncEngine, key: str) -> None:
    async with async_engine.begin() as connection:
        assert await once(connection, key)
        assert not await once(connection, key)
    async with async_engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransaction):
            await once(connection, key)


async def test_sqlalchemy_async_session(async_engine: AsyncEngine, key: str) -> None:
    async with AsyncSession(async_engine) as session, session.begin():
        assert await once(session, key)
        assert not await once(session, key)


def test_another_database_is_refused(key: str) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(TypeError, match="needs PostgreSQL"):
        once(connection, key)
    engine.dispose()


def test_anything_else_is_refused(key: str) -> None:
    with pytest.raises(TypeError, match=r"psycopg, asyncpg or SQLAlchemy, not builtins\.object"):
        once(object(), key)  # type: ignore[call-overload]
