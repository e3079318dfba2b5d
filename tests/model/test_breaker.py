"""Breakers by example: when they open, how they are probed, how calls come back."""

import itertools
import random
from typing import Any

import pytest

from duetime.model.breaker import Breaker
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.breaker_status import FREE, Verdict
from duetime.model.call_window import CallWindow

#: Cool-downs without their spread, so that times can be written down; `test_ramp` has how a host begins.
PLAIN = BreakerConfig(jitter=0.0, ramp_rate=0.0)
#: Every refusal counts, whatever else is accepted.
TOUCHY = BreakerConfig(jitter=0.0, accepted=0.0, slow_from_rate=0.0, ramp_rate=0.0)


class Told:
    """A breaker and the time that it is told."""

    def __init__(self, config: BreakerConfig = PLAIN, now_ms: int = 1_000_000) -> None:
        self.now = now_ms
        self.breaker = Breaker(now_ms, config, random.Random(7))

    @property
    def available(self) -> int:
        return self.breaker.available(self.now)

    @property
    def state(self) -> str:
        self.breaker.available(self.now)
        return self.breaker.state

    def call(self, outcome: Verdict = "ok", **more: Any) -> None:
        self.breaker.took(1, self.now)
        self.breaker.ended(outcome, self.now, **more)

    def calls(self, outcome: Verdict, count: int, every_ms: int = 100, **more: Any) -> None:
        for _ in range(count):
            self.now += every_ms
            self.call(outcome, **more)

    def wait_for_probes(self) -> None:
        at = self.breaker.next_ms(self.now)
        assert at is not None
        self.now = at

    def open(self) -> int:
        """Fail until it opens; returns the cool-down."""
        while self.state != "open":
            self.calls("failed", 1)
        probe_ms = self.breaker.next_probe_ms
        assert probe_ms is not None
        return probe_ms - self.now

    def succeed_until_closed(self) -> None:
        while self.state != "closed":
            self.now += 20
            if self.available:
                self.call("ok")


def test_a_target_that_fails_for_a_second_is_left_in_peace() -> None:
    told = Told()
    told.calls("ok", 5)
    told.calls("failed", 15)
    assert (told.state, told.available) == ("closed", FREE)

    told.calls("failed", 10, detail="it answered 500")

    assert (told.state, told.available) == ("open", 0)
    assert told.breaker.reason == "25 of 30 calls failed in the last 4 s; the last: it answered 500"
    assert told.breaker.next_probe_ms == told.breaker.next_ms(told.now) == told.now + 5_000
    seen = told.breaker.status("a.example:443", told.now)
    assert (seen.calls, seen.failures, seen.allowed_rate, seen.forced) == (30, 25, 0.0, None)


def test_few_failures_open_nothing() -> None:
    told = Told()
    told.calls("failed", 19, every_ms=1_000)
    assert told.available == FREE


def test_failures_far_apart_open_nothing() -> None:
    told = Told()
    told.calls("failed", 200, every_ms=2_000)
    assert told.available == FREE


def test_a_burst_of_failures_shorter_than_a_second_opens_nothing() -> None:
    told = Told()
    told.calls("failed", 90, every_ms=10)
    told.calls("ok", 100, every_ms=10)
    told.calls("failed", 90, every_ms=10)
    assert told.available == FREE


def test_less_than_half_failing_opens_nothing() -> None:
    told = Told()
    for _ in range(200):
        told.calls("failed", 2)
        told.calls("ok", 3)
    assert told.available == FREE


def test_a_busy_target_is_judged_by_its_last_calls_and_not_by_its_past() -> None:
    told = Told()
    told.calls("ok", 20_000, every_ms=1)
    began = told.now
    while told.state == "closed":
        told.calls("failed", 1, every_ms=1)
    # The rest of the second that was well, a second in which failures go on, and no more.
    assert told.now - began <= 3_000


def test_probes_are_let_through_after_the_cool_down_and_no_more_than_needed() -> None:
    told = Told()
    cool_down = told.open()
    told.now += cool_down - 1
    assert told.available == 0
    told.now += 1
    assert (told.available, told.state) == (3, "half_open")
    assert "after this: " in told.breaker.reason
    assert told.breaker.next_ms(told.now) is None

    told.breaker.took(2, told.now)
    assert told.available == 1
    told.breaker.ended("ok", told.now)
    assert told.available == 1
    told.breaker.abandoned(told.now)
    assert told.available == 2
    told.breaker.took(2, told.now)
    told.breaker.gave_back(1, told.now)
    assert told.available == 1
    told.breaker.ended("ok", told.now)
    told.call("ok")
    assert told.state == "closing"


