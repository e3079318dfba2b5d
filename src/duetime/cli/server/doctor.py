"""`duetime doctor`: check a database directly, whether or not a node runs on it.

Exit code 0: all is well; 1: something is wrong, each thing in one sentence; 2:
it could not be checked.  It reads only.
"""

import argparse
import asyncio
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import msgspec

from duetime.admin.first_keys import MAKE_ONE, count_admin_keys
from duetime.admin.invariants import check_invariants
from duetime.admin.secrets import read_key_ids
from duetime.cli.arguments import add_database_options
from duetime.cli.output import counted, paint, paint_state, print_line
from duetime.cli.server.database import find_database
from duetime.config import read_config
from duetime.database.dial import dial
from duetime.database.migrate import OLDEST_SERVER, migrate
from duetime.database.partitions import DATA_PATH, read_partitions
from duetime.database.pool import Database
from duetime.database.settings import PLANNER_SETTINGS
from duetime.database.statements import load
from duetime.errors import DuetimeError, UsageError
from duetime.model.vault import Vault
from duetime.secret_keys import FILE_NAME, read_secrets_keys

_SQL = load(__package__, "doctor.sql")
#: The database's clock decides what is due. A larger difference misleads people who read their own clock.
CLOCK_SECONDS = 5.0
#: A node sends a beat every second.
HEARD_SECONDS = 10.0
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


