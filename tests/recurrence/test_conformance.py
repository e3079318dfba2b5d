"""The semantics of crontab(5) of Debian, of Quartz's cron triggers and of Temporal's schedules, as cases of our own."""

from datetime import UTC, datetime

import pytest

from duetime.recurrence import CalendarEntry, Definition, Dst, Recurrence, Spec, SpecError, compile_definition


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def times(spec: Spec, start: str, count: int, timezone: str = "UTC", key: str = "") -> list[str]:
    recurrence = compile_definition(Definition(spec, timezone=timezone, key=key), {})
    return [line.local[:16] for line in recurrence.preview(ms(start), count)]


@pytest.mark.parametrize(
    ("cron", "start", "expected"),
    [
        # The examples of the manual page.
        ("5 0 * * *", "2027-01-01", ["2027-01-01T00:05", "2027-01-02T00:05"]),
        ("15 14 1 * *", "2027-01-02", ["2027-02-01T14:15", "2027-03-01T14:15"]),
        ("0 22 * * 1-5", "2027-01-01", ["2027-01-01T22:00", "2027-01-04T22:00"]),
        ("23 0-23/2 * * *", "2027-01-01", ["2027-01-01T00:23", "2027-01-01T02:23"]),
        ("5 4 * * sun", "2027-01-01", ["2027-01-03T04:05", "2027-01-10T04:05"]),
        # Both days restricted: either is enough.
        (
            "30 4 1,15 * 5",
            "2027-01-01",
            ["2027-01-01T04:30", "2027-01-08T04:30", "2027-01-15T04:30", "2027-01-22T04:30"],
        ),
        # One begins with a star: both must hold.
        ("0 4 */2 * 1", "2027-01-01", ["2027-01-11T04:00", "2027-01-25T04:00", "2027-02-01T04:00"]),
        ("0 4 1-7 * */7", "2027-01-01", ["2027-01-03T04:00", "2027-02-07T04:00"]),
        # A full range is no star: with a weekday it means any day.
        ("0 4 1-31 * MON", "2027-01-01", ["2027-01-01T04:00", "2027-01-02T04:00"]),
        # 0 and 7 are Sunday.
        ("0 0 * * 7", "2027-01-01", ["2027-01-03T00:00", "2027-01-10T00:00"]),
        ("0 0 * * 5-7", "2027-01-01", ["2027-01-01T00:00", "2027-01-02T00:00", "2027-01-03T00:00", "2027-01-08T00:00"]),
        ("0 0 * * FRI-MON", "2027-01-04", ["2027-01-04T00:00", "2027-01-08T00:00"]),
        ("0 0 1 NOV-FEB *", "2027-02-02", ["2027-11-01T00:00", "2027-12-01T00:00", "2028-01-01T00:00"]),
        ("0 22-4 * * *", "2027-01-01T04:30", ["2027-01-01T22:00", "2027-01-01T23:00", "2027-01-02T00:00"]),
        (
            "5/20 * * * *",
            "2027-01-01",
            ["2027-01-01T00:05", "2027-01-01T00:25", "2027-01-01T00:45", "2027-01-01T01:05"],
        ),
        ("@yearly", "2027-01-02", ["2028-01-01T00:00"]),
        ("@annually", "2027-01-02", ["2028-01-01T00:00"]),
        ("@monthly", "2027-01-02", ["2027-02-01T00:00"]),
        ("@weekly", "2027-01-01", ["2027-01-03T00:00"]),
        ("@daily", "2027-01-01T01:00", ["2027-01-02T00:00"]),
        ("@midnight", "2027-01-01T01:00", ["2027-01-02T00:00"]),
        ("@hourly", "2027-01-01T01:30", ["2027-01-01T02:00"]),
        # Leap days, over the year 2100 that has none.
        ("0 0 29 2 *", "2093-01-01", ["2096-02-29T00:00", "2104-02-29T00:00"]),
        ("0 0 29 2 */7", "2027-01-01", ["2032-02-29T00:00", "2060-02-29T00:00"]),
        # Quartz's table, its weekdays by name.
        ("0 0 12 * * ?", "2027-01-01", ["2027-01-01T12:00", "2027-01-02T12:00"]),
        ("0 * 14 * * ?", "2027-01-01", ["2027-01-01T14:00", "2027-01-01T14:01"]),
        ("0 0/5 14,18 * * ?", "2027-01-01T14:55", ["2027-01-01T14:55", "2027-01-01T18:00"]),
        ("0 10,44 14 ? 3 WED", "2027-01-01", ["2027-03-03T14:10", "2027-03-03T14:44", "2027-03-10T14:10"]),
        ("0 15 10 ? * MON-FRI", "2027-01-02", ["2027-01-04T10:15", "2027-01-05T10:15"]),
        ("0 15 10 15 * ?", "2027-01-01", ["2027-01-15T10:15", "2027-02-15T10:15"]),
        ("0 15 10 L * ?", "2027-02-01", ["2027-02-28T10:15", "2027-03-31T10:15"]),
        ("0 15 10 L-2 * ?", "2027-02-01", ["2027-02-26T10:15", "2027-03-29T10:15"]),
        ("0 15 10 ? * FRIL", "2027-01-01", ["2027-01-29T10:15", "2027-02-26T10:15"]),
        ("0 15 10 ? * 5L", "2027-01-01", ["2027-01-29T10:15", "2027-02-26T10:15"]),
        ("0 15 10 ? * FRI#3", "2027-01-01", ["2027-01-15T10:15", "2027-02-19T10:15"]),
        ("0 0 12 1/5 * ?", "2027-01-01", ["2027-01-01T12:00", "2027-01-06T12:00"]),
        ("0 11 11 11 11 ?", "2027-01-01", ["2027-11-11T11:11", "2028-11-11T11:11"]),
        ("0 0 9 LW * ?", "2027-01-01", ["2027-01-29T09:00", "2027-02-26T09:00"]),
        # The nearest weekday stays in its month: the 1st is a Saturday, the 15th a Saturday, the 31st a Sunday.
        ("0 9 1W * *", "2027-05-01", ["2027-05-03T09:00", "2027-06-01T09:00"]),
        ("0 9 15W * *", "2027-05-01", ["2027-05-14T09:00", "2027-06-15T09:00"]),
        ("0 9 31W * *", "2027-01-01", ["2027-01-29T09:00", "2027-03-31T09:00"]),
        # A step that is longer than the field leaves its first number, in every field.
        ("*/100 * * * *", "2027-01-01", ["2027-01-01T00:00", "2027-01-01T01:00"]),
        ("0 */24 * * *", "2027-01-01", ["2027-01-01T00:00", "2027-01-02T00:00"]),
        ("30 9-17/100 * * *", "2027-01-01", ["2027-01-01T09:30", "2027-01-02T09:30"]),
        ("0 5/100 */32 */13 *", "2027-01-02", ["2028-01-01T05:00", "2029-01-01T05:00"]),
        ("0 0 * * */100", "2027-01-01", ["2027-01-03T00:00", "2027-01-10T00:00"]),
        # The first Monday: the star makes both day fields have to fit, and adds no day.
        ("1 1 */100,1-7 * MON", "2027-01-01", ["2027-01-04T01:01", "2027-02-01T01:01", "2027-03-01T01:01"]),
        # The star's own day is the 1st.
        ("0 9 */100,25-31 1-12/2 FRI", "2027-01-01", ["2027-01-01T09:00", "2027-01-29T09:00", "2027-03-26T09:00"]),
        # Quartz's seventh field is the year.
        ("0 15 10 * * ? *", "2027-01-01", ["2027-01-01T10:15", "2027-01-02T10:15"]),
        ("0 15 10 * * ? 2028", "2027-01-01", ["2028-01-01T10:15", "2028-01-02T10:15"]),
        ("0 15 10 ? * FRIL 2027-2029", "2029-12-01", ["2029-12-28T10:15"]),
        ("0 0 0 29 2 ? 2027/3", "2027-01-01", ["2036-02-29T00:00", "2048-02-29T00:00"]),
        ("0 0 9 1 1 ? 2030,2199", "2027-01-01", ["2030-01-01T09:00", "2199-01-01T09:00"]),
        ("0 9 * * MON#5", "2027-01-01", ["2027-03-29T09:00", "2027-05-31T09:00"]),
    ],
)
def test_a_cron_fires_at(cron: str, start: str, expected: list[str]) -> None:
    assert times(Spec(cron=(cron,)), start, len(expected)) == expected


