"""A rate that falls at once and rises with success; no I/O.

An overload answer reduces it, at most once for all calls that were under way
together; success doubles it in a given time.  Idle time does not raise it: a
target that was not called for long has not shown that it can take more.
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
        """When there is one more token."""
        return self.bucket.full_ms(self.bucket.whole + 1.0, now_ms)

    def rest(self, until_ms: int) -> None:
        """Add no tokens before this time."""
        bucket = self.bucket
        bucket.tokens = min(bucket.tokens, 0.0)
        bucket.skip_to(max(bucket.filled_ms, until_ms))

    def decrease(self, now_ms: int, started_ms: int | None, least: float) -> bool:
        """Reduce the rate unless it was reduced after the reporting call had started. Return whether it was reduced."""
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
        """Raise the rate by the time that success has lasted. Return whether it is no longer a limit."""
        gone_by = min(now_ms - self._grown_ms, self._config.growth_gap_ms)
        self._grown_ms = now_ms
        self._change(self.value * 2.0 ** (gone_by / doubles_ms))
        return self.value >= self._config.free_rate

    def _change(self, value: float) -> None:
        self.bucket.change(value, self._capacity(value))

    def _capacity(self, value: float) -> float:
        return max(1.0, value * self._config.burst_seconds)
