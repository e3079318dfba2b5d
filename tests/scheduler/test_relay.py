"""The relay of the outbox on a real database: a task exactly when its transaction commits, however late."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from duetime.admin.tenants import create_tenant
from duetime.api.service.outbox import reading
from duetime.api.tasks.validation import TaskReader
from duetime.database.pool import Database
from duetime.errors import Unavailable
from duetime.lifecycle.submission.outbox import NOTHING_SEEN, Outbox, retire_refused
from duetime.model.task import Kind
from duetime.scheduler.feed import Ask, Feeder
from duetime.scheduler.relay import Relay
from duetime.views.outbox import RefusedView, find_number, list_refused
from engine import Engine
from proxy import proxied

#: Every row of the test's own, from its transaction on.
FIRST = (0, 0)


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.open(database)


@pytest.fixture
def outbox(engine: Engine) -> Outbox:
    return outbox_of(engine)


@pytest.fixture
def relay(outbox: Outbox) -> Relay:
    return Relay(outbox)


@pytest.fixture
async def producer(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """An application's own connection: nothing of duetime is in its path."""
    connection = await asyncpg.connect(database_url, server_settings={"search_path": "public"})
    yield connection
    await connection.close()


def outbox_of(engine: Engine) -> Outbox:
    return Outbox(engine.database, engine.lanes, engine.submitter, reading(TaskReader()))


async def enqueue(connection: asyncpg.Connection, tenant: str = "default", **fields: Any) -> int:
    return await write(connection, json.dumps({"type": "test.task", **fields}), tenant)


async def write(connection: asyncpg.Connection, body: str, tenant: str = "default") -> int:
    number: int = await connection.fetchval("SELECT duetime.enqueue($1, $2::text::json)", tenant, body)
    return number


async def relay_all(relay: Relay) -> None:
    while not await relay.step():
        pass


async def stored(database: Database) -> list[str]:
    """Payloads of all tasks, in the order of their ids."""
    return [row["payload"].decode() for row in await database.fetch("SELECT payload FROM task ORDER BY id")]


async def waiting(database: Database) -> int:
    rows: int = (await database.fetch("SELECT count(*) AS n FROM outbox"))[0]["n"]
    return rows


async def task_of(engine: Engine, number: int) -> uuid.UUID | None:
    found = await find_number(engine.database, engine.tenant, number)
    return None if found is None else found.task


async def refused_of(engine: Engine, tenant: int) -> list[RefusedView]:
    rows, has_more = await list_refused(engine.database, tenant, 0, 10)
    assert not has_more
    return rows


async def test_what_is_committed_becomes_one_task(engine: Engine, relay: Relay, producer: asyncpg.Connection) -> None:
    number = await enqueue(producer, payload=1)

    await relay_all(relay)
    await relay_all(relay)

    [leased] = await engine.claim()
    assert await task_of(engine, number) == leased.id
    assert await stored(engine.database) == ["1"]
    assert await waiting(engine.database) == 0


async def test_what_is_rolled_back_never_was(engine: Engine, relay: Relay, producer: asyncpg.Connection) -> None:
    transaction = producer.transaction()
    await transaction.start()
    number = await enqueue(producer)
    await relay_all(relay)
    await transaction.rollback()
    await relay_all(relay)

    assert await stored(engine.database) == []
    assert await find_number(engine.database, engine.tenant, number) is None


async def test_a_payload_arrives_as_it_was_written(engine: Engine, relay: Relay, producer: asyncpg.Connection) -> None:
    payload = r'{"z": 1.0, "a": 1e2, "nothing": "\u0000", "name": "Zoë"}'
    await write(producer, f'{{"type": "t", "payload": {payload}}}')

    await relay_all(relay)

    assert await stored(engine.database) == [payload]


