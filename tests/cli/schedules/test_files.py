"""Schedules files: what they may hold, what it means, and what is said of everything else."""

import copy

import pytest

from duetime.cli.schedules.fields import canonical, canonical_dates
from duetime.cli.schedules.files import Contents, FileText, read_calendar, read_contents, read_definition
from duetime.errors import UsageError

PLAIN = {"spec": {"cron": "0 2 * * *"}, "task": {"type": "report"}}
HEAD = "schedules:\n  nightly:\n"
TAIL = "    spec: {cron: 0 2 * * *}\n    task: {type: report}\n"


def with_field(path: str, value: object) -> dict[str, object]:
    definition: dict[str, object] = copy.deepcopy(PLAIN)
    *above, last = path.split(".")
    inner = definition
    for part in above:
        inner = inner.setdefault(part, {})  # type: ignore[assignment]
    inner[last] = value
    return definition


def read(text: str, name: str = "crons.yaml", source: str | None = None) -> Contents:
    return read_contents([FileText(name, text.encode(), "crons")], source)


def complaint_of(text: str, name: str = "crons.yaml") -> str:
    with pytest.raises(UsageError) as caught:
        read(text, name)
    return caught.value.detail


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("jitter", "15m", 900),
        ("jitter", "1h30m", "90m"),
        ("spec.every", "900s", 900.0),
        ("catchup_window", None, "1d"),
        ("misfire_threshold", None, 10),
        ("catchup_window", 86400, "24h"),
        ("spec.cron", "0 2 * * *", ["0 2 * * *"]),
        ("spec.cron", "0  2 * * *", "0 2 * * * "),
        ("spec.rrule", "FREQ=DAILY", ["FREQ=DAILY"]),
        ("timezone", None, "UTC"),
        ("dst", None, {"gap": "shift"}),
        ("start_at", "2027-03-01T09:00:00+01:00", "2027-03-01T08:00:00Z"),
        ("start_at", "2027-03-01T08:00", "2027-03-01T08:00:00.000Z"),
        ("task.queue", None, "default"),
        ("task.retry", None, {"max_attempts": 20, "max_crashes": 3}),
        ("task.retry", {"min_backoff": "2h"}, {"min_backoff": 7200, "max_backoff": "2h"}),
        ("task.requires", ["b", "a"], ["a", "b"]),
        ("task.labels", None, {}),
        ("task.target", {"url": "http://a"}, {"url": "http://a", "method": "POST", "headers": {}}),
        ("spec.exclude", None, []),
        ("spec.exclude", ["2027-12-25", "2027-12-24"], ["2027-12-24", "2027-12-25"]),
        ("spec.dates", ["2027-03-01T09:00"], ["2027-03-01T09:00:00"]),
        ("spec.dates", ["2027-03-01T09:00"], ["2027-03-01T10:00+01:00"]),
        ("spec.calendar", [{"hour": 9}], [{"hour": "9"}]),
        ("pause_on_failure", None, False),
    ],
)
def test_what_means_the_same_has_one_form(path: str, one: object, other: object) -> None:
    assert canonical(with_field(path, one)) == canonical(with_field(path, other))


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("jitter", "15m", 901),
        ("spec.cron", ["0 2 * * *", "0 3 * * *"], ["0 3 * * *"]),
        ("start_at", "2027-03-01T09:00:00+01:00", "2027-03-01T09:00:00Z"),
        ("task.payload", {"a": None}, {}),
        ("task.payload", "1", 1),
        ("paused", None, False),
    ],
)
def test_what_differs_has_two_forms(path: str, one: object, other: object) -> None:
    assert canonical(with_field(path, one)) != canonical(with_field(path, other))


def test_times_without_an_offset_are_in_the_zone_of_the_schedule() -> None:
    here = {**PLAIN, "timezone": "Europe/Berlin", "start_at": "2027-07-01T09:00"}

    assert canonical(here)["start_at"] == "2027-07-01T07:00:00Z"


def test_what_a_server_sends_beyond_a_definition_is_left_out() -> None:
    sent = {
        **PLAIN,
        "name": "x",
        "version": 3,
        "state": "active",
        "is_new_here": 1,
        "jitter": {"odd": True},
        "spec": {"cron": ["0 2 * * *"], "every": None, "dates": [], "calendar": []},
    }

    found = canonical(sent, is_lenient=True)

    assert "version" not in found
    assert "is_new_here" not in found
    assert found["jitter"] == {"odd": True}
    assert found["spec"] == canonical(PLAIN)["spec"]