def test_one_probe_that_fails_opens_it_again_for_longer_up_to_the_most() -> None:
    told = Told()
    cool_downs = [told.open()]
    for _ in range(6):
        told.wait_for_probes()
        told.breaker.took(3, told.now)
        for outcome in ("ok", "failed", "ok"):
            told.breaker.ended(outcome, told.now, detail="it answered 502")
        assert told.breaker.next_probe_ms is not None
        cool_downs.append(told.breaker.next_probe_ms - told.now)
    assert cool_downs == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    assert told.breaker.reason == "cool-down 6 ended with a probe that failed: it answered 502"
    assert told.breaker.in_flight == 0


def test_cool_downs_are_spread() -> None:
    seen = set()
    for seed in range(50):
        told = Told()
        told.breaker = Breaker(told.now, DEFAULT, random.Random(seed))
        seen.add(told.open())
    assert len(seen) > 30
    assert min(seen) >= 4_000
    assert max(seen) <= 6_000


def test_a_probe_of_which_nothing_is_heard_is_taken_for_lost() -> None:
    told = Told()
    told.open()
    told.wait_for_probes()
    told.breaker.took(told.available, told.now)
    assert told.available == 0
    told.wait_for_probes()
    assert told.available == 3


def test_what_was_under_way_when_it_opened_says_nothing_about_the_probes() -> None:
    told = Told()
    early = told.now
    told.breaker.took(5, told.now)
    told.open()
    told.wait_for_probes()
    assert told.available == 3
    told.breaker.took(3, told.now)
    started = told.now

    told.breaker.ended("failed", told.now, started_ms=early)
    told.breaker.ended("ok", told.now, started_ms=early)
    told.breaker.ended("overloaded", told.now, 60.0, started_ms=early)
    told.breaker.abandoned(told.now, started_ms=early)
    told.breaker.gave_back(1, told.now, started_ms=early)
    assert (told.state, told.available, told.breaker.in_flight) == ("half_open", 0, 3)

    for _ in range(3):
        told.breaker.ended("ok", told.now, started_ms=started)
    assert told.state == "closing"


def test_calls_come_back_at_a_rate_that_doubles() -> None:
    told = Told()
    told.open()
    told.wait_for_probes()
    told.calls("ok", 3, every_ms=1)
    assert (told.state, told.available) == ("closing", 0)
    assert "3 probes succeeded" in told.breaker.reason
    seconds: list[int] = []
    while told.state != "closed":
        begun = 0
        for _ in range(100):
            told.now += 10
            for _ in range(min(told.available, 100)):
                told.call("ok")
                begun += 1
        seconds.append(begun)
    assert seconds[0] in range(4, 9)
    assert all(1.2 <= after / before <= 1.7 for before, after in itertools.pairwise(seconds[2:13]))
    assert len(seconds) in range(15, 18)
    assert told.available == FREE
    assert told.breaker.reason == ""


def test_a_target_that_fails_while_it_closes_is_opened_by_few_calls() -> None:
    told = Told()
    told.open()
    told.wait_for_probes()
    told.calls("ok", 3, every_ms=1)
    told.calls("failed", 4, every_ms=1)
    assert told.state == "closing"
    told.calls("failed", 1, every_ms=1)
    assert told.state == "open"
    assert told.breaker.next_probe_ms == told.now + 10_000


def test_openings_are_forgiven_after_a_minute() -> None:
    soon, late = Told(), Told()
    for told in (soon, late):
        told.open()
        told.wait_for_probes()
        told.succeed_until_closed()
    late.now += 60_000
    assert (soon.open(), late.open()) == (10_000, 5_000)


# Overload


def test_an_overload_answer_halves_the_rate_that_was() -> None:
    told = Told(TOUCHY)
    told.calls("ok", 300, every_ms=10)
    told.calls("overloaded", 1, detail="it answered 429")
    seen = told.breaker.status("h", told.now)
    assert (seen.state, seen.allowed_rate, seen.next_probe_ms) == ("slowed", 50.0, None)
    assert seen.reason == "it is overloaded: it answered 429"


