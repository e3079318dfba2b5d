"""The secret that signs calls to a tenant's HTTP targets."""

import base64
from dataclasses import dataclass

from duetime.admin.tenants import read_signing_secret
from duetime.api.answers import SecretAnswer
from duetime.api.http import Answer, Request, Route, json_answer
from duetime.api.keys import NO_STORE
from duetime.api.operations import OPERATORS, Operation, Reply
from duetime.database.pool import Database

GET_SECRET = Operation(
    method="GET",
    path="/v1/signing-secret",
    name="get_signing_secret",
    roles=OPERATORS,
    tag="Administration",
    summary="Get the secret that signs calls to the tenant's HTTP targets",
    description="A Standard Webhooks secret; check `webhook-id`, `webhook-timestamp` and `webhook-signature` with "
    "any library of that standard.",
    replies={200: Reply("The secret.", SecretAnswer)},
    problems=(404, 422),
)
OPERATIONS = [GET_SECRET]


@dataclass(frozen=True)
class Administration:
    database: Database

    def routes(self) -> list[Route]:
        return [Route(GET_SECRET, self.secret)]

    async def secret(self, request: Request) -> Answer:
        request.query()
        secret = await read_signing_secret(self.database, request.caller.tenant)
        return json_answer(200, SecretAnswer("whsec_" + base64.b64encode(secret).decode()), NO_STORE)