@pytest.mark.parametrize(
    ("entry", "start", "expected"),
    [
        (CalendarEntry(hour=12), "2027-01-01", ["2027-01-01T12:00", "2027-01-02T12:00"]),
        (CalendarEntry(weekday="FRI", hour="17", minute=30), "2027-01-02", ["2027-01-08T17:30", "2027-01-15T17:30"]),
        # A day and a weekday must both hold.
        (CalendarEntry(day=13, weekday="FRI"), "2027-01-01", ["2027-08-13T00:00", "2028-10-13T00:00"]),
        (CalendarEntry(year="2030/4", month="MAR", day="L"), "2027-01-01", ["2030-03-31T00:00", "2034-03-31T00:00"]),
        (
            CalendarEntry(year=2028, month=2, day=29, hour="9-10"),
            "2027-01-01",
            ["2028-02-29T09:00", "2028-02-29T10:00"],
        ),
    ],
)
def test_a_calendar_entry_fires_at(entry: CalendarEntry, start: str, expected: list[str]) -> None:
    assert times(Spec(calendar=(entry,)), start, len(expected)) == expected


def test_the_first_monday_of_every_month_of_2027() -> None:
    recurrence = compile_definition(Definition(Spec(cron=("1 1 */100,1-7 * MON",))), {})

    found = [
        datetime.fromtimestamp(fire.at_ms / 1000, UTC)
        for fire in recurrence.between(ms("2027-01-01"), ms("2028-01-01"))
    ]

    mondays = [4, 1, 1, 5, 3, 7, 5, 2, 6, 4, 1, 6]
    assert found == [datetime(2027, month, day, 1, 1, tzinfo=UTC) for month, day in enumerate(mondays, 1)]
    assert recurrence.words == "at 01:01 on days 1 to 7 of every month, if it is also Monday, UTC"


