"""An idempotency key holds until its task is over and its ttl has passed, whichever is later.

The clock is set: days pass between two submissions under one key.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from duetime.clock import from_ms
from duetime.database.pool import Database
from duetime.errors import IdempotencyConflict
from duetime.lifecycle.submission.batch import Submitted
from duetime.lifecycle.submission.submitter import Submitter
from duetime.lifecycle.tasks.keys import retire_keys
from duetime.model.task import Outcome, TaskState
from duetime.scheduler.upkeep import Upkeep
from engine import Engine
from properties.life_world import SetClock, TimedDatabase

DAY_MS = 86_400_000
DAY = 86_400.0


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await TimedDatabase.open(database_url, clock=SetClock())
    yield database
    await database.close()


async def pass_days(engine: Engine, days: float) -> None:
    clock = engine.database.clock
    assert isinstance(clock, SetClock)
    clock.set_ms += round(days * DAY_MS)
    await engine.partitions.make_ahead()


async def tidy(engine: Engine) -> None:
    upkeep = Upkeep(
        engine.database,
        engine.partitions,
        engine.lanes,
        engine.steering,
        retention=timedelta(days=14),
        dead_retention=timedelta(days=30),
    )
    await upkeep.tidy()


async def ask(engine: Engine, key: str = "k", *, body: bytes = b"same", delay: float | None = None) -> Submitted:
    [answer] = await engine.submitter.submit(
        [engine.new_task(idempotency_key=key, fingerprint=body, delay=delay, queue=key)]
    )
    assert isinstance(answer, Submitted), answer
    return answer


async def keys(engine: Engine) -> int:
    rows = await engine.database.fetch("SELECT count(*) AS count FROM idempotency_key")
    count: int = rows[0]["count"]
    return count


async def _wait(engine: Engine, task: uuid.UUID) -> None:
    """It is ready, and nobody takes it."""


async def _run(engine: Engine, task: uuid.UUID) -> None:
    await engine.claim(queue="k")


async def _retry(engine: Engine, task: uuid.UUID) -> None:
    await engine.settle(await engine.claim(queue="k"), Outcome.FAILED, retry_after=60 * DAY)


async def _die(engine: Engine, task: uuid.UUID) -> None:
    await engine.settle(await engine.claim(queue="k"), Outcome.FAILED, is_permanent=True)


async def _pause(engine: Engine, task: uuid.UUID) -> None:
    await engine.steering.pause([task])


async def _reschedule(engine: Engine, task: uuid.UUID) -> None:
    await engine.steering.reschedule([task], from_ms(engine.database.clock.now_ms() + 60 * DAY_MS))


OPEN: dict[TaskState, Callable[[Engine, uuid.UUID], Awaitable[None]]] = {
    TaskState.READY: _wait,
    TaskState.RUNNING: _run,
    TaskState.RETRYING: _retry,
    TaskState.DEAD: _die,
    TaskState.PAUSED: _pause,
    TaskState.SCHEDULED: _reschedule,
}


@pytest.mark.parametrize("is_tidied", [False, True], ids=["", "after upkeep"])
@pytest.mark.parametrize("state", OPEN)
async def test_a_key_holds_while_its_task_is_open(engine: Engine, state: TaskState, is_tidied: bool) -> None:
    first = await ask(engine)
    await OPEN[state](engine, first.id)
    for _ in range(3):
        await pass_days(engine, 2)
        if is_tidied:
            await tidy(engine)
    assert await engine.state(first.id) is state

    second = await ask(engine)
    [conflict] = await engine.submitter.submit([engine.new_task(idempotency_key="k", fingerprint=b"other")])

    assert (second.id, second.is_new) == (first.id, False)
    assert isinstance(conflict, IdempotencyConflict)


async def test_a_key_of_a_task_in_a_year_holds_for_the_year(engine: Engine) -> None:
    first = await ask(engine, delay=365 * DAY)
    for _ in range(12):
        await pass_days(engine, 30)
        await tidy(engine)
        assert (await ask(engine, delay=365 * DAY)).id == first.id

    await pass_days(engine, 6)
    await engine.settle(await engine.claim(queue="k"))

    assert (await ask(engine)).is_new


async def test_a_key_holds_for_its_ttl_after_its_task_is_over(engine: Engine) -> None:
    first = await ask(engine)
    await engine.settle(await engine.claim(queue="k"))
    await pass_days(engine, 0.9)
    await tidy(engine)

    assert (await ask(engine)).id == first.id
    await pass_days(engine, 0.2)

    second = await ask(engine, body=b"other")
    assert second.is_new
    assert (await ask(engine, body=b"other")).id == second.id


async def test_a_key_whose_ttl_passed_long_ago_is_free_as_soon_as_its_task_is_over(engine: Engine) -> None:
    first = await ask(engine)
    await pass_days(engine, 3)
    await tidy(engine)
    assert (await ask(engine)).id == first.id

    await engine.settle(await engine.claim(queue="k"))

    assert (await ask(engine)).is_new


async def test_a_dead_letter_that_is_dropped_frees_its_key(engine: Engine) -> None:
    first = await ask(engine)
    await _die(engine, first.id)
    await pass_days(engine, 3)

    await engine.steering.drop([first.id])

    assert (await ask(engine)).is_new


async def test_an_ended_key_is_free_once_for_all_who_want_it(engine: Engine, database_url: str) -> None:
    for key in ("k", "l"):
        await ask(engine, key)
        await engine.settle(await engine.claim(queue=key))
    await pass_days(engine, 2)
    clock = engine.database.clock
    others = [Engine(await TimedDatabase.open(database_url, clock=clock)) for _ in range(3)]
    for other in others:
        other.tenant = engine.tenant

    answers = await asyncio.gather(*[ask(others[place % 3], "kl"[place % 2]) for place in range(60)])

    assert sum(answer.is_new for answer in answers) == 2
    assert len({answer.id for answer in answers}) == 2
    for other in others:
        await other.database.close()


async def test_a_batch_of_ended_keys_is_stored_again_whole(engine: Engine) -> None:
    tasks = [engine.new_task(idempotency_key=f"k{place}", payload=b"%d" % place) for place in range(200)]
    first = [each.id for each in await engine.submitter.submit(tasks) if isinstance(each, Submitted)]
    leased = await engine.claim(room=200)
    await engine.settle(leased[:100])
    over = {task.id for task in leased[:100]}
    await pass_days(engine, 2)

    second = [each for each in await engine.submitter.submit(tasks) if isinstance(each, Submitted)]

    assert len(second) == 200
    assert [each.is_new for each in second] == [task in over for task in first]
    assert [each.id for each in second if not each.is_new] == [task for task in first if task not in over]


async def test_an_atomic_batch_takes_ended_keys(engine: Engine) -> None:
    await ask(engine)
    await engine.settle(await engine.claim(queue="k"))
    await pass_days(engine, 2)
    tasks = [engine.new_task(), engine.new_task(idempotency_key="k", fingerprint=b"other")]
    now = engine.database.clock.now()
    submitter = Submitter(engine.database, engine.lanes, engine.partitions, engine.woken.extend, now=now)

    answers = await submitter.submit(tasks, is_atomic=True)

    assert all(isinstance(each, Submitted) and each.is_new for each in answers)


async def test_a_repeated_request_gives_its_task_though_the_key_has_ended(engine: Engine) -> None:
    request = uuid.UUID(int=engine.database.clock.now_ms() << 80 | 7 << 76 | 2 << 62)
    task = [engine.new_task(idempotency_key="k")]
    [first] = await engine.submitter.submit(task, request, b"f")
    await engine.settle(await engine.claim())
    await pass_days(engine, 1.01)

    [again] = await engine.submitter.submit(task, request, b"f")

    assert isinstance(first, Submitted)
    assert isinstance(again, Submitted)
    assert (again.id, again.is_new) == (first.id, False)


async def test_upkeep_deletes_what_has_ended_and_keeps_the_rest(engine: Engine) -> None:
    for key in ("over", "open"):
        await ask(engine, key)
    await engine.settle(await engine.claim(queue="over"))
    await pass_days(engine, 2)
    await ask(engine, "young")
    await tidy(engine)
    assert await keys(engine) == 2

    # What is kept is looked at a few times a day, not at every turn.
    rows = await engine.database.fetch(
        "SELECT key FROM idempotency_key WHERE expires_at <= $1", engine.database.clock.now()
    )
    assert rows == []
    await engine.settle(await engine.claim(queue="open"))
    await pass_days(engine, 0.3)
    await retire_keys(engine.database, engine.database.clock.now())

    assert [row["key"] for row in await engine.database.fetch("SELECT key FROM idempotency_key")] == ["young"]
