"""`duetime outbox`: what producers wrote in their own transactions and could not become a task."""

import argparse
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import msgspec

from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import (
    Column,
    Table,
    counted,
    local_time,
    print_fields,
    print_json,
    print_line,
    print_raw,
    printable,
)
from duetime.cli.paging import PAGE, Paged, add_page_options, print_list
from duetime.errors import UsageError
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call, make_query


class _Error(msgspec.Struct):
    code: str
    detail: str


class _Refused(msgspec.Struct):
    id: int
    body: Any
    written_at: datetime
    refused_at: datetime
    error: _Error

    @property
    def type(self) -> str:
        return str(self.body.get("type", "")) if isinstance(self.body, dict) else ""


class _Page(msgspec.Struct):
    items: list[_Refused]
    next: str | None


class _Number(msgspec.Struct):
    id: int
    state: str
    task: str | None = None
    refused: _Refused | None = None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    outbox = subparsers.add_parser(
        "outbox",
        help="tasks written in producers' own transactions: what was refused",
        description="Tasks that producers wrote in their own transactions, by duetime.enqueue.",
        allow_abbrev=False,
    )
    outbox.set_defaults(run=lambda _: _show_help(outbox))
    actions = outbox.add_subparsers(metavar="ACTION", parser_class=type(outbox))

    listing = actions.add_parser("list", help="list what was refused, and why", allow_abbrev=False)
    add_page_options(listing)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="what became of a number", allow_abbrev=False)
    show.add_argument("number", type=_number, metavar="NUMBER", help="the number that enqueue gave")
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    retry = actions.add_parser("retry", help="judge refused ones again", allow_abbrev=False)
    retry.set_defaults(run=lambda given: talk(given, lambda client: _act(client, given, "retry")))

    delete = actions.add_parser("delete", help="throw refused ones away", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _act(client, given, "delete")))

    for parser in (retry, delete):
        parser.add_argument("numbers", nargs="*", type=_number, metavar="NUMBER")
        parser.add_argument("--all", action="store_true", help="every one that is refused now")
    for parser in (show, retry, delete):
        add_json_option(parser)
        add_connection_options(parser)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of the outbox")
    return int(text)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _page(limit: int | None, cursor: str | None) -> Call[_Page]:
    query = make_query({"limit": limit, "cursor": cursor})
    return Call("GET", f"/v1/outbox{query}", msgspec.json.Decoder(_Page).decode)


def _list(client: Client, arguments: argparse.Namespace) -> int:
    def page(limit: int | None, cursor: str | None) -> Call[Paged[_Refused]]:
        return cast(Call[Paged[_Refused]], _page(limit, cursor))

    def row(each: _Refused) -> tuple[str, ...]:
        return (str(each.id), each.type, local_time(each.refused_at), each.error.detail)

    table = Table((Column("NUMBER"), Column("TYPE"), Column("REFUSED"), Column("BECAUSE")))
    return print_list(client, arguments, page, table, row, "refused task")


def _show(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(Call("GET", f"/v1/outbox/{arguments.number}", bytes))
    if arguments.json:
        print_raw(body)
        return 0
    found = msgspec.json.decode(body, type=_Number)
    print_line(f"Number {found.id}  {found.state}" + (f", task {found.task}" if found.task else ""))
    if found.refused is not None:
        refused = found.refused
        print_fields(
            [
                ("because", printable(refused.error.detail)),
                ("refused", local_time(refused.refused_at)),
                ("written", local_time(refused.written_at)),
            ]
        )
        print_json("task", refused.body)
    return 0


def _act(client: Client, arguments: argparse.Namespace, action: str) -> int:
    if arguments.all == bool(arguments.numbers):
        raise UsageError("give numbers, or --all")
    numbers = list(_refused(client)) if arguments.all else arguments.numbers
    for number in numbers:
        if action == "retry":
            client.send(Call("POST", f"/v1/outbox/{number}/retry", bytes))
        else:
            client.send(Call("DELETE", f"/v1/outbox/{number}", bytes))
    done = {"retry": "retried", "delete": "deleted"}[action]
    if arguments.json:
        print_raw(msgspec.json.encode({done: numbers}))
    else:
        print_line(f"{done.capitalize()} {counted(len(numbers), 'task')}.")
    return 0


def _refused(client: Client) -> Iterator[int]:
    cursor: str | None = None
    while True:
        page = client.send(_page(PAGE, cursor))
        for each in page.items:
            yield each.id
        if (cursor := page.next) is None:
            return
