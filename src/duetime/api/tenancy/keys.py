"""A tenant's API keys.

An owner manages the keys of its own tenant, but not those of an admin: an owner that
could make or end one would be above all tenants.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from duetime.admin.keyring import Keys
from duetime.admin.keys import Caller, KeyInfo, Role, create_key, hash_key, list_keys, read_key, revoke_key, rotate_key
from duetime.api.bodies.answers import KeyMade
from duetime.api.bodies.pages import KeyPage
from duetime.api.bodies.seconds import Unused, decode_hook
from duetime.api.operations import CONFINABLE, OWNERS, Operation, Parameter, Reply
from duetime.api.server.http import Answer, Request, Route, json_answer, make_decoder
from duetime.api.tasks.filters import read_number_cursor, read_one, read_page
from duetime.api.tasks.operations import PAGES
from duetime.api.tenancy.requests import KeyRequest, RotateRequest
from duetime.database.pool import Database
from duetime.errors import FieldError, Forbidden, InvalidInput, NotFound
from duetime.model.duration import DURATION_PATTERN
from duetime.model.networks import networks_of, read_network, write_network

_decode_key = make_decoder(KeyRequest)
_decode_rotate = make_decoder(RotateRequest)
_PATTERN = re.compile(r"[A-Za-z0-9*?._:/-]{1,128}")
#: A secret must not stay in any cache.
NO_STORE = ((b"cache-control", b"no-store"),)

LIST_KEYS = Operation(
    method="GET",
    path="/v1/keys",
    name="list_keys",
    roles=OWNERS,
    tag="Administration",
    summary="List the tenant's API keys, by id",
    description="The keys themselves are shown only once, when they are created. `last_used_at` and "
    "`last_used_from` are exact to about a minute. null: no use has been recorded.",
    parameters=(
        Parameter(
            "unused_for",
            'Only valid keys that have not been used for this long, such as "90d".',
            {"type": "string", "pattern": DURATION_PATTERN, "format": "duration-unused"},
        ),
        *PAGES,
    ),
    replies={200: Reply("A page.", KeyPage)},
    also=(
        403,
        404,
    ),
)
MAKE_KEY = Operation(
    method="POST",
    path="/v1/keys",
    name="make_key",
    roles=OWNERS,
    tag="Administration",
    summary="Make an API key",
    body=KeyRequest,
    example={"role": "admin"},
    replies={201: Reply("The key, shown this once.", KeyMade)},
    also=(
        403,
        404,
    ),
)
REVOKE_KEY = Operation(
    method="DELETE",
    path="/v1/keys/{id}",
    name="revoke_key",
    roles=OWNERS,
    tag="Administration",
    summary="Revoke an API key",
    description="Takes effect at once on this node, and within a second on every other.",
    replies={204: Reply("The key is revoked.")},
    also=(403,),
)
ROTATE_KEY = Operation(
    method="POST",
    path="/v1/keys/{id}/rotate",
    name="rotate_key",
    roles=OWNERS,
    tag="Administration",
    summary="Replace an API key with a new one that has the same rights",
    description="The old key stays valid for `overlap` (an hour), so that its users can change over. An expired key "
    "cannot be replaced.",
    body=RotateRequest,
    is_body_optional=True,
    example={"overlap": "1d"},
    replies={201: Reply("The new key, shown this once.", KeyMade)},
    also=(409,),
)
OPERATIONS = [LIST_KEYS, MAKE_KEY, REVOKE_KEY, ROTATE_KEY]


@dataclass(frozen=True)
class KeyCalls:
    database: Database
    keys: Keys

    def routes(self) -> list[Route]:
        return [
            Route(LIST_KEYS, self.list),
            Route(MAKE_KEY, self.make),
            Route(REVOKE_KEY, self.revoke),
            Route(ROTATE_KEY, self.rotate),
        ]

    async def list(self, request: Request) -> Answer:
        query = request.query()
        cursor, limit = read_page(query)
        after, unused = read_number_cursor(cursor), _read_unused(query)
        found = await list_keys(self.database, request.caller.tenant, after, limit + 1, unused_seconds=unused)
        following = str(found[limit - 1].id) if len(found) > limit else None
        return json_answer(200, KeyPage(found[:limit], following))

    async def make(self, request: Request) -> Answer:
        request.query()
        now = self.database.clock.now()
        asked = await request.json(_decode_key, judge=lambda some: _check(some, now))
        _check(asked, now)
        caller = request.caller
        _need_rank(caller, asked.role)
        info, key = await create_key(
            self.database,
            caller.tenant,
            asked.role,
            name=asked.name,
            types=asked.types,
            queues=asked.queues,
            allowed_ips=_canonical(asked.allowed_ips),
            expires_at=asked.expires_at,
            by=caller.key,
        )
        return self._answer(request, info, key)

    async def rotate(self, request: Request) -> Answer:
        request.query()
        asked = await request.json_or_nothing(_decode_rotate, RotateRequest())
        caller, number = request.caller, await self._find(request)
        info, key = await rotate_key(self.database, caller.tenant, number, float(asked.overlap), by=caller.key)
        return self._answer(request, info, key)

    def _answer(self, request: Request, info: KeyInfo, key: str) -> Answer:
        """Answer with the key that was made, and a note if it cannot be used from the address of this request."""
        self.keys.welcome(hash_key(key))
        address, notes = request.peer().address, list[str]()
        if info.allowed_ips and (address is None or address not in networks_of(tuple(info.allowed_ips))):
            where = "a local socket" if address is None else str(address)
            notes.append(f"this request came from {where}, from which the new key is not allowed")
        return json_answer(201, KeyMade(info.id, key, info.role, request.caller.tenant_name, notes), NO_STORE)

    async def revoke(self, request: Request) -> Answer:
        request.query()
        await request.no_body()
        caller, number = request.caller, await self._find(request)
        self.keys.forget(await revoke_key(self.database, caller.tenant, number, by=caller.key))
        return Answer(204, b"")

    async def _find(self, request: Request) -> int:
        """The number of a key that the caller may manage."""
        number = _key_number(request)
        if request.caller.role != "admin":
            # A key's role never changes, so what is read here still holds when the key is changed.
            _need_rank(request.caller, (await read_key(self.database, request.caller.tenant, number)).role)
        return number


def _read_unused(query: dict[str, list[str]]) -> float | None:
    text = read_one(query, "unused_for")
    try:
        return None if text is None else msgspec.convert(text, Unused, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise InvalidInput.at("unused_for", str(error)) from error


def _need_rank(caller: Caller, role: Role) -> None:
    if role == "admin" and caller.role != "admin":
        raise Forbidden(
            f"an admin key reaches all tenants, so only an admin key makes, changes and ends one; "
            f"this one has the role {caller.role}"
        )


def _canonical(texts: Sequence[str]) -> list[str]:
    """Each address and network once, in its canonical form."""
    return list(dict.fromkeys(write_network(read_network(text)) for text in texts))


def _key_number(request: Request) -> int:
    text = request.path["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise NotFound(f"there is no key {text[:80]}")
    return int(text)


def _check(asked: KeyRequest, now: datetime) -> None:
    errors: list[FieldError] = []
    if (asked.types or asked.queues) and asked.role not in CONFINABLE:
        wrong = f"a key with the role {asked.role} reaches all types and queues; leave them out"
        errors.append(FieldError("role", wrong))
    for field, patterns in (("types", asked.types), ("queues", asked.queues)):
        errors += [
            FieldError(f"{field}[{place}]", "use letters, digits and . _ : / -, and * for any of them")
            for place, pattern in enumerate(patterns)
            if not _PATTERN.fullmatch(pattern)
        ]
    for place, text in enumerate(asked.allowed_ips):
        try:
            read_network(text)
        except ValueError:
            right = "must be an IP address, or a network such as 10.0.0.0/8 or 2001:db8::/32 whose other bits are 0"
            errors.append(FieldError(f"allowed_ips[{place}]", right))
    if not asked.name.isprintable():
        errors.append(FieldError("name", "use printable characters"))
    if asked.expires_at is not None and asked.expires_at <= now:
        errors.append(FieldError("expires_at", "must lie in the future"))
    if errors:
        raise InvalidInput.all(errors)
