"""Request bodies about tenants and tiers, and the parts of answers that are not stored."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from duetime.admin.tenants import Tenant
from duetime.admin.tiers import Tier
from duetime.api.bodies.seconds import BreakerWindow, ProbeEvery, Seconds
from duetime.model.egress_rules import (
    HOST_PATTERN,
    HOSTS,
    HTTPS_ONLY,
    MAX_HOST_CHARACTERS,
    MAX_HOSTS,
    MAX_PORTS,
    PORTS,
    Port,
)
from duetime.model.quotas import (
    MAX_SPREAD,
    Burst,
    BytesBurst,
    BytesRate,
    CalendarBytes,
    Calendars,
    FailureRate,
    Keys,
    MinAttempts,
    Rate,
    Running,
    Schedules,
    TypeCount,
    Waiting,
    Weight,
)

SHORT_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class QuotasRequest(Struct, forbid_unknown_fields=True):
    """Quotas; what is left out stays as it is, null removes it."""

    submit_rate: Annotated[
        Rate | UnsetType | None, Meta(description="Tasks that may be submitted per second, 0.001 to 1,000,000.")
    ] = UNSET
    submit_burst: Annotated[
        Burst | UnsetType | None,
        Meta(description="Tasks that may be submitted at once. Default: one second's worth. Only with a rate."),
    ] = UNSET
    submit_bytes_rate: Annotated[
        BytesRate | UnsetType | None,
        Meta(description="Bytes of payloads that may be submitted per second, 1,024 to 2^40."),
    ] = UNSET
    submit_bytes_burst: Annotated[
        BytesBurst | UnsetType | None,
        Meta(
            description="Bytes of payloads that may be submitted at once, at least 65,536. Default: one second's "
            "worth. Only with a rate."
        ),
    ] = UNSET
    max_waiting: Annotated[
        Waiting | UnsetType | None, Meta(description="Tasks that may wait. Further submissions are refused.")
    ] = UNSET
    max_running: Annotated[
        Running | UnsetType | None, Meta(description="Attempts that may run at once. 0 lets none start.")
    ] = UNSET
    rate: Annotated[Rate | UnsetType | None, Meta(description="Attempts that may start per second.")] = UNSET
    burst: Annotated[
        Burst | UnsetType | None,
        Meta(description="Attempts that may start at once. Default: one second's worth. Only with a rate."),
    ] = UNSET

    max_schedules: Annotated[
        Schedules | UnsetType | None, Meta(description="The most schedules that the tenant may have.")
    ] = UNSET
    max_types: Annotated[
        TypeCount | UnsetType | None, Meta(description="The most types that the tenant may register.")
    ] = UNSET
    max_keys: Annotated[
        Keys | UnsetType | None, Meta(description="The most valid API keys that the tenant may have.")
    ] = UNSET
    max_calendars: Annotated[
        Calendars | UnsetType | None, Meta(description="The most calendars that the tenant may have.")
    ] = UNSET
    max_calendar_bytes: Annotated[
        CalendarBytes | UnsetType | None,
        Meta(description="The most bytes that all calendars of the tenant may take in storage."),
    ] = UNSET

    breaker_failure_rate: Annotated[
        FailureRate | UnsetType | None,
        Meta(
            description="The tenant is stopped when more than this share of its attempts fail, 0.1 to 1. 1: it is "
            "never stopped."
        ),
    ] = UNSET
    breaker_window: BreakerWindow | UnsetType | None = UNSET
    breaker_probe_every: ProbeEvery | UnsetType | None = UNSET
    breaker_min_attempts: Annotated[
        MinAttempts | UnsetType | None, Meta(description="The tenant is not stopped if the window has fewer attempts.")
    ] = UNSET

    def given(self) -> dict[str, float | None]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        plain = {name: float(value) if isinstance(value, Seconds) else value for name, value in values.items()}
        return {name: value for name, value in plain.items() if value is not UNSET}


_Host = Annotated[
    str,
    Meta(
        max_length=MAX_HOST_CHARACTERS,
        extra_json_schema={"anyOf": [{"pattern": HOST_PATTERN}, {"format": "ipv6"}]},
    ),
]


class EgressRequest(Struct, forbid_unknown_fields=True):
    """Where HTTP targets may be; what is left out stays as it is, null removes it."""

    hosts: Annotated[
        Annotated[list[_Host], Meta(max_length=MAX_HOSTS)] | UnsetType | None,
        HOSTS,
    ] = UNSET
    ports: Annotated[
        Annotated[list[Port], Meta(min_length=1, max_length=MAX_PORTS)] | UnsetType | None,
        PORTS,
    ] = UNSET
    https_only: Annotated[bool | UnsetType | None, HTTPS_ONLY] = UNSET

    def given(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not UNSET}


class TenantRequest(Struct, forbid_unknown_fields=True):
    """A tenant; what is left out stays as it is, or has the default of a new tenant."""

    weight: Annotated[
        Weight | UnsetType | None,
        Meta(
            description="The tenant's share of resources that tenants compete for, relative to the others. null: "
            "the weight of its tier, else 1."
        ),
    ] = UNSET
    state: Annotated[
        Literal["active", "suspended"] | None,
        Meta(description="`suspended`: none of its tasks run, and nothing is lost."),
    ] = None
    tier: Annotated[
        Annotated[str, Meta(extra_json_schema={"pattern": SHORT_NAME_PATTERN})] | UnsetType | None,
        Meta(description="The tier whose values hold where the tenant sets none. null: no tier."),
    ] = UNSET
    spread: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_SPREAD)] | None,
        Meta(description="The number of shards that new lanes of the tenant are spread over. Default: 1."),
    ] = None
    quotas: Annotated[
        QuotasRequest | UnsetType | None, Meta(description="Quotas of the tenant itself. null removes them all.")
    ] = UNSET
    defaults: Annotated[
        bool | None,
        Meta(
            description="Whether the default quotas hold where neither the tenant nor its tier sets one. Default: true."
        ),
    ] = None
    egress: Annotated[
        EgressRequest | UnsetType | None, Meta(description="Where its HTTP targets may be. null: anywhere.")
    ] = UNSET


class TierRequest(Struct, forbid_unknown_fields=True):
    """A tier; what is left out stays as it is, or has the default of a new tier."""

    weight: Annotated[Weight | UnsetType | None, Meta(description="The weight of its tenants. null: 1.")] = UNSET
    quotas: Annotated[
        QuotasRequest | UnsetType | None, Meta(description="The quotas of its tenants. null removes them all.")
    ] = UNSET
    egress: Annotated[
        EgressRequest | UnsetType | None, Meta(description="Where their HTTP targets may be. null: anywhere.")
    ] = UNSET


class TenantPut(Tenant, frozen=True):
    """The tenant as it is now."""

    notes: Annotated[tuple[str, ...], Meta(description="What the change means for existing tasks and the like.")] = ()


class TenantPage(Struct):
    """Some tenants, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[Tenant]
    next: str | None


class TierPage(Struct):
    """Some tiers, by name; `next` is the cursor of the following page, null on the last one."""

    items: list[Tier]
    next: str | None


def changed_quotas(asked: QuotasRequest | UnsetType | None) -> dict[str, float | None] | None:
    if asked is UNSET:
        return {}
    return None if asked is None else asked.given()


def changed_egress(asked: EgressRequest | UnsetType | None) -> dict[str, object] | None:
    if asked is UNSET:
        return {}
    return None if asked is None else asked.given()
