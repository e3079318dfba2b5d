"""Every store of budgets, as the contract's tests see it: empty for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from budgets.redis_server import RedisServer
from duetime.budgets.contract import Budgets
from duetime.budgets.postgres import PostgresBudgets
from duetime.budgets.redis import RedisBudgets
from duetime.database.pool import Database
from services import Server


@pytest.fixture(scope="module")
def store_url(postgres_server: Server) -> Iterator[str]:
    name = postgres_server.make_database()
    yield postgres_server.url_of(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def kept_redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(kept_redis_server: RedisServer) -> RedisServer:
    """It may be killed; the next test starts it again."""
    kept_redis_server.start()
    with redis.Redis(port=kept_redis_server.port) as client:
        client.flushall()
    return kept_redis_server


@pytest.fixture
async def store_database(store_url: str) -> AsyncIterator[Database]:
    database = await Database.open(store_url)
    await database.execute("TRUNCATE budget")
    yield database
    await database.close()


@pytest.fixture(params=["postgres", "redis"])
async def stores(
    request: pytest.FixtureRequest, store_database: Database, redis_server: RedisServer
) -> AsyncIterator[tuple[Budgets, Budgets]]:
    """Two clients of one store."""
    if request.param == "redis":
        opened: list[Budgets] = [RedisBudgets(redis_server.url), RedisBudgets(redis_server.url)]
    else:
        opened = [PostgresBudgets(store_database), PostgresBudgets(store_database)]
    yield opened[0], opened[1]
    for store in opened:
        await store.close()
