"""The data path by hand."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from duetime.database.pool import Database
from duetime.database.settings import PLANNER_SETTINGS
from engine import Engine


@pytest.fixture
async def engine(database: Database) -> Engine:
    return await Engine.open(database)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else's connection, for transactions that stay open while others move."""
    connection = await asyncpg.connect(database_url, server_settings=PLANNER_SETTINGS)
    yield connection
    await connection.close()