def test_a_cron_of_past_years_fires_no_more() -> None:
    recurrence = compile_definition(Definition(Spec(cron=("0 0 9 * * ? 2020",))), {})

    assert recurrence.next(ms("2027-01-01")) is None
    last = recurrence.previous(ms("2027-01-01"))
    assert last is not None
    assert last.nominal_ms == ms("2020-12-31T09:00")
    assert recurrence.previous(ms("2020-01-01T09:00")) is None


def test_an_entry_of_past_years_compiles_and_fires_no_more() -> None:
    recurrence = compile_definition(Definition(Spec(calendar=(CalendarEntry(year=2020, hour=9),))), {})

    assert recurrence.next(ms("2027-01-01")) is None
    last = recurrence.previous(ms("2027-01-01"))
    assert last is not None
    assert last.nominal_ms == ms("2020-12-31T09:00")


def test_an_interval_is_aligned_on_the_epoch_and_moved_by_its_phase() -> None:
    assert times(Spec(every=3600, phase=19 * 60), "2027-01-01", 2) == ["2027-01-01T00:19", "2027-01-01T01:19"]
    assert times(Spec(every=7 * 86_400, phase=5 * 86_400), "2027-01-01", 2) == ["2027-01-05T00:00", "2027-01-12T00:00"]


def test_an_interval_is_elapsed_time_through_a_clock_change() -> None:
    found = times(Spec(every=7200), "2027-10-31T00:00", 3, timezone="Europe/Berlin")

    assert found == ["2027-10-31T02:00", "2027-10-31T03:00", "2027-10-31T05:00"]


SPRING, AUTUMN = "2027-03-28", "2027-10-31"


