"""How a host begins that is new or comes from a rest: a few calls feel nothing, a flood comes step by step."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from duetime.model.breaker import Breaker
from duetime.model.breaker_config import DEFAULT, BreakerConfig
from duetime.model.breaker_status import FREE

FLOOR = int(DEFAULT.ramp_rate)


class Host:
    """A host and the time that its breaker is told; every call ends well as it begins."""

    def __init__(self, config: BreakerConfig = DEFAULT) -> None:
        self.now = 1_000_000
        self.breaker = Breaker(self.now, config)

    def call(self, count: int = 1) -> bool:
        if not self.breaker.begin(count, self.now):
            return False
        self._end(count)
        return True

    def flood(self, for_ms: int, step_ms: int = 10) -> int:
        """As much as it gets for so long; returns how much that is."""
        begun = 0
        for _ in range(0, for_ms, step_ms):
            self.now += step_ms
            count = min(10_000, self.breaker.available(self.now))
            self.breaker.took(count, self.now)
            self._end(count)
            begun += count
        return begun

    def _end(self, count: int) -> None:
        for _ in range(min(count, 100)):
            self.breaker.ended("ok", self.now)

    @property
    def available(self) -> int:
        return self.breaker.available(self.now)

    @property
    def state(self) -> str:
        self.breaker.available(self.now)
        return self.breaker.state


def test_a_new_host_takes_a_few_hundred_at_once_and_then_more_step_by_step() -> None:
    host = Host()

    assert host.call(FLOOR)
    assert host.state == "closed"
    assert not host.call()

    seen = host.breaker.status("a.example:443", host.now)
    assert (seen.state, seen.allowed_rate, seen.next_probe_ms) == ("ramping", DEFAULT.ramp_rate, None)
    assert seen.reason.startswith("ramping after a rest")
    at = host.breaker.next_ms(host.now)
    assert at is not None
    assert at - host.now <= 20
    host.now = at
    assert host.call()


def test_a_flood_after_a_rest_is_ramped_and_free_after_three_seconds() -> None:
    host = Host()
    host.flood(3_500)
    assert (host.state, host.available) == ("closed", FREE)
    host.now += 5 * 60_000

    first = host.flood(1_000)
    then = host.flood(2_000)

    assert FLOOR < first <= 3 * FLOOR
    assert 2 * first < then < 10 * FLOOR
    host.flood(50)
    assert (host.state, host.available) == ("closed", FREE)
    assert host.breaker.reason == ""


def test_a_host_in_full_flow_is_free_until_it_has_rested() -> None:
    host = Host()
    host.flood(3_500)

    host.now += DEFAULT.rest_ms - 1
    assert host.call(10_000)
    host.now += DEFAULT.rest_ms
    assert not host.call(10_000)


def test_a_call_that_ends_late_is_no_rest() -> None:
    host = Host()
    host.flood(3_500)
    for _ in range(5):
        host.now += DEFAULT.rest_ms // 2
        host.breaker.ended("ok", host.now)

    assert host.call(10_000)


def test_a_call_now_and_then_shows_nothing_of_what_a_host_bears() -> None:
    host = Host()
    for _ in range(100):
        host.now += 30_000
        assert host.call()

    assert not host.call(10_000)
    assert host.available == FLOOR - 1


def test_what_was_not_started_after_all_is_given_back() -> None:
    host = Host()
    host.breaker.took(FLOOR, host.now)
    host.breaker.gave_back(100, host.now)

    assert host.available == 100
    host.breaker.gave_back(FLOOR, host.now)
    host.breaker.gave_back(FLOOR, host.now)
    assert host.available == FLOOR


def test_more_than_there_was_room_for_is_paid_back_later() -> None:
    host = Host()
    host.breaker.took(FLOOR + 250, host.now)

    assert (host.state, host.available) == ("ramping", 0)
    at = host.breaker.next_ms(host.now)
    assert at is not None
    assert 500 <= at - host.now <= 520


def test_without_a_rate_there_is_no_ramp() -> None:
    host = Host(BreakerConfig(ramp_rate=0.0))
    assert host.call(100_000)
    host.now += 5 * 60_000
    assert host.call(100_000)
    assert (host.state, host.breaker.next_ms(host.now)) == ("closed", None)


def test_a_host_that_has_had_enough_while_it_ramps_is_slowed_or_stopped_like_any_other() -> None:
    host = Host()
    host.flood(500)
    assert not host.call(10_000)

    host.breaker.ended("overloaded", host.now, 30.0)

    assert (host.state, host.available) == ("slowed", 0)


def test_held_closed_by_hand_nothing_is_ramped() -> None:
    host = Host()
    host.breaker.force("closed", host.now)
    assert host.call(100_000)
    assert host.state == "closed"


def test_a_host_that_ramped_is_forgotten_when_it_has_rested_and_not_before() -> None:
    host = Host()
    host.flood(3_500)
    assert not host.breaker.is_idle(host.now + DEFAULT.rest_ms - 1)

    for _ in range(host.breaker.in_flight):
        host.breaker.ended("ok", host.now)
    assert host.breaker.is_idle(host.now + DEFAULT.rest_ms)


@given(st.lists(st.tuples(st.integers(0, 3_000) | st.integers(0, 100_000), st.integers(1, FLOOR)), max_size=60))
@settings(deadline=None)
def test_who_calls_no_more_than_the_floor_feels_nothing(bursts: list[tuple[int, int]]) -> None:
    host = Host()
    for gap, count in bursts:
        # What a burst took is there again when that much of a second is over.
        host.now += gap + math.ceil(1000 * count / FLOOR)
        assert host.call(count)
        assert host.state == "closed"


@given(st.lists(st.integers(1, 200), min_size=10, max_size=200), st.integers(0, 200_000))
@settings(deadline=None)
def test_no_flood_gets_more_than_the_curve(steps: list[int], rest: int) -> None:
    host = Host()
    host.flood(3_500)
    host.now += DEFAULT.rest_ms + rest
    began, begun = host.now, 0
    for step in steps:
        host.now += step
        if (available := host.available) == FREE:
            assert host.now - began > 2_700
            return
        host.breaker.took(available, host.now)
        begun += available
        doubled = (host.now - began) / DEFAULT.ramp_doubles_ms
        assert begun <= FLOOR + FLOOR * DEFAULT.ramp_doubles_ms / 1000 * (2**doubled - 1) / math.log(2) + 1
