"""The stored breakers of tenants: one row says the same to every node, now and after a restart.

A change is one statement under a condition, so if several nodes want it, one of
them does it; the number of changes of `breakers` rises with it.
"""

from datetime import timedelta

import msgspec

from duetime.database.changing import run_once
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.model.tenant_breaker import BreakerRules, Tally, TenantState, words

_SQL = load(__package__, "tenant_breakers.sql")


class TenantBreakerRow(msgspec.Struct, frozen=True):
    """Times are milliseconds of the database's clock."""

    tenant: int
    name: str
    state: TenantState
    since_ms: int
    probe_ms: int
    reason: str
    attempts: int
    failures: int


async def open_tenant(database: Database, tenant: int, tally: Tally, rules: BreakerRules) -> bool:
    """Stop a tenant. Return whether this call did it."""
    rows = await run_once(
        database,
        _SQL["open"],
        tenant=tenant,
        probe_every=timedelta(seconds=rules.probe_seconds),
        reason=words(tally, rules),
        attempts=tally.attempts,
        failures=tally.failures,
    )
    return bool(rows)


async def take_probe(database: Database, tenant: int, rules: BreakerRules) -> bool:
    """Whether this node may let one task start now, and no other node."""
    every = timedelta(seconds=rules.probe_seconds)
    return bool(await run_once(database, _SQL["take_probe"], tenant=tenant, probe_every=every))


async def resume_tenant(database: Database, tenant: int) -> bool:
    return bool(await run_once(database, _SQL["resume"], tenant=tenant, reason="a probe succeeded after this: "))


async def begin_slowly(database: Database, tenant: int) -> None:
    await run_once(database, _SQL["begin_slowly"], tenant=tenant, reason="it was held open by hand")


async def close_tenant(database: Database, tenant: int, only: TenantState | None = None) -> bool:
    """Let the tenant run again. Return whether this call did it."""
    return bool(await run_once(database, _SQL["close"], tenant=tenant, only=only))


async def read_tenant_breakers(database: Database) -> dict[int, TenantBreakerRow]:
    rows = await database.run(_SQL["read_all"])
    return {
        row["tenant"]: TenantBreakerRow(
            row["tenant"],
            row["name"],
            row["state"],
            int(row["since"].timestamp() * 1000),
            int(row["probe_at"].timestamp() * 1000),
            row["reason"],
            row["attempts"],
            row["failures"],
        )
        for row in rows
    }
