"""`duetime types`: task types, the schemas of their payloads, their defaults, limits and flow control."""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from duetime.cli import arguments as words
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, local_time, print_line, print_note, print_raw, printable
from duetime.errors import FieldError, UsageError
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call

#: What a type can say; a file that says none of it is a JSON Schema, which has no such words.
_FIELDS = ("schema", "defaults", "limits", "throttle", "rate_limit", "debounce", "unique")


class _Type(msgspec.Struct):
    name: str
    version: int
    updated_at: datetime
    schema: Any = None
    defaults: Any = None
    limits: Any = None
    throttle: Any = None
    rate_limit: Any = None
    debounce: Any = None
    unique: Any = None

    def said(self) -> dict[str, object]:
        """What it says, as a file that `put` takes."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in fields.items() if value is not None}


class _Page(msgspec.Struct):
    items: list[_Type]
    next: str | None


class _Put(msgspec.Struct):
    name: str
    version: int
    waiting_sampled: int
    waiting_invalid: int


class _Example(msgspec.Struct):
    task: str
    errors: list[FieldError]


class _Preview(msgspec.Struct):
    name: str
    is_new: bool
    waiting_sampled: int
    waiting_invalid: int
    examples: list[_Example]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    types = subparsers.add_parser(
        "types",
        help="task types: schemas, defaults, limits, flow control",
        description="Task types: the schemas of their payloads, their defaults, limits and flow control.",
        allow_abbrev=False,
    )
    types.set_defaults(run=lambda _: _show_help(types))
    actions = types.add_subparsers(metavar="ACTION", parser_class=type(types))

    listing = actions.add_parser("list", help="list the registered types", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="print a type as `put` takes it", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    put = actions.add_parser("put", help="register a type, or replace it", allow_abbrev=False)
    put.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given)))

    preview = actions.add_parser(
        "preview", help="say what `put` would mean for tasks that wait, and change nothing", allow_abbrev=False
    )
    preview.set_defaults(run=lambda given: talk(given, lambda client: _preview(client, given)))

    delete = actions.add_parser("delete", help="forget a type: its payloads may be anything again", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _delete(client, given)))

    for parser in (put, preview):
        parser.add_argument(
            "--file",
            required=True,
            metavar="FILE",
            help=f"a JSON object with any of {', '.join(_FIELDS)}; or a JSON Schema alone; - for standard input",
        )
    for parser in (show, put, preview, delete):
        parser.add_argument("name", type=words.name, metavar="NAME", help="the type's name")
    for parser in (listing, show, put, preview, delete):
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _path(name: str) -> str:
    return f"/v1/types/{quote(name, safe='')}"


def _list(client: Client, arguments: argparse.Namespace) -> int:
    table = Table((Column("NAME"), Column("VERSION"), Column("SAYS"), Column("CHANGED")))
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/types?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add(
                [
                    (each.name, str(each.version), ", ".join(each.said()) or "-", local_time(each.updated_at))
                    for each in page.items
                ]
            )
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _show(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(Call("GET", _path(arguments.name), bytes))
    if arguments.json:
        print_raw(body)
    else:
        said = msgspec.json.encode(msgspec.json.decode(body, type=_Type).said())
        print_line(msgspec.json.format(said, indent=2).decode())
    return 0


def _put(client: Client, arguments: argparse.Namespace) -> int:
    asked = _read(arguments.file)
    body = client.send(Call("PUT", _path(arguments.name), bytes, msgspec.json.encode(asked)))
    if arguments.json:
        print_raw(body)
        return 0
    done = msgspec.json.decode(body, type=_Put)
    print_line(f"Type {done.name}, version {done.version}: {', '.join(asked)}.")
    if done.waiting_invalid:
        print_note(f"{_many_of(done)} do not match; they stay as they are.")
    return 0


def _preview(client: Client, arguments: argparse.Namespace) -> int:
    asked = msgspec.json.encode(_read(arguments.file))
    body = client.send(Call("POST", f"{_path(arguments.name)}/preview", bytes, asked))
    if arguments.json:
        print_raw(body)
        return 0
    would = msgspec.json.decode(body, type=_Preview)
    kind = "a new type" if would.is_new else "a type that is there"
    fares = f"{_many_of(would)} would not match." if would.waiting_sampled else "There is no waiting task to try it on."
    print_line(f"{would.name} is {kind}. {fares}")
    for example in would.examples:
        print_line(f"{example.task}  {printable('; '.join(f'{each.path}: {each.message}' for each in example.errors))}")
    return 0


def _many_of(tried: _Put | _Preview) -> str:
    return f"{tried.waiting_invalid:,} of {tried.waiting_sampled:,} waiting tasks that were looked at"


def _read(name: str) -> dict[str, object]:
    """The type in a file, as the API takes it."""
    try:
        text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        given = msgspec.json.decode(text)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    is_type = isinstance(given, dict) and not given.keys().isdisjoint(_FIELDS)
    return given if is_type else {"schema": given}


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    client.send(Call("DELETE", _path(arguments.name), bytes))
    if arguments.json:
        print_line(msgspec.json.encode({"deleted": arguments.name}).decode())
    else:
        print_line(f"Deleted type {arguments.name}.")
    return 0
