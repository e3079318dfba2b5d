"""The budget in steps: whatever is asked of a recurrence ends within it, and what it allows it does not change."""

from collections.abc import Callable, Generator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import far
from duetime.recurrence import (
    UNLIMITED,
    CalendarEntry,
    Definition,
    Dst,
    ExclusionRule,
    Fire,
    NamedCalendar,
    Recurrence,
    Spec,
    SpecError,
    Steps,
    TooCostly,
    check_calendar,
    compile_calendar_in_pieces,
    compile_definition,
    compile_in_pieces,
    find_spec_errors,
    finish,
)
from duetime.recurrence.steps import COMPILE_STEPS, JUDGE_STEPS, PIECE_STEPS, SEARCH_STEPS

NOW_MS = 1_800_000_000_000
#: One month, period or cron may be taken before its steps are counted.
AT_ONCE = 1_000
EVERY_MINUTE = Spec(cron=("* * * * *",))


def excluding(*exclusions: ExclusionRule | str, cron: str = "* * * * *") -> Definition:
    return Definition(Spec(cron=(cron,), exclude=exclusions), timezone="Europe/Berlin", key="1/a")


HOSTILE = {
    "all is excluded, minute by minute": excluding(ExclusionRule(cron="*/2 * * * *"), cron="*/2 * * * *"),
    "all is excluded, by a thousand": excluding(*(ExclusionRule(cron=f"{n % 60} * * * *") for n in range(1_000))),
    "a hundred sources that come every 28 years": Definition(
        Spec(calendar=tuple(CalendarEntry(month=2, day=29, weekday="MON", hour=n % 24) for n in range(100)))
    ),
    "a rule that comes once in centuries": Definition(
        Spec(
            rrule=(
                "DTSTART:20280229T000000\nFREQ=YEARLY;BYYEARDAY=60;BYWEEKNO=9;BYDAY=TU;BYSETPOS=1,2,3;BYMONTHDAY=29",
            )
        )
    ),
}


@pytest.mark.parametrize("definition", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "ask",
    [
        lambda it: it.next(NOW_MS),
        lambda it: it.previous(NOW_MS),
        lambda it: it.preview(NOW_MS, 1),
        lambda it: list(it.between(NOW_MS, NOW_MS + 86_400_000 * 365)),
    ],
    ids=["next", "previous", "preview", "between"],
)
def test_a_search_ends_within_its_steps(definition: Definition, ask: Callable[[Recurrence], object]) -> None:
    recurrence = compile_definition(definition, {})

    before = recurrence.spent
    with suppress(TooCostly):
        ask(recurrence)

    # A preview names the reason of ten times that are left out, too.
    assert 0 < recurrence.spent - before <= SEARCH_STEPS + 11 * AT_ONCE


def test_what_is_excluded_for_ever_is_refused_with_what_to_do() -> None:
    recurrence = compile_definition(HOSTILE["all is excluded, minute by minute"], {})

    with pytest.raises(TooCostly, match="too many times in a row are left out") as caught:
        recurrence.next(NOW_MS)

    assert caught.value.path == "spec.exclude"


def test_a_day_of_minutes_may_be_left_out_one_by_one() -> None:
    definition = excluding(ExclusionRule(cron="*/2 * * * SAT,SUN"), cron="*/2 * * * *")

    recurrence = compile_definition(definition, {})
    saturday_ms = 1_800_054_000_000

    # Two days of 720 times each.
    assert recurrence.next(saturday_ms) is not None
    assert 1_440 * 9 < recurrence.spent < SEARCH_STEPS


def test_asking_again_takes_no_steps() -> None:
    recurrence = compile_definition(excluding("2027-12-24", cron="0 2 * * *"), {})
    first = recurrence.next(NOW_MS)
    assert first is not None
    before = recurrence.previous(first.nominal_ms)
    spent = recurrence.spent

    assert [recurrence.next(at) for at in (NOW_MS + 1, first.nominal_ms - 1)] == [first, first]
    assert recurrence.previous(NOW_MS + 60_000) == before
    assert recurrence.spent == spent
    assert recurrence.next(first.nominal_ms) != first


