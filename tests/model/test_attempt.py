"""What follows the end of an attempt: every outcome, every budget."""

import random
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.attempt import (
    MOST_SHARED_CRASHES,
    REASONS,
    Again,
    Bury,
    Ended,
    Next,
    Over,
    attempts_left,
    what_follows,
)
from duetime.model.retry import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_CRASHES, FREE_RELEASES, MOST_RELEASES, RetryPolicy
from duetime.model.task import Options, Outcome, TaskState, Waiting

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONCE_ONLY = Options(delivery="at_most_once")


def follow(
    ended: Ended | Outcome,
    waiting: Waiting | None = None,
    options: Options | None = None,
    *,
    first_picked_at: datetime = NOW,
) -> tuple[Outcome, Next]:
    if isinstance(ended, Outcome):
        ended = Ended(ended)
    return what_follows(
        ended, waiting or Waiting(1), options, first_picked_at=first_picked_at, now=NOW, chance=random.Random(1)
    )


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.EXPIRED])
@pytest.mark.parametrize("options", [None, ONCE_ONLY])
def test_these_outcomes_are_final(outcome: Outcome, options: Options | None) -> None:
    assert follow(outcome, options=options) == (outcome, Over())


def test_an_unknown_end_is_a_dead_letter() -> None:
    assert follow(Outcome.UNKNOWN) == (Outcome.UNKNOWN, Bury("unknown"))


def test_a_failure_waits_for_its_backoff_and_counts() -> None:
    outcome, following = follow(Outcome.FAILED, Waiting(4, failures=1, crashes=2, releases=3))

    assert outcome is Outcome.FAILED
    assert isinstance(following, Again)
    assert following.waiting == Waiting(5, failures=2, crashes=2, releases=3)
    assert 1.8 <= following.wait_seconds <= 2.2


def test_a_failure_may_say_when_to_come_again() -> None:
    _, following = follow(Ended(Outcome.FAILED, retry_after=0.0))

    assert following == Again(0.0, Waiting(2, failures=1))


def test_the_last_failure_is_a_dead_letter() -> None:
    last = Waiting(9, failures=DEFAULT_MAX_ATTEMPTS - 1)

    assert follow(Outcome.FAILED, last) == (Outcome.FAILED, Bury("attempts"))


@pytest.mark.parametrize(
    ("state", "failures", "options", "left"),
    [
        (TaskState.SCHEDULED, 0, Options(), 20),
        (TaskState.RETRYING, 3, Options(), 17),
        (TaskState.RUNNING, 3, Options(), 16),
        (TaskState.RUNNING, 19, Options(), 0),
        (TaskState.READY, 2, Options(retry=RetryPolicy(max_attempts=3)), 1),
        (TaskState.PAUSED, 7, Options(retry=RetryPolicy(max_attempts=3)), 0),
        (TaskState.SCHEDULED, 0, ONCE_ONLY, 1),
        (TaskState.DEAD, None, Options(), 0),
        (TaskState.SUCCEEDED, None, Options(), 0),
    ],
)
def test_the_attempts_that_are_left_do_not_count_the_running_one(
    state: TaskState, failures: int | None, options: Options, left: int
) -> None:
    assert attempts_left(state, failures, options) == left


def test_a_permanent_failure_is_a_dead_letter_at_once() -> None:
    assert follow(Ended(Outcome.FAILED, is_permanent=True)) == (Outcome.FAILED, Bury("permanent"))


def test_at_most_once_fails_once() -> None:
    assert follow(Outcome.FAILED, options=ONCE_ONLY) == (Outcome.FAILED, Bury("at_most_once"))


@pytest.mark.parametrize(("tried_for", "is_over"), [(49.0, False), (51.0, True)])
def test_a_retry_that_would_come_after_the_time_for_retries_is_not_made(tried_for: float, is_over: bool) -> None:
    options = Options(retry=RetryPolicy(max_retry_duration=60.0))

    _, following = follow(
        Ended(Outcome.FAILED, retry_after=10.0), options=options, first_picked_at=NOW - timedelta(seconds=tried_for)
    )

    assert following == (Bury("retry_duration") if is_over else Again(10.0, Waiting(2, failures=1)))


def test_a_snooze_uses_up_nothing() -> None:
    before = Waiting(7, failures=4, crashes=2, releases=20)

    outcome, following = follow(Ended(Outcome.SNOOZED, retry_after=30.0), before, ONCE_ONLY)

    assert (outcome, following) == (Outcome.SNOOZED, Again(30.0, Waiting(8, failures=4, crashes=2, releases=20)))


def test_a_lapse_costs_the_crash_budget_and_no_retry() -> None:
    outcome, following = follow(Outcome.LAPSED, Waiting(3, failures=4, crashes=1))

    assert (outcome, following) == (Outcome.LAPSED, Again(0.0, Waiting(4, failures=4, crashes=2)))


def test_the_last_lapse_is_a_dead_letter() -> None:
    assert follow(Outcome.LAPSED, Waiting(3, crashes=DEFAULT_MAX_CRASHES - 1)) == (Outcome.LAPSED, Bury("crashes"))


