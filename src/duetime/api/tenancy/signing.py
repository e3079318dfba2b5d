"""The secret that signs calls to a tenant's HTTP targets."""

from dataclasses import dataclass

from duetime.admin.signing import read_signing, rotate_signing, show_secret
from duetime.api.bodies.answers import SecretAnswer, SecretRotated
from duetime.api.operations import OPERATORS, Operation, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.handlers import read_request_key
from duetime.api.tasks.operations import REQUEST_KEY
from duetime.api.tenancy.keys import NO_STORE
from duetime.api.tenancy.requests import RotateSigningRequest
from duetime.database.pool import Database

_decode_rotate = make_decoder(RotateSigningRequest)

GET_SECRET = Operation(
    method="GET",
    path="/v1/signing-secret",
    name="get_signing_secret",
    roles=OPERATORS,
    tag="Administration",
    summary="Get the secret that signs calls to the tenant's HTTP targets",
    description="A Standard Webhooks secret. Any library of that standard can check `webhook-id`, "
    "`webhook-timestamp` and `webhook-signature`. After a rotation the former secret also signs until "
    "`former_until`.",
    replies={200: Reply("The secret.", SecretAnswer)},
    also=(404,),
)
ROTATE_SECRET = Operation(
    method="POST",
    path="/v1/signing-secret/rotate",
    name="rotate_signing_secret",
    roles=OPERATORS,
    tag="Administration",
    summary="Replace the secret that signs calls to the tenant's HTTP targets",
    description="For `overlap` (a day) each call carries two signatures, the newest first, so that receivers can "
    "change over. A second rotation within that time drops the older of the two former secrets at once, and "
    "`notes` says so. Takes effect on every node within a second.",
    body=RotateSigningRequest,
    is_body_optional=True,
    example={"overlap": "1d"},
    parameters=(REQUEST_KEY,),
    replies={200: Reply("The new secret.", SecretRotated)},
    also=(404,),
)
OPERATIONS = [GET_SECRET, ROTATE_SECRET]


@dataclass(frozen=True)
class Administration:
    database: Database

    def routes(self) -> list[Route]:
        return [Route(GET_SECRET, self.secret), Route(ROTATE_SECRET, self.rotate)]

    async def secret(self, request: Request) -> Answer:
        request.query()
        signing = await read_signing(self.database, request.caller.tenant)
        return json_answer(200, SecretAnswer(show_secret(signing.secret), signing.former_until), NO_STORE)

    async def rotate(self, request: Request) -> Answer:
        request.query()
        asked = await request.json_or_nothing(_decode_rotate, RotateSigningRequest())
        caller, key = request.caller, read_request_key(request.headers, self.database.clock.now())
        signing, dropped_until = await rotate_signing(
            self.database, caller.tenant, float(asked.overlap), request=key, by=caller.key
        )
        notes = []
        if dropped_until is not None:
            until = f"{dropped_until:%Y-%m-%dT%H:%M:%SZ}"
            notes.append(f"the secret that was to sign until {until} beside the one before does not sign any more")
        return json_answer(200, SecretRotated(show_secret(signing.secret), signing.former_until, notes), NO_STORE)
