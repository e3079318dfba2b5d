"""What may run at once and how fast: the limits of a tenant, a queue, a type or a key, as pure data.

A limit of a type may be split by a key inside the payload: then each value of the
key has the whole limit for itself.  A key that a task names itself
(`concurrency_key`, `rate_key`) has the limit that is stored under its name, or
under the longest pattern (`customer-*`) that fits it.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_RUNNING = 1_000_000
MAX_STRICT = 1_000
MIN_RATE = 0.001
MAX_RATE = 1_000_000.0
MAX_BURST = 1_000_000


class LimitScope(enum.IntEnum):
    """What a stored limit is about; the number is what is stored."""

    QUEUE = 1
    KEY = 3


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A limit on what runs at once, and a rate at which attempts start; what is absent is not limited."""

    max_running: Annotated[
        int | None,
        Meta(
            description=f"Attempts that run at once, 0 to {MAX_RUNNING:,}; 0 lets nothing start.",
            extra_json_schema={"minimum": 0, "maximum": MAX_RUNNING},
        ),
    ] = None
    rate: Annotated[
        float | None,
        Meta(
            description="Attempts that start in a second, 0.001 to 1,000,000.",
            extra_json_schema={"minimum": MIN_RATE, "maximum": MAX_RATE},
        ),
    ] = None
    burst: Annotated[
        int | None,
        Meta(
            description="Attempts that may start at once after a rest; one second's worth where absent.",
            extra_json_schema={"minimum": 1, "maximum": MAX_BURST},
        ),
    ] = None
    strict: Annotated[
        bool, Meta(description="Keep `max_running` even while two nodes feed the tenant, at the cost of a commit more.")
    ] = False

    @property
    def is_empty(self) -> bool:
        return self.max_running is None and self.rate is None

    @property
    def depth(self) -> float:
        """How many may start at once after an idle time."""
        if self.burst is not None:
            return float(self.burst)
        return max(1.0, self.rate or 1.0)


class TypeLimits(Limits, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a type; with a key, each value of the key has them for itself."""

    concurrency_key: Annotated[
        str | None, Meta(description="Where in the payload the key of `max_running` is: `customer`, `order.shop`.")
    ] = None
    rate_key: Annotated[str | None, Meta(description="Where in the payload the key of `rate` is.")] = None


def wrong_with(limits: Limits, *, is_part: bool = False) -> list[tuple[str, str]]:
    """(field, what would be right) for each value that is out of range.

    `is_part`: an absent value may have been given but be unreadable, so its absence is no error.
    """
    wrong = []
    if limits.max_running is not None and not 0 <= limits.max_running <= MAX_RUNNING:
        wrong.append(("max_running", f"must be 0 to {MAX_RUNNING:,}"))
    if limits.rate is not None and not MIN_RATE <= limits.rate <= MAX_RATE:
        wrong.append(("rate", "must be 0.001 to 1,000,000 a second"))
    if limits.burst is not None:
        if not 1 <= limits.burst <= MAX_BURST:
            wrong.append(("burst", f"must be 1 to {MAX_BURST:,}"))
        elif limits.rate is None and not is_part:
            wrong.append(("burst", "only with a rate"))
    if limits.strict:
        is_uncapped = limits.max_running is None and not is_part
        if is_uncapped or (limits.max_running is not None and limits.max_running > MAX_STRICT):
            wrong.append(("strict", f"only with max_running, of at most {MAX_STRICT:,}"))
    return wrong
