"""A folder for the processes of a test, and a database that a node of its own may serve."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import services
from duetime.admin.first_keys import ensure_default
from duetime.database.pool import Database
from faults.cast import Cast


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


@pytest.fixture
async def cast(folder: Path, database_url: str) -> AsyncIterator[Cast]:
    """Nodes, workers and targets around one database; whatever is left is ended after the test."""
    database = await Database.open(database_url, size=2)
    _, key = await ensure_default(database)
    assert key is not None
    cast = Cast(folder, database_url, key, database)
    yield cast
    await asyncio.to_thread(cast.end)
    await database.close()
