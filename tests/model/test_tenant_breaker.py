"""When a tenant is stopped, and how it resumes: rules without a clock or a database."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.quotas import Quotas
from duetime.model.tenant_breaker import (
    BUCKET_MS,
    FREE_RATE,
    BreakerRules,
    Outcomes,
    Record,
    Resumption,
    Tally,
    bucket_of,
    find_failing,
    find_relapse,
    rate_after,
    together,
)

RULES = BreakerRules()
START_MS = 1_000_000_000_000


def play(ends: Iterable[tuple[float, int, int]], until: float, rules: BreakerRules = RULES) -> float | None:
    """Attempts that end at these seconds, (time, how many, how many of them failed); when it stops, if it does."""
    outcomes: Outcomes | None = None
    left = sorted(ends)
    for second in range(int(until) + 1):
        now = START_MS + second * 1000
        while left and left[0][0] <= second:
            _, attempts, failures = left.pop(0)
            outcomes = outcomes or Outcomes(bucket_of(now))
            outcomes.add(bucket_of(now), Tally(attempts, failures))
        if outcomes is not None and not outcomes.trim(bucket_of(now), rules):
            outcomes = None
        if outcomes is not None and find_failing(outcomes.record, now, rules):
            return second
    return None


def steadily(start: float, end: float, failing: float, a_second: int = 10) -> list[tuple[float, int, int]]:
    return [(second, a_second * 10, round(a_second * 10 * failing)) for second in range(int(start), int(end), 10)]


def test_failing_for_five_minutes_stops_a_tenant() -> None:
    stopped = play(steadily(0, 900, 1.0), 900)
    assert stopped is not None
    assert 290 <= stopped <= 310


def test_a_healthy_tenant_is_stopped_five_minutes_after_everything_began_to_fail() -> None:
    stopped = play([*steadily(0, 3600, 0.0), *steadily(3600, 4500, 1.0)], 4500)
    assert stopped is not None
    assert 290 <= stopped - 3600 <= 310


@pytest.mark.parametrize("failing", [0.0, 0.5, 0.85, 0.9])
def test_up_to_nine_in_ten_may_fail_for_ever(failing: float) -> None:
    assert play(steadily(0, 3000, failing), 3000) is None


def test_a_burst_of_failures_stops_nobody() -> None:
    assert play([(100, 100_000, 100_000)], 2000) is None
    assert play([(0, 1, 1), *steadily(100, 220, 1.0, 1000)], 2000) is None
    assert play([*steadily(0, 600, 0.0), (300, 1_000_000, 1_000_000)], 2000) is None


def test_who_has_recovered_meanwhile_is_not_stopped() -> None:
    assert play([*steadily(0, 270, 1.0, 100), *steadily(270, 900, 0.0, 10)], 900) is None


def test_few_attempts_stop_nobody() -> None:
    assert play([(second, 1, 1) for second in range(0, 3000, 20)], 3000) is None
    assert play([(second, 1, 1) for second in range(0, 3000, 14)], 3000) is not None


def test_one_is_never_reached() -> None:
    assert play(steadily(0, 900, 1.0), 900, BreakerRules(failure_rate=1.0)) is None


@given(
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 50), st.floats(0, 1)), max_size=60),
    st.floats(0.1, 1.0),
    st.integers(1, 100),
)
def test_whoever_is_stopped_has_failed_for_long_often_and_nearly_always(
    ends: list[tuple[int, int, float]], rate: float, least: int
) -> None:
    rules = BreakerRules(rate, min_attempts=least)
    history = [(float(at), count, round(count * share)) for at, count, share in ends]
    stopped = play(history, 1500, rules)
    if stopped is not None:
        seen = [(count, failed) for at, count, failed in history if stopped - 300 <= at <= stopped]
        assert sum(failed for _, failed in seen) > 0
        assert sum(count for count, _ in seen) >= least
        assert min(at for at, _, _ in history) <= stopped - 290


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=50))
def test_what_is_left_is_what_is_young_enough(ends: list[tuple[int, int, int]]) -> None:
    outcomes = Outcomes(0)
    for bucket, count, failed in sorted(ends):
        outcomes.add(bucket, Tally(count, min(count, failed)))
    last = max(bucket for bucket, _, _ in ends)
    outcomes.trim(last, RULES)

    young = [(count, min(count, failed)) for bucket, count, failed in ends if bucket > last - 30]
    assert outcomes.total == Tally(sum(count for count, _ in young), sum(failed for _, failed in young))
    assert outcomes.record.within(0, last) == outcomes.total


def test_nodes_are_judged_together() -> None:
    now = START_MS + 400_000
    last = bucket_of(now)
    bad = Record(last - 40, {last - each: Tally(10, 10) for each in range(35)})
    good = Record(last - 20, {last - each: Tally(10, 0) for each in range(10)})
    assert find_failing(bad, now, RULES)
    both = together([bad, good])
    assert both is not None
    assert both.since == last - 40
    assert both.within(last, last) == Tally(20, 10)
    assert find_failing(both, now, RULES) is None
    assert together([]) is None


def test_who_resumes_and_fails_again_is_stopped_again_after_five() -> None:
    resumed = START_MS
    bucket = bucket_of(resumed)
    assert find_relapse(Record(bucket, {bucket: Tally(4, 4)}), resumed, resumed + 1000, RULES) is None
    assert find_relapse(Record(bucket, {bucket: Tally(5, 5)}), resumed, resumed + 1000, RULES)
    assert find_relapse(Record(bucket, {bucket: Tally(5, 4)}), resumed, resumed + 1000, RULES) is None
    assert find_relapse(Record(bucket, {bucket - 1: Tally(50, 50)}), resumed, resumed + 1000, RULES) is None


def test_a_tenant_resumes_with_one_a_second_and_is_free_after_less_than_two_minutes() -> None:
    assert rate_after(START_MS, START_MS) == 1.0
    assert rate_after(START_MS, START_MS + 10_000) == 2.0
    assert rate_after(START_MS, START_MS + 100_000) >= FREE_RATE
    part, started, now = Resumption(START_MS), 0, START_MS
    while now < START_MS + 30_000:
        room = part.available(now, nodes=1)
        part.take(room)
        started += room
        following = part.next_ms(now, nodes=1)
        assert following > now
        now = min(following, now + 500)
    # The sum of 1, 2 and 4 a second, each for ten seconds, growing in between.
    assert 70 <= started <= 110
    assert Resumption(START_MS).rate(START_MS, nodes=4) == 0.25


def test_a_tenants_own_numbers_come_before_its_tiers_and_these_before_the_servers() -> None:
    own = Quotas(breaker_window=600).over(Quotas(breaker_window=60, breaker_probe_every=5))
    assert own.has_breaker
    assert own.breaker_rules(RULES) == BreakerRules(0.9, 600, 5, 20)
    assert not Quotas(rate=5.0).has_breaker
    assert BUCKET_MS == 10_000
