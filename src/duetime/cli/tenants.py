"""`duetime tenants`: the teams on this service, their weights, and whether they may run anything."""

import argparse
from datetime import datetime
from urllib.parse import quote

import msgspec

from duetime.cli.arguments import count
from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, local_time, print_line, print_raw
from duetime.sdk.client import Client
from duetime.sdk.wire import Call


class _Tenant(msgspec.Struct):
    name: str
    weight: int
    state: str
    shard: int
    created_at: datetime


class _Page(msgspec.Struct):
    items: list[_Tenant]
    next: str | None


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    tenants = subparsers.add_parser(
        "tenants",
        help="tenants: weight, suspend",
        description="The teams on this service; needs an admin key.",
        allow_abbrev=False,
    )
    tenants.set_defaults(run=lambda _: _show_help(tenants))
    actions = tenants.add_subparsers(metavar="ACTION", parser_class=type(tenants))

    listing = actions.add_parser("list", help="list the tenants", allow_abbrev=False)
    listing.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))

    put = actions.add_parser("put", help="create a tenant, or change its weight", allow_abbrev=False)
    put.add_argument("--weight", type=count, metavar="N", help="its share beside the others' (1)")
    put.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, {"weight": given.weight})))

    suspend = actions.add_parser("suspend", help="let nothing of a tenant run; nothing is lost", allow_abbrev=False)
    suspend.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, {"state": "suspended"})))

    resume = actions.add_parser("resume", help="let a suspended tenant run again", allow_abbrev=False)
    resume.set_defaults(run=lambda given: talk(given, lambda client: _put(client, given, {"state": "active"})))

    for parser in (put, suspend, resume):
        parser.add_argument("name", metavar="NAME", help="the tenant's name")
    for parser in (listing, put, suspend, resume):
        add_json_option(parser)
        add_connection_options(parser)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _list(client: Client, arguments: argparse.Namespace) -> int:
    columns = (Column("NAME"), Column("WEIGHT"), Column("STATE"), Column("SHARD"), Column("CREATED"))
    table = Table(columns)
    cursor = ""
    while True:
        body = client.send(Call("GET", f"/v1/tenants?limit=200{cursor}", bytes))
        page = msgspec.json.decode(body, type=_Page)
        if arguments.json:
            for item in msgspec.json.decode(body)["items"]:
                print_line(msgspec.json.encode(item).decode())
        else:
            table.add(
                [
                    (each.name, str(each.weight), each.state, str(each.shard), local_time(each.created_at))
                    for each in page.items
                ]
            )
        if page.next is None:
            return 0
        cursor = f"&cursor={quote(page.next, safe='')}"


def _put(client: Client, arguments: argparse.Namespace, fields: dict[str, object]) -> int:
    given = {name: value for name, value in fields.items() if value is not None}
    path = f"/v1/tenants/{quote(arguments.name, safe='')}"
    body = client.send(Call("PUT", path, bytes, msgspec.json.encode(given)))
    if arguments.json:
        print_raw(body)
        return 0
    tenant = msgspec.json.decode(body, type=_Tenant)
    print_line(f"Tenant {tenant.name}: {tenant.state}, weight {tenant.weight}.")
    return 0
