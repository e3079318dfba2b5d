"""What a node must know of tenants: weights, suspensions, limits, quotas, spread.

A node asks for the number of the latest change, and reads only the tenants that
changed since the one it has seen: with a hundred thousand tenants the question
still costs one row.  A tenant that has nothing but defaults is in no table here.  Only
where the defaults say something about running tenants, as a weight, every
tenant is read and kept.
"""

from typing import TypeVar

import asyncpg
import msgspec

from duetime.admin.changes import read_changes
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.egress_rules import NO_EGRESS_RULES, EgressJudge, EgressLayers, EgressRules
from duetime.model.limits import Limits
from duetime.model.quotas import DEFAULT_TIER, DEFAULTS, NO_QUOTAS, Layers, Quotas, defaults_of

_SQL = load(__package__, "rules.sql")
_decode = msgspec.json.Decoder(Quotas).decode
_decode_egress = msgspec.json.Decoder(EgressRules).decode


class Rules(msgspec.Struct, frozen=True):
    """The rules of tenants that differ from the defaults, by id; tiers are already applied."""

    weights: dict[int, int] = {}
    suspended: frozenset[int] = frozenset()
    #: What may run.
    limits: dict[int, Limits] = {}
    #: Over how many shards new lanes are spread, where it is more than one.
    spread: dict[int, int] = {}
    #: What may be submitted and wait, and what holds for tenants that are not named.
    quotas: dict[int, Quotas] = {}
    default: Quotas = DEFAULTS.of_submissions
    #: When they are stopped because their attempts fail.
    breakers: dict[int, Quotas] = {}
    #: Where HTTP targets may be, and what holds for tenants that are not named; None: anywhere.
    egress: dict[int, EgressJudge | None] = {}
    default_egress: EgressJudge | None = None
    #: How often the secret that signs its calls was rotated, for tenants where it was.
    signing: dict[int, int] = {}


class _Stored(msgspec.Struct, frozen=True):
    weight: int | None
    is_suspended: bool
    tier: str | None
    spread: int
    quotas: Quotas
    defaults: bool
    egress: EgressRules
    signing: int


class _Tier(msgspec.Struct, frozen=True):
    weight: int | None
    quotas: Quotas
    egress: EgressRules


Value = TypeVar("Value")
_NO_TIER = _Tier(None, NO_QUOTAS, NO_EGRESS_RULES)
#: The quotas about running tenants, and not only about what they submit and have.
AT_WORK = [
    "max_running",
    "rate",
    "breaker_failure_rate",
    "breaker_window",
    "breaker_probe_every",
    "breaker_min_attempts",
]


class TenantRules:
    """The cached rules; the same object as long as nothing changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen = -1
        self._stored: dict[int, _Stored] = {}
        self._tiers: dict[str, _Tier] = {}
        #: Whether tenants that only have defaults were read too.
        self._has_all = False
        self.current = Rules()

    async def refresh(self, change: int | None = None) -> Rules:
        """Read what has changed; `change` is the number of changes, if it was read already."""
        if change is None:
            change = (await read_changes(self._database))["tenants"].number
        if change == self._seen:
            return self.current
        # Read after the number, so that nothing up to it is missed.
        tiers = {
            each["name"]: _Tier(each["weight"], _decode(each["quotas"]), _decode_egress(each["egress"]))
            for each in await self._database.run(_SQL["read_tiers"])
        }
        changed: dict[int, _Stored] = {
            each["id"]: _stored(each) for each in await self._database.run(_SQL["read_changed"], seen=self._seen)
        }
        if not self._has_all and _is_at_work(tiers.get(DEFAULT_TIER, _NO_TIER)):
            changed |= {each["id"]: _stored(each) for each in await self._database.run(_SQL["read_unchanged"])}
            self._has_all = True
        if tiers != self._tiers:
            other = {name for name, tier in tiers.items() if tier != self._tiers.get(name)}
            is_meant = (lambda tier: True) if DEFAULT_TIER in other else other.__contains__
            changed = {tenant: each for tenant, each in self._stored.items() if is_meant(each.tier)} | changed
        self._stored |= changed
        self._tiers, self._seen = tiers, change
        self.current = self._derive(changed)
        return self.current

    def egress_of(self, tenant: int) -> EgressJudge | None:
        """The rules for the tenant's HTTP targets, if there are any."""
        return self.current.egress.get(tenant, self.current.default_egress)

    def _derive(self, changed: dict[int, _Stored]) -> Rules:
        """The rules with these tenants replaced; the others stay as they were."""
        now = self.current
        weights, limits, spread, quotas = dict(now.weights), dict(now.limits), dict(now.spread), dict(now.quotas)
        suspended, breakers = set(now.suspended), dict(now.breakers)
        egress, signing = dict(now.egress), dict(now.signing)
        usual = self._tiers.get(DEFAULT_TIER, _NO_TIER)
        default = Layers(NO_QUOTAS, defaults=defaults_of(usual.quotas, has_defaults=True)).together.enforced
        for tenant, stored in changed.items():
            tier = _NO_TIER if stored.tier is None else self._tiers.get(stored.tier, _NO_TIER)
            defaults = defaults_of(usual.quotas, has_defaults=stored.defaults)
            effective = Layers(stored.quotas, tier.quotas, defaults).together.enforced
            usual_weight = usual.weight if stored.defaults else None
            weight, running = stored.weight or tier.weight or usual_weight or 1, effective.limits
            _set(weights, tenant, weight if weight != 1 else None)
            _set(limits, tenant, None if running.is_empty else running)
            _set(spread, tenant, stored.spread if stored.spread != 1 else None)
            submissions = effective.of_submissions
            _set(quotas, tenant, submissions if submissions != default.of_submissions else None)
            _set(breakers, tenant, effective if effective.has_breaker else None)
            usual_egress = usual.egress if stored.defaults else NO_EGRESS_RULES
            rules = EgressLayers(stored.egress, tier.egress, usual_egress).together
            if rules == usual.egress:
                egress.pop(tenant, None)
            else:
                egress[tenant] = EgressJudge.of(rules)
            _set(signing, tenant, stored.signing or None)
            (suspended.add if stored.is_suspended else suspended.discard)(tenant)
        return Rules(
            weights,
            frozenset(suspended),
            limits,
            spread,
            quotas,
            default.of_submissions,
            breakers,
            egress,
            EgressJudge.of(usual.egress),
            signing,
        )


def _stored(row: asyncpg.Record) -> _Stored:
    return _Stored(
        row["weight"],
        row["state"] == "suspended",
        row["tier"],
        row["spread"],
        _decode(row["quotas"]),
        row["defaults"],
        _decode_egress(row["egress"]),
        row["signing_version"],
    )


def _is_at_work(tier: _Tier) -> bool:
    return tier.weight is not None or any(getattr(tier.quotas, name) is not None for name in AT_WORK)


def _set(values: dict[int, Value], tenant: int, value: Value | None) -> None:
    if value is None:
        values.pop(tenant, None)
    else:
        values[tenant] = value


async def read_rules(database: Database) -> Rules:
    """Read all rules anew."""
    return await TenantRules(database).refresh()
