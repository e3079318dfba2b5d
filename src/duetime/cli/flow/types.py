"""`duetime types`: task types, the schemas of their payloads, their defaults, limits and flow control."""

import argparse
import sys
from pathlib import Path

import msgspec

from duetime.cli.actions import Action, Command, Given, Subparsers, delete, list_all, named, tell, with_client
from duetime.cli.connect import ask
from duetime.cli.output import Column, local_time, print_line, print_note, print_raw, printable
from duetime.errors import UsageError
from duetime.sdk.calls import administration as calls
from duetime.sdk.calls.administration import TYPES
from duetime.sdk.calls.call import ApiCall, without_none
from duetime.sdk.client.sync_client import Client
from duetime.sdk.shapes.flow import TaskType, TypePreview, TypePut

#: The fields of a type. A file with none of them is a JSON Schema, which has no such fields.
_FIELDS = ("schema", "defaults", "limits", "throttle", "rate_limit", "debounce", "unique")


def add_parser(subparsers: Subparsers) -> None:
    name = named("the type's name")
    Command(
        "types",
        "task types: schemas, defaults, limits, flow control",
        "Task types: the schemas of their payloads, their defaults, limits and flow control.",
        (
            Action(
                "list",
                "list the registered types",
                list_all(lambda _, limit, cursor: TYPES.list(limit=limit, cursor=cursor), _COLUMNS, _row),
            ),
            Action("show", "print a type as `put` takes it", tell(lambda given: TYPES.get(given.name), _say), (name,)),
            Action("put", "register a type, or replace it", with_client(_put), (_add_file, name)),
            Action(
                "preview",
                "say what `put` would mean for tasks that wait, and change nothing",
                tell(_preview, _say_preview),
                (_add_file, name),
            ),
            Action(
                "delete",
                "forget a type: its payloads may be anything again",
                delete(lambda given: TYPES.delete(given.name), "Deleted type {}."),
                (name,),
            ),
        ),
    ).add_to(subparsers)


_COLUMNS = (Column("NAME"), Column("VERSION"), Column("SAYS"), Column("CHANGED"))


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        required=True,
        metavar="FILE",
        help=f"a JSON object with any of {', '.join(_FIELDS)}; or a JSON Schema alone; - for standard input",
    )


def _row(found: TaskType) -> tuple[str, ...]:
    said = ", ".join(without_none(found.options()))
    return found.name, str(found.version), said or "-", local_time(found.updated_at)


def _say(found: TaskType) -> None:
    print_line(msgspec.json.format(msgspec.json.encode(without_none(found.options())), indent=2).decode())


def _put(client: Client, given: Given) -> int:
    asked = _read(given.file)
    body, done = ask(client, calls.put_type(given.name, asked))
    if given.json:
        print_raw(body)
        return 0
    print_line(f"Type {done.name}, version {done.version}: {', '.join(asked)}.")
    if done.waiting_invalid:
        print_note(f"{_many_of(done)} do not match; they stay as they are.")
    return 0


def _preview(given: Given) -> ApiCall[TypePreview]:
    return calls.preview_type(given.name, _read(given.file))


def _say_preview(would: TypePreview) -> None:
    kind = "a new type" if would.is_new else "a type that is there"
    fares = f"{_many_of(would)} would not match." if would.waiting_sampled else "There is no waiting task to try it on."
    print_line(f"{would.name} is {kind}. {fares}")
    for example in would.examples:
        print_line(f"{example.task}  {printable('; '.join(f'{each.path}: {each.message}' for each in example.errors))}")


def _many_of(tried: TypePut | TypePreview) -> str:
    return f"{tried.waiting_invalid:,} of {tried.waiting_sampled:,} waiting tasks that were looked at"


def _read(name: str) -> dict[str, object]:
    """Return the type in a file, in the format of the API."""
    try:
        text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        given = msgspec.json.decode(text)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    is_type = isinstance(given, dict) and not given.keys().isdisjoint(_FIELDS)
    return given if is_type else {"schema": given}
