"""Tenants as they are set and as they are received; only an admin key sets them."""

from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec


class Egress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the HTTP targets of a tenant may be; what is left out stays as it is."""

    #: `api.example.com`, `*.example.com` for every host below it, `*` for every host.
    hosts: list[str] | None = None
    ports: list[int] | None = None
    https_only: bool | None = None


class TenantOptions(TypedDict, total=False):
    """What can be set; what is left out stays as it is, None takes it away."""

    weight: int | None
    state: Literal["active", "suspended"]
    tier: str | None
    spread: int
    #: By name; None takes one away.
    quotas: dict[str, float | None] | None
    #: Whether the default quotas hold where neither it nor its tier says anything.
    defaults: bool
    egress: Egress | dict[str, object] | None


class EffectiveTenant(msgspec.Struct, frozen=True):
    """What holds: the tenant's own values, else its tier's, else the defaults."""

    weight: int = 1
    quotas: dict[str, Any] = {}
    egress: Egress = Egress()
    #: Who says each of these values: `own`, `tier` or `default`; rules as `egress.hosts`.
    sources: dict[str, str] = {}


class Tenant(msgspec.Struct, frozen=True):
    """A tenant, with its own values; `effective` has what holds."""

    id: int
    name: str
    state: str = "active"
    weight: int | None = None
    tier: str | None = None
    #: The shard of its first lanes.
    shard: int = 0
    spread: int = 1
    quotas: dict[str, Any] = {}
    defaults: bool = True
    egress: Egress = Egress()
    effective: EffectiveTenant = EffectiveTenant()
    created_at: datetime | None = None
    updated_at: datetime | None = None
    #: What a change means for what is there already, in the answer to it.
    notes: list[str] = []


class TierOptions(TypedDict, total=False):
    """What can be set; what is left out stays as it is, None takes it away."""

    weight: int | None
    quotas: dict[str, float | None] | None
    egress: Egress | dict[str, object] | None


class Tier(msgspec.Struct, frozen=True):
    """Values for tenants that set none of their own."""

    name: str
    weight: int | None = None
    quotas: dict[str, Any] = {}
    egress: Egress = Egress()
    #: How many tenants have it.
    tenants: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SigningSecret(msgspec.Struct, frozen=True):
    """The secret that signs calls to HTTP targets (Standard Webhooks)."""

    secret: str
    #: Until then the one before it signs as well.
    former_until: datetime | None = None
    #: What does not sign any more, if it did.
    notes: list[str] = []
