"""A world on the oldest and on the newest PostgreSQL that we support."""

from collections.abc import AsyncIterator

import pytest

from duetime.database.pool import Database
from views.arrange import World


@pytest.fixture(params=["database_url", "postgres15_url"], ids=["postgres18", "postgres15"])
def each_url(request: pytest.FixtureRequest) -> str:
    # The servers start an event loop of their own, so they cannot be asked for from within one.
    url: str = request.getfixturevalue(request.param)
    return url


@pytest.fixture
async def world(each_url: str) -> AsyncIterator[World]:
    database = await Database.open(each_url, size=2)
    yield await World.make(database)
    await database.close()
