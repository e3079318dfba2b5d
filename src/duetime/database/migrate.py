"""Migrations: plain SQL files, up and down, applied in order and only once.

Each `migrations/NNNN_name.up.sql` has a matching `.down.sql`.  Each runs in a
transaction of its own with the row that records it.  A file whose first line is
`-- outside a transaction` runs statement by statement instead (CREATE INDEX
CONCURRENTLY); it may stop half way, so its statements must be repeatable.  An advisory
lock lets many nodes start at once.  An applied file never changes (its checksum is
kept), and a database that is newer than the code is refused.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import asyncpg

from duetime.database.dial import dial
from duetime.database.settings import PLANNER_SETTINGS
from duetime.database.statements import load
from duetime.errors import UsageError

_SQL = load(__package__, "migrate.sql")
OLDEST_SERVER = 15
OUTSIDE_MARKER = "-- outside a transaction"
_LOCK_KEY = 0x64756574696D65  # "duetime"
_LOCK_SECONDS = 600.0
#: There is no time limit for rewriting or indexing a large table.
_STATEMENT_SECONDS = 24 * 3600.0
_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.(up|down)\.sql")
# Where a statement may end: not inside a string, a quoted name, a comment or a dollar-quoted body.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | (?P<tag>\$\w*\$).*?(?P=tag) | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Migration:
    """One step of the schema, and the way back."""

    number: int
    name: str
    up: str
    down: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.up.replace("\r\n", "\n").encode()).hexdigest()


@dataclass(frozen=True)
class Step:
    """One migration to apply, or to reverse."""

    direction: Literal["up", "down"]
    migration: Migration

    @property
    def sql(self) -> str:
        return self.migration.up if self.direction == "up" else self.migration.down


def read_migrations() -> list[Migration]:
    """The migrations that come with this code, in order and without a gap."""
    texts: dict[tuple[int, str], dict[str, str]] = {}
    for file in resources.files("duetime.database").joinpath("migrations").iterdir():
        if found := _FILE_NAME.fullmatch(file.name):
            texts.setdefault((int(found[1]), found[2]), {})[found[3]] = file.read_text(encoding="utf-8")
    migrations = [Migration(number, name, each["up"], each["down"]) for (number, name), each in sorted(texts.items())]
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise RuntimeError("the migrations are not numbered 1, 2, 3 …")
    return migrations


async def migrate(
    connection: asyncpg.Connection,
    to: int | None = None,
    dry_run: bool = False,
    migrations: Sequence[Migration] | None = None,
) -> list[Step]:
    """Bring the schema to migration `to` (None: the latest). Return the steps; with `dry_run` do not take them."""
    known = read_migrations() if migrations is None else list(migrations)
    target = len(known) if to is None else to
    if not 0 <= target <= len(known):
        raise UsageError(f"there is no migration {target}: this version of duetime knows 0 to {len(known)}")
    check_server(connection)
    if dry_run:
        return _plan(known, await _read_applied(connection), target)
    async with _locked(connection):
        if target > 0:
            await connection.execute(_SQL["make_ledger"].sql)
        steps = _plan(known, await _read_applied(connection), target)
        for step in steps:
            try:
                await _take(connection, step)
            except asyncpg.PostgresError as error:
                # The steps before it are done, and stay done.
                at = step.migration.number - (step.direction == "up")
                raise UsageError(
                    f"migration {step.migration.number} ({step.migration.name}, {step.direction}) failed: {error}\n"
                    f"The database is at migration {at}."
                ) from error
        if target == len(known):
            await apply_settings(connection)
        if target == 0:
            await _forget(connection)
    return steps


async def bring_up_to_date(database_url: str) -> None:
    """Migrate to this version's schema; many nodes may do so at once."""
    connection = await dial(database_url, command_timeout=600.0)
    try:
        await migrate(connection)
    finally:
        await connection.close(timeout=5.0)


def check_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_SERVER:
        raise UsageError(f"duetime needs PostgreSQL {OLDEST_SERVER} or newer, and this server is {version.major}")


