"""All limits in force, put together from where they are stored: of tenants, queues, types, keys and slow targets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from duetime.admin.limits import LimitRules
from duetime.admin.types import Types
from duetime.model.gates import MeterName
from duetime.model.limits import Limits, TypeLimits
from duetime.scheduler.breakers import Breakers


def _none(tenant: int, name: str) -> None:
    return None


def _never(tenant: int, host: str) -> bool:
    return False


def _nobody(tenant: int) -> bool:
    return False


@dataclass(frozen=True)
class Book:
    tenants: Mapping[int, Limits] = field(default_factory=dict)
    queues: Mapping[tuple[int, str], Limits] = field(default_factory=dict)
    paused: frozenset[tuple[int, str]] = frozenset()
    #: The limits of a type, and the tenants that have any.
    type_limits: Callable[[int, str], TypeLimits | None] = _none
    typed: frozenset[int] = frozenset()
    #: The limits of a key that a task names, and the tenants that have any.
    key_limits: Callable[[int, str], Limits | None] = _none
    keyed: frozenset[int] = frozenset()
    #: Whether calls to a target are restricted, and whether a tenant has such a target: this changes by itself.
    slowed: Callable[[int, str], bool] = _never
    has_slowed: Callable[[int], bool] = _nobody
    _limited: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        limited = {*self.tenants, *(tenant for tenant, _ in self.queues), *self.typed, *self.keyed}
        object.__setattr__(self, "_limited", frozenset(limited))

    def __bool__(self) -> bool:
        return bool(self._limited)

    def is_limited(self, tenant: int) -> bool:
        return tenant in self._limited or self.has_slowed(tenant)

    def is_paused(self, tenant: int, queue: str) -> bool:
        return (tenant, queue) in self.paused

    def of_type(self, tenant: int, name: str) -> TypeLimits | None:
        return self.type_limits(tenant, name) if tenant in self.typed else None

    def has_key(self, tenant: int, key: str) -> bool:
        return tenant in self.keyed and self.key_limits(tenant, key) is not None

    def is_slowed(self, tenant: int, host: str) -> bool:
        return self.slowed(tenant, host)

    def limits_of(self, tenant: int, name: MeterName) -> Limits | None:
        scope, what, _ = name
        match scope:
            case "tenant":
                return self.tenants.get(tenant)
            case "queue":
                return self.queues.get((tenant, what))
            case "key":
                return _cap(self.key_limits(tenant, what))
            case "rate":
                return _rate(self.key_limits(tenant, what))
            case "type" | "type_key" | "type_rate":
                return _of_type(scope, self.of_type(tenant, what))
        return None


def put_together(tenants: Mapping[int, Limits], limits: LimitRules, types: Types, breakers: Breakers) -> Book:
    """The limits of the tables, as they were a moment ago."""

    def of_key(tenant: int, key: str) -> Limits | None:
        found = limits.of_key(tenant, key)
        return None if found is None else found[1]

    return Book(
        tenants=tenants,
        queues=limits.queue_limits(),
        paused=limits.paused_queues(),
        type_limits=types.limits,
        typed=types.limited_tenants(),
        key_limits=of_key,
        keyed=limits.keyed_tenants(),
        slowed=breakers.is_slowed,
        has_slowed=breakers.has_slowed,
    )


def _cap(limits: Limits | None) -> Limits | None:
    return None if limits is None else Limits(max_running=limits.max_running, strict=limits.strict)


def _rate(limits: Limits | None) -> Limits | None:
    return None if limits is None else Limits(rate=limits.rate, burst=limits.burst)


def _of_type(scope: str, limits: TypeLimits | None) -> Limits | None:
    """A type's limits: either those for the type as a whole, or those for each value of a key."""
    if limits is None:
        return None
    has_cap = (limits.concurrency_key is not None) == (scope == "type_key")
    has_rate = (limits.rate_key is not None) == (scope == "type_rate")
    return Limits(
        max_running=limits.max_running if has_cap and scope != "type_rate" else None,
        rate=limits.rate if has_rate and scope != "type_key" else None,
        burst=limits.burst if has_rate and scope != "type_key" else None,
        strict=limits.strict and has_cap and scope != "type_rate",
    )