async def test_a_transaction_that_commits_late_is_not_left_behind(
    engine: Engine, relay: Relay, producer: asyncpg.Connection, database_url: str
) -> None:
    """Its number is given early; the relay and the feeder have long passed when it becomes visible."""
    feeder = Feeder(engine.database, engine.lanes, engine.onward)
    engine.wake_also(feeder.wake)
    await feeder.start()
    holder = await engine.holders.register(engine.tenant, "w")
    ask = Ask(
        holder=holder,
        tenant=engine.tenant,
        kind=Kind.PULL,
        queues=frozenset({"default"}),
        tags=frozenset(),
        room=1,
    )
    late = await asyncpg.connect(database_url)
    try:
        transaction = late.transaction()
        await transaction.start()
        early_number = await enqueue(late, payload="late")
        for place in range(30):
            await enqueue(producer, payload=place)
            await relay_all(relay)
            [leased] = await feeder.lease(ask, 30.0)
            assert leased.payload == str(place).encode()
        await transaction.commit()

        await relay_all(relay)

        [leased] = await feeder.lease(ask, 30.0)
        assert leased.payload == b'"late"'
        assert await task_of(engine, early_number) == leased.id
    finally:
        await late.close()
        await feeder.stop()


async def test_a_look_shows_what_the_one_before_could_not_see_and_nothing_else(
    outbox: Outbox, producer: asyncpg.Connection, database_url: str
) -> None:
    late = await asyncpg.connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    open_then = await enqueue(late)
    ended_then = await enqueue(producer)
    base, first = await outbox.look(NOTHING_SEEN, FIRST, 10)
    begun_since = await enqueue(producer)
    await transaction.commit()
    await late.close()

    _, second = await outbox.look(base, FIRST, 10)

    assert [letter.id for letter in first] == [ended_then]
    assert [letter.id for letter in second] == [open_then, begun_since]


async def test_a_big_transaction_is_relayed_in_batches_and_in_order(
    engine: Engine, outbox: Outbox, producer: asyncpg.Connection
) -> None:
    relay = Relay(outbox, batch=10)
    async with producer.transaction():
        for place in range(25):
            await enqueue(producer, payload=place)

    await relay.step()
    first = await stored(engine.database)
    await relay_all(relay)

    assert first == [str(place) for place in range(10)]
    assert [leased.payload for leased in await engine.claim()] == [str(place).encode() for place in range(25)]


async def test_nobody_waits_for_somebodys_big_transaction(
    engine: Engine, outbox: Outbox, producer: asyncpg.Connection
) -> None:
    await create_tenant(engine.database, "other")
    relay = Relay(outbox, batch=10)
    async with producer.transaction():
        for place in range(200):
            await enqueue(producer, payload=place)
    await relay.step()
    await enqueue(producer, "other", payload="small")

    for _ in range(3):
        await relay.step()

    assert '"small"' in await stored(engine.database)
    assert await waiting(engine.database) > 100
    await relay_all(relay)
    assert len(await stored(engine.database)) == 201


async def test_big_transactions_that_were_open_at_the_last_look_are_relayed_whole(
    engine: Engine, outbox: Outbox, producer: asyncpg.Connection, database_url: str
) -> None:
    relay = Relay(outbox, batch=10)
    late = [await asyncpg.connect(database_url) for _ in range(2)]
    transactions = [connection.transaction() for connection in late]
    for transaction in transactions:
        await transaction.start()
    # In turns, so that neither the numbers nor the transactions of one lie together.
    for place in range(46):
        await enqueue(late[place % 2], payload=place)
    await relay_all(relay)
    for transaction in transactions:
        await transaction.commit()
    for place in range(46, 59):
        await enqueue(producer, payload=place)

    await relay_all(relay)

    tasks = list(map(int, await stored(engine.database)))
    assert sorted(tasks) == list(range(59))
    assert [each for each in tasks if each < 46 and each % 2] == list(range(1, 46, 2))
    assert await waiting(engine.database) == 0
    for connection in late:
        await connection.close()


async def test_what_was_refused_long_ago_is_retired(engine: Engine, relay: Relay, producer: asyncpg.Connection) -> None:
    old, new = [await enqueue(producer, priority="urgent") for _ in range(2)]
    await relay_all(relay)
    await producer.execute(
        "UPDATE duetime.outbox_refused SET refused_at = refused_at - interval '31 days' WHERE id = $1", old
    )

    await retire_refused(engine.database, engine.database.clock.now() - timedelta(days=30))

    assert [each.id for each in await refused_of(engine, engine.tenant)] == [new]


