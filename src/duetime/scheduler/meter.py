"""One limit in force: a count of running tasks, and a bucket of tokens; no I/O, and time comes in as milliseconds."""

from typing import Literal

from duetime.model.gates import MeterName
from duetime.model.limits import MAX_STRICT, Limits
from duetime.model.token_bucket import TokenBucket

UNLIMITED = 1_000_000_000
#: A claim that comes this much later than it could costs a rate nothing.
LATENESS_SECONDS = 0.05
#: With a fast rate, tokens gather until a claim is worth it: the tokens of this part of a second.
WORTH_SECONDS = 0.01
#: If several nodes feed a tenant, each draws tokens for this long, this often.
DRAW_SECONDS = 0.5
DRAW_EVERY_MS = 100

Limitation = Literal["cap", "rate_limit", "breaker", "tenant_breaker", "no_slot"]


class Meter:
    __slots__ = (
        "bucket",
        "delayed",
        "is_refused",
        "is_used",
        "limits",
        "name",
        "nodes",
        "promised",
        "running",
        "waiting",
    )

    def __init__(self, name: MeterName, limits: Limits, since_ms: int) -> None:
        """The bucket was empty at `since_ms`."""
        self.name = name
        self.bucket = TokenBucket(0.0, 0.0, 0.0, since_ms)
        #: Tasks that started and have not ended, and those that claims under way may bring.
        self.running = 0
        self.promised = 0
        #: Lanes that wait for an attempt or a promise to end.
        self.waiting: set[int] = set()
        #: Lanes that wait for the next token, which comes earlier if one is given back.
        self.delayed: set[int] = set()
        #: How many nodes feed its tenant.  If there are several, they draw tokens from a common budget (`granted`),
        #: and take
        #: places under its cap; a cap that is too large for that is divided.
        self.nodes = 1
        #: A task was started or wanted since tokens were last drawn.
        self.is_used = False
        #: Other nodes have all places under its cap: nothing is claimed until there is one
        #: (`Gatekeeper.look_for_places`).
        self.is_refused = False
        self.rule(limits)

    def rule(self, limits: Limits) -> None:
        """Set the limits that hold from now on."""
        self.limits = limits
        if limits.rate is None:
            self.bucket.change(0.0, 0.0)
            self.bucket.tokens = 0.0
        else:
            self.bucket.change(limits.rate, limits.depth + limits.rate * LATENESS_SECONDS)

    @property
    def cap(self) -> int | None:
        most = self.limits.max_running
        return most if most is None or self.nodes == 1 or most <= MAX_STRICT else most // self.nodes

    @property
    def is_strict(self) -> bool:
        cap = self.limits.max_running
        return cap is not None and (self.limits.strict or (self.nodes > 1 and cap <= MAX_STRICT))

    def available(self, now_ms: int) -> int:
        limits, most, cap = self.limits, UNLIMITED, self.cap
        if self.is_refused:
            return 0
        if cap is not None:
            most = max(0, cap - self.running - self.promised)
        if limits.rate is not None:
            self._refill(now_ms)
            most = min(most, self.bucket.whole)
            self.is_used = True
        return most

    def granted(self, tokens: float) -> None:
        self.bucket.put_back(tokens)

    @property
    def wanted(self) -> float:
        """The tokens that are missing for half a second; called several times a second."""
        if self.limits.rate is None or not self.is_used:
            return 0.0
        tokens, capacity = self.bucket.tokens, self.bucket.capacity
        wanted = max(0.0, min(capacity, max(1.0, self.limits.rate * DRAW_SECONDS)) - tokens)
        # With a part of a token, left from a time with one node, nothing can start.
        return max(1.0, wanted) if tokens < 1.0 else wanted

    def took(self, count: int, now_ms: int) -> None:
        self.promised += count
        if self.limits.rate is not None:
            self.bucket.tokens -= count

    def gave_back(self, count: int, now_ms: int) -> None:
        """Give back what was promised and not started."""
        self.promised -= count
        if self.limits.rate is not None:
            # Even beyond what the bucket holds: tokens of a common budget are paid for.
            self.bucket.tokens += count

    def ended(self) -> None:
        self.running -= 1

    def next_ms(self, now_ms: int) -> int | None:
        """When more becomes available with time; None: only when something ends."""
        limits, cap = self.limits, self.cap
        if cap is not None and self.running + self.promised >= cap:
            return None
        if self.is_refused or limits.rate is None:
            return None
        if self.nodes > 1:
            return now_ms + DRAW_EVERY_MS
        self._refill(now_ms)
        worth = max(1.0, min(limits.depth, limits.rate * WORTH_SECONDS))
        return self.bucket.full_ms(worth, now_ms)

    def is_at_rest(self, now_ms: int) -> bool:
        """Whether a new meter would be in the same state."""
        self._refill(now_ms)
        if self.running or self.promised or self.is_refused:
            return False
        return not self.is_used if self.nodes > 1 else self.bucket.tokens >= self.bucket.capacity

    def _refill(self, now_ms: int) -> None:
        bucket = self.bucket
        if self.nodes == 1 and now_ms >= bucket.filled_ms:
            bucket.fill(now_ms)
        else:
            # Its tokens come from elsewhere, or the clock was set back.
            bucket.skip_to(now_ms)


def in_words(meter: Meter) -> tuple[Limitation, str]:
    scope, name, value = meter.name
    whose = {
        "tenant": "its tenant",
        "queue": f"queue '{name}'",
        "type": f"type '{name}'",
        "type_key": f"type '{name}' with key '{value}'",
        "type_rate": f"type '{name}' with key '{value}'",
        "key": f"concurrency_key '{name}'",
        "rate": f"rate_key '{name}'",
    }[scope]
    limits = meter.limits
    if meter.is_refused:
        return "cap", f"{whose} has {limits.max_running} running on all nodes, and that is its max_running"
    if meter.cap is not None and meter.running + meter.promised >= meter.cap:
        return "cap", f"{whose} has {meter.running} running, max_running is {limits.max_running}"
    return "rate_limit", f"{whose} may start {limits.rate:g} a second, and has"
