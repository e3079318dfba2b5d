"""Submitting: once, whatever the concurrency and whatever breaks."""

import asyncio
import uuid
from datetime import timedelta

import asyncpg
import pytest

from duetime.database.pool import Database
from duetime.errors import Conflict, IdempotencyConflict, InvalidInput, Unavailable, Unknown
from duetime.ids import due_ms_of, make_id
from duetime.lifecycle.submission.batch import Load, Submitted, batch_of
from duetime.lifecycle.submission.storing import SQL
from duetime.lifecycle.submission.submitter import FEW_TASKS, LARGE_AT_ONCE
from duetime.model.task import TaskState
from engine import Engine, submitted
from proxy import proxied


async def count(database: Database, table: str) -> int:
    value: int = (await database.fetch(f"SELECT count(*) AS n FROM {table}"))[0]["n"]
    return value


def uuid7(engine: Engine, low: int = 1) -> uuid.UUID:
    return uuid.UUID(int=engine.database.clock.now_ms() << 80 | 7 << 76 | 2 << 62 | low)


async def test_a_batch_keeps_its_order(engine: Engine) -> None:
    tasks = await engine.submit(500)

    assert tasks == sorted(tasks)
    assert [leased.id for leased in await engine.claim(room=500)] == tasks


async def test_a_time_in_the_past_is_now_and_the_asked_time_is_kept(engine: Engine) -> None:
    asked = engine.database.clock.now() - timedelta(days=3)

    [task] = await engine.submit(run_at=asked)

    assert due_ms_of(task) >= engine.database.clock.now_ms() - 5_000
    [leased] = await engine.claim()
    assert leased.run_at == asked


async def test_a_time_is_rounded_up_to_the_millisecond(engine: Engine) -> None:
    asked = (engine.database.clock.now() + timedelta(hours=1)).replace(microsecond=123_001)

    [task] = await engine.submit(run_at=asked)

    assert due_ms_of(task) % 1000 == 124


async def test_ten_years_ahead_is_the_same_rows(engine: Engine) -> None:
    [task] = await engine.submit(run_at=engine.database.clock.now() + timedelta(days=3650))

    assert await engine.state(task) is TaskState.SCHEDULED


async def test_the_same_key_from_many_connections_is_one_task(engine: Engine, database_url: str) -> None:
    databases = [await Database.open(database_url) for _ in range(3)]
    engines = [Engine(database) for database in databases]
    for each in engines:
        each.tenant = engine.tenant

    async def submit(number: int) -> Submitted:
        task = engines[number % 3].new_task(idempotency_key="order-17")
        [answer] = await engines[number % 3].submitter.submit([task])
        assert isinstance(answer, Submitted)
        return answer

    answers = await asyncio.gather(*[submit(number) for number in range(60)])

    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.is_new for answer in answers) == 1
    assert await count(engine.database, "task") == 1
    for database in databases:
        await database.close()


async def test_a_key_twice_in_one_batch_is_one_task(engine: Engine) -> None:
    tasks = [engine.new_task(idempotency_key=key) for key in ("a", "b", "a")]

    first, _, third = await engine.submitter.submit(tasks)

    assert submitted(first) == submitted(third)
    assert await count(engine.database, "due") == 2


async def test_another_body_under_the_same_key_is_a_conflict(engine: Engine) -> None:
    await engine.submitter.submit([engine.new_task(idempotency_key="k", fingerprint=b"one")])

    [answer] = await engine.submitter.submit([engine.new_task(idempotency_key="k", fingerprint=b"two")])

    assert isinstance(answer, IdempotencyConflict)
    assert await count(engine.database, "task") == 1


async def test_a_key_is_free_again_after_its_retention(engine: Engine) -> None:
    [first] = await engine.submitter.submit([engine.new_task(idempotency_key="k")])
    await engine.settle(await engine.claim())
    await engine.database.execute("UPDATE idempotency_key SET expires_at = now() - interval '1 second'")

    [second] = await engine.submitter.submit([engine.new_task(idempotency_key="k", fingerprint=b"other")])

    assert submitted(first) != submitted(second)


async def test_two_tenants_may_use_the_same_key_and_the_same_request(engine: Engine) -> None:
    other = await Engine.open(engine.database, "other")
    request = uuid7(engine)

    [mine] = await engine.submitter.submit([engine.new_task(idempotency_key="k")], request, b"f")
    [theirs] = await other.submitter.submit([other.new_task(idempotency_key="k")], request, b"f")

    assert submitted(mine) != submitted(theirs)


