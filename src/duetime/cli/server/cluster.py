"""`duetime cluster`: the nodes that share the shards."""

from duetime.cli.actions import Action, Subparsers, tell
from duetime.cli.output import Column, Table
from duetime.sdk.calls.administration import CLUSTER
from duetime.sdk.shapes.answers import Page
from duetime.sdk.shapes.operation import Node


def add_parser(subparsers: Subparsers) -> None:
    Action(
        "cluster",
        "the nodes and how many shards each feeds",
        tell(lambda _: CLUSTER.list(), _say),
        description="The nodes and how many shards each feeds, as the one that answers sees them.",
        has_tenant=False,
    ).add_to(subparsers)


def _say(page: Page[Node]) -> None:
    rows = [(node.name, str(node.shards), "yes" if node.answers else "") for node in page.items]
    Table((Column("NODE"), Column("SHARDS"), Column("ANSWERS"))).add(rows)
