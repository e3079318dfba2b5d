"""What every store of budgets must keep, on a real PostgreSQL and a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest
import redis
from structlog.testing import capture_logs

import services
from budgets.redis_server import RedisServer
from duetime.budgets.adapters import BudgetsInTurn, open_budgets
from duetime.budgets.contract import Budgets, Want
from duetime.budgets.postgres import PostgresBudgets
from duetime.budgets.redis import RedisBudgets
from duetime.database.migrate import bring_up_to_date
from duetime.database.pool import Database
from duetime.errors import Unavailable

Stores = tuple[Budgets, Budgets]
SLOW = 0.001


async def take(store: Budgets, tokens: float, *, rate: float = SLOW, burst: float = 10.0, name: str = "a") -> float:
    return (await store.take({name: Want(rate, burst, tokens)}))[name]


async def test_a_new_bucket_has_a_seconds_worth_and_no_more_than_its_burst(stores: Stores) -> None:
    store, other = stores
    assert await take(store, 100, rate=7.5, burst=20, name="a") == 7
    assert await take(other, 100, rate=50, burst=20, name="b") == 20
    assert await take(store, 100, rate=SLOW, burst=20, name="c") == 1


async def test_what_one_took_the_other_does_not_get(stores: Stores) -> None:
    store, other = stores
    assert await take(store, 3, rate=5) == 3
    assert await take(other, 100, rate=SLOW) == 2
    assert await take(store, 1, rate=SLOW) == 0


async def test_many_buckets_are_taken_from_in_one_call_each_for_itself(stores: Stores) -> None:
    store, _ = stores
    wanted = {f"bucket {number}": Want(SLOW if number else 1000.0, 50.0, number + 1.0) for number in range(50)}

    granted = await store.take(wanted)
    again = await store.take(wanted)

    assert granted.keys() == wanted.keys()
    assert set(granted.values()) == {1.0}
    assert [name for name, tokens in again.items() if tokens] == ["bucket 0"]
    assert await store.take({}) == {}


async def test_a_fraction_of_a_token_stays_until_it_is_whole(stores: Stores) -> None:
    store, _ = stores
    began = time.monotonic()
    assert await take(store, 1, rate=20, burst=1) == 1
    asked = 0
    while not await take(store, 1, rate=20, burst=1):
        asked += 1
        assert time.monotonic() < began + 5
    # Of many questions none took the fraction away.
    assert time.monotonic() - began >= 0.05 - 0.001
    assert asked > 0


async def test_two_clients_together_never_get_more_than_the_rate_and_the_burst(stores: Stores) -> None:
    rate, burst, got = 400.0, 100.0, 0.0
    began = time.monotonic()

    async def drain(store: Budgets) -> float:
        sum_of_grants = 0.0
        while time.monotonic() < began + 0.5:
            sum_of_grants += await take(store, 30, rate=rate, burst=burst)
        return sum_of_grants

    got = sum(await asyncio.gather(*(drain(store) for store in (*stores, *stores))))
    took = time.monotonic() - began

    # Both wanted far more; what was there they got.
    assert 0.5 * rate - 30 <= got <= rate * took + burst


@pytest.fixture
async def redis_budgets(redis_server: RedisServer) -> AsyncIterator[RedisBudgets]:
    store = RedisBudgets(redis_server.url)
    yield store
    await store.close()


async def test_a_redis_that_forgot_everything_grants_a_seconds_worth_and_not_a_burst(
    redis_server: RedisServer, redis_budgets: RedisBudgets
) -> None:
    assert await take(redis_budgets, 1000, rate=5, burst=1000) == 5
    redis_server.kill()
    with pytest.raises(Unavailable):
        await take(redis_budgets, 1)

    redis_server.start()

    assert await take(redis_budgets, 1000, rate=5, burst=1000) <= 6


@pytest.fixture
def postgres15() -> Iterator[services.Postgres15]:
    """A server of the test's own, which it may kill."""
    with services.private_folder() as folder:
        postgres = services.Postgres15(folder, is_durable=True)
        postgres.start()
        yield postgres
        postgres.stop()


async def test_a_database_that_was_killed_grants_a_seconds_worth_and_not_a_burst(
    postgres15: services.Postgres15,
) -> None:
    url = postgres15.dsn_of("postgres")
    await bring_up_to_date(url)
    database = await Database.open(url, size=1)
    store = PostgresBudgets(database)
    assert await take(store, 1000, rate=5, burst=1000) == 5
    backends = psutil.Process(postgres15.pid).children(recursive=True)

    postgres15.kill()
    with pytest.raises(Unavailable):
        await take(store, 1)
    psutil.wait_procs(backends, timeout=20)
    postgres15.start()
    again = None
    async with asyncio.timeout(20):
        while again is None:
            try:
                again = await take(store, 1000, rate=5, burst=1000)
            except Unavailable:
                await asyncio.sleep(0.02)
    await database.close()

    assert again == 5


async def test_a_bucket_that_expired_in_redis_is_full(redis_server: RedisServer, redis_budgets: RedisBudgets) -> None:
    await take(redis_budgets, 1, rate=1000, burst=50)
    with redis.Redis(port=redis_server.port) as client:
        since = "{duetime:budget}:since"
        assert client.ttl("{duetime:budget}:of:a") in (1, 2)
        client.set(since, float(client.get(since)) - 3600)  # type: ignore[arg-type]
        client.delete("{duetime:budget}:of:a")

    assert await take(redis_budgets, 1000, rate=1, burst=50) == 50


async def test_while_redis_is_away_the_database_keeps_the_budgets_and_it_is_said_once(
    redis_server: RedisServer, store_database: Database
) -> None:
    now = 100.0
    budgets = BudgetsInTurn(RedisBudgets(redis_server.url), PostgresBudgets(store_database), monotonic=lambda: now)
    assert await take(budgets, 2, rate=2) == 2
    redis_server.kill()

    with capture_logs() as logs:
        first = await take(budgets, 2, rate=2)
        second = await take(budgets, 2, rate=SLOW)
        redis_server.start()
        resting = await take(budgets, 2, rate=SLOW)
        now += 6
        back = await take(budgets, 2, rate=2)

    await budgets.close()
    # The database knows nothing of what Redis granted; neither does a Redis that was killed.
    assert (first, second, resting, back) == (2, 0, 0, 2)
    assert [each["event"] for each in logs] == [
        "budgets are kept in the database for now",
        "budgets are kept in Redis again",
    ]


async def test_where_no_redis_is_configured_the_database_keeps_the_budgets(store_database: Database) -> None:
    assert isinstance(open_budgets(store_database, None), PostgresBudgets)
