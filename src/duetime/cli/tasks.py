"""`duetime tasks`: look at tasks and steer them, one by one or by filter."""

import argparse
from collections.abc import Iterator

import msgspec

from duetime.cli import arguments as words
from duetime.cli import bulk
from duetime.cli.connect import add_connection_options, add_json_option, fetch, sentence_of, talk
from duetime.cli.output import Table, counted, paint_state, print_line, print_note, print_raw
from duetime.cli.show import TASK_COLUMNS, print_explanation, print_task, task_row
from duetime.errors import UsageError
from duetime.sdk import wire
from duetime.sdk.client import Client
from duetime.sdk.errors import Conflict, NotFound
from duetime.sdk.shapes import BulkResult, Explanation, Page, Task
from duetime.sdk.wire import Call, Filter, Verb

PAGE = 200
_STEP = 1_000

#: Verb → (help, "this will …", what was done).
_VERBS: dict[Verb, tuple[str, str, str]] = {
    "cancel": ("cancel tasks, also running ones", "cancel", "Cancelled"),
    "pause": ("keep waiting tasks back until they are resumed", "pause", "Paused"),
    "resume": ("let paused tasks go on", "resume", "Resumed"),
    "run-now": ("make waiting or paused tasks due at once", "run now", "Made due"),
    "retry": ("give dead letters new attempts; try again now what waits for its next one", "retry", "Retried"),
    "reschedule": ("give waiting or paused tasks another time", "reschedule", "Rescheduled"),
}


class RawPage(msgspec.Struct):
    """A page whose items are kept as they were sent."""

    items: list[msgspec.Raw]
    next: str | None = None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tasks = subparsers.add_parser(
        "tasks", help="look at tasks and steer them", description="Look at tasks and steer them.", allow_abbrev=False
    )
    tasks.set_defaults(run=lambda _: _show_help(tasks))
    actions = tasks.add_subparsers(metavar="ACTION", parser_class=type(tasks))

    listing = actions.add_parser("list", help="list tasks", description="List tasks.", allow_abbrev=False)
    words.add_filter_options(listing, has_state=True)
    add_page_options(listing)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    for name, meaning, run in (
        ("get", "show tasks with all their attempts", _get),
        ("explain", "say why tasks are where they are, and what would free them", _explain),
    ):
        parser = actions.add_parser(name, help=meaning, description=_sentence(meaning), allow_abbrev=False)
        parser.add_argument("ids", nargs="+", type=words.task_id, metavar="ID")
        _finish(parser, "the server's JSON, a line for each task")
        parser.set_defaults(run=lambda given, run=run: talk(given, lambda client: run(client, given)))

    for verb, (meaning, _, _) in _VERBS.items():
        parser = actions.add_parser(
            verb,
            help=meaning,
            description=f"{_sentence(meaning)} By id, or by filter: then it asks first, and goes on until all "
            "tasks that fit are done.",
            allow_abbrev=False,
        )
        parser.add_argument("ids", nargs="*", type=words.task_id, metavar="ID")
        if verb == "reschedule":
            parser.add_argument("--run-at", type=words.instant, metavar="TIME", help="RFC 3339, or local time")
            parser.add_argument("--delay", type=words.duration, metavar="TIME", help='from now: "5m", "1h30m"')
        words.add_filter_options(parser, has_state=True)
        bulk.add_bulk_options(parser)
        _finish(parser, "by id the server's JSON, a line for each task; by filter one object with the sums")
        parser.set_defaults(run=lambda given, verb=verb: _steer(given, verb))


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _sentence(meaning: str) -> str:
    return meaning[0].upper() + meaning[1:] + "."


def _finish(parser: argparse.ArgumentParser, json_meaning: str) -> None:
    add_json_option(parser, json_meaning)
    add_connection_options(parser)


def add_page_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=words.count, metavar="N", help="show at most so many (50)")
    parser.add_argument("--cursor", metavar="CURSOR", help="go on from here: what the page before named")
    parser.add_argument("--all", action="store_true", help="all that fit, page by page")
    _finish(parser, "the server's page; with --all one line for each")


def check_page_options(arguments: argparse.Namespace) -> None:
    if arguments.all and arguments.limit is not None:
        raise UsageError("--all and --limit contradict each other: give one of them")


def _list(client: Client, arguments: argparse.Namespace) -> int:
    check_page_options(arguments)
    wanted = words.filter_of(arguments)

    def call(limit: int | None, cursor: str | None) -> Call[Page]:
        return wire.list_tasks(wanted, limit=limit, cursor=cursor)

    if arguments.json:
        if not arguments.all:
            print_raw(fetch(client, call(arguments.limit, arguments.cursor)))
            return 0
        print_all(client, call, arguments.cursor)
        return 0
    table = Table(TASK_COLUMNS)
    number = 0
    cursor = arguments.cursor
    for page in _pages(client, call, arguments):
        if page.items:
            table.add([task_row(task) for task in page.items])
        number += len(page.items)
        cursor = page.next
    say_rest(number, cursor, "task", bool(wanted or arguments.cursor))
    return 0


def print_all(client: Client, call: "wire.Callable[[int | None, str | None], Call[Any]]", cursor: str | None) -> None:
    while True:
        page = msgspec.json.decode(fetch(client, call(PAGE, cursor)), type=RawPage)
        for item in page.items:
            print_raw(bytes(item))
        if (cursor := page.next) is None:
            return
