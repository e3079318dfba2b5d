"""When a failing target gets no more calls, and how its calls come back: pure rules, no I/O.

One `Breaker` is about one host as one tenant calls it.

    closed ──── failures go on ────▶ open ── cool-down ──▶ half_open ── probes fail ──▶ open
      │ ▲                                                     │ probes succeed
      │ └──────── the rate has grown enough ──── closing ◀────┘
      └── 429, 503 ──▶ slowed ── the rate has grown enough ──▶ closed

A target that is new, or was not called for a while, is closed and begins slowly
(`ramp`).

Time is milliseconds of any clock; while that clock goes back, time stands still
here.  `took` reports attempts that start, and one more call reports each end.
Reports of ends without a start are harmless: the count of running attempts never
falls below zero.
"""

import random
from typing import Literal, assert_never

from duetime.model.adaptive_rate import AdaptiveRate
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.breaker_memory import BreakerMemory
from duetime.model.breaker_status import FREE, BreakerStatus, Forced, State, Verdict
from duetime.model.call_window import CallWindow
from duetime.model.cool_down import CoolDown
from duetime.model.ramp import Ramp

#: What is learned here does not tell closed and ramping apart: a ramp does not know how calls end.
_Phase = Literal["closed", "slowed", "open", "half_open", "closing"]


