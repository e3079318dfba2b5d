"""Administration by a client: task types, queues, limits, keys, tenants, breakers, the outbox, the cluster."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Unpack

from duetime.sdk.calls import administration as calls
from duetime.sdk.calls.administration import (
    AUDIT,
    BREAKERS,
    CLUSTER,
    KEYS,
    LIMITS,
    OUTBOX,
    QUEUES,
    REFUSED,
    TENANTS,
    TIERS,
    TYPES,
)
from duetime.sdk.calls.call import without_none
from duetime.sdk.client.async_sender import AsyncCallSender
from duetime.sdk.errors import Duration
from duetime.sdk.shapes.durations import seconds_of
from duetime.sdk.shapes.flow import KeyLimit, Limits, Queue, TaskType, TypeOptions, TypePreview, TypePut
from duetime.sdk.shapes.keys import Key, NewKey, Role
from duetime.sdk.shapes.operation import Act, Breaker, BreakerState, Node, OutboxNumber, Refused
from duetime.sdk.shapes.tenants import SigningSecret, Tenant, TenantOptions, Tier, TierOptions


class AsyncAdministration(AsyncCallSender):
    """Settings that hold for all tasks, and the rights of keys."""

    async def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type or replace it as a whole: what is left out is removed."""
        return await self.send(calls.put_type(name, without_none(options)))

    async def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """Say what `put_type` would mean for waiting tasks. Nothing is stored."""
        return await self.send(calls.preview_type(name, without_none(options)))

    async def get_type(self, name: str) -> TaskType:
        return await self.send(TYPES.get(name))

    def list_types(self, *, page_size: int | None = None) -> AsyncIterator[TaskType]:
        """Return every registered type, by name."""
        return self.items(lambda cursor: TYPES.list(limit=page_size, cursor=cursor))

    async def delete_type(self, name: str) -> None:
        """Delete a type: its payloads may be any JSON again, and nothing limits it."""
        await self.send(TYPES.delete(name))

    async def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue. None removes them."""
        return await self.send(QUEUES.put(name, {"limits": limits}))

    async def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """Set how long workers of a queue may be silent before they count as dead. None: the server's default."""
        seconds = None if max_silence is None else seconds_of(max_silence)
        return await self.send(QUEUES.put(name, {"max_silence": seconds}))

    async def pause_queue(self, name: str) -> Queue:
        """Pause a queue: no task of it starts. Running attempts continue."""
        return await self.send(QUEUES.put(name, {"state": "paused"}))

    async def resume_queue(self, name: str) -> Queue:
        return await self.send(QUEUES.put(name, {"state": "active"}))

    async def get_queue(self, name: str) -> Queue:
        return await self.send(QUEUES.get(name))

    def list_queues(self, *, page_size: int | None = None) -> AsyncIterator[Queue]:
        """Return every queue that ever got a task or that has settings, by name."""
        return self.items(lambda cursor: QUEUES.list(limit=page_size, cursor=cursor))

    async def delete_queue(self, name: str) -> None:
        """Delete the state and the limits of a queue, but not its tasks."""
        await self.send(QUEUES.delete(name))

    async def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks of a key, or of each key that matches a pattern (`customer-*`)."""
        return await self.send(LIMITS.put(key, limits))

    async def get_limit(self, key: str) -> KeyLimit:
        return await self.send(LIMITS.get(key))

    def list_limits(self, *, page_size: int | None = None) -> AsyncIterator[KeyLimit]:
        """Return the limits of all keys, by name."""
        return self.items(lambda cursor: LIMITS.list(limit=page_size, cursor=cursor))

    async def delete_limit(self, key: str) -> None:
        """Remove the limit of a key."""
        await self.send(LIMITS.delete(key))

    async def create_key(
        self,
        role: Role,
        *,
        name: str | None = None,
        types: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        allowed_ips: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> NewKey:
        """Make an API key. `types` and `queues` are patterns that confine it; `allowed_ips` limits its addresses."""
        fields: dict[str, object] = {"role": role, "name": name, "types": types, "queues": queues}
        fields |= {"allowed_ips": allowed_ips, "expires_at": expires_at}
        return await self.send(calls.create_key(without_none(fields)))

    async def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """Return the tenant's keys; with `unused_for`, the valid keys that have not been used for this long."""
        unused = None if unused_for is None else f"{seconds_of(unused_for):.3f}s"
        return [each async for each in self.items(lambda cursor: KEYS.list(cursor=cursor, unused_for=unused))]

    async def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights. The old key stays valid for `overlap`; None: an hour."""
        fields = {} if overlap is None else {"overlap": seconds_of(overlap)}
        return await self.send(calls.rotate_key(key, fields))

    async def revoke_key(self, key: int) -> None:
        """Revoke a key."""
        await self.send(KEYS.delete(key))

    async def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Create or change a tenant, with an admin key. Absent values stay as they are; None removes a value."""
        # None is sent, because it removes a value.
        return await self.send(TENANTS.put(name, options))

    async def get_tenant(self, name: str) -> Tenant:
        """Return a tenant. An admin key can read any tenant, an owner's key its own."""
        return await self.send(TENANTS.get(name))

    def list_tenants(self, *, page_size: int | None = None) -> AsyncIterator[Tenant]:
        """Return every tenant, by name. Needs an admin key."""
        return self.items(lambda cursor: TENANTS.list(limit=page_size, cursor=cursor))

    async def put_tier(self, name: str, **options: Unpack[TierOptions]) -> Tier:
        """Create or change a tier, with an admin key. Absent values stay as they are; None removes a value."""
        return await self.send(TIERS.put(name, options))

    async def get_tier(self, name: str) -> Tier:
        return await self.send(TIERS.get(name))

    def list_tiers(self, *, page_size: int | None = None) -> AsyncIterator[Tier]:
        """Return every tier, by name. Needs an admin key."""
        return self.items(lambda cursor: TIERS.list(limit=page_size, cursor=cursor))

    async def delete_tier(self, name: str) -> None:
        """Delete a tier that no tenant has."""
        await self.send(TIERS.delete(name))

    def list_audit(self, tenant: str | None = None, *, page_size: int | None = None) -> AsyncIterator[Act]:
        """Return changes to tenants and keys, the latest first; with an owner's key those to its own tenant."""
        return self.items(lambda cursor: AUDIT.list(limit=page_size, cursor=cursor, tenant=tenant))

    async def signing_secret(self) -> str:
        """Return the secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        found = await self.send(calls.signing_secret())
        return found.secret

    async def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls. The former one also signs during the overlap (at most 30 days)."""
        return await self.send(calls.rotate_signing_secret({"overlap": seconds_of(overlap)}))

    def list_breakers(self, *, page_size: int | None = None) -> AsyncIterator[Breaker]:
        """Return every breaker that is not closed or is forced, by host. The tenant's own breaker is `tenant`."""
        return self.items(lambda cursor: BREAKERS.list(limit=page_size, cursor=cursor))

    async def set_breaker(self, host: str, state: BreakerState, *, note: str = "") -> Breaker:
        """Stop calls to a host (`open`), do not limit them (`closed`), or let the breaker decide (`auto`)."""
        return await self.send(BREAKERS.put(host, {"state": state, "note": note}))

    def list_refused(self, *, page_size: int | None = None) -> AsyncIterator[Refused]:
        """Return what producers wrote in their own transactions and could not become a task, by number."""
        return self.items(lambda cursor: REFUSED.list(limit=page_size, cursor=cursor))

    async def get_outbox(self, number: int) -> OutboxNumber:
        """Find out what happened to a number that `outbox.submit` returned."""
        return await self.send(OUTBOX.get(number))

    async def retry_refused(self, number: int) -> OutboxNumber:
        """Try a refused outbox row again."""
        return await self.send(OUTBOX.act("retry", number))

    async def delete_refused(self, number: int) -> None:
        """Delete a refused outbox row."""
        await self.send(OUTBOX.delete(number))

    async def list_nodes(self) -> list[Node]:
        """Return the nodes of the cluster, as seen by the node that answers."""
        page = await self.send(CLUSTER.list())
        return page.items
