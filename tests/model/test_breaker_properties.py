"""What holds for breakers whatever happens, and how a target fares that is down for a minute."""

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from depth import far
from duetime.model.breaker import Breaker
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.breaker_status import FREE

OUTCOMES = st.sampled_from(["ok", "failed", "overloaded"])
STEPS = st.one_of(st.integers(0, 50), st.integers(0, 2_000), st.integers(0, 90_000))


class AnyHistory(RuleBasedStateMachine):
    """Somebody who keeps to what is available, ends what was started in any way and at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.breaker = Breaker(self.now, DEFAULT, random.Random(3))
        #: When each attempt that is under way was started, and in which half-open time.
        self.under_way: list[tuple[int, int]] = []
        self.half_open_time = 0
        self.probed_for_ms = 0

    @rule(step=STEPS)
    def let_time_pass(self, step: int) -> None:
        self.now += step
        self.probed_for_ms += step

    @rule(back=st.integers(1, 100_000))
    def set_the_clock_back(self, back: int) -> None:
        self.now -= back
        # Times that were read before are of another clock.
        self.under_way = [(started - back, time) for started, time in self.under_way]

    @rule(most=st.integers(1, 40))
    def start(self, most: int) -> None:
        n = min(most, self.breaker.available(self.now))
        self.breaker.took(n, self.now)
        self.under_way += [(self.now, self.half_open_time)] * n
        if n:
            self.probed_for_ms = 0

    @precondition(lambda self: self.under_way)
    @rule(outcome=OUTCOMES, count=st.integers(1, 30), retry_after=st.none() | st.floats(0, 400), data=st.data())
    def end(self, outcome: str, count: int, retry_after: float | None, data: st.DataObject) -> None:
        for _ in range(min(count, len(self.under_way))):
            started, _ = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            self.breaker.ended(outcome, self.now, retry_after, started_ms=started)  # type: ignore[arg-type]

    @precondition(lambda self: self.under_way)
    @rule(is_started=st.booleans())
    def leave_off(self, is_started: bool) -> None:
        started, _ = self.under_way.pop()
        if is_started:
            self.breaker.abandoned(self.now, started_ms=started)
        else:
            self.breaker.gave_back(1, self.now, started_ms=started)

    @precondition(lambda self: not self.under_way)
    @rule(outcome=OUTCOMES)
    def end_what_nobody_announced(self, outcome: str) -> None:
        self.breaker.abandoned(self.now)
        self.breaker.gave_back(2, self.now)
        self.breaker.ended(outcome, self.now)  # type: ignore[arg-type]

    @rule(state=st.sampled_from(["open", "closed", None, None]))
    def force(self, state: str | None) -> None:
        self.breaker.force(state, self.now)  # type: ignore[arg-type]

    @invariant()
    def what_is_in_flight_is_counted(self) -> None:
        assert self.breaker.in_flight == len(self.under_way)

    @invariant()
    def nothing_is_available_while_it_is_open_and_everything_while_it_is_closed(self) -> None:
        available = self.breaker.available(self.now)
        assert 0 <= available <= FREE
        if self.breaker.state == "open":
            assert available == 0
        if self.breaker.state == "closed":
            # Who begins slowly has room as long as nobody had to wait for it.
            assert (available == FREE) == (self.breaker.next_ms(self.now) is None)
            assert available == FREE or available <= DEFAULT.ramp_free_rate

    @invariant()
    def a_successor_that_knows_of_it_is_as_careful(self) -> None:
        available, memory = self.breaker.available(self.now), self.breaker.remember(self.now)
        if memory is None:
            assert self.breaker.forced is not None or self.breaker.state in ("closed", "ramping")
            return
        successor = Breaker.recall(memory, self.now)
        if self.breaker.state in ("open", "half_open"):
            assert successor.available(self.now) == (0 if self.breaker.state == "open" else DEFAULT.probes)
            assert successor.state == self.breaker.state
        else:
            assert successor.available(self.now) <= max(available, 0 if memory.rate else DEFAULT.ramp_rate)
        again = successor.remember(self.now)
        assert again is not None
        assert (again.phase, again.openings) == (memory.phase, memory.openings)

    @invariant()
    def probes_under_way_are_few(self) -> None:
        available = self.breaker.available(self.now)
        if self.breaker.state != "half_open" or self.probed_for_ms >= DEFAULT.lost_ms:
            self.half_open_time += 1
        else:
            probes = sum(time == self.half_open_time for _, time in self.under_way)
            assert probes + available <= DEFAULT.probes

    @invariant()
    def it_says_when_more_is_available(self) -> None:
        before, at = self.breaker.available(self.now), self.breaker.next_ms(self.now)
        if at is not None:
            assert at > self.now
            assert at - self.now <= max(DEFAULT.lost_ms, DEFAULT.max_pause_ms + 60_000)
            assert self.breaker.next_probe_ms is None or self.breaker.next_probe_ms <= at
        elif self.breaker.state not in ("closed", "half_open"):
            assert self.breaker.forced == "open"
        assert self.breaker.available(self.now) == before

    def teardown(self) -> None:
        """Whatever has happened: it recovers when calls succeed."""
        if self.breaker.forced is not None:
            self.breaker.force(None, self.now)
        for started, _ in self.under_way:
            self.breaker.ended("ok", self.now, started_ms=started)
        began = self.now
        while self.breaker.available(self.now) != FREE:
            n = min(self.breaker.available(self.now), 20)
            self.breaker.took(n, self.now)
            for _ in range(n):
                self.breaker.ended("ok", self.now, started_ms=self.now)
            at = self.breaker.next_ms(self.now)
            self.now = self.now + 50 if at is None else max(at, self.now + 50)
            assert self.now - began < DEFAULT.max_pause_ms + 110_000
        assert self.breaker.reason == ""
        assert self.breaker.is_idle(self.now + DEFAULT.forget_ms)


AnyHistory.TestCase.settings = settings(max_examples=far(60, 1_500), stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase


@given(st.lists(st.tuples(STEPS, st.integers(1, 500)), max_size=60))
@settings(deadline=None)
def test_a_healthy_target_is_limited_by_nothing_but_its_ramp(history: list[tuple[int, int]]) -> None:
    now = 0
    breaker = Breaker(now, BreakerConfig(ramp_rate=0.0))
    for step, calls in history:
        now += step
        assert breaker.available(now) == FREE
        breaker.took(calls, now)
        for _ in range(calls):
            breaker.ended("ok", now)
        assert breaker.available(now) == FREE


@given(st.integers(2, 500), st.lists(st.integers(0, 400), min_size=50, max_size=400))
def test_a_token_is_there_when_it_was_promised(rate: int, steps: list[int]) -> None:
    now = 0
    breaker = Breaker(now, BreakerConfig(accepted=0.0, slow_from_rate=0.0))
    for _ in range(rate):
        breaker.ended("ok", now)
    breaker.ended("overloaded", now)
    for step in steps:
        now += step
        available = breaker.available(now)
        breaker.took(available, now)
        at = breaker.next_ms(now)
        assert at is not None
        assert breaker.available(at - 2) == 0
        now = at
        assert breaker.available(now) >= 1


# A target that is down for a minute


class Simulation:
    """Work without end for one target, begun as the breaker lets it, every 10 ms; a call takes some time."""

    def __init__(self, seed: int, takes_ms: int, per_second: int) -> None:
        self.now = 0
        self.breaker = Breaker(0, DEFAULT, random.Random(seed))
        self._takes_ms = takes_ms
        self._each_step = per_second // 100
        self._under_way: deque[tuple[int, int]] = deque()

    def run(self, until_ms: int, *, is_up: bool) -> int:
        """Returns how many calls were begun."""
        begun = 0
        while self.now < until_ms:
            self.now += 10
            while self._under_way and self._under_way[0][0] <= self.now:
                _, started = self._under_way.popleft()
                self.breaker.ended("ok" if is_up else "failed", self.now, started_ms=started)
            n = min(self.breaker.available(self.now), self._each_step)
            self.breaker.took(n, self.now)
            self._under_way.extend([(self.now + self._takes_ms, self.now)] * n)
            begun += n
        return begun


@given(st.integers(0, 10_000), st.sampled_from([10, 100, 1_000]), st.sampled_from([100, 1_000]))
@settings(max_examples=far(8, 60), deadline=None)
def test_a_minute_of_failure_wastes_few_calls_and_ends_soon(seed: int, takes_ms: int, per_second: int) -> None:
    target = Simulation(seed, takes_ms, per_second)
    assert target.run(10_000, is_up=True) >= 9.9 * per_second

    wasted = target.run(70_000, is_up=False)

    # Three seconds of calls and what is under way until it opens; then three for each of at most four cool-downs.
    assert wasted <= per_second * (3_000 + takes_ms) / 1000 + 4 * 3
    # The longest cool-down within a minute (40 s, spread by a fifth), the probes, and 16 s for the rate to grow.
    target.run(70_000 + 48_000 + 2 * takes_ms + 16_000 + 1_000, is_up=True)
    assert target.breaker.state == "closed"
    assert target.run(target.now + 1_000, is_up=True) == per_second
