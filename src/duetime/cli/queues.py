"""`duetime queues`: which there are, whether they run, and their limits."""

import argparse
from urllib.parse import quote

import msgspec

from duetime.cli import arguments as words
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.limits import add_limit_options, limit_words, read_limits
from duetime.cli.output import Column, Table, print_line, print_note, print_raw
from duetime.config import MAX_SILENCE_SECONDS, MIN_SILENCE_SECONDS
from duetime.errors import UsageError
from duetime.model.limits import Limits
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Queue(msgspec.Struct):
    name: str
    state: str
    limits: Limits
    kinds: list[str] = []
    classes: list[str] = []
    notes: list[str] = []
    max_silence: float | None = None


class _Page(msgspec.Struct):
    items: list[_Queue]
    next: str | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    queues = subparsers.add_parser(
        "queues",
        help="queues: pause, resume, limit",
        description="Queues: which there are, whether they run, and their limits.",
        allow_abbrev=False,
    )
    queues.set_defaults(run=lambda _: _show_help(queues))
    actions = queues.add_subparsers(metavar="ACTION", parser_class=type(queues))

    listing = actions.add_parser("list", help="list the queues", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="show a queue", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given)))

    put = actions.add_parser(
        "put", help="set all limits of a queue, or how long its workers may be silent", allow_abbrev=False
    )
    add_limit_options(put)
    put.add_argument(
        "--max-silence",
        type=_silence,
        metavar="DURATION",
        help="how long its workers may be silent before they count as dead, 6s to 10m; or default",
    )
    put.add_argument("--unlimited", action="store_true", help="lift all limits; a paused queue stays paused")
    put.set_defaults(run=lambda given: talk(given, lambda client: _put_limits(client, given)))

    pause = actions.add_parser("pause", help="let nothing of a queue start; nothing is lost", allow_abbrev=False)
    pause.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, {"state": "paused"})))

    resume = actions.add_parser("resume", help="let a paused queue go on", allow_abbrev=False)
    resume.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, {"state": "active"})))

    delete = actions.add_parser("delete", help="forget a queue's state and limits, not its tasks", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _delete(client, given)))

    for parser in (show, put, pause, resume, delete):
        parser.add_argument("name", type=words.name, metavar="NAME", help="the queue's name")
    for parser in (listing, show, put, pause, resume, delete):
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _path(name: str) -> str:
    return f"/v1/queues/{quote(name, safe='')}"


def _list(client: Client, arguments: argparse.Namespace) -> int:
    names = ("NAME", "STATE", "MAX RUNNING", "RATE", "BURST", "MAX SILENCE", "KINDS", "CLASSES")
    table = Table(tuple(Column(name) for name in names))
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/queues?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add(
                [
                    (
                        each.name,
                        each.state,
                        *limit_words(each.limits),
                        "-" if each.max_silence is None else words.spoken(each.max_silence),
                        ",".join(each.kinds),
                        ",".join(each.classes),
                    )
                    for each in page.items
                ]
            )
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _show(client: Client, arguments: argparse.Namespace) -> int:
    return _print(client.send(Call("GET", _path(arguments.name), bytes)), arguments)


def _put_limits(client: Client, arguments: argparse.Namespace) -> int:
    limits = read_limits(arguments)
    fields: dict[str, object] = {}
    if arguments.max_silence is not None:
        fields["max_silence"] = arguments.max_silence or None
    if limits.is_empty != arguments.unlimited and not (limits.is_empty and fields):
        raise UsageError("give --max-running, --rate, or both; --unlimited to lift all limits; or --max-silence")
    if not limits.is_empty or arguments.unlimited:
        fields["limits"] = limits
    return _put(client, arguments, fields)


def _silence(text: str) -> float:
    """Seconds; 0 stands for the default."""
    if text == "default":
        return 0.0
    seconds = words.duration(text)
    if not MIN_SILENCE_SECONDS <= seconds <= MAX_SILENCE_SECONDS:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 6s and 10m; 'default' takes it back")
    return seconds


def _put(client: Client, arguments: argparse.Namespace, fields: dict[str, object]) -> int:
    return _print(client.send(Call("PUT", _path(arguments.name), bytes, msgspec.json.encode(fields))), arguments)


def _print(body: bytes, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_raw(body)
        return 0
    queue = msgspec.json.decode(body, type=_Queue)
    running, rate, burst = limit_words(queue.limits)
    silence = "" if queue.max_silence is None else f", max silence {words.spoken(queue.max_silence)}"
    print_line(f"Queue {queue.name}: {queue.state}, max running {running}, rate {rate}, burst {burst}{silence}.")
    for note in queue.notes:
        print_note(note)
    return 0


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    client.send(Call("DELETE", _path(arguments.name), bytes))
    if arguments.json:
        print_line(msgspec.json.encode({"deleted": arguments.name}).decode())
    else:
        print_line(f"Forgot the state and limits of queue {arguments.name}.")
    return 0
