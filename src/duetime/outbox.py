"""Submit tasks in a transaction of your own: they run if and only if it commits.

For a producer whose database is the one that duetime uses.  `submit` writes a
row through the SQL function `duetime.enqueue`; within a second of the commit a
node makes a task of it.  Nothing is sent over HTTP, and no API key is needed:
the database's rights decide (docs/outbox.md).

    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO orders ...")
        outbox.submit(connection, "email.send", {"to": "ada@example.com"}, delay="5m")

No driver is imported: connections are recognised by what is already loaded.
"""

import re
import sys
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Unpack, assert_never, overload

from duetime.sdk.calls.call import encode
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
from duetime.sdk.errors import FieldError, InvalidRequest
from duetime.sdk.shapes.tasks import Submission, SubmitOptions

__all__ = ["submit", "submit_many"]

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024
#: The limits of one statement.
_MAX_ROWS = 1_000
_MAX_BYTES = 8 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_CALLER = "outbox.submit()"
# One text for any number of tasks: every driver has this type, and no custom JSON codec interferes.
_ENQUEUE = (
    "SELECT duetime.enqueue(CAST({} AS text), item.body)"
    " FROM json_array_elements(CAST(CAST({} AS text) AS json)) AS item (body)"
)
_ENQUEUE_ASYNCPG = _ENQUEUE.format("$1", "$2")
_ENQUEUE_PSYCOPG = _ENQUEUE.format("%s", "%s")
_ENQUEUE_SQLALCHEMY = _ENQUEUE.format(":tenant", ":bodies")

AnyConnection = PlainConnection | AwaitedConnection | AsyncpgConnection


@overload
def submit(
    connection: PlainConnection,
    type: str,
    payload: object = None,
    *,
    tenant: str = "default",
    **options: Unpack[SubmitOptions],
) -> int: ...
@overload
def submit(
    connection: AwaitedConnection | AsyncpgConnection,
    type: str,
    payload: object = None,
    *,
    tenant: str = "default",
    **options: Unpack[SubmitOptions],
) -> Awaitable[int]: ...
def submit(
    connection: AnyConnection,
    type: str,
    payload: object = None,
    *,
    tenant: str = "default",
    **options: Unpack[SubmitOptions],
) -> int | Awaitable[int]:
    """Write one task, with the options of `Client.submit`; async connections give an awaitable.

    Returns its number in the outbox.  `GET /v1/outbox/{number}` says which task it
    became, or why it became none.  `delay` counts from now, not from the commit.
    """
    written = _write(connection, tenant, [[_body(Submission(type, payload, **options))]])
    return written[0] if isinstance(written, list) else _first(written)


@overload
def submit_many(
    connection: PlainConnection, submissions: Iterable[Submission | Mapping[str, Any]], *, tenant: str = "default"
) -> list[int]: ...
@overload
def submit_many(
    connection: AwaitedConnection | AsyncpgConnection,
    submissions: Iterable[Submission | Mapping[str, Any]],
    *,
    tenant: str = "default",
) -> Awaitable[list[int]]: ...
def submit_many(
    connection: AnyConnection, submissions: Iterable[Submission | Mapping[str, Any]], *, tenant: str = "default"
) -> list[int] | Awaitable[list[int]]:
    """Write any number of tasks, a thousand in each statement; returns their numbers in order."""
    bodies = [_body(each if isinstance(each, Submission) else Submission(**each)) for each in submissions]
    return _write(connection, tenant, list(_chunks(bodies)))


async def _first(written: Awaitable[list[int]]) -> int:
    return (await written)[0]


