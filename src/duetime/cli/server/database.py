"""Find the database for commands that need no server: by an address, or in a data folder."""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import asyncpg

from duetime.database.driver import DroppedConnection
from duetime.database.embedded import DATABASE, USER, EmbeddedServer
from duetime.errors import UsageError


@asynccontextmanager
async def find_database(arguments: argparse.Namespace) -> AsyncIterator[str]:
    """Return the database's address. A folder's server is started if it does not run."""
    if arguments.database_url and arguments.data:
        raise UsageError("--database-url and --data are two databases: give one of them")
    url = arguments.database_url or (None if arguments.data else os.environ.get("DUETIME_DATABASE_URL"))
    if url:
        yield url
        return
    folder = Path(arguments.data or os.environ.get("DUETIME_DATA") or ".duetime")
    if not (folder / "postgres").is_dir():
        raise UsageError(f"{folder} is no data folder of `duetime up`: give --database-url, or the folder with --data")
    running = await _find_running(folder)
    if running is not None:
        yield running
        return
    server = EmbeddedServer(folder, is_supervised=False)
    await server.start()
    try:
        yield server.dsn
    finally:
        await server.stop()


async def _find_running(folder: Path) -> str | None:
    """Return the address of the folder's own server, if it accepts the folder's own password."""
    try:
        port = int((folder / "port").read_text())
        password = (folder / "password").read_text().strip()
    except PermissionError as error:
        raise UsageError(f"{folder} belongs to another user: ask as the one who runs `duetime up`") from error
    except (OSError, ValueError):
        return None
    dsn = f"postgresql://{USER}:{quote(password)}@127.0.0.1:{port}/{DATABASE}?sslmode=disable"
    try:
        connection = await asyncpg.connect(dsn, timeout=5.0, connection_class=DroppedConnection)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return None
    await connection.close(timeout=5.0)
    return dsn
