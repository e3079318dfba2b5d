"""What this process counts, for Prometheus.

Open to everyone, as the health checks are; lines that name tenants are only for
those who may list them.
"""

from dataclasses import dataclass

from duetime import metrics
from duetime.admin.keyring import Keys
from duetime.api.auth import authenticate, need_role
from duetime.api.http import Answer, Request, Route
from duetime.api.operations import ADMINS, Operation, Reply

METRICS = Operation(
    method="GET",
    path="/metrics",
    name="metrics",
    tag="Server",
    summary="What this process counts, in the text format of Prometheus",
    description="Of the process that answers, which each line names. Without a key, lines that name tenants are left "
    "out; with an admin key they are there.",
    replies={200: Reply("The metrics.", content_type="text/plain")},
    problems=(401, 403, 404),
    needs_key=False,
)
OPERATIONS = [METRICS]


@dataclass(frozen=True)
class MetricsCalls:
    keys: Keys
    node: str

    def routes(self) -> list[Route]:
        return [Route(METRICS, self.get)]

    async def get(self, request: Request) -> Answer:
        has_key = b"authorization" in request.headers
        if has_key:
            need_role(await authenticate(self.keys, request.headers, request.peer), ADMINS)
        return Answer(200, metrics.render(self.node, shows_tenants=has_key), metrics.CONTENT_TYPE)
