"""`duetime migrate`: bring a database's schema to this version, to another, or show the way."""

import argparse
import asyncio
import json
import os
from pathlib import Path

from duetime.database.dial import dial
from duetime.database.embedded import EmbeddedServer
from duetime.database.migrate import Step, migrate
from duetime.errors import UsageError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("migrate", help="bring the database's schema to this version of duetime")
    parser.add_argument("--database-url", metavar="URL", help="the PostgreSQL database (or DUETIME_DATABASE_URL)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the embedded PostgreSQL (.duetime)")
    parser.add_argument("--to", type=int, metavar="N", help="the migration to go to, up or down (the latest)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--json", action="store_true", help="one JSON object for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.database_url and arguments.data:
        raise UsageError("--database-url and --data are two databases: give one of them")
    url = arguments.database_url or (None if arguments.data else os.environ.get("DUETIME_DATABASE_URL"))
    steps = asyncio.run(_migrate(url, arguments.data or Path(".duetime"), arguments.to, arguments.dry_run))
    _show(steps, arguments.dry_run, arguments.json)
    return 0


async def _migrate(url: str | None, data: Path, to: int | None, dry_run: bool) -> list[Step]:
    if url is not None:
        return await _migrate_at(url, to, dry_run)
    server = EmbeddedServer(data, is_supervised=False)
    await server.start()
    try:
        return await _migrate_at(server.dsn, to, dry_run)
    finally:
        await server.stop()


async def _migrate_at(url: str, to: int | None, dry_run: bool) -> list[Step]:
    connection = await dial(url, command_timeout=600.0)
    try:
        return await migrate(connection, to=to, dry_run=dry_run)
    finally:
        await connection.close(timeout=5.0)


def _show(steps: list[Step], dry_run: bool, as_json: bool) -> None:
    if as_json:
        listed = [
            {"direction": step.direction, "number": step.migration.number, "name": step.migration.name}
            for step in steps
        ]
        print(json.dumps({"steps": listed, "dry_run": dry_run}))
        return
    if not steps:
        print("Nothing to do: the schema is there already.")
    for step in steps:
        print(f"{'would go' if dry_run else 'went'} {step.direction} {step.migration.number:04} {step.migration.name}")


def _named(step: Step) -> dict[str, object]:
    return {"number": step.migration.number, "name": step.migration.name}