class Finding(msgspec.Struct, frozen=True):
    """One check: its result, or each problem that it found."""

    check: str
    ok: bool
    detail: str
    problems: list[str] = []


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check a database: settings, schema, invariants",
        description="Check a database directly: the server, its settings, the schema, clocks, partitions, and what "
        "must hold of every task. Reads only. Exit code: 0 all is well, 1 something is wrong, 2 it cannot be checked.",
        allow_abbrev=False,
    )
    add_database_options(parser)
    parser.add_argument(
        "--secrets-key-file", metavar="FILE", help="keys that must open what is encrypted (that of the data folder)"
    )
    parser.add_argument("--deep", action="store_true", help="read every row; without it some thousand tasks")
    parser.add_argument("--json", action="store_true", help="one JSON object: ok, checks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        findings = asyncio.run(_examine(arguments))
    except UsageError:
        raise
    except DuetimeError as error:
        raise UsageError(error.detail) from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UsageError(f"the database cannot be checked: {str(error) or type(error).__name__}") from error
    _show(findings, arguments.json)
    return 0 if all(finding.ok for finding in findings) else 1


async def _examine(arguments: argparse.Namespace) -> list[Finding]:
    async with find_database(arguments) as dsn:
        connection = await dial(dsn, command_timeout=30.0)
        try:
            findings = [await _check_version(connection)]
            if not findings[0].ok:
                return findings
            findings += [
                await _check_settings(connection),
                await _check_durability(connection),
                await _check_clock(connection),
                schema := await _check_schema(connection),
            ]
            if not schema.ok:
                return findings
            findings.append(await _check_partitions(connection))
            findings.append(await _check_nodes(connection))
        finally:
            await connection.close(timeout=5.0)
        findings += await _check_rows(dsn, arguments.deep, _vault_of(arguments))
        return findings


async def _fetch(connection: asyncpg.Connection, name: str, **parameters: object) -> list[asyncpg.Record]:
    statement = _SQL[name]
    rows: list[asyncpg.Record] = await connection.fetch(statement.sql, *statement.arguments(parameters))
    return rows


async def _check_version(connection: asyncpg.Connection) -> Finding:
    # The driver parses the second number of "18.4" as a third one.
    [row] = await _fetch(connection, "read_version")
    name = f"PostgreSQL {row['version']}"
    if connection.get_server_version().major < OLDEST_SERVER:
        return _wrong("server", f"this is {name}, and duetime needs {OLDEST_SERVER} or newer")
    return Finding("server", True, name)


async def _check_settings(connection: asyncpg.Connection) -> Finding:
    """Return the settings of a real session of this role: a pooler or `ALTER SYSTEM` cannot hide them."""
    rows = await _fetch(connection, "read_settings", names=list(PLANNER_SETTINGS))
    problems = [
        f"{row['name']} is {row['value'] or 'not set'} and has to be {PLANNER_SETTINGS[row['name']]}: "
        "run duetime migrate as the role that nodes use"
        for row in rows
        if row["value"] != PLANNER_SETTINGS[row["name"]]
    ]
    given = "; ".join(f"{name} = {value}" for name, value in PLANNER_SETTINGS.items())
    return Finding(
        "settings", not problems, f"this role has the planner settings that statements need ({given})", problems
    )


async def _check_durability(connection: asyncpg.Connection) -> Finding:
    rows = await _fetch(connection, "read_settings", names=["fsync", "full_page_writes", "synchronous_commit"])
    problems = [
        f"{row['name']} is off: a task that was accepted may be lost when the server dies"
        for row in rows
        if row["value"] == "off"
    ]
    return Finding("durability", not problems, "what is committed survives a crash", problems)


async def _check_clock(connection: asyncpg.Connection) -> Finding:
    before = time.time()
    [row] = await _fetch(connection, "read_clock")
    answered = float(row["now"])
    after = time.time()
    # The database read its clock somewhere in between. Only a time outside of that range is a difference.
    difference = max(before - answered, answered - after, 0.0)
    words = f"the database's and this machine's differ by {difference:.3f} s"
    if difference > CLOCK_SECONDS:
        return _wrong("clock", f"{words}: set the clock that is wrong")
    return Finding("clock", True, words if difference >= 0.001 else "the database's and this machine's agree")


async def _check_schema(connection: asyncpg.Connection) -> Finding:
    try:
        steps = await migrate(connection, dry_run=True)
    except UsageError as error:
        return _wrong("schema", error.detail)
    if steps:
        names = ", ".join(f"{step.migration.number:04} {step.migration.name}" for step in steps)
        return _wrong("schema", f"{counted(len(steps), 'migration')} to apply ({names}): run duetime migrate")
    [row] = await _fetch(connection, "read_migration")
    return Finding("schema", True, f"at migration {row['number']}, which is the latest")


async def _check_partitions(connection: asyncpg.Connection) -> Finding:
    [row] = await _fetch(connection, "read_clock")
    now_ms = int(row["now"] * 1000)
    wanted = [
        (table, "today" if ahead == 0 else "tomorrow", now_ms + ahead) for table in DATA_PATH for ahead in (0, _DAY_MS)
    ]
    wanted += [
        ("request_key", "this hour" if ahead == 0 else "the next hour", now_ms + ahead) for ahead in (0, _HOUR_MS)
    ]
    spans: dict[str, list[tuple[int, int]]] = {}
    for table in (*DATA_PATH, "request_key"):
        spans[table] = [span for _, span in await read_partitions(connection, f"duetime.{table}")]
    problems = [
        f"{table} has no partition for {day}: a running node makes it within half a minute"
        for table, day, moment in wanted
        if not any(start <= moment < end for start, end in spans[table])
    ]
    total = sum(len(found) for found in spans.values())
    return Finding("partitions", not problems, f"{total} in all, those of today and tomorrow are there", problems)


async def _check_nodes(connection: asyncpg.Connection) -> Finding:
    """Compare by the database's clock only. A single node shares nothing and is not listed."""
    rows = await _fetch(connection, "read_nodes", within=timedelta(seconds=HEARD_SECONDS))
    heard = sum(row["is_heard"] for row in rows)
    words = f"{counted(heard, 'node')} in sight that share the shards" if heard else "none that share the shards"
    if len(rows) > heard:
        words += f"; {len(rows) - heard} ended without a word, and others feed their shards"
    return Finding("nodes", True, words)


async def _check_rows(dsn: str, deep: bool, vault: Vault) -> list[Finding]:
    database = await Database.open(dsn, size=1)
    try:
        return [
            await _check_keys(database),
            await _check_secrets(database, deep, vault),
            await _check_tasks(database, deep),
        ]
    finally:
        await database.close()


def _vault_of(arguments: argparse.Namespace) -> Vault:
    """Return the keys that a node would have if it were started here."""
    config = read_config({name: getattr(arguments, name) for name in ("secrets_key_file", "data", "database_url")})
    folder_key = Path(config.data) / FILE_NAME
    is_of_folder = bool(arguments.data) or not config.database_url
    if is_of_folder and not config.secrets_keys and config.secrets_key_file is None and folder_key.exists():
        config = read_config({"secrets_key_file": str(folder_key)})
    return Vault(read_secrets_keys(config))


async def _check_secrets(database: Database, deep: bool, vault: Vault) -> Finding:
    """Without a key, do not report whether secrets can be decrypted: only the nodes may have the key."""
    used = await read_key_ids(database, deep=deep)
    if not used:
        return Finding("secrets", True, "none is stored" if deep else "none was found; --deep looks at every task")
    if not vault:
        names = ", ".join(used)
        return Finding("secrets", True, f"encrypted with {names}; give --secrets-key-file to check that they open")
    problems = [
        f"secrets are encrypted with key {key}, which is none of those given here: calls that need them fail until the "
        "nodes have it"
        for key in used
        if key not in vault.key_ids
    ]
    return Finding("secrets", not problems, "the keys given here open all that were found", problems)


async def _check_keys(database: Database) -> Finding:
    count = await count_admin_keys(database)
    if not count:
        return _wrong("keys", f"no admin key is valid: {MAKE_ONE}")
    return Finding("keys", True, f"{counted(count, 'admin key')} can be used")


async def _check_tasks(database: Database, deep: bool) -> Finding:
    problems = [violation.sentence for violation in await check_invariants(database, deep=deep)]
    scope = "of every task" if deep else "of the tasks looked at; --deep reads all"
    return Finding("tasks", not problems, f"all invariants hold {scope}", problems)


def _wrong(check: str, problem: str) -> Finding:
    return Finding(check, False, problem, [problem])


def _show(findings: list[Finding], as_json: bool) -> None:
    ok = all(finding.ok for finding in findings)
    if as_json:
        print_line(msgspec.json.encode({"ok": ok, "checks": findings}).decode())
        return
    for finding in findings:
        for sentence in finding.problems or [finding.detail]:
            print_line(f"{paint_state('ok   ' if finding.ok else 'wrong')}  {finding.check:<10}  {sentence}")
    wrong = sum(len(finding.problems) for finding in findings)
    print_line(paint("All is well." if ok else f"{counted(wrong, 'thing')} wrong.", "bold"))
