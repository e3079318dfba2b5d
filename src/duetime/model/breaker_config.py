"""The thresholds of breakers; docs/breakers.md says what each is for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a breaker opens, how it is probed and how fast calls come back."""

    #: What is judged: calls that ended in the last 30 s, whole seconds of them, no more than hold the last 100.
    window_seconds: int = 30
    window_calls: int = 100
    #: It opens when so many were judged, and this share of them has failed for so long.
    min_calls: int = 20
    failure_share: float = 0.5
    sustained_ms: int = 1_000
    #: The wait before probes: doubled with every opening up to the most, then spread by the jitter.
    first_cool_down_ms: int = 5_000
    max_cool_down_ms: int = 60_000
    jitter: float = 0.2
    #: Openings are forgiven when it has been closed for so long.
    forgive_ms: int = 60_000
    #: Calls that must succeed, one after the other or at once, before it begins to close.
    probes: int = 3
    #: A probe of which nothing is heard for so long is taken for lost.
    lost_ms: int = 600_000
    #: Closing begins with this rate (calls a second), doubles it so often, and opens again by few calls.
    closing_rate: float = 5.0
    closing_doubles_ms: int = 2_000
    closing_min_calls: int = 5
    #: An overload answer multiplies the rate by this, at most once in so long, down to the lowest,
    #: and not below what the target accepts times the other: a few refusals among many successes slow nothing.
    decrease: float = 0.5
    accepted: float = 1.5
    #: Who is called less than so often in a second is slowed by nothing but `Retry-After`.
    slow_from_rate: float = 10.0
    decrease_every_ms: int = 1_000
    lowest_rate: float = 1.0
    slowed_doubles_ms: int = 10_000
    #: A rate that has grown to this is no limit any more.
    free_rate: float = 1_000.0
    #: What may start at once after a rest, in seconds of the rate.
    burst_seconds: float = 0.5
    #: The most that one `Retry-After` can stop a host for everybody; the task itself waits as long as it says.
    max_pause_ms: int = 300_000
    #: Idle time counts as growth only up to this between two successes.
    growth_gap_ms: int = 1_000
    #: A host that had no call for so long, or is new, begins with this rate (calls a second, and as many at once);
    #: 0: no ramp.  It doubles so often, begins anew without a call for the gap, and is no limit any more at the other.
    rest_ms: int = 60_000
    ramp_rate: float = 500.0
    ramp_doubles_ms: int = 1_000
    ramp_gap_ms: int = 1_000
    ramp_free_rate: float = 4_000.0
    #: Without any call for so long it can be forgotten in whatever state.
    forget_ms: int = 900_000


DEFAULT = BreakerConfig()
