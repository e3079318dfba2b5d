"""`duetime keys`: the tenant's API keys, and the secret that signs calls to its HTTP targets."""

import argparse

import msgspec

from duetime.cli.actions import Action, AddOptions, Command, Given, Subparsers, list_all, tell, with_client
from duetime.cli.arguments import add_database_options, count
from duetime.cli.connect import add_json_option, sentence_of
from duetime.cli.output import Column, local_time, print_line, print_note
from duetime.cli.tenancy.signing import SIGNING
from duetime.sdk.calls import administration as calls
from duetime.sdk.calls.administration import KEYS
from duetime.sdk.calls.call import ApiCall
from duetime.sdk.client.sync_client import Client
from duetime.sdk.errors import NotFound
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.keys import Key, NewKey

_ROLES = ["producer", "worker", "operator", "viewer", "owner", "admin"]
_FIELDS = ("role", "name", "types", "queues", "expires_at", "allowed_ips")


def add_parser(subparsers: Subparsers) -> None:
    Command(
        "keys",
        "API keys and the signing secret",
        "API keys and the signing secret.",
        (
            Action(
                "list",
                "list the keys, never themselves",
                list_all(_page, _COLUMNS, _row, is_object=True),
                (
                    lambda parser: parser.add_argument(
                        "--unused-for",
                        metavar="DURATION",
                        help="only valid keys that were not used for so long, as 90d",
                    ),
                ),
            ),
            Action("create", "make a key and print it, this once", tell(_create, _say), (_add_create_options,)),
            Action(
                "bootstrap",
                "make an admin key with the database alone, and print it, this once",
                _bootstrap,
                (
                    lambda parser: add_json_option(parser, "one JSON object: id, key, role, tenant, notes"),
                    add_database_options,
                ),
                "Make an admin key of the tenant `default` with the database alone: the first key, or the way back "
                "when none is left. Running servers accept it at once.",
                is_remote=False,
            ),
            Action(
                "rotate",
                "replace a key by one with the same rights, and print it, this once",
                tell(lambda given: calls.rotate_key(given.id, {"overlap": given.overlap}), _say),
                (
                    _number("id"),
                    lambda parser: parser.add_argument(
                        "--overlap", default="1h", metavar="DURATION", help="how long the old one goes on (1h)"
                    ),
                ),
            ),
            Action("revoke", "end keys", with_client(_revoke), (_number("ids", "+"),)),
            *SIGNING,
        ),
    ).add_to(subparsers)


_COLUMNS = tuple(
    Column(name)
    for name in (
        *("ID", "BEGINS", "ROLE", "TYPES", "QUEUES", "ALLOWED FROM", "CREATED", "LAST USED", "USED FROM", "EXPIRES"),
        *("REVOKED", "NAME"),
    )
)


def _number(name: str, number: str | None = None) -> AddOptions:
    return lambda parser: parser.add_argument(
        name, nargs=number, type=count, metavar="ID", help="its number in `duetime keys list`"
    )


def _add_create_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=_ROLES, default="admin", metavar="ROLE", help=", ".join(_ROLES) + " (admin)")
    parser.add_argument("--name", default="", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "--type", action="append", default=[], dest="types", metavar="PATTERN", help="only tasks of such types"
    )
    parser.add_argument(
        "--queue", action="append", default=[], dest="queues", metavar="PATTERN", help="only tasks of such queues"
    )
    parser.add_argument(
        "--allow-ip",
        action="append",
        default=[],
        dest="allowed_ips",
        metavar="NETWORK",
        help="only from this address or network, as 10.0.0.0/8 (may be repeated)",
    )
    parser.add_argument("--expires-at", metavar="TIME", help="not valid from then on, as 2030-01-31T12:00:00Z")


def _bootstrap(given: Given) -> int:
    # The other actions need nothing from the server package.
    from duetime.cli.tenancy.bootstrap import run

    return run(given)


def _page(given: Given, limit: int, cursor: str | None) -> ApiCall[Page[Key]]:
    return KEYS.list(limit=limit, cursor=cursor, unused_for=given.unused_for)


def _row(key: Key) -> tuple[str, ...]:
    return (
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


def _create(given: Given) -> ApiCall[NewKey]:
    return calls.create_key({name: getattr(given, name) for name in _FIELDS})


def _say(made: NewKey) -> None:
    print_line(made.key)
    print_note(f"Key {made.id} ({made.role}); it is shown only this once.")
    for note in made.notes:
        print_note(f"Note: {note}.")


def _revoke(client: Client, given: Given) -> int:
    revoked = []
    for key in dict.fromkeys(given.ids):
        try:
            client.revoke_key(key)
        except NotFound as error:
            print_note(f"duetime: {sentence_of(error)}")
            continue
        revoked.append(key)
        if not given.json:
            print_line(f"Revoked key {key}.")
    if given.json:
        print_line(msgspec.json.encode({"revoked": revoked}).decode())
    return 0 if len(revoked) == len(set(given.ids)) else 1
