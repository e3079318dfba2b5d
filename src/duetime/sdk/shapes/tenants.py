"""Tenants, as requests and as answers. Only an admin key can set them."""

from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec


class Egress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the HTTP targets of a tenant may be. Absent values stay as they are."""

    #: `api.example.com`, `*.example.com` for every host below it, `*` for every host.
    hosts: list[str] | None = None
    ports: list[int] | None = None
    https_only: bool | None = None


class TenantOptions(TypedDict, total=False):
    """The settings of a tenant. Absent values stay as they are; None removes a value."""

    weight: int | None
    state: Literal["active", "suspended"]
    tier: str | None
    spread: int
    #: By name. None removes one.
    quotas: dict[str, float | None] | None
    #: Whether the default quotas hold where neither the tenant nor its tier sets one.
    defaults: bool
    egress: Egress | dict[str, object] | None


class EffectiveTenant(msgspec.Struct, frozen=True):
    """The values that hold: the tenant's own, else its tier's, else the defaults."""

    weight: int = 1
    quotas: dict[str, Any] = {}
    egress: Egress = Egress()
    #: The origin of each of these values: `own`, `tier` or `default`. Rules have names like `egress.hosts`.
    sources: dict[str, str] = {}


class Tenant(msgspec.Struct, frozen=True):
    """A tenant with its own values. `effective` has the values that hold."""

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
    #: In the answer to a change: what it means for existing tasks and the like.
    notes: list[str] = []


class TierOptions(TypedDict, total=False):
    """The settings of a tier. Absent values stay as they are; None removes a value."""

    weight: int | None
    quotas: dict[str, float | None] | None
    egress: Egress | dict[str, object] | None


class Tier(msgspec.Struct, frozen=True):
    """Values for tenants that set none of their own."""

    name: str
    weight: int | None = None
    quotas: dict[str, Any] = {}
    egress: Egress = Egress()
    #: How many tenants have this tier.
    tenants: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SigningSecret(msgspec.Struct, frozen=True):
    """The secret that signs calls to HTTP targets (Standard Webhooks)."""

    secret: str
    #: Until this time the former secret also signs.
    former_until: datetime | None = None
    #: Which former secret stopped signing, if one did.
    notes: list[str] = []
