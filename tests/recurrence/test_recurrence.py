"""What a recurrence answers: bounds, unions, exclusions, delays, jitter, previews and words."""

import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from duetime.recurrence import (
    CalendarEntry,
    Definition,
    Exclusion,
    ExclusionRule,
    NamedCalendar,
    Recurrence,
    Spec,
    compile_definition,
)

DAY_MS = 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def compiled(spec: Spec, timezone: str = "UTC", calendars: dict[str, NamedCalendar] | None = None) -> Recurrence:
    return compile_definition(Definition(spec, timezone=timezone), calendars or {})


def fired(recurrence: Recurrence, start: str, end: str) -> list[str]:
    found = list(recurrence.between(ms(start), ms(end)))
    backwards = []
    fire = recurrence.previous(ms(end))
    while fire is not None and fire.nominal_ms >= ms(start):
        backwards.append(fire)
        fire = recurrence.previous(fire.nominal_ms)
    assert backwards[::-1] == found
    return [f"{datetime.fromtimestamp(fire.nominal_ms / 1000, UTC):%Y-%m-%dT%H:%M}" for fire in found]


def test_bounds_include_the_start_and_exclude_the_end() -> None:
    definition = Definition(Spec(cron=("0 0 * * *",)), start_at=ms("2027-01-02"), end_at=ms("2027-01-04"))
    recurrence = compile_definition(definition, {})

    assert fired(recurrence, "2026-12-01", "2027-02-01") == ["2027-01-02T00:00", "2027-01-03T00:00"]
    assert recurrence.next(ms("2027-01-03")) is None
    assert recurrence.previous(ms("2027-01-02")) is None


def test_a_union_fires_once_where_its_sources_meet() -> None:
    spec = Spec(
        cron=("0 */8 * * *", "0 12,16 * * *"), every=12 * 3600, dates=("2027-01-01T12:00", "2027-01-01T23:30:00+01:00")
    )

    found = fired(compiled(spec), "2027-01-01", "2027-01-02")

    assert [text[11:] for text in found] == ["00:00", "08:00", "12:00", "16:00", "22:30"]


def test_dates_without_an_offset_are_local() -> None:
    recurrence = compiled(Spec(dates=("2027-07-01T09:00", "2027-07-02T09:00:00Z")), "Europe/Berlin")

    assert fired(recurrence, "2027-01-01", "2028-01-01") == ["2027-07-01T07:00", "2027-07-02T09:00"]


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        (("2027-01-02",), [1, 3, 4, 5, 6, 7]),
        (("2027-01-02", "2027-01-03"), [1, 4, 5, 6, 7]),
        ((ExclusionRule(from_="2027-01-02", to="2027-01-05"),), [1, 6, 7]),
        # Times are half-open.
        ((ExclusionRule(from_="2027-01-02T09:00", to="2027-01-04T09:00"),), [1, 4, 5, 6, 7]),
        ((ExclusionRule(from_="2027-01-02T09:00Z", to="2027-01-03T09:00:00.001Z"),), [1, 4, 5, 6, 7]),
        ((ExclusionRule(cron="* * * * SAT,SUN"),), [1, 4, 5, 6, 7]),
        ((ExclusionRule(cron="0 9 * * SAT,SUN"),), [1, 4, 5, 6, 7]),
        ((ExclusionRule(cron="1 9 * * SAT,SUN"),), [1, 2, 3, 4, 5, 6, 7]),
        ((ExclusionRule(cron="* 9 * * MON"),), [1, 2, 3, 5, 6, 7]),
        ((ExclusionRule(cron="0 0 9 * * MON"),), [1, 2, 3, 5, 6, 7]),
        ((ExclusionRule(cron="1 0 9 * * MON"),), [1, 2, 3, 4, 5, 6, 7]),
        ((ExclusionRule(calendar="holidays"), "2027-01-04"), [2, 3, 5]),
    ],
)  # fmt: skip
def test_what_is_excluded_does_not_fire(exclude: tuple[Exclusion, ...], expected: list[int]) -> None:
    holidays = NamedCalendar(dates=("2027-01-01",), exclude=(ExclusionRule(from_="2027-01-06", to="2027-01-07"),))
    recurrence = compiled(Spec(cron=("0 9 * * *",), exclude=exclude), calendars={"holidays": holidays})

    found = fired(recurrence, "2027-01-01", "2027-01-08")

    assert found == [f"2027-01-0{day}T09:00" for day in expected]


