"""What the node's log says of dead letters."""

import uuid

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.lifecycle.holders.holders import Named
from duetime.lifecycle.tasks.onward import Dead
from duetime.lifecycle.tasks.settle import Report
from duetime.model.task import Outcome
from duetime.scheduler.dead_log import LINES, LINES_PER_TENANT, WRITE_EVERY, DeadLog
from engine import Engine


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.open(database, "acme")


@pytest.fixture
def dead_log(engine: Engine) -> DeadLog:
    dead_log = DeadLog(engine.database)
    engine.died.listen(dead_log.note)
    return dead_log


async def bury(engine: Engine, count: int = 1, queue: str = "default") -> None:
    """So many dead letters, in one report."""
    await engine.submit(count, queue=queue)
    reports = [
        Report(
            task.id,
            task.number,
            Outcome.FAILED,
            is_permanent=True,
            error=b'{"message":"ValueError: boom","kind":"permanent"}',
        )
        for task in await engine.claim(queue=queue)
    ]
    assert len(reports) == count
    await engine.settler.settle(engine.tenant, "w", reports)


async def written(dead_log: DeadLog) -> list[EventDict]:
    with capture_logs() as said:
        assert await dead_log.step() == WRITE_EVERY
    return list(said)


async def test_a_dead_letter_is_said_once_with_the_names_of_everything(engine: Engine, dead_log: DeadLog) -> None:
    await bury(engine, queue="mail")

    [line] = await written(dead_log)

    task = line.pop("task")
    assert line == {
        "event": "dead letter",
        "log_level": "warning",
        "tenant": "acme",
        "type": "test.task",
        "queue": "mail",
        "attempt": 1,
        "reason": "its last failure was permanent",
        "error": "ValueError: boom",
    }
    assert len(task) == 36
    assert await written(dead_log) == []


async def test_a_failure_that_is_tried_again_is_none(engine: Engine, dead_log: DeadLog) -> None:
    await engine.submit()
    await engine.settle(await engine.claim(), Outcome.FAILED)

    assert await written(dead_log) == []


async def test_a_task_whose_holders_died_is_one_without_an_error(engine: Engine, dead_log: DeadLog) -> None:
    [task] = await engine.submit()
    for _ in range(3):
        [held] = await engine.claim()
        await engine.holders.beat(engine.tenant, "w", [Named(task, held.number, started=True)])
        await engine.lapse()

    [line] = await written(dead_log)

    assert (line["reason"], line["attempt"], line["error"]) == ("its holders died while they ran it", 3, None)


async def test_many_get_a_few_lines_and_a_count(engine: Engine, dead_log: DeadLog) -> None:
    await bury(engine, 40)

    *lines, rest = await written(dead_log)

    assert [line["event"] for line in lines] == ["dead letter"] * LINES_PER_TENANT
    assert rest["count"] == 40 - LINES_PER_TENANT
    assert rest["tenants"] == {"acme": 40 - LINES_PER_TENANT}
    assert rest["see"] == "duetime dead list --tenant acme"


async def test_a_noisy_tenant_does_not_take_the_lines_of_others(database: Database) -> None:
    engines = [await Engine.open(database, f"tenant-{place}") for place in range(LINES + 5)]
    dead_log = DeadLog(database)
    for place, engine in enumerate(engines):
        engine.died.listen(dead_log.note)
        await bury(engine, 30 if place == 0 else 1)

    *lines, rest = await written(dead_log)

    assert [line["tenant"] for line in lines] == [f"tenant-{place}" for place in range(LINES)]
    assert rest["count"] == 29 + 5
    assert rest["tenants"]["tenant-0"] == 29
    assert rest["see"] == "duetime dead list --tenant NAME"


async def test_without_the_database_it_is_said_later_or_counted_at_the_end(
    database_url: str,
) -> None:
    gone = await Database.open(database_url, size=2)
    await gone.close()
    dead_log = DeadLog(gone)
    dead_log.note([Dead(1, uuid.uuid4(), 1, "attempts", None)])

    with pytest.raises(Unavailable):
        await dead_log.step()
    with capture_logs() as said:
        await dead_log.close()

    assert [(line["event"], line["count"]) for line in said] == [("dead letters", 1)]