@pytest.mark.parametrize(
    ("crashes", "budget", "is_over"), [(0, 1, True), (3, 5, False), (4, 5, True), (98, 100, False)]
)
def test_a_task_may_have_a_crash_budget_of_its_own(crashes: int, budget: int, is_over: bool) -> None:
    options = Options(retry=RetryPolicy(max_crashes=budget))

    _, following = follow(Outcome.LAPSED, Waiting(7, crashes=crashes), options)

    assert following == (Bury("crashes") if is_over else Again(0.0, Waiting(8, crashes=crashes + 1)))


def test_nobody_is_given_up_for_a_repeated_crash_that_another_may_have_caused() -> None:
    shared = Ended(Outcome.LAPSED, has_rivals=True)

    _, following = follow(shared, Waiting(3, crashes=DEFAULT_MAX_CRASHES - 1))
    assert following == Again(0.0, Waiting(4, crashes=DEFAULT_MAX_CRASHES))
    _, following = follow(shared, Waiting(9, crashes=MOST_SHARED_CRASHES - 1))
    assert following == Bury("crashes")
    # The first crash counts in full.
    _, following = follow(shared, Waiting(1), Options(retry=RetryPolicy(max_crashes=1)))
    assert following == Bury("crashes")


def test_at_most_once_is_not_tried_again_after_a_lapse() -> None:
    assert follow(Outcome.LAPSED, options=ONCE_ONLY) == (Outcome.UNKNOWN, Bury("unknown"))


def test_a_release_costs_no_budget() -> None:
    outcome, following = follow(Outcome.RELEASED, Waiting(3, failures=4, crashes=2, releases=1))

    assert (outcome, following) == (Outcome.RELEASED, Again(0.0, Waiting(4, failures=4, crashes=2, releases=2)))


def test_releases_without_end_are_no_dead_letter_but_make_it_wait_longer_and_longer() -> None:
    waits = []
    for releases in [*range(15), MOST_RELEASES]:
        outcome, following = follow(Outcome.RELEASED, Waiting(30, failures=4, crashes=2, releases=releases))
        assert outcome is Outcome.RELEASED
        assert isinstance(following, Again)
        assert following.waiting == Waiting(31, 4, 2, min(releases + 1, MOST_RELEASES))
        waits.append(following.wait_seconds)

    assert waits[: FREE_RELEASES + 4] == [0.0] * FREE_RELEASES + [1.0, 2.0, 4.0, 8.0]
    assert waits[-4:] == [300.0] * 4


def test_at_most_once_is_not_released_after_hand_out() -> None:
    assert follow(Outcome.RELEASED, options=ONCE_ONLY) == (Outcome.UNKNOWN, Bury("unknown"))


@pytest.mark.parametrize("options", [None, ONCE_ONLY])
def test_what_certainly_never_left_is_released_for_ever(options: Options | None) -> None:
    before = Waiting(1_000, releases=MOST_RELEASES)

    _, following = follow(Ended(Outcome.RELEASED, retry_after=2.0, is_certain=True), before, options)

    assert following == Again(2.0, Waiting(1_001, releases=MOST_RELEASES))


ENDS = st.builds(
    Ended,
    outcome=st.sampled_from(Outcome),
    is_permanent=st.booleans(),
    retry_after=st.none() | st.floats(0.0, 1e6),
    is_certain=st.booleans(),
)
WAITS = st.builds(
    Waiting,
    st.integers(1, 1_000),
    st.integers(0, 100),
    st.integers(0, DEFAULT_MAX_CRASHES),
    st.integers(0, MOST_RELEASES - 1),
)


@given(ENDS, WAITS, st.sampled_from([None, ONCE_ONLY]))
def test_whatever_ends_the_next_attempt_has_the_next_number_and_budgets_only_shrink(
    ended: Ended, waiting: Waiting, options: Options | None
) -> None:
    outcome, following = follow(ended, waiting, options)

    assert outcome in {ended.outcome, Outcome.UNKNOWN}
    match following:
        case Again(seconds, after):
            assert seconds >= 0.0
            assert after.number == waiting.number + 1
            grown = (
                after.failures - waiting.failures,
                after.crashes - waiting.crashes,
                after.releases - waiting.releases,
            )
            assert grown in {(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)}
        case Bury(reason):
            assert reason in REASONS
        case Over():
            assert outcome in {Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.EXPIRED}


@given(st.sampled_from([Outcome.FAILED, Outcome.LAPSED]))
def test_no_end_can_repeat_itself_for_ever(outcome: Outcome) -> None:
    waiting = Waiting(1)
    for tries in count(1):
        _, following = follow(outcome, waiting)
        if not isinstance(following, Again):
            break
        waiting = following.waiting
        assert tries < 100

    assert isinstance(following, Bury)


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_a_stopping_holder_gives_back_itself_costs_nothing_however_often(has_begun: bool) -> None:
    last = Waiting(90, DEFAULT_MAX_ATTEMPTS - 1, 2, MOST_RELEASES)

    outcome, following = follow(Ended(Outcome.RELEASED, is_certain=True, has_begun=has_begun), last)

    assert outcome is Outcome.RELEASED
    assert following == Again(0.0, Waiting(91, last.failures, last.crashes, last.releases))


def test_at_most_once_is_not_begun_again_by_a_holder_that_stops() -> None:
    begun = Ended(Outcome.RELEASED, is_certain=True, has_begun=True)

    assert follow(begun, options=ONCE_ONLY) == (Outcome.UNKNOWN, Bury("unknown"))