@pytest.mark.parametrize(
    ("zone", "day"),
    # Days whose midnight is missing, comes twice, or is crossed back over one minute past it.
    [("America/Havana", "2024-03-10"), ("America/Havana", "2024-11-03"), ("Asia/Beirut", "2024-10-26"),
     ("America/St_Johns", "2006-10-28"), ("America/St_Johns", "2006-10-29"), ("Pacific/Apia", "2011-12-29")],
)  # fmt: skip
def test_an_excluded_day_is_exactly_the_instants_with_its_date(zone: str, day: str) -> None:
    everything = compiled(Spec(every=60), zone)
    start, end = ms(day) - 2 * DAY_MS, ms(day) + 3 * DAY_MS
    expected = [
        line.nominal_ms
        for part in range(start, end, 600 * 60_000)
        for line in everything.preview(part, 600)
        if not line.local.startswith(day)
    ]

    recurrence = compiled(Spec(every=60, exclude=(day,)), zone)

    assert [fire.nominal_ms for fire in recurrence.between(start, end)] == expected
    backwards, fire = [], recurrence.previous(end)
    while fire is not None and fire.nominal_ms >= start:
        backwards.append(fire.nominal_ms)
        fire = recurrence.previous(fire.nominal_ms)
    assert backwards[::-1] == expected


@pytest.mark.parametrize("cron", ["* * * * *", "* 0-22,23 * * *", "* * 1-31 * MON", "0-58,59 * * * * *"])
def test_an_exclusion_of_everything_ends_the_search_soon(cron: str) -> None:
    recurrence = compiled(Spec(cron=("* * * * *",), exclude=(ExclusionRule(cron=cron),)), "Europe/Berlin")

    started = time.perf_counter()
    assert recurrence.next(ms("2027-01-01")) is None
    assert recurrence.previous(ms("2027-01-01")) is None
    assert time.perf_counter() - started < 3


def test_a_long_exclusion_is_jumped_over_in_one_step() -> None:
    recurrence = compiled(Spec(every=1, exclude=(ExclusionRule(from_="2027-01-01", to="2036-12-31"),)))

    fire = recurrence.next(ms("2027-01-01"))

    assert fire is not None
    assert fire.nominal_ms == ms("2037-01-01")


def test_a_delay_counts_from_the_end_of_the_run() -> None:
    definition = Definition(Spec(after=90, exclude=("2027-01-02",)), start_at=ms("2027-01-01"), end_at=ms("2027-01-04"))
    recurrence = compile_definition(definition, {})

    first, later = recurrence.next(0), recurrence.next_after_completion(ms("2027-01-01T10:00") + 7)
    moved, ended = (
        recurrence.next_after_completion(ms("2027-01-01T23:59")),
        recurrence.next_after_completion(ms("2027-01-04")),
    )

    assert first is not None
    assert first.nominal_ms == ms("2027-01-01")
    assert later is not None
    assert later.nominal_ms == ms("2027-01-01T10:01:30") + 7
    assert moved is not None
    assert moved.nominal_ms == ms("2027-01-03")
    assert ended is None
    assert recurrence.previous(ms("2027-01-03")) is None
    assert list(recurrence.between(0, ms("2028-01-01"))) == []


def test_jitter_is_the_same_for_every_fire_and_spreads_schedules() -> None:
    offsets = set()
    for number in range(100):
        recurrence = compile_definition(Definition(Spec(cron=("0 * * * *",)), jitter=600, key=f"tenant/{number}"), {})
        found = {fire.at_ms - fire.nominal_ms for fire in recurrence.between(0, DAY_MS)}
        assert len(found) == 1
        offsets |= found
    assert len(offsets) > 95
    assert min(offsets) < 60_000 < 540_000 < max(offsets) < 600_000


def test_jitter_reaches_neither_the_next_fire_nor_the_end() -> None:
    definition = Definition(Spec(cron=("* * * * *",)), jitter=86_400, key="acme/report", end_at=DAY_MS)
    recurrence = compile_definition(definition, {})

    fires = list(recurrence.between(0, DAY_MS))

    assert len(fires) == 1440
    assert {fire.at_ms - fire.nominal_ms for fire in fires} == {59_999}
    assert recurrence.next(fires[-2].nominal_ms) == fires[-1]


def test_a_preview_shows_what_is_left_out_and_why() -> None:
    holidays = NamedCalendar(dates=("2027-12-25",))
    spec = Spec(cron=("0 9 * * *",), exclude=("2027-12-24", ExclusionRule(calendar="holidays")))
    recurrence = compiled(spec, "Europe/Berlin", {"holidays": holidays})

    lines = recurrence.preview(ms("2027-12-23"), 2)

    assert [(line.local, line.excluded, line.reason) for line in lines] == [
        ("2027-12-23T09:00:00+01:00", False, None),
        ("2027-12-24T09:00:00+01:00", True, "2027-12-24"),
        ("2027-12-25T09:00:00+01:00", True, 'calendar "holidays"'),
        ("2027-12-26T09:00:00+01:00", False, None),
    ]


def test_a_preview_is_bounded_whatever_is_left_out() -> None:
    spec = Spec(cron=("* * * * *",), exclude=(ExclusionRule(cron="* * * * SAT,SUN"),))

    lines = compiled(spec).preview(ms("2027-01-01T23:50"), 20)

    assert sum(not line.excluded for line in lines) == 20
    assert sum(line.excluded for line in lines) == 10
    assert lines[-1].local == "2027-01-04T00:09:00+00:00"


