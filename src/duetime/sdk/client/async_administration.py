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
    """What is set for all tasks, and who may do what."""

    async def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type, or replace it whole: what is left out is not there any more."""
        return await self.send(calls.put_type(name, without_none(options)))

    async def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """What `put_type` would mean for tasks that wait; nothing is stored."""
        return await self.send(calls.preview_type(name, without_none(options)))

    async def get_type(self, name: str) -> TaskType:
        return await self.send(TYPES.get(name))

    def list_types(self, *, page_size: int | None = None) -> AsyncIterator[TaskType]:
        """Every registered type, by name."""
        return self.items(lambda cursor: TYPES.list(limit=page_size, cursor=cursor))

    async def delete_type(self, name: str) -> None:
        """Forget a type: its payloads may be anything again, and nothing limits it."""
        await self.send(TYPES.delete(name))

    async def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue; None lifts them."""
        return await self.send(QUEUES.put(name, {"limits": limits}))

    async def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """How long workers of a queue may be silent before they count as dead; None: as long as is usual."""
        seconds = None if max_silence is None else seconds_of(max_silence)
        return await self.send(QUEUES.put(name, {"max_silence": seconds}))

    async def pause_queue(self, name: str) -> Queue:
        """Nothing of the queue starts; what runs goes on."""
        return await self.send(QUEUES.put(name, {"state": "paused"}))

    async def resume_queue(self, name: str) -> Queue:
        return await self.send(QUEUES.put(name, {"state": "active"}))

    async def get_queue(self, name: str) -> Queue:
        return await self.send(QUEUES.get(name))

    def list_queues(self, *, page_size: int | None = None) -> AsyncIterator[Queue]:
        """Every queue that a task was ever put into, or that something is set for, by name."""
        return self.items(lambda cursor: QUEUES.list(limit=page_size, cursor=cursor))

    async def delete_queue(self, name: str) -> None:
        """Forget the state and the limits of a queue, not its tasks."""
        await self.send(QUEUES.delete(name))

    async def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks that name a key, or each key that a pattern (`customer-*`) fits."""
        return await self.send(LIMITS.put(key, limits))

    async def get_limit(self, key: str) -> KeyLimit:
        return await self.send(LIMITS.get(key))

    def list_limits(self, *, page_size: int | None = None) -> AsyncIterator[KeyLimit]:
        """Every limit of a key, by name."""
        return self.items(lambda cursor: LIMITS.list(limit=page_size, cursor=cursor))

    async def delete_limit(self, key: str) -> None:
        """Lift the limit of a key."""
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
        """Make an API key; `types` and `queues` are patterns that confine it, `allowed_ips` says from where."""
        fields: dict[str, object] = {"role": role, "name": name, "types": types, "queues": queues}
        fields |= {"allowed_ips": allowed_ips, "expires_at": expires_at}
        return await self.send(calls.create_key(without_none(fields)))

    async def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """The tenant's keys; with `unused_for` the valid ones that were not used for so long."""
        unused = None if unused_for is None else f"{seconds_of(unused_for):.3f}s"
        return [each async for each in self.items(lambda cursor: KEYS.list(cursor=cursor, unused_for=unused))]

    async def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights; the old one goes on for `overlap`, an hour if None."""
        fields = {} if overlap is None else {"overlap": seconds_of(overlap)}
        return await self.send(calls.rotate_key(key, fields))

    async def revoke_key(self, key: int) -> None:
        """End a key."""
        await self.send(KEYS.delete(key))

    async def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Make or change a tenant, with an admin key: what is left out stays as it is, None takes it away."""
        # None is sent: it takes a value away.
        return await self.send(TENANTS.put(name, options))

    async def get_tenant(self, name: str) -> Tenant:
        """A tenant, with an admin key; with an owner's, its own."""
        return await self.send(TENANTS.get(name))

    def list_tenants(self, *, page_size: int | None = None) -> AsyncIterator[Tenant]:
        """Every tenant, by name, with an admin key."""
        return self.items(lambda cursor: TENANTS.list(limit=page_size, cursor=cursor))

    async def put_tier(self, name: str, **options: Unpack[TierOptions]) -> Tier:
        """Make or change a tier, with an admin key: what is left out stays as it is, None takes it away."""
        return await self.send(TIERS.put(name, options))

    async def get_tier(self, name: str) -> Tier:
        return await self.send(TIERS.get(name))

    def list_tiers(self, *, page_size: int | None = None) -> AsyncIterator[Tier]:
        """Every tier, by name, with an admin key."""
        return self.items(lambda cursor: TIERS.list(limit=page_size, cursor=cursor))

    async def delete_tier(self, name: str) -> None:
        """Delete a tier that no tenant has."""
        await self.send(TIERS.delete(name))

    def list_audit(self, tenant: str | None = None, *, page_size: int | None = None) -> AsyncIterator[Act]:
        """What was done to tenants and keys, the latest first; with an owner's key to its own tenant."""
        return self.items(lambda cursor: AUDIT.list(limit=page_size, cursor=cursor, tenant=tenant))

    async def signing_secret(self) -> str:
        """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        found = await self.send(calls.signing_secret())
        return found.secret

    async def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls; the former one signs as well for the overlap (at most 30 days)."""
        return await self.send(calls.rotate_signing_secret({"overlap": seconds_of(overlap)}))

    def list_breakers(self, *, page_size: int | None = None) -> AsyncIterator[Breaker]:
        """Every breaker that is not closed, or that somebody set, by host; the tenant's own is `tenant`."""
        return self.items(lambda cursor: BREAKERS.list(limit=page_size, cursor=cursor))

    async def set_breaker(self, host: str, state: BreakerState, *, note: str = "") -> Breaker:
        """Call a host no more (`open`), limit nothing for it (`closed`), or let its breaker decide (`auto`)."""
        return await self.send(BREAKERS.put(host, {"state": state, "note": note}))

    def list_refused(self, *, page_size: int | None = None) -> AsyncIterator[Refused]:
        """What producers wrote in their own transactions and could not become a task, by number."""
        return self.items(lambda cursor: REFUSED.list(limit=page_size, cursor=cursor))

    async def get_outbox(self, number: int) -> OutboxNumber:
        """What became of a number that `outbox.submit` gave."""
        return await self.send(OUTBOX.get(number))

    async def retry_refused(self, number: int) -> OutboxNumber:
        """Judge a refused one again."""
        return await self.send(OUTBOX.act("retry", number))

    async def delete_refused(self, number: int) -> None:
        """Throw a refused one away."""
        await self.send(OUTBOX.delete(number))

    async def list_nodes(self) -> list[Node]:
        """The nodes of the cluster, as the one that answers sees them."""
        page = await self.send(CLUSTER.list())
        return page.items
