"""What a tenant may submit, keep waiting and run: its quotas, and the tier that fills in what it does not set.

A rate and its burst belong together: a tenant that sets a rate of its own has
its own burst too, not that of its tier.
"""

from typing import Annotated, TypeVar

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
#: The most that a tenant can be allowed to have, and what it may have where nothing says otherwise.
MAX_SCHEDULES = 10_000_000
MAX_TYPES = 10_000
MAX_KEYS = 100_000
MAX_CALENDARS = 10_000
MAX_CALENDAR_BYTES = 1 << 40
DEFAULT_TYPES = DEFAULT_CALENDARS = 1_000

Value = TypeVar("Value")
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
Rate = Annotated[float, Meta(ge=MIN_RATE, le=MAX_RATE)]
Burst = Annotated[int, Meta(ge=1, le=MAX_BURST)]
Running = Annotated[int, Meta(ge=0, le=MAX_RUNNING)]
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
    """Quotas; what is absent is not limited."""

    submit_rate: Annotated[Rate | None, Meta(description="Tasks that may be submitted in a second.")] = None
    submit_burst: Annotated[
        Burst | None, Meta(description="Tasks that may be submitted at once; one second's worth where absent.")
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
    max_types: Annotated[
        TypeCount | None, Meta(description="Types that it may have registered; 1,000 where absent.")
    ] = None
    max_keys: Annotated[Keys | None, Meta(description="Valid API keys that it may have.")] = None
    max_calendars: Annotated[Calendars | None, Meta(description="Calendars that it may have; 1,000 where absent.")] = (
        None
    )
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
        """These, with the defaults where they say nothing."""
        if self == NO_QUOTAS:
            return defaults
        return Quotas(**{name: getattr(self if self.says(name) else defaults, name) for name in self.__struct_fields__})

    def says(self, name: str) -> bool:
        """Whether these decide about a quota; a burst goes with its rate."""
        return getattr(self, _RATES.get(name, name)) is not None

    @property
    def limits(self) -> Limits:
        """What is about running."""
        return Limits(self.max_running, self.rate, self.burst)

    @property
    def has_breaker(self) -> bool:
        """Whether anything is said of the breaker."""
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
        """How many may be submitted at once after a rest."""
        return float(self.submit_burst) if self.submit_burst is not None else max(1.0, self.submit_rate or 1.0)

    @property
    def limits_submissions(self) -> bool:
        return self.submit_rate is not None or self.max_waiting is not None


NO_QUOTAS = Quotas()
#: The rate that a burst belongs to.
_RATES = {"submit_burst": "submit_rate", "burst": "rate"}
#: What no tenant can have.
_SAME = BreakerRules(-1.0, -1.0, -1.0, -1)


def _or(own: Value | None, default: Value) -> Value:
    return default if own is None else own


def wrong_pairs(quotas: Quotas) -> list[tuple[str, str]]:
    """(field, what would be right) for a burst that has no rate beside it."""
    wrong = []
    if quotas.submit_burst is not None and quotas.submit_rate is None:
        wrong.append(("submit_burst", "only with a submit_rate"))
    if quotas.burst is not None and quotas.rate is None:
        wrong.append(("burst", "only with a rate"))
    return wrong
