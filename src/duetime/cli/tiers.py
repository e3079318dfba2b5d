"""`duetime tiers`: weights and quotas for tenants that set none of their own."""

import argparse
from urllib.parse import quote

import msgspec

from duetime.cli import arguments as words
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.egress_options import EGRESS, ShownEgress, add_egress_options, read_egress_options
from duetime.cli.output import Column, Table, print_line, print_raw
from duetime.cli.quota_options import ShownQuotas, add_quota_options, read_quota_options
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Tier(msgspec.Struct):
    name: str
    weight: int | None
    quotas: ShownQuotas
    tenants: int
    egress: ShownEgress = ShownEgress()


class _Page(msgspec.Struct):
    items: list[_Tier]
    next: str | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tiers = subparsers.add_parser(
        "tiers",
        help="weights and quotas for tenants that set none of their own",
        description="Weights and quotas for tenants that set none of their own; needs an admin key.",
        allow_abbrev=False,
    )
    tiers.set_defaults(run=lambda _: _show_help(tiers))
    actions = tiers.add_subparsers(metavar="ACTION", parser_class=type(tiers))

    listing = actions.add_parser("list", help="list the tiers", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    show = actions.add_parser("show", help="print a tier", allow_abbrev=False)
    show.set_defaults(run=lambda given: talk(given, lambda client: _one(client, given, "GET", None)))

    put = actions.add_parser("put", help="create a tier, or change it", allow_abbrev=False)
    add_quota_options(put, *EGRESS)
    add_egress_options(put)
    put.set_defaults(run=lambda given: talk(given, lambda client: _one(client, given, "PUT", _read_put(given))))

    delete = actions.add_parser("delete", help="delete a tier that no tenant has", allow_abbrev=False)
    delete.set_defaults(run=lambda given: talk(given, lambda client: _delete(client, given)))

    for parser in (show, put, delete):
        parser.add_argument("name", type=words.name, metavar="NAME", help="the tier's name")
    for parser in (listing, show, put, delete):
        add_json_option(parser)
        add_connection_options(parser, has_tenant=False)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    table = Table((Column("NAME"), Column("WEIGHT"), Column("TENANTS"), Column("QUOTAS")))
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/tiers?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add(
                [(each.name, str(each.weight or 1), f"{each.tenants:,}", each.quotas.words()) for each in page.items]
            )
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _read_put(arguments: argparse.Namespace) -> dict[str, object]:
    return read_quota_options(arguments) | read_egress_options(arguments)


def _one(client: Client, arguments: argparse.Namespace, method: str, fields: dict[str, object] | None) -> int:
    sent = None if fields is None else msgspec.json.encode(fields)
    body = client.send(Call(method, _path(arguments.name), bytes, sent))
    if arguments.json:
        print_raw(body)
        return 0
    tier = msgspec.json.decode(body, type=_Tier)
    quotas = f", {said}" if (said := tier.quotas.words()) else ""
    egress = f", {said}" if (said := tier.egress.words()) else ""
    print_line(f"Tier {tier.name}: weight {tier.weight or 1}{quotas}{egress}; {tier.tenants:,} tenants.")
    return 0


def _delete(client: Client, arguments: argparse.Namespace) -> int:
    client.send(Call("DELETE", _path(arguments.name), bytes))
    if arguments.json:
        print_line(msgspec.json.encode({"deleted": arguments.name}).decode())
    else:
        print_line(f"Deleted tier {arguments.name}.")
    return 0


def _path(name: str) -> str:
    return f"/v1/tiers/{quote(name, safe='')}"
