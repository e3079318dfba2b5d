"""Rules of RFC 5545: random ones against dateutil, and what is refused."""

import gc
import signal
import time
from datetime import datetime, timedelta
from itertools import islice, takewhile

import pytest
from dateutil.rrule import rrulestr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from depth import far
from duetime.recurrence import Definition, Recurrence, Spec, SpecError, compile_definition

EPOCH = datetime(1970, 1, 1)
SIXTY = ",".join(map(str, range(60)))
WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


def compiled(text: str, timezone: str = "UTC", start_at: int | None = None) -> Recurrence:
    return compile_definition(Definition(Spec(rrule=(text,)), timezone=timezone, start_at=start_at), {})


def to_ms(moment: datetime) -> int:
    return int((moment - EPOCH) / timedelta(milliseconds=1))


def some(low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    if signed:
        number = st.one_of(number, number.map(lambda value: -value))
    return st.lists(number, min_size=1, max_size=4).map(lambda values: ",".join(map(str, values)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]))
    parts = [f"FREQ={frequency}"]

    def maybe(name: str, values: st.SearchStrategy[str], one_in: int = 3) -> bool:
        if draw(st.integers(1, one_in)) == 1:
            parts.append(f"{name}={draw(values)}")
            return True
        return False

    maybe("INTERVAL", st.integers(1, 9).map(str), 2)
    maybe("BYMONTH", some(1, 12))
    has_week = frequency == "YEARLY" and draw(st.integers(1, 4)) == 1
    if has_week:
        parts.append(f"BYWEEKNO={draw(st.one_of(some(1, 53), some(-8, -1)))}")
    if frequency != "WEEKLY":
        maybe("BYMONTHDAY", some(1, 31, signed=True))
    if frequency not in ("DAILY", "WEEKLY", "MONTHLY"):
        maybe("BYYEARDAY", st.one_of(some(1, 366, signed=True), some(50, 60)), 5)
    plain = st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=4, unique=True).map(",".join)
    number = st.sampled_from([1, 2, 3, 4, 5, -1, -2, -5] + ([20, -10, 53] if frequency == "YEARLY" else []))
    numbered = st.lists(
        st.tuples(number, st.sampled_from(WEEKDAYS)).map(lambda p: f"{p[0]}{p[1]}"), min_size=1, max_size=3
    )
    if has_week:
        # Without BYDAY dateutil takes all days of the week; RFC 5545 takes the weekday of DTSTART.
        parts.append(f"BYDAY={draw(plain)}")
    elif frequency in ("MONTHLY", "YEARLY"):
        maybe("BYDAY", st.one_of(plain, numbered.map(",".join)), 2)
    else:
        maybe("BYDAY", plain, 2)
    maybe("BYHOUR", some(0, 23))
    maybe("BYMINUTE", some(0, 59))
    maybe("BYSECOND", some(0, 59), 4)
    maybe("WKST", st.sampled_from(WEEKDAYS), 4)
    # In the first week dateutil counts BYSETPOS from DTSTART, in a first month or year from its beginning.
    if frequency != "WEEKLY" and any(part.startswith("BY") for part in parts):
        maybe("BYSETPOS", some(1, 5, signed=True), 4)
    match draw(st.integers(1, 6)):
        case 1:
            parts.append(f"COUNT={draw(st.integers(1, 30))}")
        case 2:
            until = datetime(2020, 1, 1) + timedelta(minutes=draw(st.integers(1, 3_000_000)))
            parts.append(f"UNTIL={until:%Y%m%dT%H%M%S}")
    return ";".join(parts)


starts = st.datetimes(datetime(2019, 1, 1), datetime(2021, 12, 31)).map(lambda moment: moment.replace(microsecond=0))


def expected_times(text: str, start: datetime, limit: datetime, count: int) -> tuple[list[datetime], bool]:
    """What dateutil says, and whether that is all: it walks, so it is stopped where it walks for too long."""
    found: list[datetime] = []

    def stop(*_: object) -> None:
        raise TimeoutError

    # What the collector finalizes meanwhile belongs to other tests, and would swallow the error.
    gc.disable()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        rule = rrulestr(text, dtstart=start)
        for moment in takewhile(lambda moment: moment < limit, rule):
            found.append(moment)
            if len(found) == count:
                return found, False
    except (TimeoutError, IndexError):
        # It also stumbles over weekdays numbered beyond the end of a year.
        return found, False
    except ValueError as error:
        # Its way to say that no time matches.
        if "empty set" not in str(error) and "resulting in empty rule" not in str(error):
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        gc.enable()
    return found, True


