"""What a tenant may submit, keep waiting, run and have: its quotas, and the defaults for those that it does not set.

The defaults come first from its tier, then from the tier `default`, then from this
module.  The last two do not apply to tenants without defaults.  A rate and its burst
belong together: a tenant that sets a rate of its own has its own burst too, not that
of its tier.  For a quota that may grow without harm, the largest value means no limit.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from duetime.model.limits import MAX_BURST, MAX_RATE, MAX_RUNNING, MIN_RATE, Limits
from duetime.model.tenant_breaker import (
    MAX_MIN_ATTEMPTS,
    MAX_PROBE_SECONDS,
    MAX_WINDOW_SECONDS,
    MIN_FAILURE_RATE,
    MIN_WINDOW_SECONDS,
    BreakerRules,
)

MAX_WEIGHT = 1_000
MAX_SPREAD = 64
MAX_WAITING = 10**12
#: The most that a tenant can be allowed to have, and what it may have if nothing else is set.
MAX_SCHEDULES = 10_000_000
MAX_TYPES = 10_000
MAX_KEYS = 100_000
MAX_CALENDARS = 10_000
MAX_CALENDAR_BYTES = 1 << 40
#: A payload has at most 64 KiB, so any burst lets any single task through.
MIN_BYTES_RATE = 1_024.0
MAX_BYTES_RATE = float(1 << 40)
MIN_BYTES_BURST = 64 * 1024
MAX_BYTES_BURST = 1 << 40
#: The tier whose values hold for tenants without a tier, and for values that their tier leaves out.
DEFAULT_TIER = "default"

Value = TypeVar("Value")
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
Rate = Annotated[float, Meta(ge=MIN_RATE, le=MAX_RATE)]
Burst = Annotated[int, Meta(ge=1, le=MAX_BURST)]
Running = Annotated[int, Meta(ge=0, le=MAX_RUNNING)]
BytesRate = Annotated[float, Meta(ge=MIN_BYTES_RATE, le=MAX_BYTES_RATE)]
BytesBurst = Annotated[int, Meta(ge=MIN_BYTES_BURST, le=MAX_BYTES_BURST)]
Waiting = Annotated[int, Meta(ge=0, le=MAX_WAITING)]
Schedules = Annotated[int, Meta(ge=0, le=MAX_SCHEDULES)]
TypeCount = Annotated[int, Meta(ge=0, le=MAX_TYPES)]
Keys = Annotated[int, Meta(ge=1, le=MAX_KEYS)]
Calendars = Annotated[int, Meta(ge=0, le=MAX_CALENDARS)]
CalendarBytes = Annotated[int, Meta(ge=0, le=MAX_CALENDAR_BYTES)]
FailureRate = Annotated[float, Meta(ge=MIN_FAILURE_RATE, le=1.0)]
BreakerWindow = Annotated[float, Meta(ge=MIN_WINDOW_SECONDS, le=MAX_WINDOW_SECONDS)]
ProbeEvery = Annotated[float, Meta(ge=1.0, le=MAX_PROBE_SECONDS)]
MinAttempts = Annotated[int, Meta(ge=1, le=MAX_MIN_ATTEMPTS)]


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Quotas; in the effective quotas, what is absent is not limited."""

    submit_rate: Annotated[Rate | None, Meta(description="Tasks that may be submitted in a second.")] = None
    submit_burst: Annotated[
        Burst | None, Meta(description="Tasks that may be submitted at once; one second's worth where absent.")
    ] = None
    submit_bytes_rate: Annotated[
        BytesRate | None, Meta(description="Bytes of payloads that may be submitted in a second.")
    ] = None
    submit_bytes_burst: Annotated[
        BytesBurst | None,
        Meta(description="Bytes of payloads that may be submitted at once; one second's worth where absent."),
    ] = None
    max_waiting: Annotated[
        Waiting | None, Meta(description="Tasks that may wait; submissions beyond it are refused.")
    ] = None
    max_running: Annotated[Running | None, Meta(description="Attempts that run at once; 0 lets nothing start.")] = None
    rate: Annotated[Rate | None, Meta(description="Attempts that start in a second.")] = None
    burst: Annotated[
        Burst | None, Meta(description="Attempts that may start at once after a rest; one second's worth where absent.")
    ] = None

    max_schedules: Annotated[Schedules | None, Meta(description="Schedules that it may have.")] = None
    max_types: Annotated[TypeCount | None, Meta(description="Types that it may have registered.")] = None
    max_keys: Annotated[Keys | None, Meta(description="Valid API keys that it may have.")] = None
    max_calendars: Annotated[Calendars | None, Meta(description="Calendars that it may have.")] = None
    max_calendar_bytes: Annotated[
        CalendarBytes | None, Meta(description="Bytes that its calendars may have together, as they are stored.")
    ] = None

    breaker_failure_rate: Annotated[
        FailureRate | None, Meta(description="More than this share of its attempts must fail to stop it; 1: never.")
    ] = None
    breaker_window: Annotated[BreakerWindow | None, Meta(description="For how many seconds they must have failed.")] = (
        None
    )
    breaker_probe_every: Annotated[
        ProbeEvery | None, Meta(description="How often one of its tasks is tried while it is stopped, in seconds.")
    ] = None
    breaker_min_attempts: Annotated[
        MinAttempts | None, Meta(description="With fewer attempts in the window it is not stopped.")
    ] = None

    def over(self, defaults: "Quotas") -> "Quotas":
        """These quotas, with the defaults for those that are absent."""
        if self == NO_QUOTAS:
            return defaults
        return Quotas(**{name: getattr(self if self.says(name) else defaults, name) for name in self.__struct_fields__})

    def says(self, name: str) -> bool:
        """Whether these quotas set a value; a burst goes with its rate."""
        return getattr(self, _RATES.get(name, name)) is not None

    @property
    def limits(self) -> Limits:
        """The quotas about running tasks."""
        return Limits(self.max_running, self.rate, self.burst)

    @property
    def has_breaker(self) -> bool:
        """Whether they say anything about the breaker."""
        return self.breaker_rules(_SAME) != _SAME

    def breaker_rules(self, defaults: BreakerRules) -> BreakerRules:
        return BreakerRules(
            _or(self.breaker_failure_rate, defaults.failure_rate),
            _or(self.breaker_window, defaults.window_seconds),
            _or(self.breaker_probe_every, defaults.probe_seconds),
            _or(self.breaker_min_attempts, defaults.min_attempts),
        )

    @property
    def submit_depth(self) -> float:
        """How many may be submitted at once after an idle time."""
        return float(self.submit_burst) if self.submit_burst is not None else max(1.0, self.submit_rate or 1.0)

    @property
    def submit_bytes_depth(self) -> float:
        """How many bytes may be submitted at once after an idle time."""
        if self.submit_bytes_burst is not None:
            return float(self.submit_bytes_burst)
        return max(float(MIN_BYTES_BURST), self.submit_bytes_rate or 0.0)

    @property
    def of_submissions(self) -> "Quotas":
        """Only the quotas that are checked at each submission."""
        return Quotas(**{name: getattr(self, name) for name in _OF_SUBMISSIONS})

    @property
    def enforced(self) -> "Quotas":
        """These quotas without those whose value means no limit."""
        return self if not self._lifted else msgspec.structs.replace(self, **dict.fromkeys(self._lifted))

    @property
    def _lifted(self) -> list[str]:
        return [name for name, most in UNLIMITED.items() if (getattr(self, name) or 0) >= most]