async def apply_settings(connection: asyncpg.Connection) -> None:
    """Set, for every later session of this role in this database, the settings that duetime's query plans need."""
    if await read_settings(connection) == PLANNER_SETTINGS:
        return
    database = await connection.fetchval(_SQL["read_database"].sql)
    async with connection.transaction():
        for name, value in PLANNER_SETTINGS.items():
            await connection.execute(_SQL["set_for_now"].sql, name, value)
            await connection.execute(_SQL["keep_setting"].spelled(database=database, name=name).sql)


async def read_settings(connection: asyncpg.Connection) -> dict[str, str]:
    """Which of these settings this role has in this database."""
    entries: list[str] | None = await connection.fetchval(_SQL["read_settings"].sql)
    pairs = dict(entry.split("=", 1) for entry in entries or ())
    return {name: value for name, value in pairs.items() if name in PLANNER_SETTINGS}


def split_statements(sql: str) -> list[str]:
    """The statements of a file, without the comments between them."""
    statements, start = [], 0
    for token in _TOKEN.finditer(sql):
        if token["end"]:
            statements.append(sql[start : token.start()])
            start = token.end()
    statements.append(sql[start:])
    return [statement.strip() for statement in statements if _has_content(statement)]


def _has_content(statement: str) -> bool:
    return bool(re.sub(r"--[^\n]*|/\*.*?\*/", "", statement, flags=re.DOTALL).strip())


def _plan(known: list[Migration], applied: dict[int, tuple[str, str]], target: int) -> list[Step]:
    if applied and max(applied) > len(known):
        raise UsageError(
            f"the database is at migration {max(applied)} and this version of duetime knows {len(known)}: "
            "install the version of duetime that the database was last used with"
        )
    for migration in known:
        record = applied.get(migration.number)
        if record is not None and record != (migration.name, migration.checksum):
            raise UsageError(
                f"migration {migration.number} ({record[0]}) of the database is not the {migration.name} of this "
                "version of duetime: an applied migration never changes, so restore the file or use another database"
            )
    down = [Step("down", migration) for migration in reversed(known[target:]) if migration.number in applied]
    up = [Step("up", migration) for migration in known[:target] if migration.number not in applied]
    return down + up


async def _read_applied(connection: asyncpg.Connection) -> dict[int, tuple[str, str]]:
    if not await connection.fetchval(_SQL["has_ledger"].sql):
        return {}
    rows = await connection.fetch(_SQL["read_ledger"].sql)
    return {row["number"]: (row["name"], row["checksum"]) for row in rows}


async def _take(connection: asyncpg.Connection, step: Step) -> None:
    if step.sql.startswith(OUTSIDE_MARKER):
        await connection.execute(_SQL["find_tables"].sql)
        for statement in split_statements(step.sql):
            await connection.execute(statement, timeout=_STATEMENT_SECONDS)
        await _record(connection, step)
        return
    async with connection.transaction():
        await connection.execute(_SQL["find_tables_for_now"].sql)
        await connection.execute(step.sql, timeout=_STATEMENT_SECONDS)
        await _record(connection, step)


async def _record(connection: asyncpg.Connection, step: Step) -> None:
    migration = step.migration
    if step.direction == "up":
        await connection.execute(_SQL["record"].sql, migration.number, migration.name, migration.checksum)
    else:
        await connection.execute(_SQL["strike_out"].sql, migration.number)


async def _forget(connection: asyncpg.Connection) -> None:
    """Reverse all migrations: leave the database as it was before the first one."""
    database = await connection.fetchval(_SQL["read_database"].sql)
    async with connection.transaction():
        for name in PLANNER_SETTINGS:
            await connection.execute(_SQL["drop_setting"].spelled(database=database, name=name).sql)
        await connection.execute(_SQL["drop_ledger"].sql)


@asynccontextmanager
async def _locked(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Hold the lock that allows one migrating session at a time.

    The lock is tried again and again, because a session that waits inside the server
    keeps a snapshot, for which CREATE INDEX CONCURRENTLY of the other session would wait.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LOCK_SECONDS
    while not await connection.fetchval(_SQL["try_lock"].sql, _LOCK_KEY):
        if loop.time() > deadline:
            raise UsageError("another process has been migrating this database for ten minutes: see what it waits for")
        await asyncio.sleep(0.05)
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute(_SQL["unlock"].sql, _LOCK_KEY)
