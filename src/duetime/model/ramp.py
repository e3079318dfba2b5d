"""How calls to a target that was idle for a while come back: slowly at first, pure rules, no I/O.

An idle target may have shrunk in the meantime: connections are closed, caches are
cold, a function has to be started.  So for a target that is new or was idle, calls
begin at a rate that a few tasks never notice.  The rate doubles while the target is
called, until nothing is limited.  A target that is not called during the ramp begins
anew: an occasional call does not show what the target can take.
"""

from duetime.model.breaker_config import BreakerConfig
from duetime.model.breaker_status import FREE
from duetime.model.token_bucket import TokenBucket

#: Waiting tasks are worth a claim when tokens for this part of a second have come together.
_WORTH_SECONDS = 0.01
_NEVER = 1 << 62


class Ramp:
    __slots__ = ("_bucket", "_config", "_grown_ms", "is_felt", "is_over", "patience_ms")

    def __init__(self, config: BreakerConfig, now_ms: int) -> None:
        self._config = config
        self._bucket = TokenBucket(0.0, 0.0, 0.0, now_ms)
        self._grown_ms = now_ms
        #: If true, nothing is limited until the next idle time.
        self.is_over = True
        #: Whether anything had to wait for it.
        self.is_felt = False
        #: Without a call for this time it begins anew.
        self.patience_ms = _NEVER
        if not self.is_off:
            self.begin(now_ms)

    @property
    def is_off(self) -> bool:
        return not self._config.ramp_rate

    @property
    def rate(self) -> float:
        return self._bucket.rate

    @property
    def reason(self) -> str:
        """Why something waits; empty if nothing does."""
        if not self.is_felt:
            return ""
        return f"ramping after a rest, or because it is new: up to {self.rate:.0f} calls a second now"

    def begin(self, now_ms: int) -> None:
        """Start the ramp, at the end of an idle time."""
        rate = self._config.ramp_rate
        self._bucket = TokenBucket(rate, rate, rate, now_ms)
        self._grown_ms = now_ms
        self.is_over = self.is_felt = False
        self.patience_ms = self._config.ramp_gap_ms

    def finish(self) -> None:
        self.is_over, self.is_felt = True, False
        if not self.is_off:
            self.patience_ms = self._config.rest_ms

    def available(self, now_ms: int) -> int:
        """How many may start now."""
        if self.is_over:
            return FREE
        self._bucket.fill(now_ms)
        return self._bucket.whole

    def take(self, n: int, now_ms: int) -> None:
        """Note that this many start, whether they may or not. Only calls raise the rate."""
        bucket = self._bucket
        bucket.fill(now_ms)
        rate = bucket.rate * 2.0 ** ((now_ms - self._grown_ms) / self._config.ramp_doubles_ms)
        bucket.change(rate, rate)
        self._grown_ms = now_ms
        if rate >= self._config.ramp_free_rate:
            self.finish()
            return
        bucket.take(n)
        self.is_felt = self.is_felt or bucket.tokens < 0.0

    def put_back(self, n: int) -> None:
        """Note that this many that were taken were not started after all."""
        self._bucket.put_back(n)

    def next_ms(self, now_ms: int) -> int | None:
        """When more may start by itself; None: nothing is limited."""
        if self.is_over:
            return None
        bucket = self._bucket
        bucket.fill(now_ms)
        return bucket.full_ms(max(1.0, bucket.rate * _WORTH_SECONDS), now_ms)