NO_QUOTAS = Quotas()
#: What holds if nothing else is set.
DEFAULTS = Quotas(
    submit_bytes_rate=float(64 << 20),
    submit_bytes_burst=256 << 20,
    max_waiting=10_000_000,
    max_schedules=100_000,
    max_types=1_000,
    max_keys=1_000,
    max_calendars=1_000,
    max_calendar_bytes=64 << 20,
)
#: The defaults that hold also for tenants without defaults: every node keeps these in its memory.
LEAST_DEFAULTS = Quotas(max_types=DEFAULTS.max_types, max_calendars=DEFAULTS.max_calendars)
#: The values that mean no limit.
UNLIMITED: dict[str, float] = {
    "submit_rate": MAX_RATE,
    "submit_bytes_rate": MAX_BYTES_RATE,
    "max_waiting": MAX_WAITING,
    "max_running": MAX_RUNNING,
    "rate": MAX_RATE,
    "max_schedules": MAX_SCHEDULES,
    "max_keys": MAX_KEYS,
    "max_calendar_bytes": MAX_CALENDAR_BYTES,
}
#: The rate that a burst belongs to.
_RATES = {"submit_burst": "submit_rate", "submit_bytes_burst": "submit_bytes_rate", "burst": "rate"}
_OF_SUBMISSIONS = ("submit_rate", "submit_burst", "submit_bytes_rate", "submit_bytes_burst", "max_waiting")
#: The values that no tenant can have.
_SAME = BreakerRules(-1.0, -1.0, -1.0, -1)

#: Where an effective value comes from: the tenant itself, its tier, or the defaults.
Source = Literal["own", "tier", "default"]


class Layers(msgspec.Struct, frozen=True):
    """A tenant's quotas, and the defaults for them."""

    own: Quotas
    tier: Quotas = NO_QUOTAS
    #: The quotas of the tier `default`, completed by those of this module.
    defaults: Quotas = DEFAULTS

    @property
    def together(self) -> Quotas:
        return self.own.over(self.tier).over(self.defaults)

    def sources(self) -> dict[str, Source]:
        """Where each effective value comes from."""
        together = self.together
        layers: Sequence[tuple[Source, Quotas]] = (("own", self.own), ("tier", self.tier), ("default", self.defaults))
        return {
            name: next(source for source, each in layers if each.says(name))
            for name in together.__struct_fields__
            if getattr(together, name) is not None
        }


def defaults_of(default_tier: Quotas, *, has_defaults: bool) -> Quotas:
    """The defaults for what a tenant and its tier do not set."""
    return default_tier.over(DEFAULTS) if has_defaults else LEAST_DEFAULTS


def _or(own: Value | None, default: Value) -> Value:
    return default if own is None else own


def wrong_pairs(quotas: Quotas) -> list[tuple[str, str]]:
    """(field, what would be right) for a burst without its rate."""
    return [
        (burst, f"only with a {rate}")
        for burst, rate in _RATES.items()
        if getattr(quotas, burst) is not None and getattr(quotas, rate) is None
    ]
