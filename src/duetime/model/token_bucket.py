"""One token bucket; no I/O, and the caller gives the time.

A bucket fills at `rate` tokens a second up to `capacity`.  Every rate limit has
one and adds only its policy: when the rate changes, who may take tokens, and from
where else tokens come.  Times are milliseconds from any start; they may have
fractions.
"""

#: The sum of many fractions may miss a whole token by this much.
ROUNDING = 1e-6


class TokenBucket:
    __slots__ = ("capacity", "filled_ms", "rate", "tokens")

    def __init__(self, rate: float, capacity: float, tokens: float, now_ms: float) -> None:
        self.rate = rate
        self.capacity = capacity
        #: Negative if more was taken than there was.
        self.tokens = tokens
        #: Up to this time the bucket has been filled.
        self.filled_ms = now_ms

    def fill(self, now_ms: float) -> None:
        """Add the tokens of the time since the bucket was last filled; a time before that changes nothing."""
        passed_ms = now_ms - self.filled_ms
        if passed_ms > 0:
            tokens = self.tokens + self.rate * passed_ms / 1000
            self.tokens = tokens if tokens < self.capacity else self.capacity
            self.filled_ms = now_ms

    def skip_to(self, at_ms: float) -> None:
        """Add no tokens for the time until then."""
        self.filled_ms = at_ms

    def change(self, rate: float, capacity: float) -> None:
        """Change the rate from the last fill on; the tokens in the bucket stay, if the new capacity holds them."""
        self.rate = rate
        self.capacity = capacity
        if self.tokens > capacity:
            self.tokens = capacity

    @property
    def whole(self) -> int:
        """How many whole tokens there are."""
        tokens = int(self.tokens + ROUNDING)
        return tokens if tokens > 0 else 0

    def take(self, count: float) -> None:
        """Take tokens, even more than there are: the following tokens then pay the debt."""
        self.tokens -= count

    def put_back(self, count: float) -> None:
        """Put tokens in, up to the capacity."""
        tokens = self.tokens + count
        self.tokens = tokens if tokens < self.capacity else self.capacity

    def seconds_until(self, count: float) -> float:
        """How long after the last fill this many tokens are there, if only the rate adds some."""
        missing = count - self.tokens
        return missing / self.rate if missing > 0 else 0.0

    def full_ms(self, count: float, now_ms: int) -> int:
        """The first whole millisecond after `now_ms` at which this many tokens are there."""
        start_ms = self.filled_ms if self.filled_ms > now_ms else now_ms
        return int(start_ms + self.seconds_until(count) * 1000) + 1
