"""Read lists: as many pages as the user asks for, as a table or as JSON."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from duetime.cli.arguments import count
from duetime.cli.connect import add_connection_options, add_json_option
from duetime.cli.output import Progress, Table, counted, print_note, print_raw
from duetime.errors import UsageError
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.answers import Page

PAGE = 200
_DEFAULT = 50

T = TypeVar("T")

#: Makes the call for a page with this many items from a cursor.
ListCall = Callable[[argparse.Namespace, int, str | None], ApiCall[Page[T]]]

_read_raw_page = msgspec.json.Decoder(Page[msgspec.Raw]).decode


def add_page_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=count, metavar="N", help=f"at most so many ({_DEFAULT})")
    parser.add_argument("--cursor", metavar="CURSOR", help="go on from here, with the same filters")
    parser.add_argument("--all", action="store_true", help="all that fit, page by page")
    add_json_option(parser, "one page of the server's JSON ({items, next}); with --all one line for each item")
    add_connection_options(parser)


def pages(
    client: Client,
    arguments: argparse.Namespace,
    call: ListCall[T],
    most: int | None = None,
    cursor: str | None = None,
) -> Iterator[Page[T]]:
    """Pages of the server, which may be short, until there are `most` items or no more."""
    left = most

    def call_page(cursor: str | None) -> ApiCall[Page[T]]:
        return call(arguments, PAGE if left is None else min(PAGE, left), cursor)

    for page in client.pages(call_page, cursor):
        yield page
        if left is not None:
            left -= len(page.items)
            if left <= 0:
                return


def raw_pages(
    client: Client,
    arguments: argparse.Namespace,
    call: ListCall[T],
    most: int | None = None,
    cursor: str | None = None,
) -> Iterator[Page[msgspec.Raw]]:
    """Do the same with the items as they were sent."""
    return pages(
        client,
        arguments,
        lambda given, limit, cursor: call(given, limit, cursor).read_as(_read_raw_page),
        most,
        cursor,
    )


def print_list(
    client: Client,
    arguments: argparse.Namespace,
    call: ListCall[T],
    table: Table,
    row_of: Callable[[T], Sequence[str]],
    noun: str,
) -> int:
    if arguments.all and arguments.limit is not None:
        raise UsageError("--all and --limit contradict each other: give one of them")
    most = None if arguments.all else arguments.limit or _DEFAULT
    if arguments.json:
        _print_json(raw_pages(client, arguments, call, most, arguments.cursor), is_open=arguments.all)
        return 0
    cursor, number = arguments.cursor, 0
    progress = Progress()
    for page in pages(client, arguments, call, most, arguments.cursor):
        cursor = page.next
        number += len(page.items)
        if page.items:
            progress.clear()
            table.add([row_of(item) for item in page.items])
        elif cursor is not None:
            progress.say(f"{counted(number, noun)} so far, looking on")
    progress.clear()
    if number == 0:
        print_note(f"No {noun} fits.")
    elif cursor is not None:
        print_note(f"There are more: add --all, or --cursor {cursor}")
    return 0


def _print_json(found: Iterator[Page[msgspec.Raw]], *, is_open: bool) -> None:
    """A line for each item as it comes, or all put together to the one page that was asked for."""
    gathered: list[msgspec.Raw] = []
    cursor: str | None = None
    for page in found:
        cursor = page.next
        if is_open:
            for item in page.items:
                print_raw(bytes(item))
        else:
            gathered += page.items
    if not is_open:
        print_raw(msgspec.json.encode(Page(items=gathered, next=cursor)))
