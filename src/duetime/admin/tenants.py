"""Tenants: the teams that own keys, queues and tasks.

A tenant's shard follows from its name, so that every node agrees on it without
asking.  Its secret signs the calls to its HTTP targets and never leaves the
database except to its owner.  What is done to a tenant is written down in
`audit`, by the statement that does it.
"""

import hashlib
import re
import secrets
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec
from msgspec import Raw

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.ids import SHARDS

DEFAULT_TENANT = "default"
SECRET_BYTES = 32
MAX_WEIGHT = 1_000

_SQL = load(__package__, "tenants.sql")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

TenantState = Literal["active", "suspended"]


class Tenant(msgspec.Struct, frozen=True):
    id: int
    name: str
    #: Its share of what tenants compete for, beside the others'.
    weight: int
    shard: int
    created_at: datetime
    state: TenantState
    updated_at: datetime


class Act(msgspec.Struct, frozen=True):
    """Something that was done by hand: who, when, what before and after."""

    id: int
    at: datetime
    tenant: str | None
    #: The key that asked for it, and how it begins; null: the command line on the server itself.
    key: int | None
    key_hint: str | None
    action: str
    subject: str
    before: Raw | None
    after: Raw | None


class Rules(msgspec.Struct, frozen=True):
    """What a feeder needs to know of tenants."""

    weights: dict[int, int] = {}
    suspended: frozenset[int] = frozenset()


def shard_of_tenant(name: str) -> int:
    """The shard whose node feeds the tenant; the same on every node and machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % SHARDS


async def create_tenant(
    database: Database, name: str, *, weight: int = 1, state: TenantState = "active", by: int | None = None
) -> Tenant:
    if not _NAME.fullmatch(name):
        raise InvalidInput.at("name", "use 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit")
    rows = await database.run(
        _SQL["make"],
        name=name,
        shard=shard_of_tenant(name),
        secret=secrets.token_bytes(SECRET_BYTES),
        weight=weight,
        state=state,
        key=by,
    )
    if not rows:
        raise Conflict(f"there is a tenant {name} already")
    return _tenant(rows[0])


async def change_tenant(
    database: Database, name: str, *, weight: int, state: TenantState, by: int | None = None
) -> Tenant:
    rows = await database.run(_SQL["change"], name=name, weight=weight, state=state, key=by)
    found = await find_tenant(database, name) if rows else None
    if found is None:
        raise NotFound(f"there is no tenant {name[:80]}")
    return found


async def find_tenant(database: Database, name: str) -> Tenant | None:
    rows = await database.run(_SQL["find"], name=name)
    return _tenant(rows[0]) if rows else None


async def page_tenants(database: Database, after: str, limit: int) -> list[Tenant]:
    return [_tenant(row) for row in await database.run(_SQL["read_page"], after=after, limit=limit)]


async def read_rules(database: Database) -> Rules:
    rows = await database.run(_SQL["read_rules"])
    return Rules(
        {row["id"]: row["weight"] for row in rows if row["weight"] != 1},
        frozenset(row["id"] for row in rows if row["state"] == "suspended"),
    )


async def read_signing_secret(database: Database, tenant: int) -> bytes:
    rows = await database.run(_SQL["read_secret"], tenant=tenant)
    if not rows:
        raise NotFound("there is no such tenant")
    secret: bytes = rows[0]["signing_secret"]
    return secret


async def read_audit(database: Database, tenant: int | None, before: int, limit: int) -> list[Act]:
    """The latest first; None: of all tenants."""
    rows = await database.run(_SQL["read_audit"], tenant=tenant, before=before, limit=limit)
    return [
        Act(
            row["id"],
            row["at"],
            row["tenant"],
            row["key"],
            row["key_hint"],
            row["action"],
            row["subject"],
            None if row["before"] is None else Raw(row["before"].encode()),
            None if row["after"] is None else Raw(row["after"].encode()),
        )
        for row in rows
    ]


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(
        row["id"], row["name"], row["weight"], row["shard"], row["created_at"], row["state"], row["updated_at"]
    )
