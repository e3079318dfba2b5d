"""The checker finds what is wrong, says nothing of what is merely in motion, and reads little unless asked."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import timedelta

import pytest

from duetime.admin.invariants import RULES, Violation, check_invariants
from duetime.database.pool import Database
from duetime.lifecycle.tasks.retire import retire_partitions, trim_oldest
from duetime.model.retry import RetryPolicy
from duetime.model.task import Options, Outcome
from engine import Engine

DAY_MS = 86_400_000


@dataclass
class Household:
    """Tasks in every state there is, all of it in order."""

    engine: Engine
    waiting: uuid.UUID
    running: uuid.UUID
    retrying: uuid.UUID
    paused: uuid.UUID
    dead: uuid.UUID
    succeeded: uuid.UUID


async def make_household(database: Database) -> Household:
    engine = await Engine.open(database)
    patient = Options(retry=RetryPolicy(min_backoff=3600.0))

    async def end(outcome: Outcome, is_permanent: bool = False, options: Options | None = None) -> uuid.UUID:
        (task,) = await engine.submit(options=options)
        await engine.settle(await engine.claim(), outcome, is_permanent=is_permanent)
        return task

    succeeded = await end(Outcome.SUCCEEDED)
    retrying = await end(Outcome.FAILED, options=patient)
    dead = await end(Outcome.FAILED, is_permanent=True)
    dropped = await end(Outcome.FAILED, is_permanent=True)
    await engine.steering.drop([dropped])
    redriven = await end(Outcome.FAILED, is_permanent=True)
    await engine.steering.redrive([redriven])
    await engine.settle(await engine.claim())
    (lapsed,) = await engine.submit()
    await engine.claim("gone")
    await engine.lapse("gone")
    await engine.steering.pause([lapsed])
    (running,) = await engine.submit()
    await engine.claim()
    (waiting,) = await engine.submit(delay=3600.0)
    (paused,) = await engine.submit(delay=3600.0)
    await engine.steering.pause([paused])
    (cancelled,) = await engine.submit(delay=3600.0)
    await engine.steering.cancel([cancelled])
    (moved,) = await engine.submit(delay=3600.0)
    await engine.steering.reschedule([moved], database.clock.now())
    await engine.submit(delay=3600.0, idempotency_key="one", options=Options(idempotency_key="one"))
    return Household(engine, waiting, running, retrying, paused, dead, succeeded)


async def broken_rules(database: Database, *, deep: bool = True) -> set[str]:
    return {violation.rule for violation in await check_invariants(database, deep=deep)}


async def test_a_household_in_order_breaks_no_rule(database: Database) -> None:
    await make_household(database)

    assert await check_invariants(database, deep=True) == []
    assert await check_invariants(database, deep=False) == []


async def test_the_oldest_server_checks_the_same(postgres15_url: str) -> None:
    database = await Database.open(postgres15_url)
    household = await make_household(database)
    assert await check_invariants(database, deep=True) == []
    assert await check_invariants(database, deep=False) == []

    await database.execute("DELETE FROM claim WHERE task = $1", household.running)

    assert await check_invariants(database, deep=True) == [Violation("nowhere", 1, str(household.running))]
    await database.close()


async def test_an_empty_database_breaks_no_rule(database: Database) -> None:
    assert await check_invariants(database, deep=True) == []
    assert await check_invariants(database, deep=False) == []


BREAKS = {
    "two places": (
        "INSERT INTO held SELECT lane, task, wake, number, 0, 0, 0, 1 FROM due WHERE task = $1",
        "waiting",
        {"two_places"},
    ),
    "over and open": (
        "INSERT INTO attempt (lane, task, number, outcome, final) SELECT lane, task, number, 1, true"
        " FROM claim WHERE task = $1",
        "running",
        {"open_and_over", "next_number"},
    ),
    "lost": ("DELETE FROM held WHERE task = $1", "paused", {"nowhere"}),
    "after a final one": (
        "INSERT INTO attempt (lane, task, number, outcome, final) SELECT lane, task, 2, 2, false"
        " FROM attempt WHERE task = $1",
        "succeeded",
        {"after_final"},
    ),
    "a gap": ("UPDATE attempt SET number = 3 WHERE task = $1", "succeeded", {"numbering"}),
    "a number run twice": ("UPDATE due SET number = 1 WHERE task = $1", "retrying", {"next_number"}),
    "a dead number": ("UPDATE dead SET number = 4 WHERE task = $1", "dead", {"next_number"}),
    "no task": ("DELETE FROM task WHERE id = $1", "retrying", {"no_task"}),
    "a wrong lane": (
        "UPDATE held SET lane = lane + 256000 WHERE task = $1",
        "paused",
        {"wrong_lane", "no_task", "nowhere", "no_lane"},
    ),
    "a lane that is lost": (
        "WITH forgotten AS (DELETE FROM idempotency_key)"
        " DELETE FROM lane WHERE id = (SELECT lane FROM due WHERE task = $1)",
        "waiting",
        {"no_lane"},
    ),
    "a tenant that is lost": (
        "WITH forgotten AS (DELETE FROM idempotency_key)"
        " DELETE FROM tenant WHERE id = (SELECT tenant FROM lane JOIN due ON due.lane = lane.id WHERE task = $1)",
        "waiting",
        {"no_tenant"},
    ),
    "no holder": ("UPDATE claim SET holder = 999999 WHERE task = $1", "running", {"no_holder"}),
    "an old holder": (
        "UPDATE holder SET ended_at = now() - interval '1 hour' WHERE id = (SELECT holder FROM claim WHERE task = $1)",
        "running",
        {"left_behind"},
    ),
    "a key of another's task": ("UPDATE idempotency_key SET task = $1, tenant = tenant + 1", "waiting", {"wrong_key"}),
    "a key of no task": (
        "UPDATE idempotency_key SET task = (SELECT mint_wake(to_ms(now()) + 9, lane, 9) FROM due WHERE task = $1)",
        "waiting",
        {"wrong_key"},
    ),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_each_break_is_found_by_its_rule(database: Database, name: str) -> None:
    statement, victim, rules = BREAKS[name]
    household = await make_household(database)

    await database.execute(statement, getattr(household, victim))

    assert await broken_rules(database) == rules
    assert await broken_rules(database, deep=False) == rules


async def test_two_tasks_under_one_key_are_found(database: Database) -> None:
    engine = await Engine.open(database)
    await engine.submit(2, options=Options(idempotency_key="same"))

    assert await broken_rules(database) == {"key_twice"}


async def test_a_key_that_expired_may_stand_for_another_task(database: Database) -> None:
    engine = await Engine.open(database)
    options = Options(idempotency_key="same")
    await engine.submit(idempotency_key="same", options=options)
    await engine.settle(await engine.claim())
    await database.execute("UPDATE idempotency_key SET expires_at = now() - interval '1 second'")
    await database.execute("UPDATE task SET created_at = created_at - interval '1 day'")

    await engine.submit(idempotency_key="same", options=options)

    assert len(await database.fetch("SELECT FROM task")) == 2
    assert await check_invariants(database, deep=True) == []


async def test_a_schedule_without_the_lane_of_its_tasks_is_found(database: Database) -> None:
    engine = await Engine.open(database)
    await database.execute(
        "INSERT INTO schedule (tenant, name, definition, task_lane, task_type, task_payload, origin)"
        " VALUES ($1, 'nightly', '{}', 256001, 't', '{}', 'api')",
        engine.tenant,
    )

    assert await broken_rules(database) == {"no_lane_to_fire"}


async def test_what_is_retired_is_not_lost(database: Database) -> None:
    household = await make_household(database)

    assert await retire_partitions(database, database.clock.now_ms() + 2 * DAY_MS)
    assert await check_invariants(database, deep=True) == []
    assert await check_invariants(database, deep=False) == []
    await trim_oldest(database, database.clock.now() + timedelta(days=1))
    assert await check_invariants(database, deep=True) == []

    await database.execute("DELETE FROM task WHERE id = $1", household.paused)
    assert await broken_rules(database) == {"no_task"}


async def test_tasks_in_motion_are_not_taken_for_wrong(database: Database) -> None:
    engine = await Engine.open(database)
    is_over = False

    async def move() -> None:
        while not is_over:
            await engine.submit(20)
            leased = await engine.claim()
            await engine.settle(leased[::2])
            await engine.settle(leased[1::2], Outcome.FAILED, retry_after=0.0)

    moving = asyncio.create_task(move())
    found = [await check_invariants(database, deep=place % 2 == 0) for place in range(20)]
    is_over = True
    await moving

    assert found == [[]] * 20


def test_a_sentence_names_the_rule_how_often_and_an_example() -> None:
    once = Violation("nowhere", 1, "0199a3c4-6f00-8123-9abc-def000000101")
    often = Violation("no_holder", 1_200, "0199a3c4-6f00-8123-9abc-def000000101")

    assert once.sentence == f"{RULES['nowhere']} (once, for example 0199a3c4-6f00-8123-9abc-def000000101)"
    assert "(1,200 times, for example 0199a3c4-" in often.sentence
