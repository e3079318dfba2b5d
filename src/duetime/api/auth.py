"""The caller: the bearer key of a request, and the tenant for which it acts."""

from collections.abc import Callable, Mapping

import msgspec

from duetime.admin.keyring import Keys
from duetime.admin.keys import ROLES, Caller
from duetime.api.operations import Confined, Operation
from duetime.api.server.peers import Peer
from duetime.errors import Forbidden, NotFound, TooManyWrongKeys, Unauthorized

_HOW = "send the header Authorization: Bearer <key>"


async def authenticate(keys: Keys, headers: Mapping[bytes, bytes], peer: Callable[[], Peer]) -> Caller:
    """Find the caller. An admin key acts for another tenant with the header Duetime-Tenant."""
    try:
        caller = await keys.resolve(_read_key(headers), lambda: peer().group)
        if caller is None:
            raise Unauthorized("the API key is not valid: it is unknown or was revoked")
    except (TooManyWrongKeys, Unauthorized):
        await keys.delay_refusal(peer().group)
        raise
    if caller.allowed_ips:
        keys.check_place(caller, peer().address)
    if caller.hash not in keys.uses.noted:
        keys.uses.note(caller, peer().name)
    acted_for = headers.get(b"duetime-tenant")
    return caller if acted_for is None else await _act_for(keys, caller, acted_for)


def _read_key(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"authorization")
    if given is None:
        raise Unauthorized(f"this call needs an API key; {_HOW}")
    scheme, _, key = given.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized(f"the Authorization header cannot be read; {_HOW}")
    return key.strip()


async def _act_for(keys: Keys, caller: Caller, header: bytes) -> Caller:
    name = header.decode("latin-1").strip()
    if name == caller.tenant_name:
        return caller
    if caller.role != "admin":
        raise Forbidden("only an admin key can act for another tenant; leave the header Duetime-Tenant out")
    tenant = await keys.find_tenant(name)
    if tenant is None:
        raise NotFound(f"there is no tenant {name[:80]}")
    return msgspec.structs.replace(caller, tenant=tenant.id, tenant_name=tenant.name)


def need_role(caller: Caller, allowed: frozenset[str]) -> None:
    if caller.role not in allowed:
        needed = " or ".join(role for role in ROLES if role in allowed)
        raise Forbidden(f"this call needs a key with the role {needed}; this one has the role {caller.role}")


def need_right(caller: Caller, operation: Operation) -> None:
    """Raise unless the caller has a role that may call it, and is not confined if it is about the whole tenant."""
    need_role(caller, operation.allowed_roles)
    if operation.confined is Confined.NONE and caller.is_confined:
        raise Forbidden(f"this call is about the whole tenant; this key is only for {_reach_of(caller)}")


def need_type(caller: Caller, type: str) -> None:
    """Raise unless the key reaches tasks of this type, in any queue."""
    if not caller.may_type(type):
        raise Forbidden(f"this key is for types {', '.join(caller.types)}, not for type {type[:200]}")


def need_reach(caller: Caller, type: str | None, queue: str) -> None:
    """Raise unless the key reaches tasks of this type and queue."""
    if not caller.may_use(type, queue):
        what = f"queue {queue}" if type is None else f"type {type} in queue {queue}"
        raise Forbidden(f"this key is for {_reach_of(caller)}, not for {what[:200]}")


def need_whole_type(caller: Caller, type: str) -> None:
    """Raise unless the key reaches all tasks of this type: what is set for a type holds in every queue."""
    need_type(caller, type)
    if caller.queues:
        raise Forbidden(f"what is set for a type holds in every queue; this key is only for {_reach_of(caller)}")


def need_whole_queue(caller: Caller, queue: str) -> None:
    """Raise unless the key reaches all tasks of this queue, of any type."""
    need_reach(caller, None, queue)
    if caller.types:
        raise Forbidden(f"what is set for a queue holds for every type; this key is only for {_reach_of(caller)}")


def _reach_of(caller: Caller) -> str:
    kinds = f"types {', '.join(caller.types)}" if caller.types else "all types"
    queues = f"queues {', '.join(caller.queues)}" if caller.queues else "all queues"
    return f"{kinds} in {queues}"