def _body(submission: Submission) -> bytes:
    """The JSON of a task; obvious errors are raised here, while the transaction can still be changed."""
    for path, name in (("type", submission.type), ("queue", submission.queue)):
        if name is not None and not _NAME.fullmatch(name):
            message = "use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit"
            raise _invalid(422, "invalid", path, message)
    body = encode(submission)
    if len(body) > MAX_PAYLOAD_BYTES:
        if len(encode(submission.payload)) > MAX_PAYLOAD_BYTES:
            message = f"at most {MAX_PAYLOAD_BYTES} bytes; keep bigger things elsewhere and send a link"
            raise _invalid(413, "too_large", "payload", message)
        if len(body) > MAX_BODY_BYTES:
            raise _invalid(413, "too_large", "", f"a task has at most {MAX_BODY_BYTES} bytes in all")
    return body


def _invalid(status: int, code: str, path: str, message: str) -> InvalidRequest:
    detail = f"{path}: {message}" if path else message
    return InvalidRequest(detail, status=status, code=code, errors=(FieldError(path, message),))


def _chunks(bodies: list[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) >= _MAX_ROWS or size + len(body) > _MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk


def _write(connection: Any, tenant: str, chunks: list[list[bytes]]) -> list[int] | Awaitable[list[int]]:
    texts = [f"[{b','.join(chunk).decode()}]" for chunk in chunks]
    driver = driver_of(connection, _CALLER)
    match driver:
        case Driver.PSYCOPG:
            return _write_psycopg(connection, tenant, texts)
        case Driver.PSYCOPG_ASYNC:
            return _write_psycopg_async(connection, tenant, texts)
        case Driver.ASYNCPG:
            return _write_asyncpg(connection, tenant, texts)
        case Driver.SQLALCHEMY:
            return _write_sqlalchemy(connection, tenant, texts)
        case Driver.SQLALCHEMY_SESSION:
            return _write_session(connection, tenant, texts)
        case Driver.SQLALCHEMY_ASYNC:
            return _write_sqlalchemy_async(connection, _write_sqlalchemy, tenant, texts)
        case Driver.SQLALCHEMY_ASYNC_SESSION:
            return _write_sqlalchemy_async(connection, _write_session, tenant, texts)
        case _:
            assert_never(driver)


def _psycopg() -> Any:
    # The connection is from it, so it is loaded.  Use its plain cursors, whatever this connection makes by default.
    return sys.modules["psycopg"]


def _write_psycopg(connection: Any, tenant: str, texts: list[str]) -> list[int]:
    need_psycopg_transaction(connection, _CALLER)
    with _psycopg().Cursor(connection, row_factory=_psycopg().rows.tuple_row) as cursor:
        return [row[0] for text in texts for row in cursor.execute(_ENQUEUE_PSYCOPG, (tenant, text)).fetchall()]


async def _write_psycopg_async(connection: Any, tenant: str, texts: list[str]) -> list[int]:
    need_psycopg_transaction(connection, _CALLER)
    async with _psycopg().AsyncCursor(connection, row_factory=_psycopg().rows.tuple_row) as cursor:
        numbers: list[int] = []
        for text in texts:
            await cursor.execute(_ENQUEUE_PSYCOPG, (tenant, text))
            numbers += [row[0] for row in await cursor.fetchall()]
        return numbers


async def _write_asyncpg(connection: Any, tenant: str, texts: list[str]) -> list[int]:
    need_asyncpg_transaction(connection, _CALLER)
    return [row[0] for text in texts for row in await connection.fetch(_ENQUEUE_ASYNCPG, tenant, text)]


def _write_sqlalchemy(connection: Any, tenant: str, texts: list[str]) -> list[int]:
    from sqlalchemy import text as statement

    need_sqlalchemy_transaction(connection, _CALLER)
    numbers: list[int] = []
    for text in texts:
        numbers += connection.execute(statement(_ENQUEUE_SQLALCHEMY), {"tenant": tenant, "bodies": text}).scalars()
    return numbers


def _write_session(session: Any, tenant: str, texts: list[str]) -> list[int]:
    return _write_sqlalchemy(session.connection(), tenant, texts)


async def _write_sqlalchemy_async(connection: Any, write: Any, tenant: str, texts: list[str]) -> list[int]:
    written: list[int] = await connection.run_sync(write, tenant, texts)
    return written