def test_times_beyond_the_calendar_are_answered_with_none() -> None:
    recurrence = compiled(Spec(cron=("0 0 * * *",)), "Europe/Berlin")

    assert recurrence.next(10**18) is None
    assert recurrence.previous(-(10**18)) is None
    assert recurrence.next(-(10**18)) is not None
    assert recurrence.previous(10**18) is not None


@pytest.mark.parametrize(
    ("spec", "zone", "words"),
    [
        (Spec(cron=("0 2 * * *",)), "Europe/Berlin", "at 02:00 every day, Europe/Berlin"),
        (Spec(cron=("*/15 * * * *",)), "UTC", "every 15 minutes, UTC"),
        (Spec(cron=("*/90 * * * *",)), "UTC", "every hour, UTC"),
        (Spec(cron=("0 */15 * * * ? 2027-2029",)), "UTC", "every 15 minutes in 2027 to 2029, UTC"),
        (Spec(cron=("0 0 9 * * ? 2028",)), "UTC", "at 09:00 every day in 2028, UTC"),
        (Spec(cron=("30 0 9 ? * MON 2027,2029",)), "UTC", "at 09:00:30 on Monday in 2027 and 2029, UTC"),
        (Spec(every=900), "UTC", "every 15 minutes, UTC"),
        (Spec(every=60), "UTC", "every minute, UTC"),
        (Spec(every=3600, phase=300), "UTC", "every hour, 5 minutes later than round times, UTC"),
        (Spec(after=1.5), "UTC", "1.5 seconds after each run ends, UTC"),
        (Spec(cron=("0 9 LW * *",), exclude=(ExclusionRule(calendar="holidays"), "2027-12-24")), "UTC",
            "at 09:00 on the last weekday of every month, UTC, except holidays and 2027-12-24"),
        (Spec(cron=("30 8,20 * * MON-FRI", "0 0 1 1 *")), "UTC",
            "at 08:30 and 20:30 on Monday to Friday; and at 00:00 on day 1 of January, UTC"),
        (Spec(cron=("0 */6 * * *",)), "UTC", "at 00:00, 06:00, 12:00 and 18:00 every day, UTC"),
        (Spec(cron=("0 */2 * * *",)), "UTC", "every 2 hours, UTC"),
        (Spec(cron=("17 * * * *",)), "UTC", "every hour at minute 17, UTC"),
        (Spec(cron=("*/10 * * * * *",)), "UTC", "every 10 seconds, UTC"),
        (Spec(cron=("*/5 9-17 * * 1-5",)), "UTC", "every 5 minutes of hours 9 to 17 on Monday to Friday, UTC"),
        (Spec(cron=("0 9 1,15 * FRI#2",)), "UTC",
            "at 09:00 on days 1 and 15 of every month, or on the second Friday, UTC"),
        (Spec(calendar=(CalendarEntry(year=2027, month="FEB", day="L-1", hour=7),)), "UTC",
            "at 07:00 on the day 1 before the last of February in 2027, UTC"),
        (Spec(rrule=("DTSTART:20270101T090000\nRRULE:FREQ=DAILY",)), "UTC", "by the rule FREQ=DAILY, UTC"),
        (Spec(dates=("2027-01-01T09:00", "2027-01-02T09:00")), "UTC", "on 2027-01-01T09:00 and 2027-01-02T09:00, UTC"),
    ],
)  # fmt: skip
def test_words_say_what_fires(spec: Spec, zone: str, words: str) -> None:
    assert compiled(spec, zone, {"holidays": NamedCalendar()}).words == words


def test_a_definition_survives_json() -> None:
    spec = Spec(
        cron=("0 2 * * *",),
        calendar=(CalendarEntry(hour=3),),
        exclude=("2027-12-24", ExclusionRule(from_="2027-12-24", to="2028-01-02"), ExclusionRule(cron="* * * * SAT")),
    )
    definition = Definition(spec, timezone="Europe/Berlin")

    text = msgspec.json.encode(definition)

    assert b'{"from":"2027-12-24","to":"2028-01-02"}' in text
    assert msgspec.json.decode(text, type=Definition) == definition


def test_an_answer_costs_microseconds() -> None:
    definition = Definition(Spec(cron=("0 2 * * *",)), timezone="Europe/Berlin")
    recurrence = compile_definition(definition, {})
    now = ms("2027-01-01")

    def fastest(action: object) -> float:
        assert callable(action)
        best = timedelta(seconds=1).total_seconds()
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(50):
                action()
            best = min(best, (time.perf_counter() - started) / 50)
        return best

    # Ten times what it takes, so that a busy machine does not matter and a walk would.
    assert fastest(lambda: recurrence.next(now)) < 300e-6
    assert fastest(lambda: compile_definition(definition, {})) < 300e-6
