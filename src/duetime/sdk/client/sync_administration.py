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
    """Settings that hold for all tasks, and the rights of keys."""

    def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type or replace it as a whole: what is left out is removed."""
        return self.send(calls.put_type(name, without_none(options)))

    def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """Say what `put_type` would mean for waiting tasks. Nothing is stored."""
        return self.send(calls.preview_type(name, without_none(options)))

    def get_type(self, name: str) -> TaskType:
        return self.send(TYPES.get(name))

    def list_types(self, *, page_size: int | None = None) -> Iterator[TaskType]:
        """Return every registered type, by name."""
        return self.items(lambda cursor: TYPES.list(limit=page_size, cursor=cursor))

    def delete_type(self, name: str) -> None:
        """Delete a type: its payloads may be any JSON again, and nothing limits it."""
        self.send(TYPES.delete(name))

    def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue. None removes them."""
        return self.send(QUEUES.put(name, {"limits": limits}))

    def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """Set how long workers of a queue may be silent before they count as dead. None: the server's default."""
        seconds = None if max_silence is None else seconds_of(max_silence)
        return self.send(QUEUES.put(name, {"max_silence": seconds}))

    def pause_queue(self, name: str) -> Queue:
        """Pause a queue: no task of it starts. Running attempts continue."""
        return self.send(QUEUES.put(name, {"state": "paused"}))

    def resume_queue(self, name: str) -> Queue:
        return self.send(QUEUES.put(name, {"state": "active"}))

    def get_queue(self, name: str) -> Queue:
        return self.send(QUEUES.get(name))

    def list_queues(self, *, page_size: int | None = None) -> Iterator[Queue]:
        """Return every queue that ever got a task or that has settings, by name."""
        return self.items(lambda cursor: QUEUES.list(limit=page_size, cursor=cursor))

    def delete_queue(self, name: str) -> None:
        """Delete the state and the limits of a queue, but not its tasks."""
        self.send(QUEUES.delete(name))

    def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks of a key, or of each key that matches a pattern (`customer-*`)."""
        return self.send(LIMITS.put(key, limits))

    def get_limit(self, key: str) -> KeyLimit:
        return self.send(LIMITS.get(key))

    def list_limits(self, *, page_size: int | None = None) -> Iterator[KeyLimit]:
        """Return the limits of all keys, by name."""
        return self.items(lambda cursor: LIMITS.list(limit=page_size, cursor=cursor))

    def delete_limit(self, key: str) -> None:
        """Remove the limit of a key."""
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
        """Make an API key. `types` and `queues` are patterns that confine it; `allowed_ips` limits its addresses."""
        fields: dict[str, object] = {"role": role, "name": name, "types": types, "queues": queues}
        fields |= {"allowed_ips": allowed_ips, "expires_at": expires_at}
        return self.send(calls.create_key(without_none(fields)))

    def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """Return the tenant's keys; with `unused_for`, the valid keys that have not been used for this long."""
        unused = None if unused_for is None else f"{seconds_of(unused_for):.3f}s"
        return list(self.items(lambda cursor: KEYS.list(cursor=cursor, unused_for=unused)))

    def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights. The old key stays valid for `overlap`; None: an hour."""
        fields = {} if overlap is None else {"overlap": seconds_of(overlap)}
        return self.send(calls.rotate_key(key, fields))

    def revoke_key(self, key: int) -> None:
        """Revoke a key."""
        self.send(KEYS.delete(key))

    def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Create or change a tenant, with an admin key. Absent values stay as they are; None removes a value."""
        # None is sent, because it removes a value.
        return self.send(TENANTS.put(name, options))

    def get_tenant(self, name: str) -> Tenant:
        """Return a tenant. An admin key can read any tenant, an owner's key its own."""
        return self.send(TENANTS.get(name))

    def list_tenants(self, *, page_size: int | None = None) -> Iterator[Tenant]:
        """Return every tenant, by name. Needs an admin key."""
        return self.items(lambda cursor: TENANTS.list(limit=page_size, cursor=cursor))

    def put_tier(self, name: str, **options: Unpack[TierOptions]) -> Tier:
        """Create or change a tier, with an admin key. Absent values stay as they are; None removes a value."""
        return self.send(TIERS.put(name, options))

    def get_tier(self, name: str) -> Tier:
        return self.send(TIERS.get(name))

    def list_tiers(self, *, page_size: int | None = None) -> Iterator[Tier]:
        """Return every tier, by name. Needs an admin key."""
        return self.items(lambda cursor: TIERS.list(limit=page_size, cursor=cursor))

    def delete_tier(self, name: str) -> None:
        """Delete a tier that no tenant has."""
        self.send(TIERS.delete(name))

    def list_audit(self, tenant: str | None = None, *, page_size: int | None = None) -> Iterator[Act]:
        """Return changes to tenants and keys, the latest first; with an owner's key those to its own tenant."""
        return self.items(lambda cursor: AUDIT.list(limit=page_size, cursor=cursor, tenant=tenant))

    def signing_secret(self) -> str:
        """Return the secret that signs calls to the tenant's HTTP targets (Standard Webhooks)."""
        found = self.send(calls.signing_secret())
        return found.secret

    def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls. The former one also signs during the overlap (at most 30 days)."""
        return self.send(calls.rotate_signing_secret({"overlap": seconds_of(overlap)}))

    def list_breakers(self, *, page_size: int | None = None) -> Iterator[Breaker]:
        """Return every breaker that is not closed or is forced, by host. The tenant's own breaker is `tenant`."""
        return self.items(lambda cursor: BREAKERS.list(limit=page_size, cursor=cursor))

    def set_breaker(self, host: str, state: BreakerState, *, note: str = "") -> Breaker:
        """Stop calls to a host (`open`), do not limit them (`closed`), or let the breaker decide (`auto`)."""
        return self.send(BREAKERS.put(host, {"state": state, "note": note}))

    def list_refused(self, *, page_size: int | None = None) -> Iterator[Refused]:
        """Return what producers wrote in their own transactions and could not become a task, by number."""
        return self.items(lambda cursor: REFUSED.list(limit=page_size, cursor=cursor))

    def get_outbox(self, number: int) -> OutboxNumber:
        """Find out what happened to a number that `outbox.submit` returned."""
        return self.send(OUTBOX.get(number))

    def retry_refused(self, number: int) -> OutboxNumber:
        """Try a refused outbox row again."""
        return self.send(OUTBOX.act("retry", number))

    def delete_refused(self, number: int) -> None:
        """Delete a refused outbox row."""
        self.send(OUTBOX.delete(number))

    def list_nodes(self) -> list[Node]:
        """Return the nodes of the cluster, as seen by the node that answers."""
        page = self.send(CLUSTER.list())
        return page.items
