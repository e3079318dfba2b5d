"""The metrics of this process, for Prometheus.

Open to everyone, as the health checks are; lines that name tenants are only for
callers that may list tenants.  Writing the text blocks the event loop for a
millisecond, so callers without a key get an earlier text if many ask.
"""

from duetime import metrics
from duetime.admin.keyring import Keys
from duetime.api.auth import authenticate, need_role
from duetime.api.operations import ADMINS, Operation, Reply
from duetime.api.server.http import Answer, Request, Route
from duetime.telemetry import Sparing

#: How many times a second the text is written for callers without a key.
WRITTEN_PER_SECOND = 10

METRICS = Operation(
    method="GET",
    path="/metrics",
    name="metrics",
    tag="Server",
    summary="Get the metrics of this process in the text format of Prometheus",
    description="The metrics are those of the process that answers. Each line names it. Without a key, lines that "
    "name tenants are left out. An admin key shows them.",
    replies={200: Reply("The metrics.", content_type="text/plain")},
    also=(
        401,
        403,
        404,
    ),
    needs_key=False,
)
OPERATIONS = [METRICS]


class MetricsCalls:
    def __init__(self, keys: Keys, node: str) -> None:
        self._keys = keys
        self._node = node
        self._open_text = b""
        self._writing = Sparing(WRITTEN_PER_SECOND)

    def routes(self) -> list[Route]:
        return [Route(METRICS, self.get)]

    async def get(self, request: Request) -> Answer:
        if b"authorization" in request.headers:
            need_role(await authenticate(self._keys, request.headers, request.peer), ADMINS)
            return Answer(200, metrics.render(self._node, shows_tenants=True), metrics.CONTENT_TYPE)
        if self._writing.take() is not None:
            self._open_text = metrics.render(self._node, shows_tenants=False)
        return Answer(200, self._open_text, metrics.CONTENT_TYPE)