async def test_a_repeated_request_gives_the_same_tasks(engine: Engine) -> None:
    request = uuid7(engine)
    tasks = [engine.new_task() for _ in range(100)]

    first = await engine.submitter.submit(tasks, request, b"body")
    second = await engine.submitter.submit(tasks, request, b"body")

    assert [submitted(each) for each in first] == [submitted(each) for each in second]
    assert not any(isinstance(each, Submitted) and each.is_new for each in second)
    assert await count(engine.database, "due") == 100


async def test_concurrent_repeats_of_a_request_are_one(engine: Engine) -> None:
    request = uuid7(engine)
    tasks = [engine.new_task() for _ in range(10)]

    # Enough of them that some share a commit and some come after it.
    answers = await asyncio.gather(*[engine.submitter.submit(tasks, request, b"body") for _ in range(30)])

    assert len({tuple(submitted(each) for each in answer) for answer in answers}) == 1
    assert await count(engine.database, "task") == 10


async def test_another_body_under_the_same_request_is_a_conflict(engine: Engine) -> None:
    request = uuid7(engine)
    await engine.submitter.submit([engine.new_task()], request, b"one")

    [answer] = await engine.submitter.submit([engine.new_task()], request, b"two")

    assert isinstance(answer, IdempotencyConflict)


async def test_one_bad_row_does_not_fail_strangers(engine: Engine) -> None:
    good = [engine.submitter.submit([engine.new_task()]) for _ in range(20)]
    bad = engine.submitter.submit([engine.new_task(labels={"k": "\x00"})])

    answers = await asyncio.gather(*good[:10], bad, *good[10:], return_exceptions=True)

    assert isinstance(answers[10], InvalidInput)
    assert all(isinstance(answer, list) for place, answer in enumerate(answers) if place != 10)
    assert await count(engine.database, "task") == 20


async def test_ids_that_became_too_old_on_the_way_are_not_stored(engine: Engine) -> None:
    lane = await engine.lanes.ensure(engine.lane_key())
    minted_ms = engine.database.clock.now_ms() - 5_500
    rows = await engine.database.run(
        SQL["submit"],
        now=None,
        minted_ms=minted_ms,
        tolerance_ms=5_000,
        ahead_ms=10,
        lanes=None,
        lane=lane,
        ids=[make_id(minted_ms, 1, lane)],
        types=None,
        type="t",
        payloads=[b"{}"],
        options=[None],
        labels=[None],
        run_us=[None],
        expires_ats=[None],
        holders=[],
    )

    assert rows == []
    assert await count(engine.database, "task") == 0


@pytest.mark.parametrize("seconds", [-60, 60])
@pytest.mark.parametrize("way", ["single", "batch", "keyed", "atomic"])
async def test_ids_of_a_clock_that_has_jumped_are_refused_and_minted_anew(
    engine: Engine, seconds: int, way: str
) -> None:
    """The database's clock was a minute away when the node read it last."""
    real_us = engine.database.clock.now_us()
    await engine.submit()
    engine.database.clock.observe(real_us + seconds * 1_000_000)

    match way:
        case "single":
            [task] = await engine.submit()
        case "batch":
            task = (await engine.submit(5))[4]
        case "keyed":
            [task] = await engine.submit(idempotency_key="k")
        case _:
            answers = await engine.submitter.submit([engine.new_task(idempotency_key="k")], is_atomic=True)
            task = submitted(answers[0])

    assert 0 <= due_ms_of(task) - real_us // 1000 < 60_000 - 5_000
    [row] = await engine.database.fetch("SELECT count(*) AS waiting FROM due WHERE wake <= $1", task)
    assert row["waiting"] == await count(engine.database, "task")
    assert [each.id for each in await engine.claim("w")][-1] == task


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_a_commit_whose_answer_was_lost_is_not_repeated(database_url: str, is_keyed: bool) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        await engine.submit()  # the lane is there, the statements are prepared
        task = engine.new_task(idempotency_key="k" if is_keyed else None)
        await engine.submitter.submit([task] if not is_keyed else [engine.new_task(idempotency_key="warm")])
        before = await count(database, "task")

        proxy.swallow = 1
        [answer] = await engine.submitter.submit([task])

        assert isinstance(answer, Submitted)
        assert answer.is_new
        assert proxy.swallow == 0
        assert await count(database, "task") == before + 1
        assert await engine.state(answer.id) is TaskState.READY
        await database.close()


async def test_a_batch_whose_answer_was_lost_is_stored_once(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        await engine.submit()
        proxy.swallow = 1

        tasks = await engine.submit(300)

        assert len(set(tasks)) == 300
        assert await count(database, "due") == 301
        await database.close()


async def test_a_database_that_is_away_is_said_so_and_nothing_is_stored(database_url: str) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through)
        engine = await Engine.open(database)
        await engine.submit()
        proxy.is_away = True
        proxy.cut()

        with pytest.raises(Unavailable):
            await engine.submit()

        proxy.is_away = False
        assert await count(database, "task") == 1
        await engine.submit()
        assert await count(database, "task") == 2
        await database.close()