async def test_whatever_answer_is_lost_there_is_one_task(database_url: str, producer: asyncpg.Connection) -> None:
    async with proxied(database_url) as (proxy, through):
        database = await Database.open(through, size=1)
        engine = await Engine.open(database)
        relay = Relay(outbox_of(engine))
        await enqueue(producer, payload=-1)
        await relay.step()
        lost = 0
        # The answer of each statement in turn (look, take, store, note, commit), and then of none.
        for place in range(8):
            await enqueue(producer, payload=place)
            proxy.spare, proxy.swallow = place, 1
            try:
                await relay.step()
            except Unavailable:
                lost += 1
            proxy.spare, proxy.swallow = 0, 0

            await relay.step()

            assert await stored(database) == [str(each) for each in range(-1, place + 1)]
            assert await waiting(database) == 0
        assert 5 <= lost < 8
        await database.close()


async def test_a_relay_that_dies_between_storing_and_committing_leaves_the_row(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    await producer.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';"
        "CREATE TRIGGER die BEFORE INSERT ON duetime.idempotency_key EXECUTE FUNCTION die()"
    )
    await enqueue(producer, payload=1)
    with pytest.raises(Unavailable):
        await relay.step()
    assert (await stored(engine.database), await waiting(engine.database)) == ([], 1)

    await producer.execute("DROP TRIGGER die ON duetime.idempotency_key")
    await relay.step()

    assert (await stored(engine.database), await waiting(engine.database)) == (["1"], 0)


async def test_two_relays_at_once_make_one_task_of_each(engine: Engine, producer: asyncpg.Connection) -> None:
    other = Engine(engine.database)
    relays = [Relay(outbox_of(each), batch=7) for each in (engine, other)]
    async with producer.transaction():
        for place in range(100):
            await enqueue(producer, payload=place)

    await asyncio.gather(*(relay_all(relay) for relay in relays))
    await asyncio.gather(*(relay_all(relay) for relay in relays))

    assert sorted(map(int, await stored(engine.database))) == list(range(100))


