"""One limit in force: how many run, and a bucket of tokens; no I/O, and time comes in as milliseconds."""

from dataclasses import dataclass, field
from typing import Literal

from duetime.model.gates import MeterName
from duetime.model.limits import MAX_STRICT, Limits

UNLIMITED = 1_000_000_000
#: A claim that comes so much later than it could costs a rate nothing.
LATENESS_SECONDS = 0.05
#: A fast rate is waited for until it is worth a claim: so much of a second's tokens.
WORTH_SECONDS = 0.01
#: A node that feeds a tenant beside others draws for so long, so often.
DRAW_SECONDS = 0.5
DRAW_EVERY_MS = 100

Limitation = Literal["cap", "rate_limit", "breaker", "tenant_breaker", "no_slot"]


@dataclass(eq=False)
class Meter:
    name: MeterName
    limits: Limits
    tokens: float
    at_ms: int
    #: Started and not ended, and what claims under way may bring.
    running: int = 0
    reserved: int = 0
    #: Lanes that wait for an attempt or a reservation to end.
    waiting: set[int] = field(default_factory=set)
    #: Lanes that wait for the next token, which comes earlier if one is given back.
    delayed: set[int] = field(default_factory=set)
    #: How many nodes feed its tenant.  More than one draw their tokens from a common budget (`granted`), and take
    #: places under its cap; a cap that is too large for that is divided.
    nodes: int = 1
    #: Something was started or wanted since tokens were last drawn.
    is_used: bool = False
    #: Other nodes have the places under its cap: nothing is claimed until there is one (`Gatekeeper.look_for_places`).
    is_refused: bool = False

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
            most = max(0, cap - self.running - self.reserved)
        if limits.rate is not None:
            self._refill(now_ms)
            most = min(most, max(0, int(self.tokens + 1e-9)))
            self.is_used = True
        return most

    def granted(self, tokens: float) -> None:
        self.tokens = min(self._most(), self.tokens + tokens)

    @property
    def wanted(self) -> float:
        """What it lacks of half a second's worth; it asks several times a second."""
        if self.limits.rate is None or not self.is_used:
            return 0.0
        wanted = max(0.0, min(self._most(), max(1.0, self.limits.rate * DRAW_SECONDS)) - self.tokens)
        # With a part of a token, from when nobody shared it, nothing can start.
        return max(1.0, wanted) if self.tokens < 1.0 else wanted

    def took(self, count: int, now_ms: int) -> None:
        self.reserved += count
        if self.limits.rate is not None:
            self.tokens -= count

    def gave_back(self, count: int, now_ms: int) -> None:
        """Reserved, and not started after all."""
        self.reserved -= count
        if self.limits.rate is not None:
            self.tokens += count

    def ended(self) -> None:
        self.running -= 1

    def next_ms(self, now_ms: int) -> int | None:
        """When there is more by itself; None: when something ends."""
        limits, cap = self.limits, self.cap
        if cap is not None and self.running + self.reserved >= cap:
            return None
        if self.is_refused or limits.rate is None:
            return None
        if self.nodes > 1:
            return now_ms + DRAW_EVERY_MS
        worth = max(1.0, min(limits.depth, limits.rate * WORTH_SECONDS))
        return now_ms + max(1, int((worth - self.tokens) / limits.rate * 1000) + 1)

    def is_at_rest(self, now_ms: int) -> bool:
        """A new one would be the same."""
        self._refill(now_ms)
        if self.running or self.reserved or self.is_refused:
            return False
        return not self.is_used if self.nodes > 1 else self.tokens >= self._most()

    def _most(self) -> float:
        if self.limits.rate is None:
            return 0.0
        return self.limits.depth + self.limits.rate * LATENESS_SECONDS

    def _refill(self, now_ms: int) -> None:
        if self.nodes > 1:
            pass
        elif self.limits.rate is not None:
            passed = max(0, now_ms - self.at_ms) / 1000
            self.tokens = min(self._most(), self.tokens + passed * self.limits.rate)
        else:
            self.tokens = 0.0
        self.at_ms = now_ms


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
    if meter.cap is not None and meter.running + meter.reserved >= meter.cap:
        return "cap", f"{whose} has {meter.running} running, max_running is {limits.max_running}"
    return "rate_limit", f"{whose} may start {limits.rate:g} a second, and has"
