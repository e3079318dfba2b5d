"""A change of rules that was given up, asked for again and replaced does nothing more when its late copy arrives."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

import pytest

from duetime.admin import breakers, limits, tenants, tiers, types
from duetime.admin.breakers import ForcedBreakers
from duetime.admin.limits import LimitRules, LimitScope
from duetime.admin.tenants import TenantChange, change_tenant
from duetime.admin.tiers import TierChange, delete_tier, put_tier
from duetime.admin.types import Types
from duetime.database.pool import Database
from duetime.errors import Unavailable, Unknown
from duetime.lifecycle.schedules import recurrences
from duetime.model.limits import Limits
from duetime.recurrence import Spec
from engine import Engine
from holding import HoldingProxy, holding
from scheduler.schedules import put, schedule_of
from tables import read_tables

Step = Callable[[Engine], Awaitable[object]]


@pytest.fixture
async def stalling(database_url: str) -> AsyncIterator[tuple[HoldingProxy, Engine]]:
    """An engine behind a line that can hold a statement back."""
    async with holding(database_url) as (proxy, url):
        database = await Database.open(url, size=2)
        yield proxy, await Engine.open(database)
        await database.close()


async def nothing(engine: Engine) -> None:
    """There is nothing to prepare."""


def queue(most: int) -> Step:
    return lambda e: LimitRules(e.database).put(e.tenant, LimitScope.QUEUE, "q", limits=Limits(max_running=most))


async def no_queue(engine: Engine) -> None:
    await LimitRules(engine.database).delete(engine.tenant, LimitScope.QUEUE, "q")


def kind(schema: bytes) -> Step:
    return lambda e: Types(e.database).put(e.tenant, "t", schema, [])


def weight(value: int) -> Step:
    return lambda e: change_tenant(e.database, "default", TenantChange(weight=value))


def tier(value: int) -> Step:
    return lambda e: put_tier(e.database, "gold", TierChange(weight=value))


def forced(state: Literal["open", "closed", "auto"]) -> Step:
    return lambda e: ForcedBreakers(e.database, lambda _: None).put(e.tenant, "a.example:443", state, "")


def schedule(seconds: float) -> Step:
    return lambda e: put(e, schedule_of(e, spec=Spec(every=seconds)))


async def paused(engine: Engine) -> object:
    return await engine.schedules.pause(engine.tenant, "s", None)


async def resumed(engine: Engine) -> object:
    return await engine.schedules.resume(engine.tenant, "s")


async def paused_schedule(engine: Engine) -> None:
    await schedule(60.0)(engine)
    await paused(engine)


async def unscheduled(engine: Engine) -> None:
    await engine.schedules.delete(engine.tenant, "s")


#: Where the statement is behind a lock, the server ends its transaction after five seconds: so not of every kind.
#: What is there before; a change, the text of its statement, and what is done and confirmed after it.
CHANGES: dict[str, tuple[Step, Step, str, Step]] = {
    "a queue": (nothing, queue(1), limits._SQL["put"].sql, queue(2)),
    "a queue without limits": (queue(1), no_queue, limits._SQL["delete"].sql, queue(2)),
    "a type": (nothing, kind(b'{"type":"object"}'), types._SQL["put"].sql, kind(b'{"type":"array"}')),
    "a tenant": (nothing, weight(2), tenants._SQL["change"].sql, weight(3)),
    "a tier that goes": (tier(2), lambda e: delete_tier(e.database, "gold"), tiers._SQL["delete"].sql, tier(3)),
    "a breaker": (nothing, forced("open"), breakers._SQL["force"].sql, forced("closed")),
    "a breaker set free": (forced("open"), forced("auto"), breakers._SQL["set_free"].sql, forced("open")),
    "a schedule": (nothing, schedule(60.0), recurrences.SQL["create"].sql, unscheduled),
    "a paused schedule": (schedule(60.0), paused, recurrences.SQL["change"].sql, resumed),
}


async def until_confirmed(step: Step, engine: Engine) -> None:
    """As a client does: it asks again."""
    for _ in range(3):
        try:
            await step(engine)
        except Unknown:
            raise
        except Unavailable:
            # Nothing was done, and that is known.
            continue
        return
    raise AssertionError("never confirmed")


@pytest.mark.parametrize("change", CHANGES)
async def test_a_late_copy_of_a_change_changes_nothing(stalling: tuple[HoldingProxy, Engine], change: str) -> None:
    proxy, engine = stalling
    before, act, text, replace = CHANGES[change]
    await before(engine)
    proxy.hold(text)

    async with asyncio.timeout(15):
        await until_confirmed(act, engine)
    await replace(engine)
    tables = await read_tables(engine.database)
    assert len(proxy.copies) == 1
    await proxy.deliver()

    assert await read_tables(engine.database) == tables
