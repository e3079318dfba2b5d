"""A real PostgreSQL for every test: one server a session, a fresh migrated database a test."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import services
from duetime.database.pool import Database
from services import Server

pytest_plugins = ["nodes"]
# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
#: These go first, so that no process is left with one of them when the others are done.
LONG_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        *("schemathesis", "storm", "simulation", "worker", "shutdown", "processes", "plans", "commands"),
        *("hot_statements", "core_properties", "database_away", "examples"),
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path) -> Iterator[Server]:
    """The embedded PostgreSQL 18; it does not fsync, so tests that kill a server start their own."""
    embedded = services.start_embedded(server_folder / "embedded")
    server = Server.at(embedded.dsn_of("postgres"))
    server.make_template()
    yield server
    server.admin.close()
    asyncio.run(embedded.stop())


@pytest.fixture(scope="session")
def postgres15_server(server_folder: Path) -> Iterator[Server]:
    """Debian's PostgreSQL 15, the oldest that we support."""
    folder = server_folder / "postgres15"
    folder.mkdir()
    postgres = services.Postgres15(folder)
    postgres.start()
    server = Server.at(postgres.dsn_of("postgres"))
    server.make_template()
    yield server
    server.admin.close()
    postgres.stop()


@pytest.fixture
def database_url(postgres_server: Server) -> Iterator[str]:
    """A fresh, migrated database on PostgreSQL 18."""
    name = postgres_server.make_database()
    yield postgres_server.url_of(name)
    postgres_server.drop_database(name)


@pytest.fixture
def postgres15_url(postgres15_server: Server) -> Iterator[str]:
    """A fresh, migrated database on PostgreSQL 15."""
    name = postgres15_server.make_database()
    yield postgres15_server.url_of(name)
    postgres15_server.drop_database(name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open `Database` on a fresh, migrated PostgreSQL 18 database."""
    opened = await Database.open(database_url)
    yield opened
    await opened.close()
