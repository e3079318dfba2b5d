"""`duetime limits`: what tasks with the same key may do together; and the options that say limits."""

import argparse
from datetime import datetime
from urllib.parse import quote

import msgspec

from duetime.cli import arguments as words
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, local_time, print_line, print_note, print_raw
from duetime.errors import UsageError
from duetime.model.limits import MAX_RATE, MAX_RUNNING, MIN_RATE, Limits
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Limit(Limits, frozen=True, kw_only=True, forbid_unknown_fields=False):
    name: str
    updated_at: datetime
    notes: tuple[str, ...] = ()


class _Page(msgspec.Struct):
    items: list[_Limit]
    next: str | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    limits = subparsers.add_parser(
        "limits",
        help="limits of keys that tasks name",
        description="Limits of keys that tasks name as concurrency_key or rate_key.",
        allow_abbrev=False,
    )
    limits.set_defaults(run=lambda _: _show_help(limits))
    actions = limits.add_subparsers(metavar="ACTION", parser_class=type(limits))

    listing = actions.add_parser("list", help="list the limits of keys", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="show the limit of a key", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    put = actions.add_parser("put", help="limit a key, or each key that a pattern fits", allow_abbrev=False)
    add_limit_options(put)
    put.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given)))

    delete = actions.add_parser("delete", help="lift the limit of a key", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _delete(client, given)))

    for parser in (show, put, delete):
        parser.add_argument("name", type=words.name, metavar="KEY", help="the key, or a pattern that ends in *")
    for parser in (listing, show, put, delete):
        add_json_option(parser)
        add_connection_options(parser)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-running", type=_room, metavar="N", help="attempts that run at once; 0: none starts")
    parser.add_argument("--rate", type=_rate, metavar="N", help="attempts that start in a second, from 0.001 on")
    parser.add_argument(
        "--burst", type=words.count, metavar="N", help="attempts that start at once after a rest (rate)"
    )
    parser.add_argument("--strict", action="store_true", help="keep --max-running even while two nodes feed the tenant")


def read_limits(arguments: argparse.Namespace) -> Limits:
    """The limits that were given; empty if none was."""
    if arguments.burst is not None and arguments.rate is None:
        raise UsageError("--burst goes with --rate: give both")
    if arguments.strict and arguments.max_running is None:
        raise UsageError("--strict goes with --max-running: give both")
    return Limits(arguments.max_running, arguments.rate, arguments.burst, arguments.strict)


def limit_words(limits: Limits) -> tuple[str, str, str]:
    """How many at once, how fast, and how many after a rest, as cells of a table."""
    running = "-" if limits.max_running is None else f"{limits.max_running:,}{' strict' if limits.strict else ''}"
    rate = "-" if limits.rate is None else f"{limits.rate:g}/s"
    return running, rate, "-" if limits.burst is None else f"{limits.burst:,}"


def _room(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_RUNNING:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to {MAX_RUNNING:,}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate: write attempts a second, from {MIN_RATE} on")
    return rate


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _path(name: str) -> str:
    return f"/v1/limits/{quote(name, safe='')}"


def _list(client: Client, arguments: argparse.Namespace) -> int:
    columns = (Column("KEY"), Column("MAX RUNNING"), Column("RATE"), Column("BURST"), Column("CHANGED"))
    table = Table(columns)
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/limits?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add([(each.name, *limit_words(each), local_time(each.updated_at)) for each in page.items])
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _show(client: Client, arguments: argparse.Namespace) -> int:
    return _print(client.send(Call("GET", _path(arguments.name), bytes)), arguments)


def _put(client: Client, arguments: argparse.Namespace) -> int:
    limits = read_limits(arguments)
    if limits.is_empty:
        raise UsageError("give --max-running, --rate, or both; `duetime limits delete` lifts a limit")
    return _print(client.send(Call("PUT", _path(arguments.name), bytes, msgspec.json.encode(limits))), arguments)


def _print(body: bytes, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_raw(body)
        return 0
    limit = msgspec.json.decode(body, type=_Limit)
    running, rate, burst = limit_words(limit)
    print_line(f"Key {limit.name}: max running {running}, rate {rate}, burst {burst}.")
    for note in limit.notes:
        print_note(note)
    return 0


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    client.send(Call("DELETE", _path(arguments.name), bytes))
    if arguments.json:
        print_line(msgspec.json.encode({"deleted": arguments.name}).decode())
    else:
        print_line(f"Lifted the limit of {arguments.name}.")
    return 0