@pytest.mark.parametrize("every", [4, 7, 50])
def test_a_few_refusals_among_many_successes_slow_nothing(every: int) -> None:
    told = Told()
    for number in range(2_000):
        told.now += 5
        told.call("overloaded" if number % every == 0 else "ok")
    assert told.state == "closed"


def test_a_target_that_takes_a_tenth_is_slowed_to_a_little_more_than_it_takes() -> None:
    told = Told()
    taken = 0.0
    for _ in range(20_000):
        told.now += 10
        taken = min(10.0, taken + 0.2)
        for _ in range(min(told.available, 5)):
            told.call("ok" if taken >= 1.0 else "overloaded")
            taken -= taken >= 1.0
    rate = told.breaker.status("h", told.now).allowed_rate
    assert rate is not None
    assert 15.0 < rate < 60.0


def test_what_was_under_way_together_slows_it_once() -> None:
    told = Told(TOUCHY)
    told.calls("ok", 400, every_ms=5)
    started = told.now
    for _ in range(50):
        told.now += 50
        told.breaker.ended("overloaded", told.now, started_ms=started)
    assert told.breaker.status("h", told.now).allowed_rate == 100.0
    told.breaker.ended("overloaded", told.now, started_ms=told.now - 1)
    assert told.breaker.status("h", told.now).allowed_rate == 50.0


@pytest.mark.parametrize(("retry_after", "pause_ms"), [(30.0, 30_000), (0.5, 500), (86_400.0, 300_000)])
def test_retry_after_stops_it_at_once_and_the_rate_is_low_after_it(retry_after: float, pause_ms: int) -> None:
    told = Told()
    told.calls("ok", 300, every_ms=10)
    told.calls("overloaded", 1, retry_after=retry_after)
    assert told.available == 0
    assert told.breaker.next_probe_ms == told.now + pause_ms
    assert told.breaker.status("h", told.now).allowed_rate == 0.0
    assert "asked for a pause" in told.breaker.reason

    told.now += pause_ms - 1
    told.breaker.ended("ok", told.now)
    assert told.available == 0
    told.now += 1
    assert told.available == 0
    told.now += 20
    assert told.available == 1
    told.now += 10_000
    assert told.available == 25


@pytest.mark.parametrize("retry_after", [None, 0.0, -5.0, float("nan")])
def test_a_retry_after_that_says_nothing_is_no_pause(retry_after: float | None) -> None:
    told = Told(TOUCHY)
    told.calls("ok", 300, every_ms=10)
    told.calls("overloaded", 1, retry_after=retry_after)
    assert told.breaker.next_probe_ms is None
    assert told.state == "slowed"


def test_a_second_retry_after_never_shortens_a_pause() -> None:
    told = Told()
    told.calls("overloaded", 1, retry_after=60)
    until = told.breaker.next_probe_ms
    told.calls("overloaded", 1, retry_after=1)
    assert told.breaker.next_probe_ms == until


def test_the_rate_rises_slowly_with_success_until_it_is_no_limit() -> None:
    told = Told(TOUCHY)
    told.calls("ok", 300, every_ms=10)
    told.calls("overloaded", 1)
    began = told.now
    told.succeed_until_closed()
    # From 50 to 1,000 a second in doublings of 10 s each.
    assert 42_000 <= told.now - began <= 46_000


def test_idle_time_raises_no_rate() -> None:
    told = Told(TOUCHY)
    told.calls("ok", 300, every_ms=10)
    told.calls("overloaded", 1)
    told.now += 600_000
    told.call("ok")
    rate = told.breaker.status("h", told.now).allowed_rate
    assert rate is not None
    assert 50.0 < rate < 55.0


def test_a_target_that_is_slowed_as_far_as_can_be_and_still_refuses_is_opened() -> None:
    told = Told()
    told.calls("ok", 300, every_ms=10)
    made = 0
    while told.state != "open":
        told.now += 10
        for _ in range(min(told.available, 5)):
            made += 1
            told.call("overloaded")
    assert made < 300
    assert "calls failed" in told.breaker.reason


