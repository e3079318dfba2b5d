"""The hot statements keep their index plans and read in proportion to their batch, whatever lies in the tables.

Empty, small, huge, analysed, never analysed or believed empty: every move of the data path is made
with each, and each of its statements is looked at in its generic and in its
custom plan.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta

import pytest

from depth import far
from duetime.clock import from_ms
from duetime.database.pages import PAGE_BYTES
from duetime.database.pool import Database
from duetime.ids import EARLIEST, just_after, lane_of, make_id
from duetime.lifecycle.holders.holders import Named
from duetime.lifecycle.submission.batch import Submission
from duetime.lifecycle.tasks.claim import SQL as CLAIM_SQL
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due, peek
from duetime.lifecycle.tasks.keys import retire_keys
from duetime.lifecycle.tasks.state import read_states
from duetime.model.retry import RetryPolicy
from duetime.model.task import LeasedTask, Options, Outcome, TaskState
from duetime.scheduler.survey import SQL as SURVEY_SQL
from duetime.scheduler.upkeep import Upkeep
from duetime.views.dead import SQL as DEAD_SQL
from duetime.views.tasks import SQL as TASK_SQL
from duetime.views.tasks import read_tasks
from engine import Engine, submitted
from plans.explain import BELIEVE_EMPTY, MODES, ExplainingDatabase, Plan, Plans, explain
from services import Server

HUGE = far(200_000, 1_000_000)
BATCH = 40
QUEUES = [f"queue-{number}" for number in range(20)]
CROWDED = "crowded"
#: What a busy node does all the time, written so that the planner has no choice, whatever it believes of the tables.
HOT = {
    *(
        "claim_due",
        "peek",
        "submit",
        "submit_one",
        "submit_plain",
        "submit_plain_keyed",
        "submit_keyed",
        "read_keys",
        "read_requests",
        "end_succeeded",
        "move_onward",
    ),
    *(
        "read_claims",
        "read_ends",
        "beat",
        "read_started",
        "allow_silence",
        "sign_off",
        "read_signed_off",
        "read_held",
        "read_states",
        "read_oldest",
    ),
    *(
        "cancel",
        "pause",
        "resume",
        "run_now",
        "reschedule",
        "redrive",
        "drop",
        "read_tasks",
        "read_attempts",
        "read_dead",
    ),
    *("free_keys", "keep_keys"),
}
#: Upkeep's own: it reads what ends by the index of ends, and how matters once there is much to read.
WHEN_HUGE = {"expire"}
_CROWD = """
WITH made AS (
    INSERT INTO task (lane, id, type, payload, run_at)
    SELECT $1, mint_wake($2::bigint + place, $1, place), 'common', 'null', clock_timestamp()
      FROM generate_series(1, $3::int) AS place
 RETURNING lane, id
)
INSERT INTO due (lane, wake, task, number)
SELECT lane, id, id, 1 FROM made
"""
_HISTORY = """
WITH made AS (
    INSERT INTO task (lane, id, type, payload, run_at, expires_at)
    SELECT $1, mint_wake($2::bigint - place, $1, place), 'common', 'null', clock_timestamp(),
           clock_timestamp() + interval '1 day'
      FROM generate_series(1, $3::int) AS place
 RETURNING lane, id
)
INSERT INTO attempt (lane, task, number, outcome, final)
SELECT lane, id, 1, 1, true FROM made
"""
_RETRYING = """
INSERT INTO due (lane, wake, task, number, failures)
SELECT $1, mint_wake($2::bigint + 1000000 + place, $1, place), mint_wake($2::bigint - 1000000 - place, $1, place), 2, 1
  FROM generate_series(1, $3::int) AS place
"""


_RESCHEDULED = """
INSERT INTO rescheduled (lane, task, run_at)
SELECT $1, mint_wake($2::bigint - 1000000 - place, $1, place), clock_timestamp()
  FROM generate_series(1, $3::int) AS place
