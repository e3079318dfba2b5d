"""What became of the tasks that producers wrote into the outbox: the refused ones, and the state of one number."""

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

import asyncpg
import msgspec
from msgspec import Raw

from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import FieldError, SearchIncomplete
from duetime.lifecycle.submission.outbox import key_of
from duetime.model.headers import redact_body
from duetime.views.patience import Look

#: `enqueue` accepts no more, but a producer that may write the table itself can put anything there.
MAX_SHOWN_BYTES = 256 * 1024

_SQL = load(__package__, "outbox.sql")
#: If not all rows fit the filter, at least this many are read at once.
PIECE = 50
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_errors = msgspec.json.Decoder(list[FieldError]).decode


class RefusalView(msgspec.Struct, frozen=True):
    """Why it could not become a task: the answer that submitting it would have got."""

    code: str
    detail: str
    errors: list[FieldError]


class RefusedView(msgspec.Struct, frozen=True):
    """What a producer wrote, and why it did not become a task."""

    id: int
    #: What the producer wrote, with the secrets of its target hidden; null if it is larger than any task may be.
    body: Raw
    written_at: datetime
    refused_at: datetime
    error: RefusalView


class OutboxView(msgspec.Struct, frozen=True):
    """What became of a number in the outbox."""

    id: int
    state: Literal["waiting", "accepted", "refused"]
    #: The task's id, once it is accepted.
    task: uuid.UUID | None = None
    refused: RefusedView | None = None


#: Whether what a producer wrote exists for the caller.
Fits = Callable[[bytes], bool]


async def list_refused(database: Database, tenant: int, after: int, limit: int) -> tuple[list[RefusedView], bool]:
    """The refused ones after a number, and whether there are more."""
    rows, has_more = await _read_refused(database, tenant, after, limit)
    return [_view(row) for row in rows], has_more


async def _read_refused(
    database: Database, tenant: int, after: int, limit: int
) -> tuple[Sequence[asyncpg.Record], bool]:
    statement = _SQL["list_refused"]
    found = await database.run(
        statement, tenant=tenant, after=after, limit=limit + 1, most=MAX_SHOWN_BYTES, bytes=PAGE_BYTES
    )
    return cut_page(found, limit)


async def list_fitting(
    database: Database, tenant: int, after: int, limit: int, fits: Fits, look: Look
) -> tuple[list[RefusedView], int | None]:
    """A page of the refused ones after a number that fit, and the number to go on from.

    Only reading shows what fits, so rows are read in pieces until the page is full or the time is up.
    What is too large to be shown is not read, so it does not fit.
    """
    found: list[RefusedView] = []
    size = 0
    piece = max(limit + 1, PIECE)
    while True:
        read = await look.read(piece, partial(_read_refused, database, tenant, after, piece))
        for row in read[0] if read is not None else ():
            if row["body"] is not None and fits(row["body"]):
                if len(found) == limit or size >= PAGE_BYTES:
                    return found, after
                found.append(_view(row))
                size += len(row["body"]) + len(row["errors"])
            after = row["id"]
        if read is not None and not read[1]:
            return found, None
        if look.is_over(has_found=bool(found)):
            if not found:
                raise SearchIncomplete(look.rows, str(after))
            return found, after


async def find_number(database: Database, tenant: int, number: int, fits: Fits | None = None) -> OutboxView | None:
    """None: the transaction has not committed, or it was accepted more than a day ago, or is not the tenant's.

    `fits` is asked about a number that has not become a task.
    """
    rows = await database.run(_SQL["find"], tenant=tenant, id=number, key=key_of(number), most=MAX_SHOWN_BYTES)
    if not rows:
        return None
    state, body = rows[0]["state"], rows[0]["body"]
    if fits is not None and state != "accepted" and (body is None or not fits(body)):
        return None
    refused = await database.run(_SQL["get_refused"], tenant=tenant, id=number, most=MAX_SHOWN_BYTES)
    return OutboxView(number, state, rows[0]["task"], _view(refused[0]) if refused else None)


def _view(row: asyncpg.Record) -> RefusedView:
    return RefusedView(
        row["id"],
        _shown(row["body"]),
        row["written_at"],
        row["refused_at"],
        RefusalView(row["code"], row["detail"], _decode_errors(row["errors"])),
    )


def _shown(body: bytes | None) -> Raw:
    """Decoded, if it is JSON."""
    if body is None:
        return Raw(b"null")
    try:
        return _decode_raw(redact_body(body))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return Raw(msgspec.json.encode(body.decode("utf-8", "replace")))