def test_calendar_entries_have_one_form() -> None:
    one = ["2027-12-24", {"from": "2027-12-31", "to": "2028-01-02T00:00:00"}, {"cron": "* *  * * SAT"}]
    other = [{"cron": "* * * * SAT"}, "2027-12-24", {"to": "2028-01-02T00:00", "from": "2027-12-31"}]

    assert canonical_dates(one) == canonical_dates(other)


def test_defaults_lie_under_each_definition() -> None:
    contents = read(
        "defaults:\n  timezone: Europe/Berlin\n  jitter: 30s\n  task: {queue: slow, labels: {team: blue}}\n"
        + HEAD
        + "    spec: {every: 1h}\n    jitter:\n    task: {type: report, labels: {app: a}, payload: {x: null}}\n"
    )

    assert contents.schedules["nightly"].definition == {
        "timezone": "Europe/Berlin",
        "spec": {"every": "1h"},
        "task": {"type": "report", "queue": "slow", "labels": {"team": "blue", "app": "a"}, "payload": {"x": None}},
    }


def test_the_source_is_the_given_one_else_that_of_the_file_else_its_name() -> None:
    said = "source: mine\n" + HEAD + TAIL

    assert read(said, source="given").schedules["nightly"].source == "given"
    assert read(said).schedules["nightly"].source == "mine"
    assert read(HEAD + TAIL).schedules["nightly"].source == "crons"
    assert read("schedules: {}\n").sources == ["crons"]


def test_several_documents_are_one_file_each_with_its_defaults() -> None:
    text = "defaults: {timezone: Europe/Berlin}\n" + HEAD + TAIL + "---\n" + HEAD.replace("nightly", "other") + TAIL

    contents = read(text)

    assert contents.schedules["nightly"].canonical["timezone"] == "Europe/Berlin"
    assert contents.schedules["other"].canonical["timezone"] == "UTC"


