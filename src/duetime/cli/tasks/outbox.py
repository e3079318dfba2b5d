"""`duetime outbox`: what producers wrote in their own transactions and could not become a task."""

import argparse
from collections.abc import Callable

import msgspec

from duetime.cli.actions import Action, Command, Given, RunAction, Subparsers, list_pages, tell, with_client
from duetime.cli.output import (
    Column,
    counted,
    local_time,
    print_fields,
    print_json,
    print_line,
    print_raw,
    printable,
)
from duetime.cli.paging import pages
from duetime.errors import UsageError
from duetime.sdk.calls.administration import OUTBOX, REFUSED
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.operation import OutboxNumber, Refused


def add_parser(subparsers: Subparsers) -> None:
    Command(
        "outbox",
        "tasks written in producers' own transactions: what was refused",
        "Tasks that producers wrote in their own transactions, by duetime.enqueue.",
        (
            Action(
                "list",
                "list what was refused, and why",
                list_pages(_page, _COLUMNS, _row, "refused task"),
                is_paged=True,
            ),
            Action(
                "show",
                "what became of a number",
                tell(lambda given: OUTBOX.get(given.number), _say),
                (
                    lambda parser: parser.add_argument(
                        "number", type=_number, metavar="NUMBER", help="the number that enqueue gave"
                    ),
                ),
            ),
            Action("retry", "judge refused ones again", _each("retried", Client.retry_refused), (_add_numbers,)),
            Action("delete", "throw refused ones away", _each("deleted", Client.delete_refused), (_add_numbers,)),
        ),
    ).add_to(subparsers)


_COLUMNS = (Column("NUMBER"), Column("TYPE"), Column("REFUSED"), Column("BECAUSE"))


def _add_numbers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("numbers", nargs="*", type=_number, metavar="NUMBER")
    parser.add_argument("--all", action="store_true", help="every one that is refused now")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of the outbox")
    return int(text)


def _page(_: Given, limit: int, cursor: str | None) -> ApiCall[Page[Refused]]:
    return REFUSED.list(limit=limit, cursor=cursor)


def _row(refused: Refused) -> tuple[str, ...]:
    kind = str(refused.body.get("type", "")) if isinstance(refused.body, dict) else ""
    return str(refused.id), kind, local_time(refused.refused_at), refused.error.detail


def _say(found: OutboxNumber) -> None:
    print_line(f"Number {found.id}  {found.state}" + (f", task {found.task}" if found.task else ""))
    if (refused := found.refused) is not None:
        print_fields(
            [
                ("because", printable(refused.error.detail)),
                ("refused", local_time(refused.refused_at)),
                ("written", local_time(refused.written_at)),
            ]
        )
        print_json("task", refused.body)


def _each(done: str, act: Callable[[Client, int], object]) -> RunAction:
    def run(client: Client, given: Given) -> int:
        if given.all == bool(given.numbers):
            raise UsageError("give numbers, or --all")
        numbers = given.numbers
        if given.all:
            numbers = [each.id for page in pages(client, given, _page) for each in page.items]
        for number in numbers:
            act(client, number)
        if given.json:
            print_raw(msgspec.json.encode({done: numbers}))
        else:
            print_line(f"{done.capitalize()} {counted(len(numbers), 'task')}.")
        return 0

    return with_client(run)
