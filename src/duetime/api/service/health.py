"""Whether the process is alive, and whether it is ready; and the first page."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from duetime.api.bodies.answers import HealthAnswer
from duetime.api.operations import Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer
from duetime.errors import Unavailable

HEALTH = Operation(
    method="GET",
    path="/healthz",
    name="health",
    tag="Server",
    summary="Is the process alive?",
    replies={200: Reply("The process is alive.", HealthAnswer)},
    needs_key=False,
)
READY = Operation(
    method="GET",
    path="/readyz",
    name="ready",
    tag="Server",
    summary="Is the node ready?",
    description="Ready means that this node feeds shards and can write to the database. The node tests the database "
    "on request, at most once a second. If it is not ready, the problem says why.",
    replies={200: Reply("The node is ready.", HealthAnswer)},
    needs_key=False,
)
OPERATIONS = [HEALTH, READY]


@dataclass(frozen=True)
class Health:
    #: None: ready; else the reason why not.
    is_ready: Callable[[], Awaitable[str | None]]

    def routes(self) -> list[Route]:
        return [Route(HEALTH, self.health), Route(READY, self.ready)]

    async def health(self, request: Request) -> Answer:
        return json_answer(200, HealthAnswer())

    async def ready(self, request: Request) -> Answer:
        reason = await self.is_ready()
        if reason is not None:
            raise Unavailable(reason)
        return json_answer(200, HealthAnswer())