# Shrinking would take minutes: the failing rule is short enough as it is.
@settings(max_examples=far(80, 2_000), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(rules(), starts)
def test_a_rule_fires_as_dateutil_says(text: str, start: datetime) -> None:
    limit = start + timedelta(days=366 * 12)
    oracle, is_complete = expected_times(text, start, limit, 40)

    try:
        recurrence = compiled(f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{text}")
    except SpecError as error:
        if "never fires" not in error.message or oracle:
            raise
        return

    wanted = 41 if is_complete else len(oracle)
    found = [fire.nominal_ms for fire in islice(recurrence.between(to_ms(start), to_ms(limit)), wanted)]
    assert found == [to_ms(moment) for moment in oracle], f"{start} {text}"
    for index in range(len(found) - 1, -1, -1):
        earlier = recurrence.previous(found[index])
        assert (earlier.nominal_ms if earlier else None) == (found[index - 1] if index else None)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ["2027-01-29", "2027-02-26", "2027-03-31"]),
        ("FREQ=YEARLY;BYDAY=-1SU;BYMONTH=3,10", ["2027-03-28", "2027-10-31", "2028-03-26"]),
        ("FREQ=YEARLY;BYDAY=20MO", ["2027-05-17", "2028-05-15", "2029-05-14"]),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", ["2027-05-17", "2028-05-15", "2029-05-14"]),
        # The weekday is that of DTSTART, a Friday.
        ("FREQ=YEARLY;BYWEEKNO=20", ["2027-05-21", "2028-05-19", "2029-05-18"]),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", ["2027-08-13", "2028-10-13", "2029-04-13"]),
        (
            "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
            ["2027-11-02", "2031-11-04", "2035-11-06"],
        ),
        ("FREQ=MONTHLY;BYMONTHDAY=-3", ["2027-01-29", "2027-02-26", "2027-03-29"]),
        ("FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,SU", ["2027-01-10", "2027-01-12", "2027-01-24"]),
        # BYSETPOS counts from the start of the week, also in that of DTSTART.
        ("FREQ=WEEKLY;BYDAY=WE,SA;BYSETPOS=1", ["2027-01-06", "2027-01-13", "2027-01-20"]),
        # A plain weekday and a numbered one are both meant.
        ("FREQ=MONTHLY;BYDAY=1MO,SU", ["2027-01-03", "2027-01-04", "2027-01-10"]),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", ["2028-02-29", "2032-02-29", "2036-02-29"]),
    ],
)
def test_rules_from_the_standard(rule: str, expected: list[str]) -> None:
    recurrence = compiled(f"DTSTART:20270101T090000\n{rule}")

    lines = recurrence.preview(to_ms(datetime(2027, 1, 1)), 3)

    assert [line.local for line in lines] == [f"{day}T09:00:00+00:00" for day in expected]


def test_dtstart_names_its_own_zone() -> None:
    recurrence = compiled("DTSTART;TZID=America/New_York:20270101T090000\nRRULE:FREQ=DAILY", timezone="Europe/Berlin")

    assert recurrence.preview(to_ms(datetime(2027, 1, 1)), 1)[0].local == "2027-01-01T15:00:00+01:00"


def test_without_dtstart_a_rule_begins_with_the_schedule() -> None:
    recurrence = compiled("FREQ=DAILY;INTERVAL=3", timezone="Asia/Tokyo", start_at=to_ms(datetime(2027, 5, 1, 4, 30)))

    lines = recurrence.preview(0, 2)

    assert [line.local for line in lines] == ["2027-05-01T13:30:00+09:00", "2027-05-04T13:30:00+09:00"]


def test_without_any_start_a_rule_begins_at_the_local_midnight_of_1970() -> None:
    fire = compiled("FREQ=DAILY;INTERVAL=2", timezone="Asia/Tokyo").next(-(10**12))

    assert fire is not None
    assert fire.nominal_ms == -9 * 3_600_000


