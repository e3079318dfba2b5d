"""A rate that falls at once and rises with success; no I/O.

Overload multiplies it, at most once for what was under way together; success
doubles it in a given time.  Rest does not raise it: who has not been called
for long is not known to bear more.
"""

from duetime.model.breaker_config import BreakerConfig
from duetime.model.token_bucket import TokenBucket


class AdaptiveRate:
    __slots__ = ("_config", "_decreased_ms", "_grown_ms", "bucket")

    def __init__(self, config: BreakerConfig, value: float, now_ms: int) -> None:
        self._config = config
        self.bucket = TokenBucket(value, self._capacity(value), 0.0, now_ms)
        self._grown_ms = self._decreased_ms = now_ms

    @property
    def value(self) -> float:
        return self.bucket.rate

    def next_ms(self, now_ms: int) -> int:
        """When there is a token more."""
        return self.bucket.full_ms(self.bucket.whole + 1.0, now_ms)

    def rest(self, until_ms: int) -> None:
        """No tokens come before this."""
        bucket = self.bucket
        bucket.tokens = min(bucket.tokens, 0.0)
        bucket.skip_to(max(bucket.filled_ms, until_ms))

    def decrease(self, now_ms: int, started_ms: int | None, least: float) -> bool:
        """Less, unless it was made less since the call that says so was started; whether it is less now."""
        config = self._config
        self._grown_ms = now_ms
        is_new = now_ms - self._decreased_ms >= config.decrease_every_ms
        if started_ms is not None and started_ms < self._decreased_ms:
            is_new = False
        least = max(least, config.lowest_rate)
        if not is_new or self.value <= least:
            return False
        self._change(max(least, self.value * config.decrease))
        self._decreased_ms = now_ms
        return True

    def grow(self, now_ms: int, doubles_ms: int) -> bool:
        """More, by the time that success has lasted; whether it is no limit any more."""
        gone_by = min(now_ms - self._grown_ms, self._config.growth_gap_ms)
        self._grown_ms = now_ms
        self._change(self.value * 2.0 ** (gone_by / doubles_ms))
        return self.value >= self._config.free_rate

    def _change(self, value: float) -> None:
        self.bucket.change(value, self._capacity(value))

    def _capacity(self, value: float) -> float:
        return max(1.0, value * self._config.burst_seconds)
