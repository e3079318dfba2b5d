"""Tenants: the teams that own keys, queues and tasks.

A tenant's shard follows from its name, so that every node agrees on it without
asking.  Its secret signs the calls to its HTTP targets and never leaves the
database except to its owner.  What is done to a tenant is written down in
`audit`, by the statement that does it.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import asyncpg
import msgspec
from msgspec import UNSET, Raw, UnsetType

from duetime.admin.quotas import read_layers
from duetime.admin.rules import AT_WORK, Rules, read_rules
from duetime.database.changing import changing, run_once_with
from duetime.database.pages import PAGE_BYTES, cut_page
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, FieldError, InvalidInput, NotFound, Unavailable
from duetime.ids import SHARDS
from duetime.model.egress_rules import NO_EGRESS_RULES, RIGHT_HOST, EgressLayers, EgressRules, read_host_pattern
from duetime.model.quotas import NO_QUOTAS, Quotas, Source, wrong_pairs

DEFAULT_TENANT = "default"
SECRET_BYTES = 32

_SQL = load(__package__, "tenants.sql")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RIGHT_NAME = "use 1 to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"
_decode_egress = msgspec.json.Decoder(EgressRules).decode

__all__ = ["DEFAULT_TENANT", "Act", "Rules", "Tenant", "create_tenant", "find_tenant", "put_tenant", "read_rules"]

TenantState = Literal["active", "suspended"]


class Effective(msgspec.Struct, frozen=True):
    """What holds: the tenant's own values, else its tier's, else the defaults."""

    weight: int
    quotas: Quotas
    egress: EgressRules
    #: Who says each of these values.
    sources: dict[str, Source]


class Tenant(msgspec.Struct, frozen=True):
    id: int
    name: str
    #: Its own share of what tenants compete for, beside the others'; None: its tier's, else 1.
    weight: int | None
    shard: int
    created_at: datetime
    state: TenantState
    updated_at: datetime
    tier: str | None
    #: Over how many shards new lanes of it go.
    spread: int
    #: Its own.
    quotas: Quotas
    #: Whether the defaults hold where neither it nor its tier says anything.
    defaults: bool
    egress: EgressRules
    effective: Effective


class TenantChange(msgspec.Struct, frozen=True):
    """What is left out stays as it is; None takes a value away, so that its tier's or the default holds."""

    weight: int | UnsetType | None = UNSET
    state: TenantState | None = None
    tier: str | UnsetType | None = UNSET
    spread: int | None = None
    #: By the names of `Quotas`; None instead of all of it takes every one away.
    quotas: dict[str, float | None] | None = {}
    defaults: bool | None = None
    #: The same, by the names of `EgressRules`.
    egress: dict[str, object] | None = {}


class _Wanted(msgspec.Struct, frozen=True):
    weight: int | None = None
    state: TenantState = "active"
    tier: str | None = None
    spread: int = 1
    quotas: Quotas = NO_QUOTAS
    defaults: bool = True
    egress: EgressRules = NO_EGRESS_RULES

    def changed(self, change: TenantChange) -> "_Wanted":
        if isinstance(change.tier, str):
            check_short_name("tier", change.tier)
        return _Wanted(
            self.weight if change.weight is UNSET else change.weight,
            change.state or self.state,
            self.tier if change.tier is UNSET else change.tier,
            change.spread or self.spread,
            merge_quotas(self.quotas, change.quotas),
            self.defaults if change.defaults is None else change.defaults,
            merge_egress(self.egress, change.egress),
        )

    def parameters(self) -> dict[str, object]:
        return {
            "weight": self.weight,
            "state": self.state,
            "tier": self.tier,
            "spread": self.spread,
            "quotas": msgspec.json.encode(self.quotas).decode(),
            "defaults": self.defaults,
            "egress": msgspec.json.encode(self.egress).decode(),
        }


class Act(msgspec.Struct, frozen=True):
    """Something that was done by hand: who, when, what before and after."""

    id: int
    at: datetime
    tenant: str | None
    #: `database`: a command that has the database itself asked for it, and no key did.
    actor: Literal["key", "database"]
    #: The key that asked for it, and how it begins.
    key: int | None
    key_hint: str | None
    action: str
    subject: str
    before: Raw | None
    after: Raw | None


