"""The one token bucket under every limit of a rate."""

from hypothesis import given
from hypothesis import strategies as st

from duetime.model.token_bucket import TokenBucket

START_MS = 1_000_000


def test_it_fills_at_its_rate_up_to_its_capacity() -> None:
    bucket = TokenBucket(10.0, 3.0, 0.0, START_MS)

    bucket.fill(START_MS + 250)
    assert (bucket.tokens, bucket.whole) == (2.5, 2)
    bucket.fill(START_MS + 10_000)
    assert (bucket.tokens, bucket.whole) == (3.0, 3)


def test_a_time_before_the_last_fill_changes_nothing() -> None:
    bucket = TokenBucket(10.0, 3.0, 1.0, START_MS)

    bucket.fill(START_MS - 5_000)
    bucket.fill(START_MS + 100)

    assert bucket.tokens == 2.0


def test_time_that_is_skipped_brings_no_tokens() -> None:
    bucket = TokenBucket(10.0, 3.0, 1.0, START_MS)

    bucket.skip_to(START_MS + 10_000)
    bucket.fill(START_MS + 9_000)
    assert bucket.tokens == 1.0
    bucket.fill(START_MS + 10_100)
    assert bucket.tokens == 2.0


def test_fractions_that_miss_a_whole_token_by_a_hair_are_one() -> None:
    bucket = TokenBucket(1.0, 3.0, 0.0, START_MS)
    for _ in range(10):
        bucket.put_back(0.1)

    assert bucket.tokens < 1.0
    assert bucket.whole == 1


def test_more_than_there_is_can_be_taken_and_is_paid_for_later() -> None:
    bucket = TokenBucket(10.0, 3.0, 3.0, START_MS)

    bucket.take(5)
    assert (bucket.tokens, bucket.whole, bucket.seconds_until(1.0)) == (-2.0, 0, 0.3)
    bucket.fill(START_MS + 300)
    assert bucket.whole == 1


def test_what_is_put_back_never_exceeds_the_capacity() -> None:
    bucket = TokenBucket(10.0, 3.0, 2.0, START_MS)

    bucket.put_back(5)

    assert bucket.tokens == 3.0


def test_another_rate_keeps_what_is_in_the_bucket() -> None:
    bucket = TokenBucket(10.0, 3.0, 2.0, START_MS)

    bucket.change(100.0, 30.0)
    assert bucket.tokens == 2.0
    bucket.fill(START_MS + 100)
    assert bucket.tokens == 12.0
    bucket.change(1.0, 5.0)
    assert bucket.tokens == 5.0


def test_it_says_when_so_many_tokens_are_there() -> None:
    bucket = TokenBucket(10.0, 3.0, 0.0, START_MS)

    assert bucket.seconds_until(2.0) == 0.2
    assert bucket.full_ms(2.0, START_MS) == START_MS + 201
    assert bucket.full_ms(0.0, START_MS) == START_MS + 1
    bucket.skip_to(START_MS + 500)
    assert bucket.full_ms(2.0, START_MS) == START_MS + 701


@given(
    rate=st.floats(0.01, 1e6),
    capacity=st.floats(1.0, 1e6),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.floats(0.0, 1.0), st.booleans()), max_size=60),
)
def test_it_never_gives_more_than_its_capacity_and_what_has_passed(
    rate: float, capacity: float, steps: list[tuple[int, float, bool]]
) -> None:
    bucket = TokenBucket(rate, capacity, capacity, START_MS)
    now_ms, taken = START_MS, 0
    for wait_ms, part, comes_back in steps:
        now_ms += wait_ms
        bucket.fill(now_ms)
        count = int(part * bucket.whole)
        bucket.take(count)
        if comes_back:
            bucket.put_back(count)
        else:
            taken += count

        allowed = capacity + rate * (now_ms - START_MS) / 1000
        assert taken <= allowed * (1 + 1e-9) + 1e-6
        assert bucket.tokens <= capacity


@given(rate=st.floats(0.01, 1e6), tokens=st.floats(-100.0, 100.0), count=st.floats(0.0, 100.0))
def test_at_the_time_it_says_there_are_so_many_and_hardly_more(rate: float, tokens: float, count: float) -> None:
    bucket = TokenBucket(rate, 1e9, tokens, START_MS)
    was_missing = count > tokens

    full_ms = bucket.full_ms(count, START_MS)
    bucket.fill(full_ms)

    assert bucket.tokens >= count - 1e-6
    if was_missing:
        assert bucket.tokens - count <= 2 * rate / 1000 + 1e-6
