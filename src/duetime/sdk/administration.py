"""What clients have for administration: task types, queues, limits of keys, API keys, tenants.

Both kinds of client stand side by side here, with the same methods; each gives
its own way of sending a call.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TypeVar, Unpack

from duetime.sdk import admin_wire as calls
from duetime.sdk import key_wire as key_calls
from duetime.sdk.admin_shapes import KeyLimit, Limits, Queue, TaskType, TypeOptions, TypePreview, TypePut
from duetime.sdk.errors import Duration
from duetime.sdk.key_wire import Key, NewKey, Role
from duetime.sdk.tenant_shapes import SigningSecret, Tenant, TenantOptions
from duetime.sdk.wire import Call

T = TypeVar("T")


class Administration(ABC):
    """For plain code."""

    @abstractmethod
    def send(self, call: Call[T]) -> T:
        """Send a call until it is answered, or its time is over."""

    def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type, or replace it whole: what is left out is not there any more."""
        return self.send(calls.put_type(name, options))

    def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """What `put_type` would mean for tasks that wait; nothing is stored."""
        return self.send(calls.preview_type(name, options))

    def get_type(self, name: str) -> TaskType:
        return self.send(calls.get_type(name))

    def list_types(self, *, page_size: int | None = None) -> Iterator[TaskType]:
        """Every registered type, by name."""
        cursor = None
        while True:
            page = self.send(calls.list_types(limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def delete_type(self, name: str) -> None:
        """Forget a type: its payloads may be anything again, and nothing limits it."""
        self.send(calls.delete_type(name))

    def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue; None lifts them."""
        return self.send(calls.limit_queue(name, limits))

    def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """How long workers of a queue may be silent before they count as dead; None: as long as is usual."""
        return self.send(calls.allow_silence(name, max_silence))

    def pause_queue(self, name: str) -> Queue:
        """Nothing of the queue starts; what runs goes on."""
        return self.send(calls.steer_queue(name, "paused"))

    def resume_queue(self, name: str) -> Queue:
        return self.send(calls.steer_queue(name, "active"))

    def get_queue(self, name: str) -> Queue:
        return self.send(calls.get_queue(name))

    def list_queues(self, *, page_size: int | None = None) -> Iterator[Queue]:
        """Every queue that a task was ever put into, or that something is set for, by name."""
        cursor = None
        while True:
            page = self.send(calls.list_queues(limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def delete_queue(self, name: str) -> None:
        """Forget the state and the limits of a queue, not its tasks."""
        self.send(calls.delete_queue(name))

    def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks that name a key, or each key that a pattern (`customer-*`) fits."""
        return self.send(calls.put_limit(key, limits))

    def get_limit(self, key: str) -> KeyLimit:
        return self.send(calls.get_limit(key))

    def list_limits(self, *, page_size: int | None = None) -> Iterator[KeyLimit]:
        """Every limit of a key, by name."""
        cursor = None
        while True:
            page = self.send(calls.list_limits(limit=page_size, cursor=cursor))
            yield from page.items
            if (cursor := page.next) is None:
                return

    def delete_limit(self, key: str) -> None:
        """Lift the limit of a key."""
        self.send(calls.delete_limit(key))

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
        return self.send(key_calls.create_key(role, name, types, queues, allowed_ips, expires_at))

    def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """The tenant's keys; with `unused_for` the valid ones that were not used for so long."""
        found: list[Key] = []
        cursor = None
        while True:
            page = self.send(key_calls.list_keys(unused_for, cursor=cursor))
            found += page.items
            if (cursor := page.next) is None:
                return found

    def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights; the old one goes on for `overlap`, an hour if None."""
        return self.send(key_calls.rotate_key(key, overlap))

    def revoke_key(self, key: int) -> None:
        """End a key."""
        self.send(key_calls.revoke_key(key))

    def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Make or change a tenant, with an admin key: what is left out stays as it is, None takes it away."""
        return self.send(calls.put_tenant(name, options))

    def get_tenant(self, name: str) -> Tenant:
        """A tenant, with an admin key; with an owner's, its own."""
        return self.send(calls.get_tenant(name))

    def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls; the former one signs as well for the overlap (at most 30 days)."""
        return self.send(calls.rotate_signing_secret(overlap))


class AsyncAdministration(ABC):
    """For asyncio."""

    @abstractmethod
    async def send(self, call: Call[T]) -> T:
        """Send a call until it is answered, or its time is over."""

    async def put_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePut:
        """Register a task type, or replace it whole: what is left out is not there any more."""
        return await self.send(calls.put_type(name, options))

    async def preview_type(self, name: str, **options: Unpack[TypeOptions]) -> TypePreview:
        """What `put_type` would mean for tasks that wait; nothing is stored."""
        return await self.send(calls.preview_type(name, options))

    async def get_type(self, name: str) -> TaskType:
        return await self.send(calls.get_type(name))

    async def list_types(self, *, page_size: int | None = None) -> AsyncIterator[TaskType]:
        """Every registered type, by name."""
        cursor = None
        while True:
            page = await self.send(calls.list_types(limit=page_size, cursor=cursor))
            for each in page.items:
                yield each
            if (cursor := page.next) is None:
                return

    async def delete_type(self, name: str) -> None:
        """Forget a type: its payloads may be anything again, and nothing limits it."""
        await self.send(calls.delete_type(name))

    async def limit_queue(self, name: str, limits: Limits | None) -> Queue:
        """Set all limits of a queue; None lifts them."""
        return await self.send(calls.limit_queue(name, limits))

    async def allow_silence(self, name: str, max_silence: Duration | None) -> Queue:
        """How long workers of a queue may be silent before they count as dead; None: as long as is usual."""
        return await self.send(calls.allow_silence(name, max_silence))

    async def pause_queue(self, name: str) -> Queue:
        """Nothing of the queue starts; what runs goes on."""
        return await self.send(calls.steer_queue(name, "paused"))

    async def resume_queue(self, name: str) -> Queue:
        return await self.send(calls.steer_queue(name, "active"))

    async def get_queue(self, name: str) -> Queue:
        return await self.send(calls.get_queue(name))

    async def list_queues(self, *, page_size: int | None = None) -> AsyncIterator[Queue]:
        """Every queue that a task was ever put into, or that something is set for, by name."""
        cursor = None
        while True:
            page = await self.send(calls.list_queues(limit=page_size, cursor=cursor))
            for each in page.items:
                yield each
            if (cursor := page.next) is None:
                return

    async def delete_queue(self, name: str) -> None:
        """Forget the state and the limits of a queue, not its tasks."""
        await self.send(calls.delete_queue(name))

    async def put_limit(self, key: str, limits: Limits) -> KeyLimit:
        """Limit the tasks that name a key, or each key that a pattern (`customer-*`) fits."""
        return await self.send(calls.put_limit(key, limits))

    async def get_limit(self, key: str) -> KeyLimit:
        return await self.send(calls.get_limit(key))

    async def list_limits(self, *, page_size: int | None = None) -> AsyncIterator[KeyLimit]:
        """Every limit of a key, by name."""
        cursor = None
        while True:
            page = await self.send(calls.list_limits(limit=page_size, cursor=cursor))
            for each in page.items:
                yield each
            if (cursor := page.next) is None:
                return

    async def delete_limit(self, key: str) -> None:
        """Lift the limit of a key."""
        await self.send(calls.delete_limit(key))

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
        return await self.send(key_calls.create_key(role, name, types, queues, allowed_ips, expires_at))

    async def list_keys(self, *, unused_for: Duration | None = None) -> list[Key]:
        """The tenant's keys; with `unused_for` the valid ones that were not used for so long."""
        found: list[Key] = []
        cursor = None
        while True:
            page = await self.send(key_calls.list_keys(unused_for, cursor=cursor))
            found += page.items
            if (cursor := page.next) is None:
                return found

    async def rotate_key(self, key: int, *, overlap: Duration | None = None) -> NewKey:
        """Replace a key by one with the same rights; the old one goes on for `overlap`, an hour if None."""
        return await self.send(key_calls.rotate_key(key, overlap))

    async def revoke_key(self, key: int) -> None:
        """End a key."""
        await self.send(key_calls.revoke_key(key))

    async def put_tenant(self, name: str, **options: Unpack[TenantOptions]) -> Tenant:
        """Make or change a tenant, with an admin key: what is left out stays as it is, None takes it away."""
        return await self.send(calls.put_tenant(name, options))

    async def get_tenant(self, name: str) -> Tenant:
        """A tenant, with an admin key; with an owner's, its own."""
        return await self.send(calls.get_tenant(name))

    async def rotate_signing_secret(self, overlap: Duration = "1d") -> SigningSecret:
        """Replace the secret that signs calls; the former one signs as well for the overlap (at most 30 days)."""
        return await self.send(calls.rotate_signing_secret(overlap))
