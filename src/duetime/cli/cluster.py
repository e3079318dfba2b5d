"""`duetime cluster`: the nodes that share the shards."""

import argparse

import msgspec

from duetime.cli.connect import add_connection_options, add_json_option, talk
from duetime.cli.output import Column, Table, print_raw
from duetime.sdk.client.sync_client import Client
from duetime.sdk.wire import Call


class _Node(msgspec.Struct):
    name: str
    shards: int
    answers: bool


class _NodePage(msgspec.Struct):
    items: list[_Node]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "cluster",
        help="the nodes and how many shards each feeds",
        description="The nodes and how many shards each feeds, as the one that answers sees them.",
        allow_abbrev=False,
    )
    add_json_option(parser)
    add_connection_options(parser, has_tenant=False)
    parser.set_defaults(run=lambda given: talk(given, lambda client: _list(client, given)))


def _list(client: Client, arguments: argparse.Namespace) -> int:
    body = client.send(Call("GET", "/v1/cluster", bytes))
    if arguments.json:
        print_raw(body)
        return 0
    rows = [
        (node.name, str(node.shards), "yes" if node.answers else "")
        for node in msgspec.json.decode(body, type=_NodePage).items
    ]
    Table((Column("NODE"), Column("SHARDS"), Column("ANSWERS"))).add(rows)
    return 0