async def test_an_insert_in_doubt_that_is_still_running_is_waited_for(
    engine: Engine, other: asyncpg.Connection
) -> None:
    """The repeat of a statement waits for the first one, which another connection still executes."""
    lane = await engine.lanes.ensure(engine.lane_key())
    minted_ms = engine.database.clock.now_ms()
    arguments = {
        "now": None,
        "minted_ms": minted_ms,
        "tolerance_ms": 5_000,
        "ahead_ms": 10,
        "lanes": None,
        "lane": lane,
        "ids": [make_id(minted_ms, 7, lane)],
        "types": None,
        "type": "t",
        "payloads": [b"{}"],
        "options": [None],
        "labels": [None],
        "run_us": [None],
        "expires_ats": [None],
        "holders": [],
    }
    no_keys: dict[str, object] = {name: [] for name in SQL["submit_repeated"].parameters if name not in arguments}
    no_keys["request"] = None
    again = {name: value for name, value in arguments.items() if name not in ("holders", "ahead_ms")} | no_keys
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(SQL["submit"].sql, *SQL["submit"].arguments(arguments))

    repeating = asyncio.ensure_future(engine.database.run_with(SQL["submit_repeated"], again))
    done, _ = await asyncio.wait([repeating], timeout=0.3)
    assert not done
    await transaction.commit()

    assert [(row["count"], row["ids"]) for row in await repeating] == [(0, [])]
    assert await count(engine.database, "due") == 1


async def test_an_atomic_batch_with_a_conflicting_key_stores_nothing(engine: Engine) -> None:
    await engine.submitter.submit([engine.new_task(idempotency_key="taken", fingerprint=b"one")])
    tasks = [
        engine.new_task(),
        engine.new_task(idempotency_key="free"),
        engine.new_task(idempotency_key="taken", fingerprint=b"two"),
    ]

    answers = await engine.submitter.submit(tasks, is_atomic=True)

    assert [type(answer) for answer in answers] == [Conflict, Conflict, IdempotencyConflict]
    assert await count(engine.database, "task") == 1
    assert await count(engine.database, "idempotency_key") == 1


async def test_an_atomic_batch_stores_all_and_gives_known_tasks_back(engine: Engine) -> None:
    [known] = await engine.submitter.submit([engine.new_task(idempotency_key="known")])
    tasks = [engine.new_task(idempotency_key=key) for key in ("known", "new", "new")]

    answers = await engine.submitter.submit(tasks, is_atomic=True)

    ids = [submitted(answer) for answer in answers]
    assert ids[0] == submitted(known)
    assert ids[1] == ids[2]
    assert await count(engine.database, "due") == 2


async def test_what_is_too_old_to_be_repeated_is_looked_for(engine: Engine) -> None:
    """The answer was lost, and by the time the database is back the ids are too old to be stored again."""
    task = engine.new_task()
    lanes = [await engine.lanes.ensure(task.lane)]
    batch = batch_of([task], lanes, engine.tenant)
    load = Load([batch])
    store = engine.submitter._store
    minted_ms = await engine.submitter.prepare(load)
    await store.store(load, minted_ms, None)
    old_ms = minted_ms - 6_000

    answers = await store.store_keyed(load, old_ms, None, is_repeat=True)

    assert answers == [[batch.new(batch.ids[0])]]
    named = batch_of([task], lanes, engine.tenant, uuid7(engine))
    batch.ids, named.ids = [make_id(old_ms, 3, lanes[0])], [make_id(old_ms, 4, lanes[0])]
    assert await store.store_keyed(Load.minted([named]), old_ms, None, is_repeat=True) is None
    # A copy on its way would be stored if the clock went back; and a request that is tried in part is not written down.
    keyed = batch_of([engine.new_task(idempotency_key="own")], lanes, engine.tenant)
    keyed.ids = [make_id(old_ms, 5, lanes[0])]
    told = await store.store_keyed(Load.minted([batch, named, keyed]), old_ms, None, is_repeat=True)
    assert told is not None
    assert [type(each[0]) for each in told] == [Unknown, Unknown, type(None)]
    assert await count(engine.database, "task") == 1


async def test_large_commits_leave_room_for_those_who_submit_little(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.lifecycle.submission.submitter.QUIET_SECONDS", 600.0)
    await engine.submit(FEW_TASKS + 1)
    assert engine.submitter._count_large_at_once() == LARGE_AT_ONCE

    await engine.submit(1)
    assert engine.submitter._count_large_at_once() == 1
