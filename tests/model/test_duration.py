"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (30, 30),
        (0.25, 0.25),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1d2h3m4.5s", 93784.5),
        ("0.5h", 1800),
    ],
)
def test_seconds_and_text_are_understood(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *("", "5", "s", "5 m", "-5s", "5m1h", "5s5s", "1e3s", "NaN", "inf", "5M", "٣s", "5s\n", "9" * 10 + "s"),
        *(True, None, [], 10**400, float("nan"), float("inf")),
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(value: object) -> None:
    with pytest.raises(ValueError, match="30s"):
        parse_duration(value)


@given(st.integers(min_value=0, max_value=10**15).map(lambda us: us / 1_000_000))
def test_what_is_written_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=2e-6)
