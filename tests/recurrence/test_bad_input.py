"""What is refused, where, and with which words."""

import pytest

from duetime.recurrence import (
    CalendarEntry,
    Definition,
    ExclusionRule,
    NamedCalendar,
    Spec,
    SpecError,
    check_calendar,
    compile_definition,
)


def cron(*texts: str) -> Definition:
    return Definition(Spec(cron=texts))


def excluding(*exclusions: str | ExclusionRule) -> Definition:
    return Definition(Spec(every=60, exclude=exclusions))


@pytest.mark.parametrize(
    ("definition", "path", "message"),
    [
        (Definition(Spec()), "spec", "nothing to fire at"),
        (Definition(Spec(every=60), timezone="Europe/Berln"), "timezone", "did you mean Europe/Berlin"),
        (Definition(Spec(every=60), timezone="europe/berlin"), "timezone", "did you mean Europe/Berlin"),
        (Definition(Spec(every=60), timezone="berlin"), "timezone", "Europe/Berlin"),
        (Definition(Spec(every=60), timezone="../../etc/passwd"), "timezone", "no time zone"),
        (Definition(Spec(every=60), timezone="Europe"), "timezone", "no time zone"),
        (Definition(Spec(every=60), timezone=""), "timezone", "no time zone"),
        (Definition(Spec(every=60), timezone="localtime"), "timezone", "no time zone"),
        (cron("0 0 30 2 *"), "spec.cron[0]", 'cron "0 0 30 2 *" never fires: February has no day 30'),
        (cron("@daily", "0 0 31 4,6 *"), "spec.cron[1]", "April and June have no day 31"),
        (cron("0 0 31 2 */7"), "spec.cron[0]", "February has no day 31"),
        (cron("0 0 L-30 2 *"), "spec.cron[0]", "no date has"),
        (cron("* * * *"), "spec.cron[0]", "has 4 fields; it needs 5"),
        (cron("* * * * * * * *"), "spec.cron[0]", "has 8 fields"),
        (cron("* * * * * * 1969"), "spec.cron[0]", 'year: "1969" is outside 1970 to 2199'),
        (cron("* * * * * * ?"), "spec.cron[0]", 'year cannot be "?"'),
        (cron("0 0 0 29 2 ? 2027"), "spec.cron[0]", "no date has its month, day, weekday and year together"),
        (cron("*/0 * * * *"), "spec.cron[0]", "needs a whole number above 0"),
        (cron(""), "spec.cron[0]", "has 0 fields"),
        (cron("60 * * * *"), "spec.cron[0]", 'minute: "60" is outside 0 to 59'),
        (cron("* 24 * * *"), "spec.cron[0]", 'hour: "24" is outside 0 to 23'),
        (cron("* * 0 * *"), "spec.cron[0]", 'day of month: "0" is outside 1 to 31'),
        (cron("* * * 13 *"), "spec.cron[0]", "outside 1 to 12"),
        (cron("* * * * 8"), "spec.cron[0]", "outside 0 to 7"),
        (cron("* * * * MOO"), "spec.cron[0]", 'day of week "MOO" cannot be read'),
        (cron("* * * * L"), "spec.cron[0]", "write FRIL"),
        (cron("* * * * 5#6"), "spec.cron[0]", "outside 1 to 5"),
        (cron("* * L-31 * *"), "spec.cron[0]", "outside 0 to 30"),
        (cron("* * 32W * *"), "spec.cron[0]", "outside 1 to 31"),
        (cron("? * * * *"), "spec.cron[0]", "only the two day fields"),
        (cron("*/0 * * * *"), "spec.cron[0]", "above 0 after the slash"),
        (cron("*/x * * * *"), "spec.cron[0]", "above 0 after the slash"),
        (cron("50-10 * * * *"), "spec.cron[0]", "write two ranges: 50-59,0-10"),
        (cron("1,,2 * * * *"), "spec.cron[0]", 'minute "" cannot be read'),
        (cron("1- * * * *"), "spec.cron[0]", "cannot be read"),
        (cron("H(5-1) * * * *"), "spec.cron[0]", "runs upwards"),
        (cron("٣ * * * *"), "spec.cron[0]", "cannot be read"),
        (cron("@every 5m"), "spec.cron[0]", "give it as `every`"),
        (cron("@reboot"), "spec.cron[0]", "has no time"),
        (cron("@often"), "spec.cron[0]", "is no macro"),
        (cron("0 0 1 1 *" + " " * 1000), "spec.cron[0]", "longer than 1000"),
        (cron(*["@daily"] * 101), "spec.cron", "use at most 100"),
        (Definition(Spec(rrule=("FREQ=DAILY",) * 11)), "spec.rrule", "use at most 10"),
        (Definition(Spec(dates=("2027-01-01T00:00",) * 1001)), "spec.dates", "use at most 1000"),
        (Definition(Spec(calendar=(CalendarEntry(),) * 101)), "spec.calendar", "use at most 100"),
        (excluding(*["2027-01-01"] * 1001), "spec.exclude", "use at most 1000"),
        (Definition(Spec(every=0.5)), "spec.every", "outside 1 to"),
        (Definition(Spec(every=float("nan"))), "spec.every", "outside"),
        (Definition(Spec(every=float("inf"))), "spec.every", "outside"),
        (Definition(Spec(every=60, phase=60)), "spec.phase", "not below `every`"),
        (Definition(Spec(every=60, phase=-1)), "spec.phase", "outside 0"),
        (Definition(Spec(cron=("@daily",), phase=5)), "spec.phase", "give `every` too"),
        (Definition(Spec(after=0)), "spec.after", "outside 1 to"),
        (Definition(Spec(after=60, every=60)), "spec.after", "cannot be combined"),
        (Definition(Spec(every=60), jitter=-1), "jitter", "outside 0"),
        (Definition(Spec(every=60), start_at=5, end_at=5), "end_at", "after start_at"),
        (Definition(Spec(calendar=(CalendarEntry(), CalendarEntry(hour=24)))), "spec.calendar[1].hour", "0 to 23"),
        (Definition(Spec(calendar=(CalendarEntry(year=1800),))), "spec.calendar[0].year", "1970 to 2199"),
        (Definition(Spec(calendar=(CalendarEntry(month=2, day=30),))), "spec.calendar[0]", "never fires"),
        (Definition(Spec(calendar=(CalendarEntry(year=2027, month=2, day=29),))), "spec.calendar[0]", "never fires"),
        (Definition(Spec(dates=("2027-01-01",))), "spec.dates[0]", "write 2027-01-01T09:00"),
        (Definition(Spec(dates=("2027-02-29T09:00",))), "spec.dates[0]", "is no date"),
        (Definition(Spec(dates=("٢٠٢٧-01-01T09:00",))), "spec.dates[0]", "cannot be read"),
        (Definition(Spec(rrule=("FREQ=DAILY;INTERVAL=٣",))), "spec.rrule[0]", "ASCII"),
        (Definition(Spec(dates=("tomorrow",))), "spec.dates[0]", "cannot be read"),
        (Definition(Spec(dates=("2027-01-01T25:00:00Z",))), "spec.dates[0]", "is no date"),
        (excluding("2027-01-01T09:00"), "spec.exclude[0]", "not a whole day"),
        (excluding("2027-01-01", "x"), "spec.exclude[1]", "cannot be read"),
        (excluding(ExclusionRule()), "spec.exclude[0]", "give one"),
        (excluding(ExclusionRule(from_="2027-01-01")), "spec.exclude[0]", "give one"),
        (excluding(ExclusionRule(cron="@daily", calendar="x")), "spec.exclude[0]", "give one"),
        (excluding(ExclusionRule(from_="2027-01-02", to="2027-01-01")), "spec.exclude[0].to", "is not after"),
        (excluding(ExclusionRule(from_="2027-01-02", to="2027-01-03T09:00")), "spec.exclude[0].to", "written alike"),
        (excluding(ExclusionRule(from_="x", to="2027-01-03")), "spec.exclude[0].from", "cannot be read"),
        (excluding(ExclusionRule(cron="x")), "spec.exclude[0].cron", "fields"),
        (excluding(ExclusionRule(calendar="holiday")), "spec.exclude[0].calendar", 'did you mean "holidays"'),
        (excluding(ExclusionRule(calendar="broken")), "spec.exclude[0].calendar", '"broken" is wrong at dates[0]'),
    ],
)  # fmt: skip
def test_a_wrong_definition_is_refused_where_it_is_wrong(definition: Definition, path: str, message: str) -> None:
    calendars = {"holidays": NamedCalendar(), "broken": NamedCalendar(dates=("2027-13-01",))}

    with pytest.raises(SpecError) as caught:
        compile_definition(definition, calendars)

    assert caught.value.path == path
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("calendar", "path", "message"),
    [
        (NamedCalendar(dates=("2027-01-01", "2027-1-1")), "dates[1]", "cannot be read"),
        (NamedCalendar(exclude=(ExclusionRule(calendar="other"),)), "exclude[0].calendar", "cannot name another"),
        (NamedCalendar(dates=("2027-01-01",) * 1001), "dates", "at most 1000"),
    ],
)
def test_a_wrong_calendar_is_refused_where_it_is_wrong(calendar: NamedCalendar, path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_calendar(calendar)

    assert caught.value.path == path
    assert message in caught.value.message
