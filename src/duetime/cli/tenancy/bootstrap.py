"""`duetime keys bootstrap`: make an admin key with access to the database.

It makes the first key of a new installation, or a new one when the last admin
key is lost.  It needs no server: the right to write to the database includes the
right to every key in it.
"""

import argparse
import asyncio

import asyncpg
import msgspec

from duetime.admin.first_keys import bootstrap_key
from duetime.api.bodies.answers import KeyMade
from duetime.cli.output import counted, print_line, print_note
from duetime.cli.server.database import find_database
from duetime.database.dial import dial
from duetime.database.migrate import migrate
from duetime.database.pool import Database
from duetime.errors import DuetimeError, UsageError


def run(arguments: argparse.Namespace) -> int:
    try:
        made = asyncio.run(_make(arguments))
    except UsageError:
        raise
    except DuetimeError as error:
        raise UsageError(error.detail) from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UsageError(f"no key can be made: {str(error) or type(error).__name__}") from error
    if arguments.json:
        print_line(msgspec.json.encode(made).decode())
    else:
        print_line(made.key)
        print_note(f"Key {made.id} (admin of the tenant {made.tenant}); it is shown only this once.")
    return 0


async def _make(arguments: argparse.Namespace) -> KeyMade:
    async with find_database(arguments) as url:
        await _check_schema(url)
        database = await Database.open(url, size=1)
        try:
            tenant, info, key = await bootstrap_key(database)
        finally:
            await database.close()
    return KeyMade(info.id, key, info.role, tenant.name)


async def _check_schema(url: str) -> None:
    connection = await dial(url, command_timeout=30.0)
    try:
        steps = await migrate(connection, dry_run=True)
    finally:
        await connection.close(timeout=5.0)
    if steps:
        raise UsageError(f"the database lacks {counted(len(steps), 'migration')}: run duetime migrate first")
