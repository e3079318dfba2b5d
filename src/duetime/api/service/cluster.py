"""The nodes that share the shards, as the answering node sees them."""

from collections.abc import Callable
from dataclasses import dataclass

from duetime.api.bodies.pages import NodePage
from duetime.api.operations import ADMINS, Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer
from duetime.cluster.contract import NodeView

LIST_NODES = Operation(
    method="GET",
    path="/v1/cluster",
    name="list_nodes",
    roles=ADMINS,
    tag="Administration",
    summary="List the nodes and how many shards each feeds",
    description="As seen by the node that answers. If nodes were started one by one, each of them feeds all shards.",
    replies={200: Reply("The nodes.", NodePage)},
    also=(
        403,
        404,
    ),
)
OPERATIONS = [LIST_NODES]


@dataclass(frozen=True)
class Cluster:
    nodes: Callable[[], list[NodeView]]

    def routes(self) -> list[Route]:
        return [Route(LIST_NODES, self.list)]

    async def list(self, request: Request) -> Answer:
        request.query()
        return json_answer(200, NodePage(self.nodes(), None))