def test_extra_dates_are_added_and_excepted_ones_are_taken_away() -> None:
    recurrence = compiled(
        "DTSTART:20270101T090000\nRRULE:FREQ=DAILY;COUNT=4\nEXDATE:20270102T090000\nRDATE:20270102T120000,20270203T000000Z"
    )

    found = [line.local[:16] for line in recurrence.preview(0, 10)]

    assert found == ["2027-01-01T09:00", "2027-01-02T12:00", "2027-01-03T09:00", "2027-01-04T09:00", "2027-02-03T00:00"]
    last = recurrence.previous(to_ms(datetime(2027, 1, 3, 9)))
    assert last is not None
    assert last.nominal_ms == to_ms(datetime(2027, 1, 2, 12))


def test_until_in_utc_is_compared_as_an_instant() -> None:
    recurrence = compiled("DTSTART:20270701T010000\nRRULE:FREQ=DAILY;UNTIL=20270702T230000Z", timezone="Europe/Berlin")

    assert [line.local[:10] for line in recurrence.preview(0, 9)] == ["2027-07-01", "2027-07-02", "2027-07-03"]


def test_a_minutely_rule_from_long_ago_answers_at_once() -> None:
    recurrence = compiled("DTSTART:19900101T000000\nRRULE:FREQ=MINUTELY;INTERVAL=7")

    started = time.perf_counter()
    for minute in range(100):
        assert recurrence.next(to_ms(datetime(2027, 1, 1)) + minute * 60_000) is not None
        assert recurrence.previous(to_ms(datetime(2027, 1, 1)) + minute * 60_000) is not None

    # 200 answers; a walk from 1990 would look at three million periods for each.
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a rule"),
        ("FREQ=FORTNIGHTLY", "needs FREQ"),
        ("INTERVAL=2", "needs FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;FREQ=DAILY", "twice"),
        ("FREQ=DAILY;BYEASTER=1", 'part "BYEASTER=1"'),
        ("FREQ=DAILY;COUNT=10001", "above 10000"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20300101T000000Z", "COUNT and UNTIL"),
        ("FREQ=DAILY;BYHOUR=24", "0 to 23"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "1 to 31"),
        ("FREQ=MONTHLY;BYDAY=XX", "BYDAY"),
        ("FREQ=MONTHLY;BYDAY=0MO", "BYDAY"),
        ("FREQ=WEEKLY;BYDAY=2MO", "works only with"),
        ("FREQ=MONTHLY;BYWEEKNO=2", "only with FREQ=YEARLY"),
        ("FREQ=DAILY;BYYEARDAY=2", "does not work"),
        ("FREQ=WEEKLY;BYMONTHDAY=2", "does not work"),
        ("FREQ=DAILY;BYSETPOS=1", "another BY part"),
        ("FREQ=DAILY;WKST=XX", "WKST"),
        (f"FREQ=DAILY;BYMINUTE={SIXTY};BYSECOND={SIXTY}", "use a finer FREQ"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
        ("FREQ=MINUTELY;INTERVAL=1440;BYHOUR=3", "never fires"),
        ("FREQ=MINUTELY;INTERVAL=1441;BYHOUR=3;BYMINUTE=7;COUNT=10000", "would walk years"),
        ("DTSTART:20270101T000000\nFREQ=DAILY;UNTIL=20260101", "UNTIL is before DTSTART"),
        ("DTSTART:20271301T000000\nFREQ=DAILY", 'DTSTART "20271301T000000"'),
        ("DTSTART;TZID=Mars/Base:20270101T000000\nFREQ=DAILY", "no time zone"),
        ("FREQ=DAILY\nEXRULE:FREQ=WEEKLY", '"EXRULE" line'),
        ("FREQ=DAILY\nFREQ=DAILY", "two RRULE"),
        ("FREQ=DAILY\nRDATE;VALUE=PERIOD:20270101T000000/PT1H", "use `dates`"),
        ("FREQ=DAILY\nEXDATE;VALUE=DATE:20270101", "use `exclude`"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_within_bounds(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(text)

    assert caught.value.path == "spec.rrule[0]"
    assert message in caught.value.message
