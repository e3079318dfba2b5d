"""Tenants: the teams that own keys, queues and tasks.

A tenant's shard follows from its name, so that every node agrees on it without
asking.  Its secret signs the calls to its HTTP targets and never leaves the
database except to its owner.
"""

import hashlib
import re
import secrets
from datetime import datetime

import asyncpg
import msgspec

from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.ids import SHARDS

DEFAULT_TENANT = "default"
SECRET_BYTES = 32

_SQL = load(__package__, "tenants.sql")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Tenant(msgspec.Struct, frozen=True):
    id: int
    name: str
    weight: int
    shard: int
    created_at: datetime


def shard_of_tenant(name: str) -> int:
    """The shard whose node feeds the tenant; the same on every node and machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % SHARDS


async def create_tenant(database: Database, name: str) -> Tenant:
    if not _NAME.fullmatch(name):
        raise InvalidInput.at("name", "use 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit")
    rows = await database.run(
        _SQL["make"], name=name, shard=shard_of_tenant(name), secret=secrets.token_bytes(SECRET_BYTES)
    )
    if not rows:
        raise Conflict(f"there is a tenant {name} already")
    return _tenant(rows[0])


async def find_tenant(database: Database, name: str) -> Tenant | None:
    rows = await database.run(_SQL["find"], name=name)
    return _tenant(rows[0]) if rows else None


async def list_tenants(database: Database) -> list[Tenant]:
    return [_tenant(row) for row in await database.run(_SQL["read_all"])]


async def read_signing_secret(database: Database, tenant: int) -> bytes:
    rows = await database.run(_SQL["read_secret"], tenant=tenant)
    if not rows:
        raise NotFound("there is no such tenant")
    secret: bytes = rows[0]["signing_secret"]
    return secret


def _tenant(row: asyncpg.Record) -> Tenant:
    return Tenant(row["id"], row["name"], row["weight"], row["shard"], row["created_at"])
