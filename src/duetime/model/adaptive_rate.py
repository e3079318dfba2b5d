"""A rate that falls at once and rises with success: a token bucket, no I/O.

Overload multiplies it, at most once for what was under way together; success
doubles it in a given time.  Rest does not raise it: who has not been called
for long is not known to bear more.
"""

from duetime.model.breaker_config import BreakerConfig

#: A token may be the sum of many parts that are not exact.
_ROUNDING = 1e-6


class AdaptiveRate:
    __slots__ = ("_config", "_decreased_ms", "_filled_ms", "_grown_ms", "_tokens", "value")

    def __init__(self, config: BreakerConfig, value: float, now_ms: int) -> None:
        self._config = config
        self.value = value
        self._tokens = 0.0
        self._filled_ms = self._grown_ms = self._decreased_ms = now_ms

    @property
    def tokens(self) -> int:
        """How many may start now."""
        return max(0, int(self._tokens + _ROUNDING))

    def take(self, n: int) -> None:
        self._tokens -= n

    def put_back(self, n: int) -> None:
        self._tokens = min(self._depth(), self._tokens + n)

    def fill(self, now_ms: int) -> None:
        if now_ms > self._filled_ms:
            self._tokens = min(self._depth(), self._tokens + self.value * (now_ms - self._filled_ms) / 1000)
            self._filled_ms = now_ms

    def next_ms(self, now_ms: int) -> int:
        """When there is a token more."""
        missing = self.tokens + 1.0 - self._tokens
        return max(now_ms, self._filled_ms) + int(missing * 1000 / self.value) + 1

    def rest(self, until_ms: int) -> None:
        """No tokens come before this."""
        self._tokens = min(self._tokens, 0.0)
        self._filled_ms = max(self._filled_ms, until_ms)

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
        self.value = max(least, self.value * config.decrease)
        self._tokens = min(self._tokens, self._depth())
        self._decreased_ms = now_ms
        return True

    def grow(self, now_ms: int, doubles_ms: int) -> bool:
        """More, by the time that success has lasted; whether it is no limit any more."""
        gone_by = min(now_ms - self._grown_ms, self._config.growth_gap_ms)
        self._grown_ms = now_ms
        self.value *= 2.0 ** (gone_by / doubles_ms)
        return self.value >= self._config.free_rate

    def _depth(self) -> float:
        return max(1.0, self.value * self._config.burst_seconds)
