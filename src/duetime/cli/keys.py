"""`duetime keys`: the tenant's API keys, and the secret that signs calls to its HTTP targets."""

import argparse
from datetime import datetime

import msgspec

from duetime.cli.arguments import add_database_options, count
from duetime.cli.connect import add_connection_options, add_json_option, sentence_of, talk
from duetime.cli.output import Column, Table, local_time, print_line, print_note, print_raw
from duetime.cli.paging import fetch_all
from duetime.cli.signing import add_signing_parsers
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import NotFound
from duetime.sdk.wire import Call

_ROLES = ["producer", "worker", "operator", "viewer", "owner", "admin"]


class _Key(msgspec.Struct):
    id: int
    hint: str
    role: str
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    name: str = ""
    types: list[str] = []
    queues: list[str] = []
    allowed_ips: list[str] = []
    last_used_at: datetime | None = None
    last_used_from: str | None = None


class _KeyPage(msgspec.Struct):
    items: list[_Key]


class _KeyMade(msgspec.Struct):
    id: int
    key: str
    role: str
    notes: list[str] = []


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    keys = subparsers.add_parser(
        "keys",
        help="API keys and the signing secret",
        description="API keys and the signing secret.",
        allow_abbrev=False,
    )
    keys.set_defaults(run=lambda _: _show_help(keys))
    actions = keys.add_subparsers(metavar="ACTION", parser_class=type(keys))

    listing = actions.add_parser("list", help="list the keys, never themselves", allow_abbrev=False)
    listing.add_argument(
        "--unused-for", metavar="DURATION", help="only valid keys that were not used for so long, as 90d"
    )
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    create = actions.add_parser("create", help="make a key and print it, this once", allow_abbrev=False)
    create.add_argument("--role", choices=_ROLES, default="admin", metavar="ROLE", help=", ".join(_ROLES) + " (admin)")
    create.add_argument("--name", default="", metavar="TEXT", help="what it is for")
    create.add_argument(
        "--type", action="append", default=[], dest="types", metavar="PATTERN", help="only tasks of such types"
    )
    create.add_argument(
        "--queue", action="append", default=[], dest="queues", metavar="PATTERN", help="only tasks of such queues"
    )
    create.add_argument(
        "--allow-ip",
        action="append",
        default=[],
        dest="allowed_ips",
        metavar="NETWORK",
        help="only from this address or network, as 10.0.0.0/8 (may be repeated)",
    )
    create.add_argument("--expires-at", metavar="TIME", help="not valid from then on, as 2030-01-31T12:00:00Z")
    create.set_defaults(run=lambda given: talk(given, lambda client: _create(client, given)))

    bootstrap = actions.add_parser(
        "bootstrap",
        help="make an admin key with the database alone, and print it, this once",
        description="Make an admin key of the tenant `default` with the database alone: the first key, or the way back "
        "when none is left. Running servers accept it at once.",
        allow_abbrev=False,
    )
    bootstrap.set_defaults(run=_bootstrap)
    add_json_option(bootstrap, "one JSON object: id, key, role, tenant, notes")
    add_database_options(bootstrap)

    rotate = actions.add_parser(
        "rotate", help="replace a key by one with the same rights, and print it, this once", allow_abbrev=False
    )
    rotate.add_argument("id", type=count, metavar="ID", help="its number in `duetime keys list`")
    rotate.add_argument("--overlap", default="1h", metavar="DURATION", help="how long the old one goes on (1h)")
    rotate.set_defaults(run=lambda given: talk(given, lambda client: _rotate(client, given)))

    revoke = actions.add_parser("revoke", help="end keys", allow_abbrev=False)
    revoke.add_argument("ids", nargs="+", type=count, metavar="ID", help="its number in `duetime keys list`")
    revoke.set_defaults(run=lambda given: talk(given, lambda client: _revoke(client, given)))

    for parser in (listing, create, rotate, revoke, *add_signing_parsers(actions)):
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _bootstrap(arguments: argparse.Namespace) -> int:
    # The other actions need nothing of the server's.
    from duetime.cli.bootstrap import run

    return run(arguments)


def _list(client: Client, arguments: argparse.Namespace) -> int:
    body = fetch_all(client, "/v1/keys", unused_for=arguments.unused_for)
    if arguments.json:
        print_raw(body)
        return 0
    names = ("ID", "BEGINS", "ROLE", "TYPES", "QUEUES", "ALLOWED FROM", "CREATED", "LAST USED", "USED FROM")
    Table(tuple(Column(name) for name in (*names, "EXPIRES", "REVOKED", "NAME"))).add(
        [
            (
                str(key.id),
                key.hint + "…",
                key.role,
                " ".join(key.types) or "all",
                " ".join(key.queues) or "all",
                " ".join(key.allowed_ips) or "all",
                local_time(key.created_at),
                local_time(key.last_used_at),
                key.last_used_from or "",
                local_time(key.expires_at),
                local_time(key.revoked_at),
                key.name,
            )
            for key in msgspec.json.decode(body, type=_KeyPage).items
        ]
    )
    return 0


def _create(client: Client, arguments: argparse.Namespace) -> int:
    wanted = {
        name: getattr(arguments, name) for name in ("role", "name", "types", "queues", "expires_at", "allowed_ips")
    }
    body = client.send(Call("POST", "/v1/keys", bytes, msgspec.json.encode(wanted)))
    return _show_made(body, arguments)


def _rotate(client: Client, arguments: argparse.Namespace) -> int:
    asked = msgspec.json.encode({"overlap": arguments.overlap})
    return _show_made(client.send(Call("POST", f"/v1/keys/{arguments.id}/rotate", bytes, asked)), arguments)


def _show_made(body: bytes, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_raw(body)
        return 0
    made = msgspec.json.decode(body, type=_KeyMade)
    print_line(made.key)
    print_note(f"Key {made.id} ({made.role}); it is shown only this once.")
    for note in made.notes:
        print_note(f"Note: {note}.")
    return 0


def _revoke(client: Client, arguments: argparse.Namespace) -> int:
    revoked = []
    for key in dict.fromkeys(arguments.ids):
        try:
            client.send(Call("DELETE", f"/v1/keys/{key}", bytes))
        except NotFound as error:
            print_note(f"duetime: {sentence_of(error)}")
            continue
        revoked.append(key)
        if not arguments.json:
            print_line(f"Revoked key {key}.")
    if arguments.json:
        print_line(msgspec.json.encode({"revoked": revoked}).decode())
    return 0 if len(revoked) == len(set(arguments.ids)) else 1
