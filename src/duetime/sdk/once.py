"""Make an effect happen once, with a key in the handler's own database and transaction.

`once` inserts (key, name) into the table `duetime_once`.  The row and what the
handler writes are committed together or not at all, so a later attempt of the
same task finds the row exactly when the effect is there.  An attempt that runs
at the same time waits for the other's transaction to end before it is told.

The table is made on first use; a role that may not create tables needs this:

    CREATE TABLE duetime_once (
        key text NOT NULL, name text NOT NULL, made_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (key, name));

No driver is imported (`drivers`).
"""

from collections.abc import Awaitable
from typing import Any, assert_never, overload

from duetime.sdk.drivers import (
    AsyncpgConnection,
    AwaitedConnection,
    Driver,
    PlainConnection,
    driver_of,
    need_asyncpg_transaction,
    need_psycopg_transaction,
    need_sqlalchemy_transaction,
)

_EXISTS = "SELECT 1 WHERE to_regclass('duetime_once') IS NOT NULL"
# If two handlers find no table, the second waits here until the table of the first is committed.
_LOCK = "SELECT pg_advisory_xact_lock(7305803320458932595)"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS duetime_once (key text NOT NULL, name text NOT NULL,"
    " made_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (key, name))"
)
_INSERT = "INSERT INTO duetime_once (key, name) VALUES ({}, {}) ON CONFLICT DO NOTHING"
_INSERT_ASYNCPG = _INSERT.format("$1", "$2")
_INSERT_PSYCOPG = _INSERT.format("%s", "%s")
_INSERT_SQLALCHEMY = _INSERT.format(":key", ":name")

_CALLER = "once()"


@overload
def once(connection: PlainConnection, key: str, name: str = "") -> bool: ...
@overload
def once(connection: AwaitedConnection | AsyncpgConnection, key: str, name: str = "") -> Awaitable[bool]: ...
def once(
    connection: PlainConnection | AwaitedConnection | AsyncpgConnection, key: str, name: str = ""
) -> bool | Awaitable[bool]:
    """Return True exactly the first time that (key, name) is committed. With an async connection, await the result.

    `key` is the task's id (for HTTP targets: the header `webhook-id`); `name`
    tells several effects of one task apart.
    """
    driver = driver_of(connection, _CALLER)
    match driver:
        case Driver.PSYCOPG:
            return _once_psycopg(connection, key, name)
        case Driver.PSYCOPG_ASYNC:
            return _once_psycopg_async(connection, key, name)
        case Driver.ASYNCPG:
            return _once_asyncpg(connection, key, name)
        case Driver.SQLALCHEMY:
            return _once_sqlalchemy(connection, key, name)
        case Driver.SQLALCHEMY_SESSION:
            return _once_session(connection, key, name)
        case Driver.SQLALCHEMY_ASYNC:
            return _once_sqlalchemy_async(connection, _once_sqlalchemy, key, name)
        case Driver.SQLALCHEMY_ASYNC_SESSION:
            return _once_sqlalchemy_async(connection, _once_session, key, name)
        case _:
            assert_never(driver)


def _once_psycopg(connection: Any, key: str, name: str) -> bool:
    need_psycopg_transaction(connection, _CALLER)
    with connection.cursor() as cursor:
        if cursor.execute(_EXISTS).rowcount == 0:
            cursor.execute(_LOCK)
            cursor.execute(_CREATE)
        return bool(cursor.execute(_INSERT_PSYCOPG, (key, name)).rowcount)


async def _once_psycopg_async(connection: Any, key: str, name: str) -> bool:
    need_psycopg_transaction(connection, _CALLER)
    async with connection.cursor() as cursor:
        if (await cursor.execute(_EXISTS)).rowcount == 0:
            await cursor.execute(_LOCK)
            await cursor.execute(_CREATE)
        return bool((await cursor.execute(_INSERT_PSYCOPG, (key, name))).rowcount)


async def _once_asyncpg(connection: Any, key: str, name: str) -> bool:
    need_asyncpg_transaction(connection, _CALLER)
    if await connection.fetchval(_EXISTS) is None:
        await connection.execute(_LOCK)
        await connection.execute(_CREATE)
    return str(await connection.execute(_INSERT_ASYNCPG, key, name)).endswith(" 1")


def _once_sqlalchemy(connection: Any, key: str, name: str) -> bool:
    from sqlalchemy import text

    need_sqlalchemy_transaction(connection, _CALLER)
    if connection.execute(text(_EXISTS)).first() is None:
        connection.execute(text(_LOCK))
        connection.execute(text(_CREATE))
    return bool(connection.execute(text(_INSERT_SQLALCHEMY), {"key": key, "name": name}).rowcount)


def _once_session(session: Any, key: str, name: str) -> bool:
    return _once_sqlalchemy(session.connection(), key, name)


async def _once_sqlalchemy_async(connection: Any, ask: Any, key: str, name: str) -> bool:
    return bool(await connection.run_sync(ask, key, name))