def test_toml_says_the_same_as_yaml() -> None:
    toml = """
        defaults.timezone = "Europe/Berlin"
        [calendars]
        holidays = [2027-12-24]
        [schedules.nightly]
        spec.cron = "0 2 * * *"
        start_at = 2027-03-01T09:00:00+01:00
        [schedules.nightly.task]
        type = "report"
    """
    yaml = (
        "defaults: {timezone: Europe/Berlin}\ncalendars: {holidays: [2027-12-24]}\n"
        + HEAD
        + "    start_at: 2027-03-01T09:00:00+01:00\n"
        + TAIL
    )

    assert read(toml, "crons.toml") == read(yaml)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "crons.yaml: it is empty"),
        ("---\n---\n", "crons.yaml: it is empty"),
        ("- a\n", "crons.yaml: it is not a mapping"),
        ("source: x\n", "crons.yaml: it has no `schedules:` at its top"),
        ("schedule: {}\n", "crons.yaml line 1: schedule is not known here; did you mean schedules?"),
        ("schedules:\n", None),
        ("schedules: [a]\n", "crons.yaml line 1: schedules is not a mapping"),
        ("source: 5\nschedules: {}\n", "crons.yaml line 1: source must be text"),
        (HEAD + TAIL + "    crn: x\n", "line 5: schedules.nightly.crn is not known here; there is"),
        (HEAD + TAIL + "    jittr: 5\n", "line 5: schedules.nightly.jittr is not known here; did you mean jitter?"),
        (HEAD + TAIL + "    jitter: soon\n", "line 5: schedules.nightly.jitter is not a duration: give seconds"),
        (HEAD + TAIL + "    jitter: -5\n", "schedules.nightly.jitter is not a duration: a duration is not negative"),
        (HEAD + TAIL + "    overlap: never\n", "line 5: schedules.nightly.overlap must be one of skip, buffer_one"),
        (HEAD + TAIL + "    paused: yes\n", "line 5: schedules.nightly.paused must be true or false"),
        (HEAD + TAIL + "    max_fires: 0\n", "schedules.nightly.max_fires must be a whole number from 1 on"),
        (HEAD + TAIL + "    start_at: tomorrow\n", "schedules.nightly.start_at is not a time such as"),
        (HEAD + TAIL + "    start_at: 0001-01-01T00:00:00+14:00\n", "nightly.start_at is beyond the calendar"),
        (
            HEAD + "    spec: {dates: ['0001-01-01T00:00+14:00']}\n    task: {type: a}\n",
            "nightly.spec.dates[0] is beyond the calendar",
        ),
        (HEAD + TAIL + "    timezone: 5\n", "schedules.nightly.timezone is a number, not text"),
        (HEAD + TAIL + "    origin: api\n", 'schedules.nightly.origin is always "file" here; leave it out'),
        (HEAD + TAIL + "    version: 3\n", "schedules.nightly.version is for single changes"),
        (HEAD + "    task: {type: a}\n", "line 2: schedules.nightly has no spec"),
        (HEAD + "    spec: {every: 5m}\n", "line 2: schedules.nightly has no task"),
        (HEAD + "    spec: {every: 5m}\n    task: {}\n", "line 4: schedules.nightly.task has no type"),
        (HEAD + "    spec: {}\n    task: {type: a}\n", "line 3: schedules.nightly.spec says nothing that fires"),
        (HEAD + "    spec: 0 2 * * *\n", "line 3: schedules.nightly.spec is text, not a mapping"),
        (HEAD + "    spec: {cron: 5}\n    task: {type: a}\n", "nightly.spec.cron is a number, not text or a list"),
        (
            HEAD + "    spec:\n      every: 5m\n      exclude:\n      - 2027-12-24\n      - {cal: x}\n",
            "line 7: schedules.nightly.spec.exclude[1].cal is not known here; there is calendar, cron, from, to",
        ),
        (
            HEAD + "    spec: {every: 5m, exclude: [{from: 2027-12-24}]}\n    task: {type: a}\n",
            "exclude[0] must be a day, or a mapping of from and to, cron, or calendar",
        ),
        (
            HEAD + "    spec: {every: 5m}\n    task:\n      type: a\n      labels: {v: 1}\n",
            "line 6: schedules.nightly.task.labels.v is a number, not text: put it in quotes",
        ),
        (HEAD + "    spec: {every: 5m}\n    task: {type: a, target: {}}\n", "nightly.task.target has no url"),
        (HEAD + TAIL + "  nightly:\n" + TAIL, "line 5: schedules.nightly is given twice"),
        (
            HEAD + TAIL + "---\n" + HEAD + TAIL,
            "line 7: schedules.nightly is given twice, first in crons.yaml line 2",
        ),
        ("defaults: {tsk: 1}\nschedules: {}\n", "crons.yaml line 1: defaults.tsk is not known here; did you mean task"),
        ("defaults: {jitter: x}\nschedules: {}\n", "crons.yaml line 1: defaults.jitter is not a duration"),
        ("calendars: {a: {days: []}}\n", "crons.yaml line 1: calendars.a.days is not known here"),
        ("calendars:\n  a:\n  - soon\n", "crons.yaml line 3: calendars.a[0] is not a time such as"),
        ("calendars: {a: 2027-12-24}\n", "crons.yaml line 1: calendars.a is text, not a list"),
        ("schedules:\n  '':\n" + TAIL, "schedules has a schedule without a name"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_file_line_and_key(text: str, sentence: str | None) -> None:
    if sentence is None:
        assert read(text).schedules == {}
        return

    said = complaint_of(text)

    assert sentence in said
    assert "\n" not in said


def test_the_same_name_in_two_files_is_refused() -> None:
    files = [FileText(name, (HEAD + TAIL).encode(), "crons") for name in ("a.yaml", "b.yaml")]

    with pytest.raises(UsageError, match=r"b.yaml line 2: schedules.nightly is given twice, first in a.yaml line 2"):
        read_contents(files)


def test_toml_errors_name_file_and_key() -> None:
    said = complaint_of('[schedules.nightly]\nspec.crn = "x"\ntask.type = "a"\n', "crons.toml")

    assert said == "crons.toml: schedules.nightly.spec.crn is not known here; did you mean cron?"


def test_one_definition_is_read_from_any_format() -> None:
    assert read_definition("a.json", b'{"spec": {"every": 5}, "task": {"type": "a"}, "note": null}') == {
        "spec": {"every": 5},
        "task": {"type": "a"},
    }
    with pytest.raises(UsageError, match="`duetime schedules apply -f` takes such a file"):
        read_definition("a.yaml", (HEAD + TAIL).encode())
    with pytest.raises(UsageError, match="it holds 2 documents and not one definition"):
        read_definition("a.yaml", b"a: 1\n---\nb: 1\n")


def test_one_calendar_is_read_as_a_list_or_a_mapping() -> None:
    assert read_calendar("a.yaml", b"- 2027-12-24\n") == ["2027-12-24"]
    assert read_calendar("a.toml", b"dates = [2027-12-24]\n") == ["2027-12-24"]
    with pytest.raises(UsageError, match="it is not a list of dates"):
        read_calendar("a.yaml", b"days: []\n")
    with pytest.raises(UsageError, match=r"a.yaml line 1: \[0\] is not a time"):
        read_calendar("a.yaml", b"- soon\n")
