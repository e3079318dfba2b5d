"""One server with the API for each module, and a tenant of its own for each test."""

from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from api.client import Api, Serving, serve
from duetime.database.pool import Database
from services import Server

_numbers = count(1)


@pytest.fixture(scope="module")
def module_url(postgres_server: Server) -> AsyncIterator[str]:
    """A fresh, migrated database for all tests of a module."""
    name = postgres_server.make_database()
    yield postgres_server.url_of(name)
    postgres_server.drop_database(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(module_url: str) -> AsyncIterator[Serving]:
    database = await Database.open(module_url)
    async with serve(database) as serving:
        yield serving
    await database.close()


@pytest_asyncio.fixture(loop_scope="module")
async def api(serving: Serving) -> Api:
    return await serving.tenant(f"team-{next(_numbers)}")
