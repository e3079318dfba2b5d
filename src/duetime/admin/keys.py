"""Bearer keys: making, listing, replacing and revoking them.

A key is shown once, when it is made; only its SHA-256 is stored, which is
enough because a key is 32 random bytes and cannot be guessed.  What a role may
do is said by each operation of the API; `keyring.py` finds the key of a request.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, cast, get_args

import asyncpg
import msgspec

from duetime.admin.quotas import lock_quotas
from duetime.database.changing import changing, run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.model.confinement import Confinement
from duetime.model.networks import IPAddress, networks_of

Role = Literal["producer", "worker", "operator", "viewer", "owner", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
PREFIX = "dt_"
#: 32 bytes in base64url: the last of the 43 letters has only four bits.
_READABLE = re.compile(PREFIX + "[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")

_SQL = load(__package__, "keys.sql")


class Caller(msgspec.Struct, frozen=True):
    """The caller: a key, and the tenant for which it acts."""

    tenant: int
    tenant_name: str
    key: int
    role: Role
    #: Patterns that a task's type and queue must match; none: all match.
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    #: The hash of the key, by which it is looked up again.
    hash: bytes = b""
    #: The first of the keys that were rotated into this one; itself if none was.
    family: int = 0
    #: Where it may be used: addresses and networks; none: everywhere.
    allowed_ips: tuple[str, ...] = ()

    def is_allowed_at(self, address: IPAddress | None) -> bool:
        """Whether the key may be used from that address. A local socket has no address."""
        return not self.allowed_ips or (address is not None and address in networks_of(self.allowed_ips))

    @property
    def is_confined(self) -> bool:
        """Whether its tenant has tasks that the key does not reach."""
        return bool(self.types or self.queues)

    @property
    def confinement(self) -> Confinement | None:
        """What it is confined to; None: it reaches every task of its tenant."""
        return Confinement(self.types, self.queues) if self.is_confined else None

    def may_use(self, type: str | None, queue: str) -> bool:
        """Whether the key reaches such tasks. Without a type only the queue is judged."""
        return not self.is_confined or (
            Confinement(queues=self.queues).has_queue(queue) and (type is None or self.may_type(type))
        )

    def may_type(self, type: str) -> bool:
        """Whether the key reaches tasks of this type in the queues that it reaches."""
        return not self.types or Confinement(types=self.types).has_type(type)


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
    allowed_ips: list[str] = []
    #: To about a minute; None: not since its use is noted.
    last_used_at: datetime | None = None
    #: The address from which it was used then.
    last_used_from: str | None = None


def mint_key() -> str:
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def is_readable(text: str) -> bool:
    """Whether a key can look like that. If not, it is nobody's, and the database is not asked."""
    return _READABLE.fullmatch(text) is not None


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
    allowed_ips: Sequence[str] = (),
    expires_at: datetime | None = None,
    by: int | None = None,
    action: str = "key.create",
) -> tuple[KeyInfo, str]:
    """Make a key. The second part is the key itself, which nobody can read again."""
    if role not in ROLES:
        raise InvalidInput.at("role", f"must be one of {', '.join(ROLES)}")
    key = mint_key()
    parameters: dict[str, object] = {"tenant": tenant, "hash": hash_key(key), "hint": key[:8], "role": role}
    parameters |= {"name": name, "types": list(types), "queues": list(queues), "expires_at": expires_at}
    parameters |= {"allowed_ips": list(allowed_ips), "by": by, "action": action, "replaces": None}
    async with changing(database) as connection:
        await _check_room(connection, tenant)
        [row] = await connection.fetch(_SQL["make"].sql, *_SQL["make"].arguments(parameters))
    return _info(row), key


async def rotate_key(
    database: Database, tenant: int, key: int, overlap_seconds: float, *, by: int | None = None
) -> tuple[KeyInfo, str]:
    """Make a key with the same rights, while the old one stays valid for a while."""
    if not 0 < key < 1 << 31:
        raise _no_valid_key(key)
    made = mint_key()
    asked: dict[str, object] = {"tenant": tenant, "key": key}
    ending: dict[str, object] = {**asked, "seconds": overlap_seconds, "by": by}
    async with changing(database) as connection:
        # Both or neither: a key without its end would stay valid for good.
        row = await connection.fetchrow(_SQL["lock_one"].sql, *_SQL["lock_one"].arguments(asked))
        if row is None or row["revoked_at"] is not None:
            raise _no_valid_key(key)
        if row["is_expired"]:
            # The new key would end at the same time, and so be invalid from the start.
            raise Conflict(f"key {key} has expired, so there is nothing to replace: make a new one (POST /v1/keys)")
        old = _info(row)
        # The new key may be one too many until the old one has ended.
        await _check_room(connection, tenant, spare=1)
        parameters: dict[str, object] = {"tenant": tenant, "hash": hash_key(made), "hint": made[:8], "role": old.role}
        parameters |= {"name": old.name, "types": old.types, "queues": old.queues, "expires_at": old.expires_at}
        parameters |= {"allowed_ips": old.allowed_ips, "by": by, "action": "key.create", "replaces": key}
        [row] = await connection.fetch(_SQL["make"].sql, *_SQL["make"].arguments(parameters))
        await connection.fetch(_SQL["let_expire"].sql, *_SQL["let_expire"].arguments(ending))
    return _info(row), made


async def list_keys(
    database: Database, tenant: int, after: int, limit: int, *, unused_seconds: float | None = None
) -> list[KeyInfo]:
    """The tenant's keys after an id; or only the valid ones that were unused for this long."""
    rows = await database.run(
        _SQL["read_of_tenant"], tenant=tenant, after=after, limit=limit, unused_for=unused_seconds
    )
    return [_info(row) for row in rows]


async def read_key(database: Database, tenant: int, key: int) -> KeyInfo:
    rows = await database.run(_SQL["read_one"], tenant=tenant, key=key) if 0 < key < 1 << 31 else []
    if not rows:
        raise NotFound(f"there is no key {key}")
    return _info(rows[0])


async def revoke_key(database: Database, tenant: int, key: int, *, by: int | None = None) -> bytes:
    """End a key. Return its hash, so that a `Keys` can forget it at once."""
    # Beyond what the column can hold there is no key, and PostgreSQL would raise an error.
    rows = await run_once(database, _SQL["revoke"], tenant=tenant, key=key, by=by) if 0 < key < 1 << 31 else []
    if not rows:
        raise NotFound(f"there is no key {key}")
    hashed: bytes = rows[0]["hash"]
    return hashed


async def _check_room(connection: asyncpg.Connection, tenant: int, *, spare: int = 0) -> None:
    """Raise if the tenant may have no further key. Nobody else makes one until the transaction ends."""
    most = (await lock_quotas(connection, tenant)).max_keys
    if most is None:
        return
    count = _SQL["count_of_tenant"]
    if await connection.fetchval(count.sql, *count.arguments({"tenant": tenant})) >= most + spare:
        raise InvalidInput(f"a tenant has at most {most:,} valid keys (max_keys); revoke some, or raise the quota")


def _no_valid_key(key: int) -> NotFound:
    return NotFound(f"there is no valid key {key}")


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
        row["allowed_ips"],
        row.get("used_at"),
        row.get("used_from"),
    )
