"""The secret that signs calls to HTTP targets: print it, replace it."""

import argparse
from collections.abc import Sequence
from datetime import datetime

import msgspec

from duetime.cli.arguments import duration
from duetime.cli.connect import talk
from duetime.cli.output import local_time, print_line, print_note, print_raw
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Secret(msgspec.Struct):
    secret: str
    former_until: datetime | None = None
    notes: list[str] = []


def add_signing_parsers(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> Sequence[argparse.ArgumentParser]:
    secret = actions.add_parser(
        "signing-secret", help="print the secret that signs calls to HTTP targets", allow_abbrev=False
    )
    secret.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given, _GET)))

    rotate = actions.add_parser(
        "rotate-signing-secret",
        help="replace the secret that signs calls to HTTP targets, and print the new one",
        description="Replace the secret that signs calls to HTTP targets, and print the new one. For the overlap calls "
        "are signed with both, so that receivers can change over.",
        allow_abbrev=False,
    )
    rotate.add_argument(
        "--overlap", type=duration, metavar="DURATION", help="how long the former one signs as well (1d; at most 30d)"
    )
    rotate.set_defaults(run=lambda given: talk(given, lambda client: _show(client, given, _rotation(given))))
    return secret, rotate


_GET = Call("GET", "/v1/signing-secret", bytes)


def _rotation(arguments: argparse.Namespace) -> Call[bytes]:
    asked = {} if arguments.overlap is None else {"overlap": arguments.overlap}
    return Call("POST", "/v1/signing-secret/rotate", bytes, msgspec.json.encode(asked))


def _show(client: Client, arguments: argparse.Namespace, call: Call[bytes]) -> int:
    body = client.send(call)
    if arguments.json:
        print_raw(body)
        return 0
    answer = msgspec.json.decode(body, type=_Secret)
    print_line(answer.secret)
    if answer.former_until is not None:
        print_note(f"Until {local_time(answer.former_until)} calls are signed with the secret before it as well.")
    for note in answer.notes:
        print_note(f"{note[:1].upper()}{note[1:]}.")
    return 0
