"""Lists: as many pages as were asked for, as a table or as JSON."""

import argparse
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from duetime.cli.arguments import count
from duetime.cli.connect import add_connection_options, add_json_option, fetch
from duetime.cli.output import Progress, Table, counted, print_note, print_raw
from duetime.errors import UsageError
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import SearchIncomplete
from duetime.sdk.wire import Call

PAGE = 200
_DEFAULT = 50

Item = TypeVar("Item")
ItemCo = TypeVar("ItemCo", covariant=True)


class Paged(Protocol[ItemCo]):
    @property
    def items(self) -> Sequence[ItemCo]: ...
    @property
    def next(self) -> str | None: ...


class _RawPage(msgspec.Struct):
    """A page whose items are kept as they were sent."""

    items: list[msgspec.Raw]
    next: str | None = None


#: Makes the call for a page of so many items from a cursor.
MakeCall = Callable[[int | None, str | None], Call[Paged[Item]]]


def add_page_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=count, metavar="N", help=f"at most so many ({_DEFAULT})")
    parser.add_argument("--cursor", metavar="CURSOR", help="go on from here, with the same filters")
    parser.add_argument("--all", action="store_true", help="all that fit, page by page")
    add_json_option(parser, "one page of the server's JSON ({items, next}); with --all one line for each item")
    add_connection_options(parser)


def print_list(
    client: Client,
    arguments: argparse.Namespace,
    make_call: MakeCall[Item],
    table: Table,
    row_of: Callable[[Item], Sequence[str]],
    noun: str,
) -> int:
    if arguments.all and arguments.limit is not None:
        raise UsageError("--all and --limit contradict each other: give one of them")
    if arguments.json:
        _print_json(client, arguments, make_call)
        return 0
    left = None if arguments.all else arguments.limit or _DEFAULT
    cursor, number = arguments.cursor, 0
    progress = Progress()
    while True:
        try:
            page = client.send(make_call(PAGE if left is None else min(PAGE, left), cursor))
        except SearchIncomplete as error:
            cursor = error.next
            progress.say(f"{counted(number, noun)} so far, looking on")
            continue
        progress.clear()
        if page.items:
            table.add([row_of(item) for item in page.items])
        number += len(page.items)
        left = None if left is None else left - len(page.items)
        cursor = page.next
        if cursor is None or left == 0:
            break
    if number == 0:
        print_note(f"No {noun} fits.")
    elif cursor is not None:
        print_note(f"There are more: add --all, or --cursor {cursor}")
    return 0


def fetch_all(client: Client, path: str, **filters: str | None) -> bytes:
    """All items of a list that is not long, as the server's JSON of one page."""
    gathered: list[msgspec.Raw] = []
    query = {"limit": str(PAGE)} | {name: value for name, value in filters.items() if value is not None}
    while True:
        body = client.send(Call("GET", f"{path}?{urlencode(query)}", bytes))
        page = msgspec.json.decode(body, type=_RawPage)
        gathered += page.items
        if page.next is None:
            return msgspec.json.encode(_RawPage(gathered))
        query["cursor"] = page.next


def _print_json(client: Client, arguments: argparse.Namespace, make_call: MakeCall[Item]) -> None:
    """Pages of the server, which may be short, put together to the one that was asked for."""
    gathered: list[msgspec.Raw] = []
    left = arguments.limit or _DEFAULT
    cursor = arguments.cursor
    while True:
        size = PAGE if arguments.all else min(PAGE, left - len(gathered))
        try:
            page = msgspec.json.decode(fetch(client, make_call(size, cursor)), type=_RawPage)
        except SearchIncomplete as error:
            cursor = error.next
            continue
        cursor = page.next
        if arguments.all:
            for item in page.items:
                print_raw(bytes(item))
        else:
            gathered += page.items
        if cursor is None or len(gathered) >= left:
            break
    if not arguments.all:
        print_raw(msgspec.json.encode(_RawPage(gathered, cursor)))