@pytest.mark.parametrize(
    ("cron", "day", "gap", "overlap", "expected"),
    [
        ("30 2 * * *", SPRING, "shift", "first", [("03:00+02", "shifted from 02:30, which does not exist")]),
        ("30 2 * * *", SPRING, "skip", "first", []),
        ("0,30,45 2 * * *", SPRING, "shift", "both", [("03:00+02", "shifted from 02:00, which does not exist")]),
        ("30 2,3 * * *", SPRING, "shift", "first",
            [("03:00+02", "shifted from 02:30, which does not exist"), ("03:30+02", None)]),
        # One fire, and it is at its own time.
        ("0 2,3 * * *", SPRING, "shift", "first", [("03:00+02", None)]),
        ("30 1,3 * * *", SPRING, "shift", "first", [("01:30+01", None), ("03:30+02", None)]),
        ("30 2 * * *", AUTUMN, "shift", "first", [("02:30+02", "first of two 02:30")]),
        ("30 2 * * *", AUTUMN, "shift", "last", [("02:30+01", "second of two 02:30")]),
        ("30 2 * * *", AUTUMN, "skip", "both",
            [("02:30+02", "first of two 02:30"), ("02:30+01", "second of two 02:30")]),
        ("0 1,3 * * *", AUTUMN, "shift", "last", [("01:00+02", None), ("03:00+01", None)]),
        # Hourly or finer follows elapsed time, whatever the policy.
        ("*/30 2 * * *", SPRING, "shift", "first", []),
        ("30 1-3/2,* * * *", SPRING, "shift", "first", None),
        ("0 */1 28 3 *", SPRING, "shift", "first", None),
        ("*/30 2 * * *", AUTUMN, "shift", "first",
            [("02:00+02", "first of two 02:00"), ("02:30+02", "first of two 02:30"),
             ("02:00+01", "second of two 02:00"), ("02:30+01", "second of two 02:30")]),
    ],
)  # fmt: skip
def test_a_clock_change_in_berlin(
    cron: str, day: str, gap: str, overlap: str, expected: list[tuple[str, str | None]] | None
) -> None:
    dst = Dst(gap=gap, overlap=overlap)  # type: ignore[arg-type]
    recurrence = compile_definition(Definition(Spec(cron=(cron,)), timezone="Europe/Berlin", dst=dst), {})
    start = ms(day) - 2 * 3_600_000 + (3_600_000 if day == SPRING else 0)

    lines = [line for line in recurrence.preview(start, 30) if line.local.startswith(day)]

    if expected is None:
        assert [line.local[11:16] for line in lines if line.local[11:13] in ("01", "02", "03")] in (
            ["01:00", "03:00"],
            ["01:30", "03:30"],
        )
        assert len(lines) == 23
    else:
        assert [(f"{line.local[11:16]}{line.local[19:22]}", line.note) for line in lines] == expected


def test_a_lost_day_gives_one_fire_at_its_end() -> None:
    recurrence = compile_definition(Definition(Spec(cron=("0 9,17 * * *",)), timezone="Pacific/Apia"), {})

    lines = recurrence.preview(ms("2011-12-30T00:00"), 5)

    assert [line.local[:16] for line in lines][:4] == [
        "2011-12-29T17:00", "2011-12-31T00:00", "2011-12-31T09:00", "2011-12-31T17:00",
    ]  # fmt: skip
    assert lines[1].note == "shifted from 09:00, which does not exist"


def test_a_midnight_that_does_not_exist_is_shifted_within_its_day() -> None:
    assert times(Spec(cron=("0 0 * * *",)), "2024-03-09T12:00", 2, "America/Havana") == [
        "2024-03-10T01:00",
        "2024-03-11T00:00",
    ]


def test_offsets_with_seconds_are_exact() -> None:
    recurrence = compile_definition(Definition(Spec(cron=("0 12 * * *",)), timezone="Europe/Amsterdam"), {})

    fire = recurrence.next(ms("1900-06-01"))

    assert fire is not None
    assert recurrence.preview(fire.nominal_ms, 1)[0].local.startswith("1900-06-01T12:00:00+00:")


def compiled(cron: str, key: str) -> Recurrence:
    return compile_definition(Definition(Spec(cron=(cron,)), key=key), {})


def test_a_hashed_slot_depends_on_the_key_alone_and_stays_in_its_range() -> None:
    slots = set()
    for number in range(300):
        fire = compiled("H H H * *", f"tenant/{number}").next(0)
        assert fire is not None
        moment = datetime.fromtimestamp(fire.nominal_ms / 1000, UTC)
        assert 1 <= moment.day <= 28
        slots.add((moment.day, moment.hour, moment.minute))
    assert len(slots) > 280
    # Fixed, so that a slot never moves between versions and machines.
    first = compiled("H H(0-5) * * *", "acme/report").next(ms("2027-01-01") - 1)
    assert first is not None
    assert first.nominal_ms == ms("2027-01-01T02:11")


def test_a_hashed_step_spreads_over_the_range() -> None:
    recurrence = compiled("H(0-29)/10 * * * *", "acme/report")

    minutes = [int(line.local[14:16]) for line in recurrence.preview(ms("2027-01-01"), 3)]

    assert minutes[0] < 10
    assert minutes == [minutes[0], minutes[0] + 10, minutes[0] + 20]


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 2 */7", "0 0 L-30 2 *"])
def test_a_cron_that_never_fires_is_refused(cron: str) -> None:
    with pytest.raises(SpecError, match="never fires"):
        compile_definition(Definition(Spec(cron=(cron,))), {})
