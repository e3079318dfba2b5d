"""Random crons around real clock changes, against a walk through every minute."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recurrence.brute import fires, to_ms

from depth import far
from duetime.recurrence import Definition, Dst, Fire, Recurrence, Spec, SpecError, compile_definition

# Zones with the UTC days of changes worth a look; each zone has others.
CHANGES = [
    ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2027-10-31"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Africa/Casablanca", "2025-02-23"),
    ("Africa/Casablanca", "2025-04-06"),
    ("Asia/Kathmandu", "1985-12-31"),
    ("Pacific/Apia", "2011-12-30"),
    ("Pacific/Apia", "2012-03-31"),
    ("America/St_Johns", "2006-04-02"),
    ("America/St_Johns", "2006-10-29"),
    ("Europe/Dublin", "2026-03-29"),
    ("Europe/Dublin", "2026-10-25"),
    ("Asia/Beirut", "2024-03-30"),
    ("Asia/Beirut", "2024-10-26"),
    ("America/Havana", "2024-03-10"),
    ("America/Havana", "2024-11-03"),
    ("Africa/Cairo", "2024-04-25"),
    ("Africa/Cairo", "2024-10-31"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Pacific/Kwajalein", "1993-08-21"),
    ("Pacific/Kwajalein", "1969-09-30"),
    ("Asia/Pyongyang", "2015-08-14"),
    ("Asia/Pyongyang", "2018-05-04"),
    ("America/Caracas", "2007-12-09"),
    ("America/Caracas", "2016-05-01"),
    ("America/Asuncion", "2023-03-26"),
    ("America/Asuncion", "2023-10-01"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("Asia/Tehran", "2022-03-21"),
    ("Asia/Tehran", "2022-09-21"),
    ("Asia/Gaza", "2023-04-29"),
    ("Pacific/Chatham", "2026-09-26"),
    ("America/Toronto", "1999-10-31"),
    ("UTC", "2026-01-01"),
]


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(str)


def field(low: int, high: int, *, wraps: bool) -> st.SearchStrategy[str]:
    ordered = st.tuples(st.integers(low, high), st.integers(low, high))
    ranges = (ordered if wraps else ordered.map(lambda pair: tuple(sorted(pair)))).map(lambda p: f"{p[0]}-{p[1]}")
    # Also such as step over all there is.
    step = st.one_of(st.integers(1, 7), st.sampled_from([high, high + 1, 100]))
    item = st.one_of(
        numbers(low, high),
        ranges,
        st.tuples(ranges, step).map(lambda p: f"{p[0]}/{p[1]}"),
        st.tuples(numbers(low, high), step).map(lambda p: f"{p[0]}/{p[1]}"),
    )
    starred = st.one_of(st.just("*"), step.map(lambda s: f"*/{s}"))
    return st.one_of(starred, item, st.lists(item, min_size=1, max_size=3).map(",".join))


minutes = st.one_of(st.sampled_from(["0", "30", "15,45"]), field(0, 59, wraps=False))
hours = st.one_of(st.sampled_from(["0", "1", "2", "3", "23", "0-3", "22-4"]), field(0, 23, wraps=True))
days = st.one_of(
    st.just("*"),
    field(1, 31, wraps=False),
    st.sampled_from(["L", "LW", "L-1", "L-3", "15W", "1W", "31W", "30W", "L,15", "28-31", "1W,LW"]),
    st.sampled_from(["*/100,1-7", "*/32,L", "*/31", "8-14/100"]),
)
months = st.one_of(st.just("*"), st.just("*"), field(1, 12, wraps=True))
weekdays = st.one_of(
    st.just("*"),
    field(0, 6, wraps=True),
    st.sampled_from(["SAT,SUN", "FRI-MON", "SUN#1", "SUN#5", "SAT#4", "SUNL", "5L", "FRI#5", "6#1,0L"]),
)
years = st.one_of(
    st.sampled_from(["*", "*/2", "*/3,2026-2028", "*/1000", "2027", "1993-2015/2", "2004/4", "2011,2012"]),
    field(1970, 2030, wraps=False),
)
five_fields = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
crons = st.one_of(five_fields, st.tuples(st.just("0"), five_fields, years).map(" ".join))
policies = st.tuples(st.sampled_from(["skip", "shift"]), st.sampled_from(["first", "last", "both"]))


def make(cron: str, zone: str, gap: str, overlap: str, jitter: float = 0, key: str = "") -> Recurrence | None:
    dst = Dst(gap=gap, overlap=overlap)  # type: ignore[arg-type]
    try:
        return compile_definition(Definition(Spec(cron=(cron,)), timezone=zone, dst=dst, jitter=jitter, key=key), {})
    except SpecError as error:
        if "never fires" not in error.message:
            raise
        return None


@settings(max_examples=far(60, 2_000), deadline=None)
@given(crons, st.sampled_from(CHANGES), policies)
def test_a_cron_fires_as_a_walk_through_every_minute_says(
    cron: str, change: tuple[str, str], policy: tuple[str, str]
) -> None:
    zone, day = change
    middle = datetime.fromisoformat(day).replace(tzinfo=UTC)
    start, end = middle - timedelta(days=1), middle + timedelta(days=2)
    recurrence = make(cron, zone, *policy)

    expected = [to_ms(instant) for instant in fires(cron, zone, *policy, start, end)]

    if recurrence is None:
        assert expected == []
        return
    found = list(recurrence.between(to_ms(start), to_ms(end)))
    assert [fire.nominal_ms for fire in found] == expected
    assert by_next(recurrence, to_ms(start), to_ms(end)) == found
    assert by_previous(recurrence, to_ms(start), to_ms(end)) == found


def by_next(recurrence: Recurrence, start: int, end: int) -> list[Fire]:
    found: list[Fire] = []
    fire = recurrence.next(start - 1)
    while fire is not None and fire.nominal_ms < end:
        assert not found or fire.nominal_ms > found[-1].nominal_ms
        found.append(fire)
        fire = recurrence.next(fire.nominal_ms)
    return found


def by_previous(recurrence: Recurrence, start: int, end: int) -> list[Fire]:
    found: list[Fire] = []
    fire = recurrence.previous(end)
    while fire is not None and fire.nominal_ms >= start:
        assert not found or fire.nominal_ms < found[-1].nominal_ms
        found.append(fire)
        fire = recurrence.previous(fire.nominal_ms)
    return found[::-1]


@settings(max_examples=far(40, 600), deadline=None)
@given(crons, st.sampled_from(CHANGES), policies, st.floats(0, 7200), st.text(max_size=8))
def test_jitter_keeps_the_order_and_stays_before_the_next_time(
    cron: str, change: tuple[str, str], policy: tuple[str, str], jitter: float, key: str
) -> None:
    zone, day = change
    start = to_ms(datetime.fromisoformat(day).replace(tzinfo=UTC)) - 86_400_000
    recurrence = make(cron, zone, *policy, jitter=jitter, key=key)
    if recurrence is None:
        return

    fire = recurrence.next(start)
    for _ in range(20):
        if fire is None:
            break
        following = recurrence.next(fire.nominal_ms)
        assert fire.nominal_ms <= fire.at_ms < fire.nominal_ms + max(jitter * 1000, 1)
        if following is not None:
            assert fire.nominal_ms < following.nominal_ms
            assert fire.at_ms < following.nominal_ms
        fire = following


@settings(max_examples=far(80, 1_500), deadline=None)
@given(crons, st.sampled_from(CHANGES), policies, st.integers(-(10**9), 4 * 10**9))
def test_the_next_and_the_previous_fire_enclose_nothing(
    cron: str, change: tuple[str, str], policy: tuple[str, str], second: int
) -> None:
    recurrence = make(cron, change[0], *policy)
    if recurrence is None:
        return
    at = second * 1000 + 1

    following, earlier = recurrence.next(at), recurrence.previous(at)

    if following is not None:
        assert following.nominal_ms > at
        assert recurrence.previous(following.nominal_ms) == earlier
    if earlier is not None:
        assert earlier.nominal_ms < at
        assert recurrence.next(earlier.nominal_ms) == following


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("gap", ["skip", "shift"])
@pytest.mark.parametrize("overlap", ["first", "last", "both"])
def test_every_policy_at_every_change(zone: str, day: str, gap: str, overlap: str) -> None:
    middle = datetime.fromisoformat(day).replace(tzinfo=UTC)
    start, end = middle - timedelta(days=1), middle + timedelta(days=2)
    cron = "7,37 0-2,4,9,22-23 * * *"
    recurrence = make(cron, zone, gap, overlap)
    assert recurrence is not None

    found = [fire.nominal_ms for fire in recurrence.between(to_ms(start), to_ms(end))]

    assert found == [to_ms(instant) for instant in fires(cron, zone, gap, overlap, start, end)]
