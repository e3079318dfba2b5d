"""What people read: it fits, it is aligned, and nothing in it steers a terminal."""

import sys
from datetime import UTC, datetime, timedelta

import pytest

from duetime.cli.output import Column, Table, counted, local_time, printable, shorten, span, whole_time, width_of
from duetime.cli.tasks.show import print_explanation, print_task
from duetime.sdk.shapes.tasks import Explanation, Reason, Task

COLUMNS = (Column("ID"), Column("TYPE", shrinks=True), Column("QUEUE", plain="default"))


class Terminal:
    """Standard output that says it is a terminal of some width."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        self.text = ""
        monkeypatch.setattr(sys, "stdout", self)
        monkeypatch.setenv("COLUMNS", str(columns))

    def write(self, text: str) -> None:
        self.text += text

    def isatty(self) -> bool:
        return True


def test_a_table_is_aligned_and_whole_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Table(COLUMNS).add([("1", "a" * 200, "default"), ("22", "b", "default")])

    titles, first, second = capsys.readouterr().out.splitlines()
    assert titles.index("QUEUE") == first.index("default") == second.index("default")
    assert "a" * 200 in first
    assert "\x1b" not in titles


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(monkeypatch, 30)

    Table(COLUMNS).add([("1", "a" * 200, "other"), ("22", "b", "default")])

    assert [len(line) <= 30 for line in terminal.text.splitlines()] == [True] * 3
    assert "a…" in terminal.text
    assert "\x1b" not in terminal.text


def test_what_says_nothing_is_left_out_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch, 20)
    monkeypatch.setenv("NO_COLOR", "1")

    Table(COLUMNS).add([("1", "a" * 12, "default")])

    assert terminal.text.splitlines() == ["ID  TYPE", "1   " + "a" * 12]


def test_a_long_list_has_its_titles_once(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(COLUMNS)
    table.add([("1", "a", "q")])
    table.add([("2", "b", "q")])

    assert capsys.readouterr().out.count("TYPE") == 1


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(monkeypatch, 80)
    Table(COLUMNS).add([("1", "a", "q")])
    assert "\x1b[1mID\x1b[0m" in terminal.text.replace(" ", "")

    terminal.text = ""
    monkeypatch.setenv(variable, value)
    Table(COLUMNS).add([("1", "a", "q")])
    assert "\x1b" not in terminal.text


def test_nothing_from_outside_steers_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\x9bd\u202e") == "a�[2Jb c�d�"


def test_wide_letters_count_twice() -> None:
    assert width_of("日本") == 4
    assert width_of("é") == 1
    assert shorten("日本語", 4) == "日…"


def test_times_are_the_reader_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)

    assert whole_time(now + timedelta(minutes=5), now).endswith("(in 5m)")
    assert whole_time(now - timedelta(days=3, hours=2), now).endswith("(3d 2h ago)")
    assert datetime.fromisoformat(whole_time(now, now).partition(" (")[0]) == now
    assert local_time(datetime(2001, 2, 3, 12, 0, tzinfo=UTC)).startswith("2001-02-0")
    assert local_time(None) == "-"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0123, "12ms"), (5.25, "5.2s"), (61, "1m 1s"), (3600, "1h"), (90_000, "1d 1h")]
)
def test_a_span_has_two_places(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_one_is_not_many() -> None:
    assert (counted(1, "task"), counted(2_000, "task")) == ("1 task", "2,000 tasks")


def test_until_when_a_reason_holds_is_no_part_of_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """It may end with another time, as that of the dead letter which a task would be."""
    due = datetime(2030, 1, 31, 12, tzinfo=UTC)
    print_explanation(Explanation("x", "scheduled", due, [Reason("time", "it is given up at noon", due)]))

    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["because", "it is given up at noon"] in lines
    assert ["until", whole_time(due)] in lines


def test_a_wake_that_is_the_time_in_milliseconds_is_no_other_time(capsys: pytest.CaptureFixture[str]) -> None:
    run_at = datetime(2030, 1, 31, 12, 0, 0, 509_932, UTC)
    wake = run_at.replace(microsecond=510_000)

    print_task(Task("x", state="scheduled", run_at=run_at, next_run_at=wake))
    print_task(Task("y", state="retrying", run_at=run_at, next_run_at=wake + timedelta(seconds=1)))

    assert capsys.readouterr().out.count("next run at") == 1
