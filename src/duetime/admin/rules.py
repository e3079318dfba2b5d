"""What a node must know of tenants: weights, suspensions, limits, quotas, spread.

A node asks for the number of the latest change, and reads only the tenants that
changed since the one it has seen: with a hundred thousand tenants the question
still costs one row.  A tenant that has nothing but defaults is in no table here.
"""

from typing import TypeVar

import msgspec

from duetime.admin.changes import read_changes
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.limits import Limits
from duetime.model.quotas import NO_QUOTAS, Quotas

_SQL = load(__package__, "rules.sql")
_decode = msgspec.json.Decoder(Quotas).decode


class Rules(msgspec.Struct, frozen=True):
    """Of the tenants that differ from the defaults, by id; tiers are worked in."""

    weights: dict[int, int] = {}
    suspended: frozenset[int] = frozenset()
    #: What may run.
    limits: dict[int, Limits] = {}
    #: Over how many shards new lanes go, where more than one.
    spread: dict[int, int] = {}
    #: What may be submitted and wait.
    quotas: dict[int, Quotas] = {}
    #: When they are stopped because their attempts fail.
    breakers: dict[int, Quotas] = {}


class _Stored(msgspec.Struct, frozen=True):
    weight: int | None
    is_suspended: bool
    tier: str | None
    spread: int
    quotas: Quotas


class _Tier(msgspec.Struct, frozen=True):
    weight: int | None
    quotas: Quotas


Value = TypeVar("Value")
_NO_TIER = _Tier(None, NO_QUOTAS)


class TenantRules:
    """The rules as they were a moment ago; the same object as long as nothing changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen = -1
        self._stored: dict[int, _Stored] = {}
        self._tiers: dict[str, _Tier] = {}
        self.current = Rules()

    async def refresh(self, change: int | None = None) -> Rules:
        """Read what has changed; `change` is the number of changes, if it was read already."""
        if change is None:
            change = (await read_changes(self._database))["tenants"].number
        if change == self._seen:
            return self.current
        # Read after the number, so that nothing up to it is missed.
        tiers = {
            each["name"]: _Tier(each["weight"], _decode(each["quotas"]))
            for each in await self._database.run(_SQL["read_tiers"])
        }
        changed: dict[int, _Stored] = {
            each["id"]: _Stored(
                each["weight"], each["state"] == "suspended", each["tier"], each["spread"], _decode(each["quotas"])
            )
            for each in await self._database.run(_SQL["read_changed"], seen=self._seen)
        }
        if tiers != self._tiers:
            other = {name for name, tier in tiers.items() if tier != self._tiers.get(name)}
            changed = {tenant: each for tenant, each in self._stored.items() if each.tier in other} | changed
        self._stored |= changed
        self._tiers, self._seen = tiers, change
        self.current = self._derive(changed)
        return self.current

    def _derive(self, changed: dict[int, _Stored]) -> Rules:
        """The rules with these tenants worked in; the others are as they were."""
        now = self.current
        weights, limits, spread, quotas = dict(now.weights), dict(now.limits), dict(now.spread), dict(now.quotas)
        suspended, breakers = set(now.suspended), dict(now.breakers)
        for tenant, stored in changed.items():
            tier = _NO_TIER if stored.tier is None else self._tiers.get(stored.tier, _NO_TIER)
            effective = stored.quotas.over(tier.quotas)
            weight, running = stored.weight or tier.weight or 1, effective.limits
            _set(weights, tenant, weight if weight != 1 else None)
            _set(limits, tenant, None if running.is_empty else running)
            _set(spread, tenant, stored.spread if stored.spread != 1 else None)
            _set(quotas, tenant, effective if effective.limits_submissions else None)
            _set(breakers, tenant, effective if effective.has_breaker else None)
            (suspended.add if stored.is_suspended else suspended.discard)(tenant)
        return Rules(weights, frozenset(suspended), limits, spread, quotas, breakers)


def _set(values: dict[int, Value], tenant: int, value: Value | None) -> None:
    if value is None:
        values.pop(tenant, None)
    else:
        values[tenant] = value


async def read_rules(database: Database) -> Rules:
    """The rules as they are now, from the beginning."""
    return await TenantRules(database).refresh()