class Breaker:
    __slots__ = (
        "_config",
        "_cool_down",
        "_detail",
        "_failing_since_ms",
        "_in_flight",
        "_now_ms",
        "_opened_ms",
        "_passed",
        "_probed_ms",
        "_probing",
        "_ramp",
        "_rate",
        "_skew_ms",
        "_state",
        "_touched_ms",
        "_until_ms",
        "_why",
        "_window",
        "forced",
    )

    def __init__(self, now_ms: int, config: BreakerConfig = DEFAULT, chance: random.Random | None = None) -> None:
        self._config = config
        self._cool_down = CoolDown(config, now_ms, chance or random.Random())
        self._window = CallWindow(config.window_seconds, config.window_calls)
        self.forced: Forced | None = None
        self._state: _Phase = "closed"
        self._why = ""
        self._detail = ""
        self._now_ms = self._touched_ms = now_ms
        self._skew_ms = 0
        self._in_flight = 0
        self._failing_since_ms: int | None = None
        # Open: when it is probed. Slowed: when its pause ends.
        self._until_ms = now_ms
        self._opened_ms: int | None = None
        self._probing = self._passed = 0
        self._probed_ms = now_ms
        self._rate: AdaptiveRate | None = None
        self._ramp = Ramp(config, now_ms)

    # What may start

    def available(self, now_ms: int) -> int:
        """How many attempts may be started now."""
        now = self._advance(now_ms)
        if self.forced is not None:
            return 0 if self.forced == "open" else FREE
        match self._state:
            case "closed":
                return self._ramp.available(now)
            case "open":
                return 0
            case "half_open":
                return max(0, self._config.probes - self._probing - self._passed)
            case "slowed" | "closing":
                return 0 if now < self._until_ms or self._rate is None else self._rate.bucket.whole
            case _:
                assert_never(self._state)

    def next_ms(self, now_ms: int) -> int | None:
        """When `available` may rise by itself; None: only when an attempt ends, or the breaker is forced."""
        now = self._advance(now_ms)
        if self.forced is not None:
            return None
        if self._state == "closed":
            following = self._ramp.next_ms(now)
            return None if following is None else following - self._skew_ms
        if self._state == "half_open":
            return self._probed_ms + self._config.lost_ms - self._skew_ms if self._probing else None
        if self._state == "open" or self._rate is None:
            return self._until_ms - self._skew_ms
        if now < self._until_ms and self._rate.bucket.whole:
            return self._until_ms - self._skew_ms
        return self._rate.next_ms(now) - self._skew_ms

    def begin(self, n: int, now_ms: int) -> bool:
        """Note that attempts start, if all of them may. If not, callers of the target have to ask from now on."""
        if self.available(now_ms) < n:
            self._ramp.is_felt = True
            return False
        self.took(n, now_ms)
        return True

    def took(self, n: int, now_ms: int) -> None:
        """Note that attempts were started."""
        self._touched_ms = now = self._advance(now_ms)
        self._in_flight += n
        if self._state == "closed":
            if not self._ramp.is_over:
                self._ramp.take(n, now)
        elif self._state == "half_open":
            self._probing += n
            self._probed_ms = now
        elif self._rate is not None:
            self._rate.bucket.take(n)

    def gave_back(self, n: int, now_ms: int, *, started_ms: int | None = None) -> None:
        """Note that attempts that were taken were not started after all."""
        self._touched_ms = self._advance(now_ms)
        known = min(n, self._in_flight)
        self._in_flight -= known
        if not self._is_stale(started_ms):
            self._probing = max(0, self._probing - n)
            if self._rate is not None:
                self._rate.bucket.put_back(known)
            elif self._state == "closed":
                self._ramp.put_back(known)

    def abandoned(self, now_ms: int, *, started_ms: int | None = None) -> None:
        """Note that an attempt ended without saying anything about its target."""
        self._touched_ms = self._advance(now_ms)
        self._in_flight = max(0, self._in_flight - 1)
        if not self._is_stale(started_ms):
            self._probing = max(0, self._probing - 1)

    # What is learned

    def ended(
        self,
        outcome: Verdict,
        now_ms: int,
        retry_after: float | None = None,
        *,
        detail: str = "",
        started_ms: int | None = None,
    ) -> None:
        """Note that an attempt ended, and what it says about its target.

        `started_ms` (by the same clock) tells attempts that started before the last
        opening from later ones: the earlier ones say nothing new.
        """
        self._touched_ms = now = self._advance(now_ms)
        if self._in_flight:
            self._in_flight -= 1
        if outcome == "ok" and self._state == "closed":
            self._window.add(now, False)
            if self._failing_since_ms is not None and not self._is_failing(self._config.min_calls):
                self._failing_since_ms = None
            return
        is_stale = self._is_stale(started_ms)
        if not is_stale:
            self._probing = max(0, self._probing - 1)
        if outcome != "ok":
            self._detail = detail or outcome
        if self._state == "open":
            self._until_ms = max(self._until_ms, now + self._pause_ms(retry_after))
        elif not is_stale:
            self._learn(outcome, now, retry_after, started_ms)

    def _learn(self, outcome: Verdict, now: int, retry_after: float | None, started_ms: int | None) -> None:
        if self._state == "half_open":
            if outcome != "ok":
                why = f"cool-down {self._cool_down.openings} ended with a probe that failed: {self._detail}"
                self._open(now, why, retry_after)
                return
            self._passed += 1
            if self._passed >= self._config.probes:
                self._begin_closing(now)
            return
        self._window.add(now, outcome != "ok")
        if outcome == "ok":
            self._grow(now)
        elif self.forced is None:
            if outcome == "overloaded":
                self._slow(now, retry_after, started_ms)
            self._judge(now)

    def _judge(self, now: int) -> None:
        """Open it if failures go on."""
        is_closing = self._state == "closing"
        if not self._is_failing(self._config.closing_min_calls if is_closing else self._config.min_calls):
            self._failing_since_ms = None
        elif self._failing_since_ms is None and not is_closing:
            self._failing_since_ms = now
        elif is_closing or now - (self._failing_since_ms or 0) >= self._config.sustained_ms:
            window = self._window
            counts = f"{window.failures} of {window.calls} calls failed in the last {window.seconds(now)} s"
            self._open(now, f"{counts}; the last: {self._detail}", None)

    def _is_failing(self, min_calls: int) -> bool:
        window = self._window
        return window.calls >= min_calls and window.failures >= self._config.failure_share * window.calls

    # Changes of state

    def _open(self, now: int, why: str, retry_after: float | None) -> None:
        if self._state in ("closed", "slowed"):
            self._cool_down.forgive_if_due(now)
        self._state, self._why = "open", why
        self._rate = None
        self._opened_ms = now
        self._until_ms = max(self._until_ms, now + max(self._cool_down.next_ms(), self._pause_ms(retry_after)))
        self._failing_since_ms = None
        self._probing = self._passed = 0

    def _begin_probing(self, now: int) -> None:
        self._state = "half_open"
        self._rate = None
        self._probing = self._passed = 0
        self._probed_ms = self._until_ms = now

    def _begin_closing(self, now: int) -> None:
        self._state = "closing"
        self._why = f"{self._config.probes} probes succeeded after this: {self._why}"
        self._window.clear()
        self._rate = AdaptiveRate(self._config, self._config.closing_rate, now)

    def _slow(self, now: int, retry_after: float | None, started_ms: int | None) -> None:
        """The target says that it is overloaded: slow down at once, and send nothing until its pause ends."""
        config = self._config
        pause_ms = self._pause_ms(retry_after)
        # A target that asks for a pause gets it, however many calls it accepts.
        least = 0.0 if pause_ms else self._window.accepted(now) * config.accepted
        if self._rate is None:
            rate = self._window.rate(now)
            if not pause_ms and (least >= rate or rate < config.slow_from_rate):
                # It accepts most of what it is sent, or is sent next to nothing.
                return
            self._rate = AdaptiveRate(config, max(config.lowest_rate, rate * config.decrease, least), now)
            is_less = True
        else:
            is_less = self._rate.decrease(now, None if started_ms is None else started_ms + self._skew_ms, least)
        if is_less:
            # Slowing down gets time to help before the target counts as broken.
            self._failing_since_ms = None
        self._state, self._why = "slowed", f"it is overloaded: {self._detail}"
        if pause_ms:
            self._why += f", and asked for a pause of {pause_ms / 1000:g} s"
            self._until_ms = max(self._until_ms, now + pause_ms)
            self._rate.rest(self._until_ms)

    def _grow(self, now: int) -> None:
        """Raise the rate after a success, unless the call was under way when a pause began."""
        if self._rate is None or now < self._until_ms:
            return
        config = self._config
        doubles_ms = config.closing_doubles_ms if self._state == "closing" else config.slowed_doubles_ms
        if self._rate.grow(now, doubles_ms):
            self._close(now)

    def _close(self, now: int) -> None:
        self._state, self._why = "closed", ""
        self._until_ms = now
        self._cool_down.closed(now)
        self._failing_since_ms = self._rate = None
        self._ramp.finish()

    def force(self, state: Forced | None, now_ms: int) -> None:
        """Hold it open or closed whatever happens; None: it decides by itself again.

        After it was held open it begins with probes, after it was held closed like a new one.
        """
        now = self._advance(now_ms)
        if state == self.forced:
            return
        before, self.forced = self.forced, state
        if state == "open":
            self._opened_ms = now
        elif state is None and before == "open":
            self._why = "it was held open by hand"
            self._begin_probing(now)
        elif state is None:
            self._window.clear()
            self._cool_down.openings = 0
            self._close(now)

    # What the next process inherits

    @property
    def touched_ms(self) -> int:
        """When anything was last reported to it."""
        return self._touched_ms - self._skew_ms

    def remember(self, now_ms: int) -> BreakerMemory | None:
        """What a successor has to know; None: a new breaker would do the same."""
        now, skew, cool_down = self._advance(now_ms), self._skew_ms, self._cool_down
        if self.forced is not None or (self._state == "closed" and not cool_down.is_remembered(now)):
            return None
        phase = "open" if self._state == "half_open" else self._state
        rate = None if self._rate is None else self._rate.value
        forgiven_ms = cool_down.forgiven_ms - skew if self._state == "closed" else 0
        return BreakerMemory(phase, self._until_ms - skew, cool_down.openings, forgiven_ms, rate, self._why)

    @classmethod
    def recall(
        cls, memory: BreakerMemory, now_ms: int, config: BreakerConfig = DEFAULT, chance: random.Random | None = None
    ) -> "Breaker":
        """Make the successor of a breaker that was remembered."""
        breaker = cls(now_ms, config, chance)
        breaker._state, breaker._why = memory.phase, memory.why
        # No pause is longer, whatever clock it was measured by.
        longest_ms = max(config.max_pause_ms, int(config.max_cool_down_ms * (1.0 + config.jitter)))
        breaker._until_ms = min(memory.until_ms, now_ms + longest_ms)
        breaker._cool_down.openings = memory.openings
        breaker._cool_down.forgiven_ms = min(memory.forgiven_ms, now_ms + config.forgive_ms)
        if memory.phase in ("slowed", "closing"):
            rate = config.lowest_rate if memory.rate is None else memory.rate
            breaker._rate = AdaptiveRate(config, max(config.lowest_rate, rate), now_ms)
            breaker._rate.rest(breaker._until_ms)
        elif memory.phase == "open":
            # Attempts of its predecessor that still run say nothing about the probes.
            breaker._opened_ms = now_ms
        return breaker

    # What readers see

    @property
    def state(self) -> State:
        """The state as of the last call that gave the time."""
        if self.forced is not None:
            return self.forced
        return "ramping" if self._state == "closed" and self._ramp.is_felt else self._state

    @property
    def reason(self) -> str:
        """A sentence that says why it is in this state; empty if nothing is limited."""
        if self.forced is not None:
            return f"it is held {self.forced} by hand"
        match self._state:
            case "closed":
                return self._ramp.reason
            case "half_open":
                return f"probes are let through, {self._config.probes} in all, after this: {self._why}"
            case "open" | "closing" | "slowed":
                return self._why
            case _:
                assert_never(self._state)

    @property
    def next_probe_ms(self) -> int | None:
        """When calls are let through again, if none are now."""
        is_paused = self._state in ("slowed", "closing") and self._now_ms < self._until_ms
        if self.forced is None and (self._state == "open" or is_paused):
            return self._until_ms - self._skew_ms
        return None

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def status(self, host: str, now_ms: int) -> BreakerStatus:
        now = self._advance(now_ms)
        self._window.trim(now)
        rate: float | None = None
        if self.state in ("open", "half_open") or self.next_probe_ms is not None:
            rate = 0.0
        elif self._rate is not None and self.forced is None:
            rate = round(self._rate.value, 2)
        elif self.state == "ramping":
            rate = round(self._ramp.rate, 2)
        window = self._window
        seen = (self.state, self.reason, self.next_probe_ms, rate, window.calls, window.failures, self.forced)
        return BreakerStatus(host, *seen)

    def is_idle(self, now_ms: int) -> bool:
        """Whether it can be forgotten: a new one would do the same."""
        now = self._advance(now_ms)
        if self.forced is not None or (self._state == "open" and now < self._until_ms):
            return False
        if now - self._touched_ms >= self._config.forget_ms:
            return True
        self._window.trim(now)
        is_fresh = self._state == "closed" and not self._cool_down.is_remembered(now)
        is_fresh = is_fresh and (self._ramp.is_off or now - self._touched_ms >= self._config.rest_ms)
        return is_fresh and not self._in_flight and not self._window.calls

    # Time

    def _advance(self, now_ms: int) -> int:
        """Return a time that never goes back, after the changes that time alone makes."""
        now = now_ms + self._skew_ms
        if now < self._now_ms:
            self._skew_ms += self._now_ms - now
            now = self._now_ms
        self._now_ms = now
        if self._state == "closed":
            if now - self._touched_ms >= self._ramp.patience_ms:
                self._ramp.begin(now)
            return now
        if self._state == "open":
            if now >= self._until_ms and self.forced is None:
                self._begin_probing(now)
        elif self._state == "half_open":
            if self._probing and now - self._probed_ms >= self._config.lost_ms:
                self._probing = 0
        elif self._rate is not None:
            self._rate.bucket.fill(now)
        return now

    def _is_stale(self, started_ms: int | None) -> bool:
        return started_ms is not None and self._opened_ms is not None and started_ms + self._skew_ms < self._opened_ms

    def _pause_ms(self, retry_after: float | None) -> int:
        if retry_after is None or not retry_after > 0:
            return 0
        return int(min(retry_after * 1000, self._config.max_pause_ms))