def test_an_overloaded_probe_waits_as_long_as_it_says() -> None:
    told = Told()
    told.open()
    told.wait_for_probes()
    told.call("overloaded", retry_after=45.0)
    assert told.breaker.next_probe_ms == told.now + 45_000


def test_opening_never_shortens_a_pause() -> None:
    told = Told()
    told.calls("overloaded", 1, retry_after=200)
    until = told.breaker.next_probe_ms
    told.open()
    assert told.breaker.next_probe_ms == until


# By hand


def test_forced_open_lets_nothing_through_whatever_succeeds() -> None:
    told = Told()
    told.breaker.force("open", told.now)
    told.calls("ok", 500)
    assert (told.available, told.state, told.breaker.next_ms(told.now)) == (0, "open", None)
    assert told.breaker.reason == "it is held open by hand"
    assert not told.breaker.is_idle(told.now + 10**9)

    told.breaker.force(None, told.now)
    assert (told.available, told.state) == (3, "half_open")
    told.succeed_until_closed()


def test_forced_closed_limits_nothing_whatever_fails() -> None:
    told = Told()
    told.open()
    told.breaker.force("closed", told.now)
    told.calls("failed", 500)
    told.calls("overloaded", 5, retry_after=99)
    assert (told.available, told.state) == (FREE, "closed")
    assert told.breaker.status("h", told.now).forced == "closed"

    told.breaker.force(None, told.now)
    assert (told.available, told.state, told.breaker.reason) == (FREE, "closed", "")
    assert told.open() == 5_000


def test_forcing_what_is_forced_and_freeing_what_is_free_change_nothing() -> None:
    told = Told()
    told.open()
    reason = told.breaker.reason
    told.breaker.force(None, told.now)
    assert (told.state, told.breaker.reason) == ("open", reason)
    for state in ("open", "open", "closed", "open"):
        told.breaker.force(state, told.now)  # type: ignore[arg-type]
    assert told.available == 0


# Being forgotten, and time


def test_it_can_be_forgotten_when_a_new_one_would_do_the_same() -> None:
    told = Told()
    assert told.breaker.is_idle(told.now)
    told.breaker.took(1, told.now)
    assert not told.breaker.is_idle(told.now + 60_000)
    told.now += 60_000
    told.breaker.ended("ok", told.now)
    assert not told.breaker.is_idle(told.now + 29_000)
    assert told.breaker.is_idle(told.now + 31_000)


def test_openings_are_not_forgotten_before_they_are_forgiven() -> None:
    told = Told()
    told.open()
    told.wait_for_probes()
    told.succeed_until_closed()
    assert not told.breaker.is_idle(told.now + 45_000)
    assert told.breaker.is_idle(told.now + 60_000)


def test_without_any_call_every_state_is_forgotten_in_the_end() -> None:
    slowed, half_open = Told(TOUCHY), Told()
    slowed.calls("overloaded", 1)
    half_open.open()
    for told in (slowed, half_open):
        assert not told.breaker.is_idle(told.now + 899_000)
        assert told.breaker.is_idle(told.now + 900_000)


def test_a_clock_that_goes_back_stands_still() -> None:
    told = Told(now_ms=10_000_000)
    told.open()
    told.now -= 9_000_000
    at = told.breaker.next_ms(told.now)
    assert at == told.now + 5_000
    assert told.breaker.next_probe_ms == at
    told.now = at
    assert told.available == 3


def test_ends_that_nobody_announced_are_fine() -> None:
    told = Told()
    for _ in range(3):
        told.breaker.ended("ok", told.now)
        told.breaker.abandoned(told.now)
        told.breaker.gave_back(5, told.now)
    assert told.breaker.in_flight == 0
    assert told.available == FREE


def test_the_window_holds_whole_seconds_no_older_and_no_more_than_asked() -> None:
    window = CallWindow(30, 100)
    for second in range(40):
        window.add(second * 1_000, is_failure=second % 2 == 0)
    assert (window.calls, window.failures, window.seconds(39_000)) == (30, 15, 30)
    for _ in range(150):
        window.add(41_000, is_failure=True)
    assert (window.calls, window.failures) == (150, 150)
    window.trim(80_000)
    assert (window.calls, window.failures, window.seconds(80_000), window.rate(80_000)) == (0, 0, 0, 0.0)
