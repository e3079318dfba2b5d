"""A node is ready while it can write, and one failure or one success changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from duetime.database.pool import Database
from duetime.scheduler.readiness import FAILURES, SUCCESSES, Readiness

FULL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON write_proof EXECUTE FUNCTION refuse();
"""


class Watched:
    """A node's readiness, with seconds that pass when the test says so."""

    def __init__(self, database: Database) -> None:
        self.now = 1_000.0
        self.reason: str | None = None
        self._pauses: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.readiness = Readiness(database, "here", lambda: self.reason, monotonic=lambda: self.now, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        going_on = asyncio.get_running_loop().create_future()
        self._pauses.put_nowait(going_on)
        await going_on

    async def ask(self) -> str | None:
        return await self.readiness.why_not_ready()

    async def ask_later(self) -> str | None:
        self.now += 10.0
        return await self.ask()

    async def until_it_waits(self) -> asyncio.Future[None]:
        """It has tried once more, and waits for the second to pass."""
        async with asyncio.timeout(20.0):
            return await self._pauses.get()

    async def until_it_is_certain(self) -> None:
        """It has tried as often as it must."""
        await self.readiness.settled()


@pytest.fixture
async def watched(database: Database) -> AsyncIterator[Watched]:
    watched = Watched(database)
    yield watched
    await watched.readiness.close()


async def last_proof(database: Database) -> int:
    """A number that each write makes greater."""
    [row] = await database.fetch("SELECT max(xmin::text::bigint) AS version FROM write_proof")
    return int(row["version"])


async def test_a_node_is_ready_when_it_has_written(watched: Watched, database: Database) -> None:
    assert await watched.ask() is None

    [row] = await database.fetch("SELECT node, length(filler) AS length FROM write_proof")
    assert row["node"] == "here"
    # One row of it fills a page.
    assert row["length"] > 4_096


async def test_all_who_ask_within_a_second_share_one_write(watched: Watched, database: Database) -> None:
    assert await asyncio.gather(*[watched.ask() for _ in range(20)]) == [None] * 20
    watched.now += 0.9
    await watched.ask()

    before = await last_proof(database)
    await watched.ask()
    assert await last_proof(database) == before
    watched.now += 0.2
    await watched.ask()
    assert await last_proof(database) > before


async def test_a_disk_that_is_full_makes_a_node_unready_and_it_says_why(watched: Watched, database: Database) -> None:
    assert await watched.ask() is None
    await database.execute(FULL)

    # Once may be chance.
    assert await watched.ask_later() is None
    for _ in range(FAILURES - 1):
        (await watched.until_it_waits()).set_result(None)
    await watched.until_it_is_certain()
    assert "No space left on device" in (await watched.ask_later() or "")


async def test_a_node_that_can_write_again_is_ready_after_a_few_writes(watched: Watched, database: Database) -> None:
    await database.execute(FULL)
    assert await watched.ask() is not None
    await watched.until_it_is_certain()
    await database.execute("DROP TRIGGER full_disk ON write_proof")

    for _ in range(SUCCESSES - 1):
        assert await watched.ask_later() is not None
        (await watched.until_it_waits()).set_result(None)
    await watched.until_it_is_certain()

    assert await watched.ask() is None


async def test_one_failure_among_successes_is_not_seen(watched: Watched, database: Database) -> None:
    assert await watched.ask() is None
    await database.execute(FULL)
    assert await watched.ask_later() is None

    going_on = await watched.until_it_waits()
    await database.execute("DROP TRIGGER full_disk ON write_proof")
    going_on.set_result(None)

    for _ in range(5):
        assert await watched.ask_later() is None


async def test_a_node_that_never_wrote_is_not_ready(watched: Watched, database: Database) -> None:
    await database.execute(FULL)

    assert "No space left on device" in (await watched.ask() or "")


async def test_a_node_without_a_connection_stays_unready_until_it_has_one(
    watched: Watched, database: Database, database_url: str
) -> None:
    assert await watched.ask() is None
    name = urlsplit(database_url).path[1:]
    operator = await asyncpg.connect(database_url.replace(f"/{name}", "/postgres"))
    await operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await operator.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)

    await watched.ask_later()
    for _ in range(FAILURES - 1):
        (await watched.until_it_waits()).set_result(None)
    for _ in range(5):
        await watched.until_it_is_certain()
        assert await watched.ask_later() is not None

    await watched.until_it_is_certain()
    await operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await operator.close()
    for _ in range(SUCCESSES - 1):
        assert await watched.ask_later() is not None
        (await watched.until_it_waits()).set_result(None)
    await watched.until_it_is_certain()
    assert await watched.ask() is None


async def test_what_else_is_wrong_is_told_without_a_write(watched: Watched, database: Database) -> None:
    watched.reason = "the node is stopping"

    assert await watched.ask() == "the node is stopping"
    assert await database.fetch("SELECT 1 FROM write_proof") == []