"""


async def fill(url: str, count: int, *, belief: str | None = None) -> None:
    """Waiting tasks of one lane, due and not due yet, beside finished and retrying ones."""
    database = await Database.open(url, size=1)
    engine = await Engine.open(database)
    lane = await engine.lanes.ensure(engine.lane_key(CROWDED))
    now_ms = database.clock.now_ms()
    await engine.partitions.ensure([now_ms - 3 * count, now_ms, now_ms + 2_000_000, now_ms + count])
    await database.execute(_CROWD, lane, now_ms - count // 2, count, timeout=120.0)
    await database.execute(_HISTORY, lane, now_ms - count, count // 10, timeout=120.0)
    await database.execute(_RETRYING, lane, now_ms, count // 10, timeout=120.0)
    await database.execute(_RESCHEDULED, lane, now_ms, count // 10, timeout=120.0)
    if belief is not None:
        await database.execute(belief, timeout=60.0)
    await database.close()


FILLINGS = {
    "empty": (0, None),
    "small": (100, "ANALYZE"),
    "huge": (HUGE, None),
    "believed-empty": (HUGE, BELIEVE_EMPTY),
    "huge-on-postgres15": (HUGE, None),
    "empty-on-postgres15": (0, None),
    "believed-empty-on-postgres15": (HUGE, BELIEVE_EMPTY),
}


@pytest.fixture(scope="module", params=FILLINGS)
def filled_url(request: pytest.FixtureRequest) -> Iterator[str]:
    old = request.param.endswith("postgres15")
    server: Server = request.getfixturevalue("postgres15_server" if old else "postgres_server")
    name = server.make_database()
    count, belief = FILLINGS[request.param]
    asyncio.run(fill(server.url_of(name), count, belief=belief))
    yield server.url_of(name)
    server.drop_database(name)


@pytest.fixture
async def engine(filled_url: str) -> AsyncIterator[Engine]:
    database = await ExplainingDatabase.open(filled_url, size=2)
    engine = Engine(database)
    await engine.lanes.load()
    await engine.partitions.make_ahead()
    engine.tenant = (await database.fetch("SELECT id FROM tenant WHERE name = 'default'"))[0]["id"]
    yield engine
    await database.close()


async def claim(engine: Engine, queues: Sequence[str], room: int) -> list[LeasedTask]:
    holder = await engine.holders.register(engine.tenant, "w")
    lanes = [await engine.lanes.ensure(engine.lane_key(queue)) for queue in queues]
    until = just_after(engine.database.clock.now_ms())
    orders = [LaneOrder(lane, EARLIEST, [(holder, room)]) for lane in lanes]
    claims = await claim_due(engine.database, orders, until)
    return [task for lane in lanes for _, task in claims.taken.get(lane, [])]


async def live(engine: Engine) -> Plans:
    """Every move, with batches of the same size."""
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    plans = database.plans = Plans()
    options = Options(retry=RetryPolicy(min_backoff=600.0))
    per_queue = BATCH // len(QUEUES)
    for queue in QUEUES:
        await engine.lanes.ensure(engine.lane_key(queue))

    tasks = [engine.new_task(queue=queue, options=options) for queue in QUEUES for _ in range(per_queue)]
    await engine.submitter.submit(tasks)
    plain = [engine.new_task(queue=queue) for queue in QUEUES[:2] for _ in range(BATCH // 2)]
    [lone] = await engine.submitter.submit(plain[:1])
    await engine.steering.cancel([submitted(lone)])
    alone = await asyncio.gather(*[engine.submitter.submit([task]) for task in plain])
    await engine.steering.cancel([submitted(each) for [each] in alone])
    for _ in range(2):
        named: list[asyncio.Future[Sequence[Submission] | BaseException]] = []
        for place, task in enumerate(plain):
            lane, request = await engine.lanes.ensure(task.lane), make_id(database.clock.now_ms(), place, 0)
            named.append(asyncio.get_running_loop().create_future())
            engine.submitter.submit_soon(task, lane, named[-1].set_result, request, b"f")
        answers = [each for each in await asyncio.gather(*named) if not isinstance(each, BaseException)]
        await engine.steering.cancel([submitted(each) for [each] in answers])
    keyed = [engine.new_task(queue=QUEUES[0], delay=900.0, idempotency_key=f"key-{n}") for n in range(BATCH)]
    for _ in range(2):
        request = make_id(database.clock.now_ms(), 5, 0)
        [*named_before] = await engine.submitter.submit(keyed, request, b"f")
        await engine.submitter.submit(keyed, request, b"f")
    waiting = [submitted(each) for each in named_before]
    end = from_ms(database.clock.now_ms() + 1)
    await engine.submit(BATCH, delay=900.0, queue=QUEUES[0], expires_at=end)

    await peek(database, dict.fromkeys(engine.lanes.all(), EARLIEST))
    leased = await claim(engine, QUEUES, per_queue)
    assert len(leased) == BATCH
    lanes, until = list(engine.lanes.all()), just_after(database.clock.now_ms())
    await database.run(SURVEY_SQL["read_oldest"], lanes=lanes, hints=[EARLIEST] * len(lanes), until=until)
    await engine.holders.beat(engine.tenant, "w", [Named(task.id, task.number) for task in leased])
    succeeded, failed, buried, left = (leased[place::4] for place in range(4))
    await engine.settle(succeeded)
    await engine.settle(succeeded)
    await engine.settle(failed, Outcome.FAILED)
    await engine.settle(buried, Outcome.FAILED, is_permanent=True)
    await engine.lapse()
    assert {await engine.state(task.id) for task in left} == {TaskState.READY}
    again = await claim(engine, QUEUES, per_queue)
    await engine.holders.allow_silence(again[0].holder, 30.0)
    await engine.holders.sign_off(engine.tenant, "w", [Named(task.id, task.number) for task in again])
    assert {await engine.state(task.id) for task in left} == {TaskState.READY}

    dead = [task.id for task in buried]
    retrying = [task.id for task in failed]
    chosen = [*waiting[: BATCH // 2], *retrying]
    for verb in (engine.steering.pause, engine.steering.resume, engine.steering.run_now):
        assert all(verdict.changed for verdict in (await verb(chosen)).values())
    await engine.steering.reschedule(chosen, from_ms(database.clock.now_ms() + 3_600_000))
    everything = [*chosen, *dead, *waiting]
    assert len(await read_tasks(database, everything[:BATCH], attempts=2)) == BATCH
    await database.run(
        TASK_SQL["read_attempts"], lane=lane_of(dead[0]), task=dead[0], after=0, limit=51, bytes=PAGE_BYTES
    )
    await database.run(DEAD_SQL["read_dead"], lanes=[lane_of(task) for task in dead], ids=dead, bytes=PAGE_BYTES)
    await engine.steering.redrive(dead[::2])
    await engine.steering.drop(dead[1::2])
    later = database.clock.now() + timedelta(days=2)
    await retire_keys(database, later)
    await engine.steering.cancel(everything)
    await retire_keys(database, later + timedelta(days=1))
    await read_states(database, everything)
    await expire(engine)
    database.plans = None
    return plans


async def expire(engine: Engine) -> None:
    keep = timedelta(days=7)
    upkeep = Upkeep(
        engine.database, engine.partitions, engine.lanes, engine.steering, retention=keep, dead_retention=keep
    )
    await upkeep.expire()


async def test_every_move_reads_by_index_and_in_proportion_to_its_batch(engine: Engine) -> None:
    plans = await live(engine)

    assert {plan.statement for plan in plans.all} >= HOT | WHEN_HUGE
    checked = HOT | WHEN_HUGE if await is_huge(engine.database) else HOT
    for plan in plans.all:
        told = (plan.statement, plan.mode, plan.rows_read(), plan.rows_sorted(), plan.pages())
        assert plan.rows_sorted() <= 2 * BATCH, told
        assert plan.pages() <= 50 * BATCH, told
        if plan.statement in checked:
            assert plan.rows_read() <= 7 * BATCH, told
            assert plan.wrong_ways() == [], told


async def test_a_claim_reads_in_proportion_to_what_it_takes(engine: Engine) -> None:
    database = engine.database
    assert isinstance(database, ExplainingDatabase)
    await claim(engine, [CROWDED], 1)
    database.plans = Plans()

    rooms = (1, 10, 100, 1000)
    taken = [len(await claim(engine, [CROWDED], room)) for room in rooms]
    explained = [(room, took) for room, took in zip(rooms, taken, strict=True) for _ in MODES]

    is_crowded = await is_huge(database)
    for plan, (room, took) in zip(database.plans.all, explained, strict=True):
        if is_crowded:
            assert took == room
        # Looked at, deleted, joined to its task; and the lane's next row.
        assert plan.rows_read() <= 3 * took + 1, (plan.mode, room, plan.rows_read())
        assert plan.pages() <= 40 * took + 200, (plan.mode, room, plan.pages())


async def is_huge(database: Database) -> bool:
    return bool(await database.fetch("SELECT 1 FROM task WHERE type = 'common' OFFSET 1000 LIMIT 1", timeout=60.0))


@pytest.mark.parametrize("url", ["database_url", "postgres15_url"], ids=["postgres18", "postgres15"])
def test_a_plan_that_was_made_while_the_tables_were_tiny_holds_when_they_are_huge(
    url: str, request: pytest.FixtureRequest
) -> None:
    asyncio.run(outgrow(request.getfixturevalue(url)))


async def outgrow(url: str) -> None:
    await fill(url, 100, belief="ANALYZE")
    database = await Database.open(url, size=2)
    engine = Engine(database)
    await engine.lanes.load()
    engine.tenant = (await database.fetch("SELECT id FROM tenant WHERE name = 'default'"))[0]["id"]
    lane = await engine.lanes.ensure(engine.lane_key(CROWDED))
    holder = await engine.holders.register(engine.tenant, "w")
    now_ms = database.clock.now_ms()
    statement = CLAIM_SQL["claim_due"]
    arguments = statement.arguments(
        {
            "lanes": [lane],
            "hints": [EARLIEST],
            "rooms": [BATCH],
            "slots": [0],
            "until": just_after(now_ms),
            "now_ms": now_ms,
            "holders": [holder] * BATCH,
            "now": None,
        }
    )
    async with database.connection() as connection:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE kept AS {statement.sql}")
        before = await explain(connection, statement.sql, arguments, MODES[0], prepared="kept")
        await database.execute(_CROWD, lane, now_ms - HUGE, HUGE, timeout=120.0)
        after = await explain(connection, statement.sql, arguments, MODES[0], prepared="kept")
    assert Plan("claim_due", "kept", before).rows_read() > 0
    assert Plan("claim_due", "kept", after).rows_read() <= 3 * BATCH + 1
    await database.close()


@pytest.mark.parametrize("left", [0, 1, 20, 100])
async def test_settling_reads_by_task_however_few_claims_the_last_vacuum_saw(database_url: str, left: int) -> None:
    """A busy holder has many claims, and the planner believes in few."""
    database = await ExplainingDatabase.open(database_url, size=2)
    assert isinstance(database, ExplainingDatabase)
    engine = await Engine.open(database)
    await engine.submit(1_000)
    leased = await engine.claim(room=1_000)
    await engine.settle(leased[left:])
    await database.execute("VACUUM (ANALYZE) claim")
    await engine.submit(1_000)
    leased = await engine.claim(room=1_000)

    database.plans = Plans()
    await engine.settle(leased[-BATCH:])
    await engine.settle(leased[:BATCH], Outcome.FAILED)

    for plan in [*database.plans.of("end_succeeded"), *database.plans.of("move_onward")]:
        # Once to find the claim, once to take it.
        assert plan.rows_read() <= 2 * BATCH, (plan.statement, plan.mode, plan.rows_read())
        assert plan.rows_compared() <= 10 * BATCH, (plan.statement, plan.mode, plan.rows_compared())
    await database.close()
