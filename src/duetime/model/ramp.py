"""How a target that was not called for a while gets its calls back: slowly at first, pure rules, no I/O.

What stood still may have shrunk meanwhile: connections are gone, caches are
cold, a function has to be started.  So after a rest, and for a target that is
new, calls begin at a rate that a few tasks never feel, which doubles while it
is called, until nothing is limited.  Who is not called during the ramp begins
anew: a call now and then shows nothing of what the target bears.
"""

from duetime.model.breaker_config import BreakerConfig
from duetime.model.breaker_status import FREE
from duetime.model.token_bucket import TokenBucket

#: What waits is worth a claim when so much of a second has come together.
_WORTH_SECONDS = 0.01
_NEVER = 1 << 62


class Ramp:
    __slots__ = ("_bucket", "_config", "_grown_ms", "is_felt", "is_over", "patience_ms")

    def __init__(self, config: BreakerConfig, now_ms: int) -> None:
        self._config = config
        self._bucket = TokenBucket(0.0, 0.0, 0.0, now_ms)
        self._grown_ms = now_ms
        #: Nothing is limited until the next rest.
        self.is_over = True
        #: Something had to wait for it.
        self.is_felt = False
        #: Without a call for so long it begins anew.
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
        """A rest is over."""
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
        """So many start, whether they may or not; being called is what makes it faster."""
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
        """So many that were taken were not started after all."""
        self._bucket.put_back(n)

    def next_ms(self, now_ms: int) -> int | None:
        """When there is more by itself; None: nothing is limited."""
        if self.is_over:
            return None
        bucket = self._bucket
        bucket.fill(now_ms)
        return bucket.full_ms(max(1.0, bucket.rate * _WORTH_SECONDS), now_ms)
