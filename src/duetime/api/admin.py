"""A tenant's own keys, and the secret that signs calls to its HTTP targets."""

import base64
from dataclasses import dataclass

from duetime.admin.keys import Keys, create_key, list_keys, revoke_key
from duetime.admin.tenants import read_signing_secret
from duetime.api.answers import KeyMade, SecretAnswer
from duetime.api.auth import need_admin
from duetime.api.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.operations import Operation, Reply
from duetime.api.pages import KeyPage
from duetime.api.schemas import KeyRequest
from duetime.database.pool import Database
from duetime.errors import NotFound

_decode_key = make_decoder(KeyRequest)
#: What is secret must not stay in anybody's cache.
_NO_STORE = ((b"cache-control", b"no-store"),)

LIST_KEYS = Operation(
    method="GET",
    path="/v1/keys",
    name="list_keys",
    tag="Administration",
    summary="List the tenant's API keys",
    description="Never the keys themselves: those are shown once, when they are made.",
    replies={200: Reply("The keys.", KeyPage)},
    problems=(403, 404, 422),
)
MAKE_KEY = Operation(
    method="POST",
    path="/v1/keys",
    name="make_key",
    tag="Administration",
    summary="Make an API key",
    body=KeyRequest,
    example={"role": "admin"},
    replies={201: Reply("The key, shown this once.", KeyMade)},
    problems=(400, 403, 404, 413, 415, 422),
)
REVOKE_KEY = Operation(
    method="DELETE",
    path="/v1/keys/{id}",
    name="revoke_key",
    tag="Administration",
    summary="Revoke an API key",
    description="It ends at once on this node, and within five seconds on every other.",
    replies={204: Reply("It is revoked.")},
    problems=(403, 404, 413, 422),
)
GET_SECRET = Operation(
    method="GET",
    path="/v1/signing-secret",
    name="get_signing_secret",
    tag="Administration",
    summary="Get the secret that signs calls to the tenant's HTTP targets",
    description="A Standard Webhooks secret; check `webhook-id`, `webhook-timestamp` and `webhook-signature` with "
    "any library of that standard.",
    replies={200: Reply("The secret.", SecretAnswer)},
    problems=(404, 422),
)
OPERATIONS = [LIST_KEYS, MAKE_KEY, REVOKE_KEY, GET_SECRET]


@dataclass(frozen=True)
class Administration:
    database: Database
    keys: Keys

    def routes(self) -> list[Route]:
        return [
            Route(LIST_KEYS, self.list),
            Route(MAKE_KEY, self.make),
            Route(REVOKE_KEY, self.revoke),
            Route(GET_SECRET, self.secret),
        ]

    async def list(self, request: Request) -> Answer:
        request.query()
        need_admin(request.caller)
        return json_answer(200, KeyPage(await list_keys(self.database, request.caller.tenant), None))

    async def make(self, request: Request) -> Answer:
        request.query()
        need_admin(request.caller)
        asked = await request.json(_decode_key)
        info, key = await create_key(self.database, request.caller.tenant, asked.role)
        return json_answer(201, KeyMade(info.id, key, info.role), _NO_STORE)

    async def revoke(self, request: Request) -> Answer:
        request.query()
        need_admin(request.caller)
        await request.no_body()
        text = request.path["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise NotFound(f"there is no key {text[:80]}")
        self.keys.forget(await revoke_key(self.database, request.caller.tenant, int(text)))
        return Answer(204, b"")

    async def secret(self, request: Request) -> Answer:
        request.query()
        secret = await read_signing_secret(self.database, request.caller.tenant)
        return json_answer(200, SecretAnswer("whsec_" + base64.b64encode(secret).decode()), _NO_STORE)
