"""`duetime worker module:worker`: run a worker from the command line."""

import argparse
import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

from duetime.cli.connect import add_connection_options, find_server
from duetime.cli.worker.logs import add_log_options, set_up_logs

if TYPE_CHECKING:
    from duetime.sdk.worker.worker import Worker


class _WrongWorker(Exception):
    """The named object is not a worker. The message is for the user."""


class _BrokenModule(_WrongWorker):
    """The module exists but fails: show the user where."""

    def __init__(self, message: str, trace: traceback.TracebackException) -> None:
        super().__init__(message)
        self.trace = trace


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "worker",
        help="run a worker",
        description="Run the worker that a Python module holds, until SIGTERM or Ctrl-C "
        "(the first finishes what runs, the second stops at once).",
    )
    parser.add_argument("worker", metavar="module:worker", help="the module, and the Worker in it (default: worker)")
    parser.add_argument("--queues", metavar="A,B", help="queues to take tasks from, in place of the worker's own")
    parser.add_argument("--tags", metavar="A,B", help="tags that this worker has")
    parser.add_argument("--concurrency", type=int, metavar="N", help="async handlers at a time")
    parser.add_argument("--threads", type=int, metavar="N", help="plain handlers at a time")
    parser.add_argument("--prefetch", type=int, metavar="N", help="tasks that wait beside those that run")
    parser.add_argument("--name", help="the first part of the worker's name (default: the host's name)")
    parser.add_argument("--shutdown-timeout", metavar="SECONDS", help='for what runs at the end, like 25 or "2m"')
    parser.add_argument(
        "--max-silence",
        metavar="SECONDS",
        help='how long it may be silent before it counts as dead, 6 to 600 or "10m" (default: 9, or as its queues say)',
    )
    add_connection_options(parser, has_tenant=False)
    add_log_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from duetime.sdk.errors import SdkError

    set_up_logs(arguments)
    if arguments.data:
        # It comes before the settings in the code. Without it, the worker finds the server itself.
        arguments.url, arguments.key = find_server(arguments)
    try:
        worker = load_worker(arguments.worker)
        worker.configure(
            url=arguments.url,
            key=arguments.key,
            queues=_split(arguments.queues),
            tags=_split(arguments.tags),
            concurrency=arguments.concurrency,
            threads=arguments.threads,
            prefetch=arguments.prefetch,
            name=arguments.name,
            shutdown_timeout=arguments.shutdown_timeout,
            max_silence=arguments.max_silence,
        )
    except _BrokenModule as error:
        print("".join(error.trace.format()), end="", file=sys.stderr)
        return _say(error)
    except (_WrongWorker, ValueError) as error:
        return _say(error)
    try:
        worker.run()
    except SdkError as error:
        return _say(error)
    return 0


def _say(error: Exception) -> int:
    print(f"duetime worker: {error}", file=sys.stderr)
    return 2


def load_worker(name: str) -> "Worker":
    """Return the Worker that `module:attribute` names. The current folder is searched first."""
    from duetime.sdk.worker.worker import Worker

    module_name, _, attribute = name.partition(":")
    if not module_name:
        raise _WrongWorker(f'"{name}" names no module: write module:worker')
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        trace = _trace_of_user(error)
        if isinstance(error, ModuleNotFoundError) and error.name is not None and not trace.stack:
            raise _WrongWorker(f"there is no module {error.name}") from error
        raise _BrokenModule(f"{module_name} cannot be imported: {type(error).__name__}: {error}", trace) from error
    for part in (attribute or "worker").split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _WrongWorker(f"{module_name} has no {attribute or 'worker'}") from error
    if not isinstance(found, Worker):
        raise _WrongWorker(f"{name} is not a Worker but a {type(found).__name__}")
    return found


def _trace_of_user(error: Exception) -> traceback.TracebackException:
    """Leave out our frames and Python's, which only show that a module was imported."""
    trace = traceback.TracebackException.from_exception(error)
    parts = [trace]
    while parts:
        part = parts.pop()
        part.stack[:] = [
            frame
            for frame in part.stack
            if frame.filename not in (__file__, importlib.__file__)
            and not frame.filename.startswith("<frozen importlib")
        ]
        parts += [each for each in (part.__cause__, part.__context__, *(part.exceptions or ())) if each is not None]
    return trace


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]
