"""Recognise a connection's driver, and whether a transaction is open, for code that writes in the caller's transaction.

Drivers are recognised by the modules that are already loaded: nothing is imported.
"""

import enum
import sys
from collections.abc import Coroutine
from typing import Any, Protocol

from duetime.sdk.errors import NotInTransaction


class PlainConnection(Protocol):
    """psycopg.Connection; SQLAlchemy's Connection, Session and scoped_session."""

    def commit(self) -> None: ...


class AwaitedConnection(Protocol):
    """psycopg.AsyncConnection; SQLAlchemy's AsyncConnection and AsyncSession."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class AsyncpgConnection(Protocol):
    """asyncpg's Connection, or a pool's wrapper of one."""

    def is_in_transaction(self) -> bool: ...


class Driver(enum.Enum):
    PSYCOPG = enum.auto()
    PSYCOPG_ASYNC = enum.auto()
    ASYNCPG = enum.auto()
    SQLALCHEMY = enum.auto()
    SQLALCHEMY_SESSION = enum.auto()
    SQLALCHEMY_ASYNC = enum.auto()
    SQLALCHEMY_ASYNC_SESSION = enum.auto()


_CLASSES = (
    ("psycopg", "Connection", Driver.PSYCOPG),
    ("psycopg", "AsyncConnection", Driver.PSYCOPG_ASYNC),
    ("asyncpg", "Connection", Driver.ASYNCPG),
    ("asyncpg.pool", "PoolConnectionProxy", Driver.ASYNCPG),
    ("sqlalchemy.engine", "Connection", Driver.SQLALCHEMY),
    ("sqlalchemy.orm", "Session", Driver.SQLALCHEMY_SESSION),
    ("sqlalchemy.orm", "scoped_session", Driver.SQLALCHEMY_SESSION),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", Driver.SQLALCHEMY_ASYNC),
    ("sqlalchemy.ext.asyncio", "AsyncSession", Driver.SQLALCHEMY_ASYNC_SESSION),
)


def driver_of(connection: object, caller: str) -> Driver:
    """Return the driver. The error names `caller` if it is none of them."""
    for module, name, driver in _CLASSES:
        if _is_a(connection, module, name):
            return driver
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise TypeError(f"{caller} takes a connection of psycopg, asyncpg or SQLAlchemy, not {kind}")


def _is_a(value: object, module: str, name: str) -> bool:
    # A value of a class whose module nobody has loaded cannot exist.
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def need_psycopg_transaction(connection: Any, caller: str) -> None:
    # 0 is libpq's PQTRANS_IDLE: no transaction is open, and autocommit will open none.
    if connection.autocommit and connection.info.transaction_status == 0:
        raise _autocommit(caller, "wrap the work in connection.transaction()")


def need_asyncpg_transaction(connection: Any, caller: str) -> None:
    if not connection.is_in_transaction():
        raise _autocommit(caller, "use async with connection.transaction()")


def need_sqlalchemy_transaction(connection: Any, caller: str) -> None:
    if connection.dialect.name != "postgresql":
        raise TypeError(f"{caller} needs PostgreSQL; this connection is to {connection.dialect.name}")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise _autocommit(caller, "use an isolation level other than AUTOCOMMIT")


def _autocommit(caller: str, remedy: str) -> NotInTransaction:
    return NotInTransaction(
        f"{caller} needs a transaction, and this connection commits every statement by itself: {remedy}"
    )
