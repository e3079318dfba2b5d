"""The command line: one module per noun, imported only when its command is used.

Bad usage ends with exit code 2 and one sentence on standard error; a refusal
by the server with exit code 1.  There is never a traceback.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from duetime.errors import DuetimeError, UsageError
from duetime.passwords import hide_passwords

#: Command → (module, what `duetime --help` says of it).
COMMANDS = {
    "up": ("server.up", "run everything on this machine, with an embedded PostgreSQL"),
    "serve": ("server.up", "run a node on a PostgreSQL server"),
    "worker": ("worker.worker", "run a worker: duetime worker module:worker"),
    "submit": ("tasks.submit", "submit a task, or a file of tasks"),
    "tasks": ("tasks.tasks", "look at tasks and steer them"),
    "dead": ("tasks.dead", "dead letters: list, redrive, drop"),
    "outbox": ("tasks.outbox", "tasks written in producers' own transactions: what was refused"),
    "schedules": ("schedules.schedules", "what fires when: look at it, set it, steer it, apply files of it"),
    "calendars": ("schedules.calendars", "named sets of dates that schedules leave out"),
    "keys": ("tenancy.keys", "API keys and the signing secret"),
    "tenants": ("tenancy.tenants", "the teams on this service: weights, quotas, suspend, resume"),
    "tiers": ("tenancy.tiers", "weights and quotas for tenants that set none of their own"),
    "types": ("flow.types", "task types and the schemas of their payloads"),
    "queues": ("flow.queues", "queues: pause, resume, limit"),
    "limits": ("flow.limits", "limits of keys that tasks name"),
    "breakers": ("flow.breakers", "target hosts that are called less or not at all; force them"),
    "audit": ("tenancy.audit", "what was done to tenants and keys, by whom"),
    "cluster": ("server.cluster", "the nodes and how many shards each feeds"),
    "migrate": ("server.migrate", "bring the database's schema to this version of duetime"),
    "doctor": ("server.doctor", "check a database: settings, schema, invariants"),
    "bench": ("bench.bench", "measure an installation, and say what limits it"),
}


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence. It accepts options before, between and after the other words."""

    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Intermixed parsing is not possible for a parser with subcommands. It also calls this method again.
        if self._is_mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False
        if unknown:
            # Reported here and not by the parser above, whose help does not have this command's options.
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only the wanted command's module is imported."""
    parser = Parser(prog="duetime", description="A task scheduler: hand it a task and a time.")
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    wanted = COMMANDS[command][0] if command in COMMANDS else None
    if wanted is not None:
        importlib.import_module(f"duetime.cli.{wanted}").add_parser(subparsers)
    for name, (module, meaning) in COMMANDS.items():
        if module != wanted:
            subparsers.add_parser(name, help=meaning)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in given if not word.startswith("-")), None)
    try:
        parser = make_parser(command)
        parsed = parser.parse_args(given)
        if not hasattr(parsed, "run"):
            parser.print_help()
            return 2 if given else 0
        return int(parsed.run(parsed))
    except UsageError as error:
        print(f"duetime: {hide_passwords(error.detail)}", file=sys.stderr)
        return 2
    except DuetimeError as error:
        print(f"duetime: {hide_passwords(error.detail)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has closed it. Nothing must be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _version() -> str:
    from importlib.metadata import version

    return f"duetime {version('duetime')}"


if __name__ == "__main__":
    sys.exit(main())
