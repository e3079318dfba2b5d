"""Bearer keys: who may ask, and for which tenant.

A key is shown once, when it is made; only its SHA-256 is stored, which is
enough because a key is 32 random bytes and cannot be guessed.  `Keys` remembers
what it looked up for a second, so a revoked key ends within that time on every
node; keys that are in use are looked up again before that, all of them at once,
so that no call has to wait for it.  What a role may do is said by each operation
of the API.
"""

import base64
import hashlib
import heapq
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal, cast, get_args

import asyncpg
import msgspec

from duetime.admin.tenants import DEFAULT_TENANT, Tenant, create_tenant, find_tenant
from duetime.clock import Monotonic
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.service import Loop

Role = Literal["producer", "worker", "operator", "viewer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
PREFIX = "dt_"
#: What to do when no admin key is valid.
MAKE_ONE = "make one with `duetime keys bootstrap --database-url …`"
REMEMBER_SECONDS = 1.0
REFRESH_EVERY = timedelta(seconds=0.4)
#: A key that was not used for so long is looked up when it comes again.
IN_USE_SECONDS = 10.0
#: More than that are not refreshed: those used last go first.
REFRESH_AT_MOST = 1_000
#: What is remembered is small, and a caller can only fill it with keys that exist.
REMEMBER_AT_MOST = 10_000

_SQL = load(__package__, "keys.sql")


class Caller(msgspec.Struct, frozen=True):
    """Who asks: a key, and the tenant for which it acts."""

    tenant: int
    tenant_name: str
    key: int
    role: Role
    #: Patterns that a task's type and queue must match; none: all do.
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    @property
    def is_confined(self) -> bool:
        """Whether there are tasks of its tenant that it does not reach."""
        return bool(self.types or self.queues)

    def may_use(self, type: str | None, queue: str) -> bool:
        """Whether the key reaches such tasks; without a type only the queue is judged."""
        if self.queues and not any(fnmatchcase(queue, pattern) for pattern in self.queues):
            return False
        return type is None or not self.types or any(fnmatchcase(type, pattern) for pattern in self.types)


class KeyInfo(msgspec.Struct, frozen=True):
    """A key as it is listed: its beginning, never itself."""

    id: int
    hint: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None = None
    name: str = ""
    types: list[str] = []
    queues: list[str] = []
    expires_at: datetime | None = None


def mint_key() -> str:
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


async def create_key(
    database: Database,
    tenant: int,
    role: Role = "admin",
    *,
    name: str = "",
    types: Sequence[str] = (),
    queues: Sequence[str] = (),
    expires_at: datetime | None = None,
    by: int | None = None,
    action: str = "key.create",
) -> tuple[KeyInfo, str]:
    """Make a key; the second part is the key itself, which nobody can read again."""
    if role not in ROLES:
        raise InvalidInput.at("role", f"must be one of {', '.join(ROLES)}")
    key = mint_key()
    rows = await database.run(
        _SQL["make"],
        tenant=tenant,
        hash=hash_key(key),
        hint=key[:8],
        role=role,
        name=name,
        types=list(types),
        queues=list(queues),
        expires_at=expires_at,
        by=by,
        action=action,
    )
    return _info(rows[0]), key


async def rotate_key(
    database: Database, tenant: int, key: int, overlap_seconds: float, *, by: int | None = None
) -> tuple[KeyInfo, str]:
    """A key with the same rights, while the old one goes on for a while."""
    rows = await database.run(_SQL["read_one"], tenant=tenant, key=key) if 0 < key < 1 << 31 else []
    if not rows or rows[0]["revoked_at"] is not None:
        raise NotFound(f"there is no valid key {key}")
    old, made = _info(rows[0]), mint_key()
    parameters: dict[str, object] = {"tenant": tenant, "hash": hash_key(made), "hint": made[:8], "role": old.role}
    parameters |= {"name": old.name, "types": old.types, "queues": old.queues, "expires_at": old.expires_at, "by": by}
    parameters["action"] = "key.create"
    ending: dict[str, object] = {"tenant": tenant, "key": key, "seconds": overlap_seconds, "by": by}
    async with database.connection() as connection, connection.transaction():
        # Both or neither: a key without its end would go on for good.
        [row] = await connection.fetch(_SQL["make"].sql, *_SQL["make"].arguments(parameters))
        await connection.fetch(_SQL["let_expire"].sql, *_SQL["let_expire"].arguments(ending))
    return _info(row), made


async def list_keys(database: Database, tenant: int) -> list[KeyInfo]:
    return [_info(row) for row in await database.run(_SQL["read_of_tenant"], tenant=tenant)]


async def revoke_key(database: Database, tenant: int, key: int, *, by: int | None = None) -> bytes:
    """End a key; returns its hash, so that a `Keys` can forget it at once."""
    # Beyond what the column holds there is no key, and PostgreSQL would not even look.
    rows = await database.run(_SQL["revoke"], tenant=tenant, key=key, by=by) if 0 < key < 1 << 31 else []
    if not rows:
        raise NotFound(f"there is no key {key}")
    hashed: bytes = rows[0]["hash"]
    return hashed


async def ensure_default(database: Database) -> tuple[Tenant, str | None]:
    """The tenant `default`; with a first admin key if it has none that is valid."""
    tenant = await _default_tenant(database)
    keys = await list_keys(database, tenant.id)
    if any(key.revoked_at is None and key.expires_at is None and key.role == "admin" for key in keys):
        return tenant, None
    _, key = await create_key(database, tenant.id, "admin")
    return tenant, key


async def bootstrap_key(database: Database) -> tuple[Tenant, KeyInfo, str]:
    """An admin key for whoever has the database, whatever keys there are."""
    tenant = await _default_tenant(database)
    info, key = await create_key(database, tenant.id, "admin", name="bootstrap", action="key.bootstrap")
    return tenant, info, key


async def count_admin_keys(database: Database) -> int:
    """How many keys can make other keys now; with none, nobody can be let in over the API."""
    rows = await database.run(_SQL["count_admin"])
    count: int = rows[0]["keys"]
    return count


async def _default_tenant(database: Database) -> Tenant:
    tenant = await find_tenant(database, DEFAULT_TENANT)
    if tenant is None:
        try:
            tenant = await create_tenant(database, DEFAULT_TENANT)
        except Conflict:
            # Another process was quicker.
            tenant = await find_tenant(database, DEFAULT_TENANT)
    assert tenant is not None
    return tenant


@dataclass(slots=True)
class _Known:
    caller: Caller
    #: When the database must be asked again.
    until: float
    used_at: float


class Keys:
    """Finds the caller of a key, and the tenant of a name, remembering both for a while."""

    def __init__(self, database: Database, monotonic: Monotonic = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._callers: dict[bytes, _Known] = {}
        self._tenants: dict[str, tuple[float, Tenant]] = {}
        self.loop = Loop("keys", self.refresh, jitter=0.0)

    def recall(self, hashed: bytes) -> Caller | None:
        """The caller of a key, if it was looked up a moment ago."""
        known = self._callers.get(hashed)
        if known is None or known.until <= (now := self._monotonic()):
            return None
        known.used_at = now
        return known.caller

    async def resolve(self, key: str) -> Caller | None:
        hashed = hash_key(key)
        known = self.recall(hashed)
        if known is not None:
            return known
        asked_at = self._monotonic()
        rows = await self._database.run(_SQL["find"], hashes=[hashed])
        if not rows:
            self._callers.pop(hashed, None)
            return None
        if len(self._callers) >= REMEMBER_AT_MOST:
            self._callers.clear()
        caller = _caller(rows[0])
        self._callers[hashed] = _Known(caller, asked_at + REMEMBER_SECONDS, asked_at)
        return caller

    async def refresh(self) -> timedelta:
        """Look up again what is in use, and forget what is not, or no longer valid."""
        asked_at = self._monotonic()
        used = [hashed for hashed, known in self._callers.items() if known.used_at > asked_at - IN_USE_SECONDS]
        if len(used) > REFRESH_AT_MOST:
            used = heapq.nlargest(REFRESH_AT_MOST, used, key=lambda hashed: self._callers[hashed].used_at)
        found = {}
        if used:
            rows = await self._database.run(_SQL["find"], hashes=used)
            found = {row["hash"]: _caller(row) for row in rows}
        for hashed in used:
            # One that was revoked here in the meantime is not there any more, and does not come back.
            known = self._callers.get(hashed)
            if known is None:
                continue
            if hashed in found:
                known.caller, known.until = found[hashed], asked_at + REMEMBER_SECONDS
            else:
                del self._callers[hashed]
        now = self._monotonic()
        self._callers = {hashed: known for hashed, known in self._callers.items() if known.until > now}
        return REFRESH_EVERY

    async def find_tenant(self, name: str) -> Tenant | None:
        known = self._tenants.get(name)
        if known is not None and known[0] > self._monotonic():
            return known[1]
        # PostgreSQL's text has no NUL, so no tenant's name has one either.
        tenant = await find_tenant(self._database, name) if "\0" not in name else None
        if tenant is not None:
            if len(self._tenants) >= REMEMBER_AT_MOST:
                self._tenants.clear()
            self._tenants[name] = (self._monotonic() + REMEMBER_SECONDS, tenant)
        return tenant

    def forget(self, hashed: bytes) -> None:
        self._callers.pop(hashed, None)


def _caller(row: asyncpg.Record) -> Caller:
    types, queues = tuple(row["types"]), tuple(row["queues"])
    return Caller(row["tenant"], row["tenant_name"], row["id"], cast(Role, row["role"]), types, queues)


def _info(row: asyncpg.Record) -> KeyInfo:
    return KeyInfo(
        row["id"],
        row["hint"],
        cast(Role, row["role"]),
        row["created_at"],
        row["revoked_at"],
        row["name"],
        row["types"],
        row["queues"],
        row["expires_at"],
    )
