"""Request bodies for task types: a schema, defaults, limits and flow control."""

from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from duetime.api.bodies.requests import Priority, QueueName, RetryRequest
from duetime.api.bodies.seconds import Seconds, Sla, Timeout
from duetime.api.tasks.flow_schemas import AtLatest, Quiet, States, UniquePeriod
from duetime.model.flow import KEY_PATH_PATTERN
from duetime.model.limits import MAX_BURST, TypeLimits

MAX_FLOW_LIMIT = 1_000_000


class Period(Seconds):
    minimum, maximum = 1.0, 7 * 86_400.0
    purpose = "The length of one period"


KeyPath = Annotated[
    str,
    Meta(
        description="The path of the key in the payload: `customer`, `order.shop`. Each value counts separately. "
        "Without a key the whole type counts as one.",
        extra_json_schema={"pattern": KEY_PATH_PATTERN, "format": "key-path", "maxLength": 807},
    ),
]
Limit = Annotated[int, Meta(ge=1, le=MAX_FLOW_LIMIT)]


class TypeDebounceRequest(Struct, forbid_unknown_fields=True):
    """Run only the last one of many submissions: when no other has followed for `period`."""

    period: Quiet
    key: KeyPath | None = None
    timeout: AtLatest | None = None


class TypeUniqueRequest(Struct, forbid_unknown_fields=True):
    """One task at a time for each key; without one, for each payload."""

    key: KeyPath | None = None
    states: States | None = None
    period: UniquePeriod | None = None


class RateLimitRequest(Struct, forbid_unknown_fields=True):
    """Refuse submissions above `limit` in a period: 429, with `Retry-After`."""

    limit: Limit
    period: Period
    key: KeyPath | None = None


class ThrottleRequest(RateLimitRequest, forbid_unknown_fields=True):
    """Start `limit` attempts, and then one every `period / limit`; attempts beyond that wait."""

    burst: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_BURST,
            description="How many more attempts may start at once after a quiet time, beyond `limit`.",
        ),
    ] = 0


class DefaultsRequest(Struct, forbid_unknown_fields=True):
    """What a submission gets for the fields that it leaves out."""

    queue: QueueName | None = None
    priority: Priority | None = None
    retry: RetryRequest | None = None
    timeout: Timeout | None = None
    sla: Sla | None = None


class TypeRequest(Struct, forbid_unknown_fields=True):
    """A whole task type: what is left out is not set."""

    schema: Annotated[
        Raw, Meta(description="A JSON Schema for payloads, up to 64 KiB, without external references.")
    ] = field(default_factory=Raw)
    defaults: DefaultsRequest | None = None
    limits: TypeLimits | None = None
    throttle: Annotated[
        ThrottleRequest | None, Meta(description="Not allowed with `limits.rate`, which does the same.")
    ] = None
    rate_limit: RateLimitRequest | None = None
    debounce: Annotated[TypeDebounceRequest | None, Meta(description="Not allowed with `unique`.")] = None
    unique: TypeUniqueRequest | None = None
