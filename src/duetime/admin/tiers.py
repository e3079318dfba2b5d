"""Tiers: named weights and quotas for tenants that set none of their own.

The tier `default` is always there.  What it does not say itself is as it comes
with duetime, and shown.
"""

from datetime import datetime

import asyncpg
import msgspec
from msgspec import UNSET, UnsetType

from duetime.admin.tenants import check_short_name, merge_egress, merge_quotas, read_egress
from duetime.database.changing import changing, run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.errors import Conflict, InvalidInput, NotFound
from duetime.model.egress_rules import NO_EGRESS_RULES, EgressRules
from duetime.model.quotas import DEFAULT_TIER, DEFAULTS, NO_QUOTAS, Quotas

MAX_TIERS = 1_000

_SQL = load(__package__, "tiers.sql")
_decode_quotas = msgspec.json.Decoder(Quotas).decode


class Tier(msgspec.Struct, frozen=True):
    name: str
    weight: int | None
    quotas: Quotas
    egress: EgressRules
    #: How many have it.
    tenants: int
    created_at: datetime
    updated_at: datetime


class TierChange(msgspec.Struct, frozen=True):
    """What is left out stays as it is; None takes a value away."""

    weight: int | UnsetType | None = UNSET
    quotas: dict[str, float | None] | None = {}
    egress: dict[str, object] | None = {}


async def put_tier(database: Database, name: str, change: TierChange, *, by: int | None = None) -> tuple[bool, Tier]:
    """Make it or change it. Return whether it is new."""
    check_short_name("name", name)
    [row] = await database.run(_SQL["count"])
    put = _SQL["put"]
    async with changing(database) as connection:
        stored = await connection.fetchrow(_SQL["lock"].sql, name)
        if stored is None and row["tiers"] >= MAX_TIERS:
            raise InvalidInput.at("name", f"there are at most {MAX_TIERS:,} tiers")
        weight = None if stored is None else stored["weight"]
        quotas = NO_QUOTAS if stored is None else _decode_quotas(stored["quotas"])
        egress = NO_EGRESS_RULES if stored is None else read_egress(stored["egress"])
        wanted: dict[str, object] = {
            "name": name,
            "weight": weight if change.weight is UNSET else change.weight,
            "quotas": msgspec.json.encode(merge_quotas(quotas, change.quotas)).decode(),
            "egress": msgspec.json.encode(merge_egress(egress, change.egress)).decode(),
            "key": by,
        }
        is_new: bool = await connection.fetchval(put.sql, *put.arguments(wanted))
    return is_new, await get_tier(database, name)


async def get_tier(database: Database, name: str) -> Tier:
    rows = await database.run(_SQL["find"], name=name)
    if not rows:
        raise _unknown(name)
    return _tier(rows[0])


async def page_tiers(database: Database, after: str, limit: int) -> list[Tier]:
    return [_tier(row) for row in await database.run(_SQL["read_page"], after=after, limit=limit)]


async def delete_tier(database: Database, name: str, *, by: int | None = None) -> None:
    if name == DEFAULT_TIER:
        raise Conflict(f"the tier {name} holds for every tenant and cannot be deleted; change it")
    try:
        rows = await run_once(database, _SQL["delete"], name=name, key=by)
    except asyncpg.ForeignKeyViolationError as error:
        raise Conflict(f"tenants have the tier {name}; give them another one first") from error
    if not rows:
        raise _unknown(name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no tier {name[:80]}")


def _tier(row: asyncpg.Record) -> Tier:
    quotas = _decode_quotas(row["quotas"])
    return Tier(
        row["name"],
        row["weight"],
        quotas.over(DEFAULTS) if row["name"] == DEFAULT_TIER else quotas,
        read_egress(row["egress"]),
        row["tenants"],
        row["created_at"],
        row["updated_at"],
    )
