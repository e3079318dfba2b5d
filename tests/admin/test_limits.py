"""Rules for queues and keys: what is found for a key, and how nodes learn of a change."""

import asyncio

import pytest

from duetime.admin.limits import MAX_RULES_PER_TENANT, LimitRules
from duetime.database.pool import Database
from duetime.errors import InvalidInput, NotFound
from duetime.model.limits import Limits, LimitScope

QUEUE, KEY = LimitScope.QUEUE, LimitScope.KEY


async def limit(rules: LimitRules, *names: str, tenant: int = 1) -> None:
    for name in names:
        await rules.put(tenant, KEY, name, limits=Limits(max_running=len(name)))


async def test_the_key_itself_comes_before_the_longest_pattern(database: Database) -> None:
    rules = LimitRules(database)
    await limit(rules, "customer-7", "customer-*", "c*", "customer-77*")
    await limit(rules, "customer-7", tenant=2)

    def name_for(key: str, tenant: int = 1) -> str | None:
        found = rules.of_key(tenant, key)
        if found is None:
            return None
        assert found[1] == Limits(max_running=len(found[0]))
        return found[0]

    assert name_for("customer-7") == "customer-7"
    assert name_for("customer-8") == "customer-*"
    assert name_for("customer-") == "customer-*"
    assert name_for("customer-771") == "customer-77*"
    assert name_for("cust") == "c*"
    assert name_for("d") is None
    assert name_for("customer-8", tenant=2) is None
    assert name_for("customer-7", tenant=3) is None
    await limit(rules, "*")
    assert name_for("d") == "*"
    assert rules.keyed_tenants() == {1, 2}


async def test_queues_have_limits_and_a_state_each_kept_when_the_other_changes(database: Database) -> None:
    rules = LimitRules(database)

    is_new, _ = await rules.put(1, QUEUE, "mail", limits=Limits(rate=5.0))
    _, paused = await rules.put(1, QUEUE, "mail", state="paused")
    await rules.put(1, QUEUE, "only-paused", state="paused")

    assert is_new
    assert (paused.limits, paused.state, paused.version) == (Limits(rate=5.0), "paused", 2)
    assert rules.queue_limits() == {(1, "mail"): Limits(rate=5.0)}
    assert rules.paused_queues() == {(1, "mail"), (1, "only-paused")}
    assert rules.of_queue(1, "mail") == Limits(rate=5.0)
    assert rules.of_queue(2, "mail") is None
    assert rules.keyed_tenants() == frozenset()

    await rules.put(1, QUEUE, "mail", limits=Limits(), state="active")
    await rules.delete(1, QUEUE, "only-paused")

    assert (rules.queue_limits(), rules.paused_queues()) == ({}, frozenset())
    with pytest.raises(NotFound):
        await rules.delete(1, QUEUE, "only-paused")


async def test_another_node_learns_of_every_change_and_only_of_changes(database: Database) -> None:
    here, there = LimitRules(database), LimitRules(database)
    await there.refresh()

    await limit(here, "a")
    await there.refresh()
    seen = there.change
    assert there.of_key(1, "a") is not None
    await limit(here, "a")
    await there.refresh()
    assert there.change == seen
    await here.delete(1, KEY, "a")
    await there.refresh()

    assert there.change != seen
    assert there.of_key(1, "a") is None


async def test_a_change_that_commits_late_is_not_missed(database: Database) -> None:
    """Who reads while a change is being made must find it later."""
    here, there = LimitRules(database), LimitRules(database)
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("UPDATE rule_change SET change = change")
        putting = asyncio.create_task(limit(here, "a"))
        waits = "SELECT count(*) AS waiting FROM pg_locks WHERE NOT granted"
        while (await database.fetch(waits))[0]["waiting"] == 0:
            await asyncio.sleep(0.005)
        await there.refresh()
        assert there.of_key(1, "a") is None
        await transaction.commit()
    await putting

    await there.refresh()

    assert there.of_key(1, "a") is not None


async def test_a_tenant_has_at_most_a_thousand(database: Database) -> None:
    rules = LimitRules(database)
    await database.execute(
        "INSERT INTO limit_rule (tenant, scope, name, limits) "
        "SELECT 1, 3, 'k' || n, '{}' FROM generate_series(1, $1) AS n",
        MAX_RULES_PER_TENANT,
    )

    with pytest.raises(InvalidInput, match="at most 1,000"):
        await limit(rules, "one more")
    await limit(rules, "k7")
    await limit(rules, "one more", tenant=2)

    assert (await rules.get(1, KEY, "k7")).version == 2


async def test_a_rule_that_cannot_be_read_does_not_hide_the_others(database: Database) -> None:
    rules = LimitRules(database)
    await database.execute(
        "INSERT INTO limit_rule (tenant, scope, name, limits) VALUES (1, 3, 'odd', '{\"from\": \"later\"}')"
    )

    await limit(rules, "right")

    assert rules.of_key(1, "odd") is None
    assert rules.of_key(1, "right") is not None


async def test_another_node_reads_the_rules_of_whoever_changed_some(database: Database) -> None:
    here, there = LimitRules(database), LimitRules(database)
    await limit(here, *(f"k{number}" for number in range(30)))
    await limit(here, "k", tenant=2)
    await there.refresh()
    assert there.read_count == 31

    await limit(here, "other", tenant=2)
    await there.refresh()
    assert there.read_count == 33

    await here.delete(2, KEY, "k")
    await here.delete(2, KEY, "other")
    await there.refresh()
    assert there.keyed_tenants() == {1}
    assert there.of_key(1, "k7") is not None

    await database.fetch("DELETE FROM limit_rule WHERE tenant = 1 AND name = 'k7'")
    await database.fetch("UPDATE rule_change SET change = change + 1 WHERE kind = 'limits'")
    await there.refresh()
    assert there.of_key(1, "k7") is None
