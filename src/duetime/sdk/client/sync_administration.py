# Made by tests/sdk/write_client.py of async_administration.py: change that, then `make client`.
"""Administration by a client: task types, queues, limits, keys, tenants, breakers, the outbox, the cluster."""

from collections.abc import Iterator, Sequence
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
from duetime.sdk.client.sync_sender import CallSender
from duetime.sdk.errors import Duration
from duetime.sdk.shapes.durations import seconds_of
from duetime.sdk.shapes.flow import KeyLimit, Limits, Queue, TaskType, TypeOptions, TypePreview, TypePut
from duetime.sdk.shapes.keys import Key, NewKey, Role
from duetime.sdk.shapes.operation import Act, Breaker, BreakerState, Node, OutboxNumber, Refused
from duetime.sdk.shapes.tenants import SigningSecret, Tenant, TenantOptions, Tier, TierOptions


class Administration(CallSender):
    """What is set for all tasks, and who may do what."""

    def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type, or replace it whole: what is left out is not there any more."""
        return self.send(calls.put_type(name, without_none(options)))

    def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """What `put_type` would mean for tasks that wait; nothing is stored."""
        return self.send(calls.preview_type(name, without_none(options)))

    def get_type(self, name: str) -> TaskType:
        return self.send(TYPES.get(name))

    def list_types(self, *, page_size: int | None = None) -> Iterator[TaskType]:
        """Every registered type, by name."""
        return self.items(lambda cursor: TYPES.list(limit=page_size, cursor=cursor))

    def delete_type(self, name: str) -> None:
        """Forget a type: its payloads may be anything again, and nothing limits it."""
        self.send(TYPES.delete(name))

    def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue; None lifts them."""
        return self.send(QUEUES.put(name, {"limits": limits}))

    def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """How long workers of a queue may be silent before they count as dead; None: as long as is usual."""
        seconds = None if max_silence is None else seconds_of(max_silence)
        return self.send(QUEUES.put(name, {"max_silence": seconds}))

    def pause_queue(self, name: str) -> Queue:
        """Nothing of the queue starts; what runs goes on."""
        return self.send(QUEUES.put(name, {"state": "paused"}))

    def resume_queue(self, name: str) -> Queue:
        return self.send(QUEUES.put(name, {"state": "active"}))

    def get_queue(self, name: str) -> Queue:
        return self.send(QUEUES.get(name))

    def list_queues(self, *, page_size: int | None = None) -> Iterator[Queue]:
        """Every queue that a task was ever put into, or that something is set for, by name."""
        return self.items(lambda cursor: QUEUES.list(limit=page_size, cursor=cursor))

    def delete_queue(self, name: str) -> None:
        """Forget the state and the limits of a queue, not its tasks."""
        self.send(QUEUES.delete(name))

    def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks that name a key, or each key that a pattern (`customer-*`) fits."""
        return self.send(LIMITS.put(key, limits))

    def get_limit(self, key: str) -> KeyLimit:
        return self.send(LIMITS.get(key))

    def list_limits(self, *, page_size: int | None = None) -> Iterator[KeyLimit]:
        """Every limit of a key, by name."""
        return self.items(lambda cursor: LIMITS.list(limit=page_size, cursor=cursor))

    def delete_limit(self, key: str) -> None:
        """Lift the limit of a key."""
        self.send(LIMITS.delete(key))

    def create_key(
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
        return self.send(calls.create_key(without_none(fields)))

    def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """The tenant's keys; with `unused_for` the valid ones that were not used for so long."""
        unused = None if unused_for is None else f"{seconds_of(unused_for):.3f}s"
        return list(self.items(lambda cursor: KEYS.list(cursor=cursor, unused_for=unused)))

    def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights; the old one goes on for `overlap`, an hour if None."""
        fields = {} if overlap is None else {"overlap": seconds_of(overlap)}
        return self.send(calls.rotate_key(key, fields))

    def revoke_key(self, key: int) -> None:
        """End a key."""
        self.send(KEYS.delete(key))

    def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Make or change a tenant, with an admin key: what is left out stays as it is, None takes it away."""
        # None is sent: it takes a value away.
        return self.send(TENANTS.put(name, options))

    def get_tenant(self, name: str) -> Tenant:
        """A tenant, with an admin key; with an owner's, its own."""
        return self.send(TENANTS.get(name))

    def list_tenants(self, *, page_size: int | None = None) -> Iterator[Tenant]:
        """Every tenant, by name, with an admin key."""
        return self.items(lambda cursor: TENANTS.list(limit=page_size, cursor=cursor))

    def put_tier(self, name: str, **options: Unpack[TierOptions]) -> Tier:
        """Make or change a tier, with an admin key: what is left out stays as it is, None takes it away."""
        return self.send(TIERS.put(name, options))

    def get_tier(self, name: str) -> Tier:
        return self.send(TIERS.get(name))

    def list_tiers(self, *, page_size: int | None = None) -> Iterator[Tier]:
        """Every tier, by name, with an admin key."""
        return self.items(lambda cursor: TIERS.list(limit=page_size, cursor=cursor))

    def delete_tier(self, name: str) -> None:
        """Delete a tier that no tenant has."""
        self.send(TIERS.delete(name))

    def list_audit(self, tenant: str | None = None, *, page_size: int | None = None) -> Iterator[Act]:
        """What was done to tenants and keys, the latest first; with an owner's key to its own tenant."""
        return self.items(lambda cursor: AUDIT.list(limit=page_size, cursor=cursor, tenant=tenant))

    def signing_secret(self) -> str:
        """The secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        found = self.send(calls.signing_secret())
        return found.secret

    def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls; the former one signs as well for the overlap (at most 30 days)."""
        return self.send(calls.rotate_signing_secret({"overlap": seconds_of(overlap)}))

    def list_breakers(self, *, page_size: int | None = None) -> Iterator[Breaker]:
        """Every breaker that is not closed, or that somebody set, by host; the tenant's own is `tenant`."""
        return self.items(lambda cursor: BREAKERS.list(limit=page_size, cursor=cursor))

    def set_breaker(self, host: str, state: BreakerState, *, note: str = "") -> Breaker:
        """Call a host no more (`open`), limit nothing for it (`closed`), or let its breaker decide (`auto`)."""
        return self.send(BREAKERS.put(host, {"state": state, "note": note}))

    def list_refused(self, *, page_size: int | None = None) -> Iterator[Refused]:
        """What producers wrote in their own transactions and could not become a task, by number."""
        return self.items(lambda cursor: REFUSED.list(limit=page_size, cursor=cursor))

    def get_outbox(self, number: int) -> OutboxNumber:
        """What became of a number that `outbox.submit` gave."""
        return self.send(OUTBOX.get(number))

    def retry_refused(self, number: int) -> OutboxNumber:
        """Judge a refused one again."""
        return self.send(OUTBOX.act("retry", number))

    def delete_refused(self, number: int) -> None:
        """Throw a refused one away."""
        self.send(OUTBOX.delete(number))

    def list_nodes(self) -> list[Node]:
        """The nodes of the cluster, as the one that answers sees them."""
        page = self.send(CLUSTER.list())
        return page.items