def test_a_thousand_dates_are_one_step_to_ask() -> None:
    days = tuple(f"2027-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29, 2))
    recurrence = compile_definition(excluding(*days, cron="0 9 * * *"), {})

    recurrence.next(NOW_MS)

    assert recurrence.spent < 40


def test_a_preview_is_bounded_as_a_whole() -> None:
    # Each time is found within its steps; a thousand of them are not.
    exclusions = (ExclusionRule(cron=f"1-59 {n % 24} * * *") for n in range(24))
    recurrence = compile_definition(excluding(*exclusions), {})

    assert len(recurrence.preview(NOW_MS, 10)) > 10
    with pytest.raises(TooCostly, match="ask for fewer") as caught:
        recurrence.preview(NOW_MS, 1_000)

    assert caught.value.path == "count"


def pieces_of(work: Generator[None, None, object]) -> int:
    return sum(1 for _ in work)


def test_long_work_is_done_in_pieces() -> None:
    long_cron = ",".join(str(minute) for minute in range(60))
    crons = tuple(ExclusionRule(cron=f"{long_cron} {n % 24} * * *") for n in range(1_000))

    steps = Steps(UNLIMITED)
    pieces = pieces_of(compile_calendar_in_pieces(NamedCalendar(exclude=crons), "UTC", steps))

    assert steps.spent // (PIECE_STEPS + 200) <= pieces <= steps.spent // PIECE_STEPS
    assert pieces > 20
    counted = Definition(Spec(rrule=("FREQ=DAILY;COUNT=10000",)))
    assert pieces_of(compile_in_pieces(counted, {})) > 10
    recurrence = compile_definition(Definition(EVERY_MINUTE), {})
    assert pieces_of(recurrence.preview_in_pieces(NOW_MS, 1_000)) >= 3


def test_a_definition_that_takes_long_to_read_is_refused() -> None:
    long_cron = ",".join(str(minute) for minute in range(60))
    definition = excluding(*(ExclusionRule(cron=f"{long_cron} {long_cron[:61]} {'1,' * 380}1 * *"),) * 1_000)
    steps = Steps(COMPILE_STEPS)

    with pytest.raises(TooCostly, match="use fewer and shorter entries"):
        finish(compile_in_pieces(definition, {}, (), steps))

    assert steps.spent <= COMPILE_STEPS + AT_ONCE


def test_many_counted_rules_are_refused_at_the_one_that_is_too_much() -> None:
    with pytest.raises(TooCostly, match="use UNTIL") as caught:
        compile_definition(Definition(Spec(rrule=("FREQ=DAILY;COUNT=10000",) * 10)), {})

    assert caught.value.path == "spec.rrule[7]"


def test_the_look_for_all_that_is_wrong_is_bounded() -> None:
    long_cron = ",".join(str(minute) for minute in range(60))
    entries = [ExclusionRule(cron=f"{long_cron} {n % 24} * * *") for n in range(999)]
    wrong = excluding("no day", *entries, "no day either")

    found = find_spec_errors(wrong)

    # The last one is found when the first is mended; JUDGE_STEPS end before it.
    assert [error.path for error in found] == ["spec.exclude[0]"]
    assert 999 * len(long_cron) // 3 > JUDGE_STEPS


def test_a_calendar_that_is_named_twice_is_asked_once() -> None:
    calendars = {"c": NamedCalendar(exclude=("2027-01-16",))}
    thousandfold = excluding(*(ExclusionRule(calendar="c"),) * 1_000, cron="0 9 * * *")

    recurrence = compile_definition(thousandfold, calendars)
    recurrence.next(NOW_MS)

    assert recurrence.spent < 40


def test_calendars_are_kept_small() -> None:
    days = tuple(
        f"{year}-{month:02}-{day:02}"
        for year in (2027, 2028, 2029)
        for month in range(1, 13)
        for day in range(1, 28, 2)
    )

    compiled = finish(compile_calendar_in_pieces(NamedCalendar(exclude=days), "UTC", Steps(UNLIMITED)))

    assert len(days) * 16 <= compiled.size < len(days) * 16 + 1_000


# Any definition


numbers = st.integers(0, 59)
lists = st.lists(numbers, min_size=1, max_size=20, unique=True).map(lambda found: ",".join(map(str, found)))
minutes = st.one_of(st.sampled_from(["*", "*/2", "1-59/2", "0", "7"]), lists)
hours = st.sampled_from(["*", "*/2", "0", "9-17", "1-23/2"])
days = st.sampled_from(["*", "1", "29", "31", "L", "15W", "LW", "*/2", "1W,2W,3W,4W,5W,L,L-1,L-2"])
months = st.sampled_from(["*", "2", "*/3", "FEB,NOV"])
weekdays = st.sampled_from(["*", "MON", "1-5", "SAT,SUN", "MON#5", "FRIL", "SUN#1,MON#2,TUE#3,WED#4,THU#5"])
crons = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
with_seconds = st.one_of(crons, st.tuples(minutes, crons).map(" ".join))
entries = st.builds(
    CalendarEntry,
    minute=st.one_of(st.none(), minutes),
    hour=st.one_of(st.none(), hours),
    day=st.one_of(st.none(), days),
    month=st.one_of(st.none(), months),
    weekday=st.one_of(st.none(), weekdays),
)
rules = st.sampled_from(
    [
        "FREQ=MINUTELY;INTERVAL=7",
        "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=5",
        "FREQ=HOURLY;INTERVAL=8761;BYYEARDAY=200",
        "FREQ=YEARLY;BYDAY=MO;BYWEEKNO=53",
        "FREQ=YEARLY;BYYEARDAY=366;BYSETPOS=1",
        "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=2,-1",
        "FREQ=WEEKLY;INTERVAL=52;BYMONTH=2;BYDAY=MO",
        "FREQ=DAILY;COUNT=500",
        "FREQ=DAILY;UNTIL=20300101\nRDATE:20270301T000000\nEXDATE:20270302T000000,20270303T000000",
    ]
)
moments = st.sampled_from(["2027-03-28T02:30", "2027-10-31T02:30", "2028-02-29T00:00", "2027-02-01T09:00:00Z"])
exclusions = st.one_of(
    st.sampled_from(["2027-01-16", "2027-03-28"]),
    with_seconds.map(lambda cron: ExclusionRule(cron=cron)),
    st.just(ExclusionRule(from_="2027-01-20", to="2027-02-20")),
    st.just(ExclusionRule(calendar="c")),
)
definitions = st.builds(
    Definition,
    st.builds(
        Spec,
        cron=st.lists(with_seconds, max_size=4).map(tuple),
        every=st.one_of(st.none(), st.sampled_from([1.0, 60.0, 90_000.0])),
        calendar=st.lists(entries, max_size=3).map(tuple),
        rrule=st.lists(rules, max_size=2).map(tuple),
        dates=st.lists(moments, max_size=3).map(tuple),
        exclude=st.one_of(st.just(()), st.lists(exclusions, max_size=30).map(tuple)),
    ),
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe"]),
    dst=st.builds(Dst, st.sampled_from(["skip", "shift"]), st.sampled_from(["first", "last", "both"])),
    jitter=st.sampled_from([0, 0, 90]),
    key=st.just("1/a"),
)
CALENDAR = {"c": NamedCalendar(exclude=("2027-02-03", ExclusionRule(cron="*/2 * * * *")))}


@settings(max_examples=far(150, 5_000), deadline=None)
@given(definitions, st.integers(NOW_MS, NOW_MS + 400 * 86_400_000))
def test_any_definition_ends_within_its_steps_and_is_evaluated_as_without_them(
    definition: Definition, at_ms: int
) -> None:
    steps = Steps(COMPILE_STEPS)
    check_calendar(CALENDAR["c"])
    try:
        bounded = compile_definition(definition, CALENDAR, steps)
    except SpecError:
        assert steps.spent <= COMPILE_STEPS + SEARCH_STEPS
        return
    free = compile_definition(definition, CALENDAR, search_steps=200_000)

    asks: list[Callable[[Recurrence], object]] = [
        lambda it: it.next(at_ms),
        lambda it: it.previous(at_ms),
        lambda it: it.next(at_ms),
    ]
    for ask in asks:
        before = bounded.spent
        try:
            found = ask(bounded)
        except TooCostly:
            assert SEARCH_STEPS < bounded.spent - before <= SEARCH_STEPS + AT_ONCE
            return
        assert bounded.spent - before <= SEARCH_STEPS
        assert ask(free) == found
    try:
        lines = bounded.preview(at_ms, 5)
        upcoming = finish(bounded.upcoming_in_pieces(at_ms, 5))
    except TooCostly:
        return
    assert lines == free.preview(at_ms, 5)
    assert upcoming == [line for line in lines if not line.excluded][:5]
    fires = [Fire(line.nominal_ms, line.at_ms, line.note) for line in upcoming]
    assert [*bounded.between(at_ms, fires[-1].nominal_ms + 1 if fires else at_ms)] == fires
