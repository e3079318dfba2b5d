"""The thresholds of breakers; docs/breakers.md says what each is for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a breaker opens, how it is probed and how fast calls come back."""

    #: What is judged: calls that ended in the last 30 whole seconds, going back no further than the last 100 calls.
    window_seconds: int = 30
    window_calls: int = 100
    #: It opens when at least this many calls were judged, and this share of them has failed for this time.
    min_calls: int = 20
    failure_share: float = 0.5
    sustained_ms: int = 1_000
    #: The wait before probes: doubled with every opening up to the maximum, then spread by the jitter.
    first_cool_down_ms: int = 5_000
    max_cool_down_ms: int = 60_000
    jitter: float = 0.2
    #: Openings are forgiven when it has been closed for this time.
    forgive_ms: int = 60_000
    #: Calls that must succeed, one after the other or at once, before it begins to close.
    probes: int = 3
    #: A probe without a result for this time counts as lost.
    lost_ms: int = 600_000
    #: Closing begins with this rate (calls a second), which doubles in this time. This few calls can open it again.
    closing_rate: float = 5.0
    closing_doubles_ms: int = 2_000
    closing_min_calls: int = 5
    #: An overload answer multiplies the rate by `decrease`, at most once in `decrease_every_ms`, down to
    #: `lowest_rate`, and not below `accepted` times what the target accepts: a few refusals among many successes slow
    #: nothing.
    decrease: float = 0.5
    accepted: float = 1.5
    #: A target with fewer calls a second than this is slowed only by `Retry-After`.
    slow_from_rate: float = 10.0
    decrease_every_ms: int = 1_000
    lowest_rate: float = 1.0
    slowed_doubles_ms: int = 10_000
    #: A rate that has grown to this is no longer a limit.
    free_rate: float = 1_000.0
    #: What may start at once after a rest, in seconds of the rate.
    burst_seconds: float = 0.5
    #: The longest that one `Retry-After` can stop a host for all tasks; the task itself waits as long as it says.
    max_pause_ms: int = 300_000
    #: The time between two successes counts as growth only up to this.
    growth_gap_ms: int = 1_000
    #: A host that is new, or had no call for `rest_ms`, begins with `ramp_rate` (calls a second, and as many at once);
    #: 0: no ramp. The rate doubles every `ramp_doubles_ms`, begins anew after `ramp_gap_ms` without a call, and is no
    #: longer a limit at `ramp_free_rate`.
    rest_ms: int = 60_000
    ramp_rate: float = 500.0
    ramp_doubles_ms: int = 1_000
    ramp_gap_ms: int = 1_000
    ramp_free_rate: float = 4_000.0
    #: Without any call for this time it can be forgotten in any state.
    forget_ms: int = 900_000


DEFAULT = BreakerConfig()
