"""Make an effect happen once, with a key in the handler's own database and transaction.

`once` inserts (key, name) into the table `duetime_once`.  The row and what the
handler writes are committed together or not at all, so a later attempt of the
same task finds the row exactly when the effect is there.  An attempt that runs
at the same time waits for the other's transaction to end before it is told.

The table is made on first use; a role that may not create tables needs this:

    CREATE TABLE duetime_once (
        key text NOT NULL, name text NOT NULL, made_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (key, name));

Drivers are recognised by the modules that are already loaded: nothing is imported.
"""

import sys
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, overload

from duetime.sdk.errors import NotInTransaction

_EXISTS = "SELECT 1 WHERE to_regclass('duetime_once') IS NOT NULL"
# Two handlers that both find no table: the second waits here until the first one's is committed.
_LOCK = "SELECT pg_advisory_xact_lock(7305803320458932595)"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS duetime_once (key text NOT NULL, name text NOT NULL,"
    " made_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (key, name))"
)
_INSERT = "INSERT INTO duetime_once (key, name) VALUES ({}, {}) ON CONFLICT DO NOTHING"
_INSERT_ASYNCPG = _INSERT.format("$1", "$2")
_INSERT_PSYCOPG = _INSERT.format("%s", "%s")
_INSERT_SQLALCHEMY = _INSERT.format(":key", ":name")

_AUTOCOMMIT = "once() needs a transaction, and this {} commits every statement by itself: {}"


class PlainConnection(Protocol):
    """psycopg.Connection; SQLAlchemy's Connection, Session and scoped_session."""

    def commit(self) -> None: ...


class AwaitedConnection(Protocol):
    """psycopg.AsyncConnection; SQLAlchemy's AsyncConnection and AsyncSession."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class AsyncpgConnection(Protocol):
    """asyncpg's Connection, also as a pool gives it."""

    def is_in_transaction(self) -> bool: ...


@overload
def once(connection: PlainConnection, key: str, name: str = "") -> bool: ...
@overload
def once(connection: AwaitedConnection | AsyncpgConnection, key: str, name: str = "") -> Awaitable[bool]: ...
def once(
    connection: PlainConnection | AwaitedConnection | AsyncpgConnection, key: str, name: str = ""
) -> bool | Awaitable[bool]:
    """True exactly the first time that (key, name) is committed; async connections give an awaitable.

    `key` is the task's id (for HTTP targets: the header `webhook-id`); `name`
    tells several effects of one task apart.
    """
    if _is_a(connection, "psycopg", "Connection"):
        return _once_psycopg(connection, key, name)
    if _is_a(connection, "psycopg", "AsyncConnection"):
        return _once_psycopg_async(connection, key, name)
    if _is_a(connection, "asyncpg", "Connection") or _is_a(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return _once_asyncpg(connection, key, name)
    if _is_a(connection, "sqlalchemy.engine", "Connection"):
        return _once_sqlalchemy(connection, key, name)
    if _is_a(connection, "sqlalchemy.orm", "Session") or _is_a(connection, "sqlalchemy.orm", "scoped_session"):
        return _once_session(connection, key, name)
    if _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return _once_sqlalchemy_async(connection, _once_sqlalchemy, key, name)
    if _is_a(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return _once_sqlalchemy_async(connection, _once_session, key, name)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise TypeError(f"once() takes a connection of psycopg, asyncpg or SQLAlchemy, not {kind}")


def _is_a(value: object, module: str, name: str) -> bool:
    # A value of a class whose module nobody has loaded cannot exist.
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _refuse_psycopg_autocommit(connection: Any) -> None:
    # 0 is libpq's PQTRANS_IDLE: no transaction is open, and autocommit will open none.
    if connection.autocommit and connection.info.transaction_status == 0:
        raise NotInTransaction(_AUTOCOMMIT.format("connection", "wrap the handler's work in connection.transaction()"))


def _once_psycopg(connection: Any, key: str, name: str) -> bool:
    _refuse_psycopg_autocommit(connection)
    with connection.cursor() as cursor:
        if cursor.execute(_EXISTS).rowcount == 0:
            cursor.execute(_LOCK)
            cursor.execute(_CREATE)
        return bool(cursor.execute(_INSERT_PSYCOPG, (key, name)).rowcount)


async def _once_psycopg_async(connection: Any, key: str, name: str) -> bool:
    _refuse_psycopg_autocommit(connection)
    async with connection.cursor() as cursor:
        if (await cursor.execute(_EXISTS)).rowcount == 0:
            await cursor.execute(_LOCK)
            await cursor.execute(_CREATE)
        return bool((await cursor.execute(_INSERT_PSYCOPG, (key, name))).rowcount)


async def _once_asyncpg(connection: Any, key: str, name: str) -> bool:
    if not connection.is_in_transaction():
        raise NotInTransaction(_AUTOCOMMIT.format("connection", "use async with connection.transaction()"))
    if await connection.fetchval(_EXISTS) is None:
        await connection.execute(_LOCK)
        await connection.execute(_CREATE)
    return str(await connection.execute(_INSERT_ASYNCPG, key, name)).endswith(" 1")


def _once_sqlalchemy(connection: Any, key: str, name: str) -> bool:
    from sqlalchemy import text

    if connection.dialect.name != "postgresql":
        raise TypeError(f"once() needs PostgreSQL; this connection is to {connection.dialect.name}")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise NotInTransaction(_AUTOCOMMIT.format("connection", "use an isolation level other than AUTOCOMMIT"))
    if connection.execute(text(_EXISTS)).first() is None:
        connection.execute(text(_LOCK))
        connection.execute(text(_CREATE))
    return bool(connection.execute(text(_INSERT_SQLALCHEMY), {"key": key, "name": name}).rowcount)


def _once_session(session: Any, key: str, name: str) -> bool:
    return _once_sqlalchemy(session.connection(), key, name)


async def _once_sqlalchemy_async(connection: Any, ask: Any, key: str, name: str) -> bool:
    return bool(await connection.run_sync(ask, key, name))
