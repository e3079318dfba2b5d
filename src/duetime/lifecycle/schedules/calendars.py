"""Named calendars: stored, and compiled for the zones of the schedules that name them.

A calendar may be a megabyte, and a tenant may have a thousand.  So nothing reads
them all: a schedule reads those that it names, compiled ones are kept within
bounds of bytes, and lists come in pages.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from duetime.admin.quotas import lock_quotas
from duetime.clock import Monotonic
from duetime.database.changing import changing, run_once
from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import InvalidInput, NotFound
from duetime.lifecycle.schedules.evaluations import Evaluations, Runner, refusal_of
from duetime.lifecycle.schedules.kept import Kept
from duetime.model.quotas import Quotas
from duetime.recurrence import (
    UNLIMITED,
    ExclusionSet,
    NamedCalendar,
    SpecError,
    Steps,
    TooCostly,
    calendar_errors,
    compile_calendar_in_pieces,
)

SQL = load(__package__, "changes.sql")
#: The most stored bytes of the calendars that one schedule may name together.
MAX_NAMED_BYTES = 2 * 1024 * 1024
#: Compiled calendars that a node keeps: one of 1,000 days is 16 kB, one of 1,000 crons 1.6 MB.
KEPT_BYTES = 32 * 1024 * 1024
KEPT_BYTES_OF_A_TENANT = 8 * 1024 * 1024
_KEPT_CALENDARS = 10_000
#: How many entries are read before other work gets its turn.
_BYTES_AT_ONCE = 256 * 1024
_HEADS_SECONDS = 1.0
_HEADS_BYTES = 16 * 1024 * 1024
_HEAD_BYTES = 250

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NamedCalendar).decode


class StoredCalendar(msgspec.Struct, frozen=True):
    name: str
    version: int
    entries: NamedCalendar
    updated_at: datetime


class _Head(msgspec.Struct, frozen=True):
    """A calendar without its entries."""

    version: int
    size: int


class Calendars:
    def __init__(self, database: Database, evaluations: Evaluations, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._evaluations = evaluations
        self._monotonic = monotonic
        self._heads: Kept[int, tuple[float, dict[str, _Head]]] = Kept(
            most=1_000, most_bytes=_HEADS_BYTES, most_bytes_of_a_tenant=_HEADS_BYTES
        )
        #: By tenant, name, version and zone.
        self.kept: Kept[tuple[int, str, int, str], ExclusionSet] = Kept(
            most=_KEPT_CALENDARS, most_bytes=KEPT_BYTES, most_bytes_of_a_tenant=KEPT_BYTES_OF_A_TENANT
        )

    async def heads(self, tenant: int) -> dict[str, _Head]:
        """The tenant's calendars without their entries, at most a moment old."""
        known = self._heads.get(tenant)
        if known is not None and known[0] > self._monotonic():
            return known[1]
        rows = await self._database.run(SQL["read_calendar_heads"], tenant=tenant)
        found = {row["name"]: _Head(row["version"], row["size"]) for row in rows}
        kept = (self._monotonic() + _HEADS_SECONDS, found)
        self._heads.put(tenant, tenant, kept, 500 + sum(len(name) + _HEAD_BYTES for name in found))
        return found

    async def find(self, tenant: int, name: str) -> StoredCalendar:
        # PostgreSQL's text has no NUL.
        rows = [] if "\0" in name else await self._database.run(SQL["read_calendars"], tenant=tenant, names=[name])
        if not rows:
            raise _missing(name)
        return _stored_of(rows[0])

    async def page(self, tenant: int, after: str, limit: int) -> tuple[list[StoredCalendar], bool]:
        """The calendars after a name, as they are now, and whether there are more."""
        found = await self._database.run(
            SQL["list_calendars"], tenant=tenant, after=after, limit=limit + 1, bytes=PAGE_BYTES
        )
        rows, has_more = cut_page(found, limit)
        page: list[StoredCalendar] = []
        size = 0
        for row in rows:
            page.append(_stored_of(row))
            size += len(row["entries"])
            if size > _BYTES_AT_ONCE:
                # Reading large ones takes a while.
                size = 0
                await asyncio.sleep(0)
        return page, has_more

    async def compiled(self, tenant: int, names: Sequence[str], zone: str, runner: Runner) -> dict[str, ExclusionSet]:
        """Those of these calendars that exist, as a schedule in this zone reads them. Raises SpecError."""
        heads = await self.heads(tenant)
        wanted = {name: heads[name] for name in names if name in heads}
        if sum(head.size for head in wanted.values()) > MAX_NAMED_BYTES:
            raise _too_large(f"more than {MAX_NAMED_BYTES:,} bytes")
        found: dict[str, ExclusionSet] = {}
        size = 0
        for name, head in wanted.items():
            known = self.kept.get((tenant, name, head.version, zone))
            if known is None:
                known = await self._compile(tenant, name, zone, runner)
            if known is not None:
                found[name] = known
                size += known.size
            if size > KEPT_BYTES_OF_A_TENANT:
                raise _too_large(f"more than {KEPT_BYTES_OF_A_TENANT:,} bytes, read")
        return found

    async def _compile(self, tenant: int, name: str, zone: str, runner: Runner) -> ExclusionSet | None:
        rows = await self._database.run(SQL["read_calendars"], tenant=tenant, names=[name])
        if not rows:
            return None
        stored = _stored_of(rows[0])
        with calendar_errors(name, "spec.exclude"):
            work = compile_calendar_in_pieces(stored.entries, zone, Steps(UNLIMITED))
            compiled = await runner.run(tenant, work)
        self.kept.put(tenant, (tenant, name, stored.version, zone), compiled, compiled.size + len(name) + _HEAD_BYTES)
        return compiled

    async def put(self, tenant: int, name: str, entries: NamedCalendar) -> bool:
        """Store a calendar. Return whether anything changed."""
        try:
            await self._evaluations.run(tenant, compile_calendar_in_pieces(entries, "UTC", Steps(UNLIMITED)))
        except SpecError as error:
            raise refusal_of(error) from error
        encoded = _encode(entries)
        weigh, put = SQL["weigh_calendars"], SQL["put_calendar"]
        asked: dict[str, object] = {"tenant": tenant, "name": name}
        async with changing(self._database) as connection:
            quotas = await lock_quotas(connection, tenant)
            row = await connection.fetchrow(weigh.sql, *weigh.arguments(asked))
            _check_room(quotas, len(encoded), row["others"], row["bytes_of_others"], row["bytes"])
            rows = await connection.fetch(put.sql, *put.arguments({**asked, "entries": encoded}))
        self._heads.drop(tenant)
        return bool(rows)

    async def delete(self, tenant: int, name: str) -> None:
        rows = await run_once(self._database, SQL["delete_calendar"], tenant=tenant, name=name)
        self._heads.drop(tenant)
        if not rows:
            raise _missing(name)


def _too_large(what: str) -> TooCostly:
    return TooCostly(
        "spec.exclude", f"the calendars that it names take {what}; name fewer, or put fewer entries into them"
    )


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no calendar {name[:80]}")


def _stored_of(row: asyncpg.Record) -> StoredCalendar:
    return StoredCalendar(row["name"], row["version"], _decode(row["entries"]), row["updated_at"])


def _check_room(quotas: Quotas, size: int, others: int, size_of_others: int, old_size: int | None) -> None:
    """Raise if a calendar of this size is one too many; what only shrinks may stay over its quota."""
    most = quotas.max_calendars
    if most is not None and old_size is None and others >= most:
        raise InvalidInput.at("name", f"a tenant has at most {most:,} calendars (max_calendars)")
    most_bytes = quotas.max_calendar_bytes
    if most_bytes is not None and size_of_others + size > most_bytes and size > (old_size or 0):
        raise InvalidInput.at(
            "dates",
            f"the calendars of a tenant have at most {most_bytes:,} bytes together (max_calendar_bytes);"
            f" the others have {size_of_others:,}, and this one {size:,}",
        )
