"""Waits between attempts, by Cloud Tasks' rules."""

import random
from datetime import timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.retry import DEFAULT_RETRY, RetryPolicy
from duetime.model.task import Options

POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1_000),
    min_backoff=st.floats(0.0, 3_600.0),
    max_backoff=st.floats(0.0, 86_400.0),
    max_doublings=st.integers(0, 10_000),
)


def test_waits_double_then_grow_by_the_last_step_up_to_the_longest() -> None:
    policy = RetryPolicy(min_backoff=10.0, max_backoff=300.0, max_doublings=3)

    waits = [policy.backoff(failures) for failures in range(1, 9)]

    assert waits == [10, 20, 40, 80, 160, 240, 300, 300]


def test_without_doublings_waits_grow_evenly() -> None:
    policy = RetryPolicy(min_backoff=2.0, max_backoff=9.0, max_doublings=0)

    assert [policy.backoff(failures) for failures in range(1, 6)] == [2, 4, 6, 8, 9]


def test_the_default_outlasts_an_outage_of_eight_hours() -> None:
    waits = [DEFAULT_RETRY.backoff(failures) for failures in range(1, DEFAULT_RETRY.max_attempts)]

    assert DEFAULT_RETRY.max_attempts == 20
    assert waits == [2.0**doublings for doublings in range(12)] + [3_600.0] * 7
    assert timedelta(seconds=DEFAULT_RETRY.waits_after(0)) == timedelta(hours=8, minutes=8, seconds=15)
    assert DEFAULT_RETRY.waits_after(18) == 3_600.0
    assert DEFAULT_RETRY.waits_after(19) == 0.0


def test_a_policy_that_was_stored_before_keeps_its_five_attempts() -> None:
    stored = msgspec.json.decode(b'{"retry":{"min_backoff":2.0}}', type=Options)

    assert stored.retry == RetryPolicy(max_attempts=5, min_backoff=2.0)


def test_a_policy_is_stored_with_its_number_of_attempts_and_a_task_without_one_stores_nothing() -> None:
    assert msgspec.json.encode(Options(retry=DEFAULT_RETRY)) == b'{"retry":{"max_attempts":20}}'
    assert msgspec.json.encode(Options()) == b"{}"


def test_no_number_of_failures_overflows() -> None:
    policy = RetryPolicy(min_backoff=1.0, max_backoff=3_600.0, max_doublings=100_000)

    assert policy.backoff(1_000_000) == 3_600.0


@given(POLICIES, st.integers(1, 100_000))
def test_a_wait_lies_between_nothing_and_the_longest_and_never_shrinks(policy: RetryPolicy, failures: int) -> None:
    wait = policy.backoff(failures)

    assert 0.0 <= wait <= policy.max_backoff
    assert policy.backoff(failures + 1) >= wait


@given(POLICIES, st.integers(1, 100), st.integers())
def test_jitter_is_a_tenth_at_most(policy: RetryPolicy, failures: int, seed: int) -> None:
    backoff = policy.backoff(failures)

    wait = policy.wait(failures, random.Random(seed))

    assert 0.9 * backoff <= wait <= 1.1 * backoff


def test_failures_do_not_march_in_step() -> None:
    policy, chance = RetryPolicy(min_backoff=10.0), random.Random(1)

    assert len({policy.wait(1, chance) for _ in range(100)}) == 100