async def test_a_row_that_another_relay_gave_up_is_relayed(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    for place in range(3):
        await enqueue(producer, payload=place)
    taking = producer.transaction()
    await taking.start()
    await producer.execute(
        "DELETE FROM duetime.outbox WHERE id = (SELECT id FROM duetime.outbox ORDER BY id OFFSET 1 LIMIT 1)"
    )
    await relay.step()
    assert await stored(engine.database) == ["0", "2"]

    await taking.rollback()
    await relay.step()

    assert sorted(await stored(engine.database)) == ["0", "1", "2"]


async def test_a_node_without_the_duty_looks_at_nothing_and_finds_all_when_it_gets_it(
    engine: Engine, outbox: Outbox, producer: asyncpg.Connection
) -> None:
    has_duty = True
    relay = Relay(outbox, has_duty=lambda duty: has_duty)
    await relay.step()
    has_duty = False
    await enqueue(producer, payload=1)
    await relay.step()
    assert await stored(engine.database) == []

    has_duty = True
    await relay.step()

    assert await stored(engine.database) == ["1"]


async def test_rows_whose_transaction_numbers_come_from_elsewhere_are_found_by_a_look_at_everything(
    engine: Engine, outbox: Outbox, producer: asyncpg.Connection
) -> None:
    """As after a failover to a server that had given out fewer numbers."""
    now = 100.0
    relay = Relay(outbox, monotonic=lambda: now)
    await relay.step()
    await producer.execute(
        "INSERT INTO duetime.outbox (transaction, tenant, body) VALUES (1, $1, $2)", engine.tenant, b'{"type": "t"}'
    )
    await relay.step()
    assert await stored(engine.database) == []

    now = 200.0
    await relay.step()

    assert await stored(engine.database) == ["null"]


async def test_what_is_not_valid_is_kept_with_the_reason_and_holds_nobody_up(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    before = await enqueue(producer, payload="before")
    wrong = await enqueue(producer, priority="urgent", payload="wrong")
    nameless = await write(producer, '{"payload": 1}')
    await enqueue(producer, payload="after")

    await relay_all(relay)

    assert await stored(engine.database) == ['"before"', '"after"']
    assert await waiting(engine.database) == 0
    refused = await refused_of(engine, engine.tenant)
    assert [each.id for each in refused] == [wrong, nameless]
    assert [each.error.errors[0].path for each in refused] == ["priority", "type"]
    assert json.loads(bytes(refused[0].body))["payload"] == "wrong"
    found = [await find_number(engine.database, engine.tenant, number) for number in (before, wrong)]
    assert [each.state for each in found if each is not None] == ["accepted", "refused"]


async def test_what_the_database_refuses_is_refused_alone(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    await producer.execute("ALTER TABLE duetime.task ADD CHECK (type <> 'poison')")
    for place in range(5):
        await enqueue(producer, payload=place, type="poison" if place == 2 else "t")

    await relay_all(relay)

    assert sorted(await stored(engine.database)) == ["0", "1", "3", "4"]
    [refused] = await refused_of(engine, engine.tenant)
    assert refused.error.detail.startswith("the database refuses this task")


async def test_a_key_of_the_producers_own_is_kept(engine: Engine, relay: Relay, producer: asyncpg.Connection) -> None:
    first = await enqueue(producer, idempotency_key="order-17", payload=1)
    again = await enqueue(producer, idempotency_key="order-17", payload=1)
    await relay_all(relay)
    other = await enqueue(producer, idempotency_key="order-17", payload=2)
    await relay_all(relay)

    assert await stored(engine.database) == ["1"]
    assert await task_of(engine, first) == await task_of(engine, again) is not None
    [refused] = await refused_of(engine, engine.tenant)
    assert (refused.id, refused.error.code) == (other, "idempotency_conflict")


async def test_a_key_whose_task_is_over_is_free_after_its_ttl(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    first = await enqueue(producer, idempotency_key="order-17", payload=1)
    await relay_all(relay)
    await engine.database.execute(
        "UPDATE idempotency_key SET expires_at = now() - interval '1 hour' WHERE key = 'order-17'"
    )
    second = await enqueue(producer, idempotency_key="order-17", payload=1)
    await relay_all(relay)
    assert await task_of(engine, first) == await task_of(engine, second)

    await engine.settle(await engine.claim())
    third = await enqueue(producer, idempotency_key="order-17", payload=2)
    await relay_all(relay)

    assert await stored(engine.database) == ["1", "2"]
    assert await task_of(engine, third) not in (None, await task_of(engine, first))


async def test_a_delay_counts_from_the_time_of_writing(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    await enqueue(producer, delay="1h")
    await enqueue(producer, delay="10s")
    await producer.execute("UPDATE duetime.outbox SET written_at = written_at - interval '5 minutes'")
    rows = await producer.fetch("SELECT written_at FROM duetime.outbox ORDER BY id")

    await relay_all(relay)

    tasks = await engine.database.fetch("SELECT run_at, created_at FROM task ORDER BY run_at DESC")
    assert tasks[0]["run_at"] == rows[0]["written_at"] + timedelta(hours=1)
    assert [len(await engine.claim()), tasks[1]["run_at"]] == [1, rows[1]["written_at"] + timedelta(seconds=10)]


async def test_what_expired_before_the_commit_is_accepted_as_it_was_right_when_written(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    soon = engine.database.clock.now() + timedelta(minutes=1)
    await enqueue(producer, expires_at=soon.isoformat())
    await producer.execute("UPDATE duetime.outbox SET written_at = written_at - interval '1 hour'")

    await relay_all(relay)

    assert await stored(engine.database) == ["null"]
    assert await refused_of(engine, engine.tenant) == []


async def test_tenants_in_one_transaction_get_their_own(
    engine: Engine, relay: Relay, producer: asyncpg.Connection
) -> None:
    other = await create_tenant(engine.database, "other")
    async with producer.transaction():
        mine = await enqueue(producer, payload="mine")
        theirs = await enqueue(producer, "other", payload="theirs")
        await enqueue(producer, "other", priority="urgent")

    await relay_all(relay)

    assert [leased.payload for leased in await engine.claim()] == [b'"mine"']
    assert await task_of(engine, mine) is not None
    assert await find_number(engine.database, engine.tenant, theirs) is None
    assert await find_number(engine.database, other.id, mine) is None
    assert await refused_of(engine, engine.tenant) == []
    assert len(await refused_of(engine, other.id)) == 1


@pytest.mark.parametrize(
    ("tenant", "body", "message"),
    [
        ("nobody", '{"type": "t"}', "there is no tenant 'nobody'"),
        (None, '{"type": "t"}', "there is no tenant NULL"),
        ("default", "[]", "a task is a JSON object"),
        ("default", None, "a task is a JSON object"),
        ("default", '{"type": "%s"}' % ("t" * 262_144), "at most 262144 bytes"),
    ],
)
async def test_what_cannot_be_a_task_at_all_fails_the_statement(
    engine: Engine, producer: asyncpg.Connection, tenant: Any, body: Any, message: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=message):
        await write(producer, body, tenant)