def shard_of_tenant(name: str) -> int:
    """The shard whose node feeds the tenant; the same on every node and machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % SHARDS


def check_short_name(path: str, name: str) -> None:
    """The name of a tenant or a tier."""
    if not _NAME.fullmatch(name):
        raise InvalidInput.at(path, RIGHT_NAME)


def merge_quotas(stored: Quotas, change: dict[str, float | None] | None) -> Quotas:
    """The quotas after a change; raises for a burst without its rate."""
    merged = NO_QUOTAS if change is None else msgspec.structs.replace(stored, **change)
    if wrong := wrong_pairs(merged):
        errors = tuple(FieldError(f"quotas.{field}", message) for field, message in wrong)
        raise InvalidInput(f"{errors[0].path}: {errors[0].message}", errors)
    return merged


def merge_egress(stored: EgressRules, change: dict[str, object] | None) -> EgressRules:
    """The rules after a change; raises for what is no pattern of hosts."""
    if change is None:
        return NO_EGRESS_RULES
    hosts, ports = change.get("hosts"), change.get("ports")
    if isinstance(hosts, list | tuple):
        patterns = [read_host_pattern(host) for host in hosts]
        errors = [FieldError(f"egress.hosts[{at}]", RIGHT_HOST) for at, host in enumerate(patterns) if host is None]
        if errors:
            raise InvalidInput.all(errors)
        change = change | {"hosts": tuple(dict.fromkeys(patterns))}
    if isinstance(ports, list | tuple):
        change = change | {"ports": tuple(sorted(set(ports)))}
    return msgspec.structs.replace(stored, **change)


async def create_tenant(
    database: Database, name: str, change: TenantChange | None = None, *, by: int | None = None
) -> Tenant:
    check_short_name("name", name)
    wanted = _Wanted().changed(change or TenantChange())
    try:
        made: dict[str, object] = {
            "name": name,
            "shard": shard_of_tenant(name),
            "secret": secrets.token_bytes(SECRET_BYTES),
            "key": by,
            "is_news": wanted != _Wanted(),
            "at_work": AT_WORK,
        }
        rows = await run_once_with(database, _SQL["make"], made | wanted.parameters())
    except asyncpg.ForeignKeyViolationError as error:
        raise _no_tier(wanted.tier) from error
    if not rows:
        raise Conflict(f"there is a tenant {name} already")
    return await _find(database, name)


async def change_tenant(database: Database, name: str, change: TenantChange, *, by: int | None = None) -> Tenant:
    tier: str | None = None
    try:
        async with changing(database) as connection:
            locked = await connection.fetchval(_SQL["lock"].sql, name)
            if locked is None:
                raise NotFound(f"there is no tenant {name[:80]}")
            row = await connection.fetchrow(_SQL["find"].sql, name)
            stored = _tenant(row)
            wanted = _Wanted(
                stored.weight,
                stored.state,
                stored.tier,
                stored.spread,
                stored.quotas,
                stored.defaults,
                stored.egress,
            ).changed(change)
            tier = wanted.tier
            statement = _SQL["change"]
            await connection.fetch(
                statement.sql, *statement.arguments({"name": name, "key": by, **wanted.parameters()})
            )
    except asyncpg.ForeignKeyViolationError as error:
        raise _no_tier(tier) from error
    return await _find(database, name)


async def put_tenant(
    database: Database, name: str, change: TenantChange, *, by: int | None = None
) -> tuple[bool, Tenant]:
    """Make it or change it. Return whether it is new."""
    if await find_tenant(database, name) is None:
        try:
            return True, await create_tenant(database, name, change, by=by)
        except Conflict:
            # Somebody else has made it: change it.
            pass
    return False, await change_tenant(database, name, change, by=by)


async def find_tenant(database: Database, name: str) -> Tenant | None:
    rows = await database.run(_SQL["find"], name=name)
    return _tenant(rows[0]) if rows else None


async def read_names(database: Database, tenants: Iterable[int]) -> dict[int, str]:
    """What log lines call these tenants; without the database, nothing."""
    try:
        return {row["id"]: row["name"] for row in await database.run(_SQL["read_names"], tenants=sorted(set(tenants)))}
    except Unavailable:
        return {}


async def page_tenants(database: Database, after: str, limit: int) -> list[Tenant]:
    return [_tenant(row) for row in await database.run(_SQL["read_page"], after=after, limit=limit)]


async def read_audit(database: Database, tenant: int | None, before: int, limit: int) -> tuple[list[Act], bool]:
    """The latest first, and whether there are more; None: of all tenants."""
    found = await database.run(_SQL["read_audit"], tenant=tenant, before=before, limit=limit + 1, bytes=PAGE_BYTES)
    rows, has_more = cut_page(found, limit)
    acts = [
        Act(
            row["id"],
            row["at"],
            row["tenant"],
            "database" if row["key"] is None else "key",
            row["key"],
            row["key_hint"],
            row["action"],
            row["subject"],
            None if row["before"] is None else Raw(row["before"].encode()),
            None if row["after"] is None else Raw(row["after"].encode()),
        )
        for row in rows
    ]
    return acts, has_more


async def _find(database: Database, name: str) -> Tenant:
    found = await find_tenant(database, name)
    if found is None:
        raise NotFound(f"there is no tenant {name[:80]}")
    return found


def read_egress(text: str | None) -> EgressRules:
    return NO_EGRESS_RULES if text is None else _decode_egress(text)


def _read_egress_layers(row: asyncpg.Record) -> EgressLayers:
    default = row["default_egress"] if row["defaults"] else None
    return EgressLayers(read_egress(row["egress"]), read_egress(row["tier_egress"]), read_egress(default))


def _no_tier(name: str | None) -> InvalidInput:
    return InvalidInput.at("tier", f"there is no tier {name}; make it first (PUT /v1/tiers/{name})")


def _tenant(row: asyncpg.Record) -> Tenant:
    layers, egress = read_layers(row), _read_egress_layers(row)
    weights: tuple[tuple[Source, int | None], ...] = (
        ("own", row["weight"]),
        ("tier", row["tier_weight"]),
        ("default", row["default_weight"] if row["defaults"] else None),
        ("default", 1),
    )
    source, weight = next((source, weight) for source, weight in weights if weight is not None)
    return Tenant(
        row["id"],
        row["name"],
        row["weight"],
        row["shard"],
        row["created_at"],
        row["state"],
        row["updated_at"],
        row["tier"],
        row["spread"],
        layers.own,
        row["defaults"],
        egress.own,
        Effective(weight, layers.together, egress.together, {"weight": source, **layers.sources(), **egress.sources()}),
    )
