"""What the fairness scenarios count and write, on records made by hand."""

from pathlib import Path

import pytest
from bench.fairness import paper
from bench.fairness.__main__ import main
from bench.fairness.caps import Held, _join, _most_at_once
from bench.fairness.outcome import Outcome
from bench.fairness.records import Notes, Start, Starts, by_second, percentile, rate_between

SUCCEEDED, RELEASED, LAPSED = 1, 5, 4


def row(task: str, outcome: int, completed_at: float) -> dict[str, object]:
    return {"task": task, "number": 1, "outcome": outcome, "picked_at": 0.0, "completed_at": completed_at}


def journal(folder: Path, *lines: str) -> list[Path]:
    file = folder / "journal"
    file.write_text("".join(f"{line}\n" for line in lines))
    return [file]


def test_what_is_noted_is_read_once_and_a_half_written_record_later(tmp_path: Path) -> None:
    file = tmp_path / "starts"
    starts, notes = Starts(file), Notes(str(file))
    assert starts.read() == []
    notes.note(7, 1.5)
    notes.write()

    [start] = starts.read()
    whole = file.read_bytes()
    with file.open("ab") as more:
        more.write(whole[:10])

    assert (start.who, start.submitted_at) == (7, 1.5)
    assert starts.read() == []
    with file.open("ab") as more:
        more.write(whole[10:])
    assert starts.read() == [start]


def test_percentiles_and_rates() -> None:
    starts = [Start(1, 0.0, second / 10) for second in range(100)]

    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5.0], 0.5) == 5.0
    assert rate_between(starts, 2.0, 4.0) == 10.0
    assert by_second(starts, 8.0, 3) == [(0.0, 10.0), (1.0, 10.0), (2.0, 0.0)]


def test_an_attempt_ends_by_its_journal_or_by_the_databases_word(tmp_path: Path) -> None:
    journals = journal(
        tmp_path, "b ended 1 1.0", "e ended 1 2.0", "b killed 1 1.0", "b stopped 1 1.0", "e stopped 1 20.0"
    )
    rows = [row("ended", SUCCEEDED, 2.5), row("killed", LAPSED, 9.0), row("stopped", RELEASED, 10.0)]

    held = _join(journals, rows)  # type: ignore[arg-type]

    assert [(each.over_at, each.is_overrun) for each in held] == [(2.0, False), (9.0, False), (10.0, True)]


def test_who_ends_as_another_begins_is_not_counted_with_it() -> None:
    assert _most_at_once([Held(0.0, 1.0, None), Held(1.0, 2.0, None), Held(1.5, 3.0, None)]) == 2


def test_the_page_shows_every_figure_with_its_verdict_and_its_plots(tmp_path: Path) -> None:
    good, bad = Outcome(1, "Good", "How."), Outcome(4, "Bad", "", error="no | such /etc/secret/path")
    good.ask("rate", 100.5, " a second", least=98.0, most=102.0)
    good.ask("wait", 3.0, " s", most=1.0)
    good.tell("attempts", 1_234)
    good.plots.append(("plot", "A plot", "<svg/>"))

    paper.write([good, bad], tmp_path, is_quick=True)

    page = (tmp_path / "fairness.md").read_text()
    assert "| rate | at least 98 a second and at most 102 a second | 100 a second | holds |" in page
    assert "| wait | at most 1 s | 3 s | does not hold |" in page
    assert "| attempts | – | 1,234 |  |" in page
    assert "![A plot](fairness/plot.svg)" in page
    assert (tmp_path / "fairness" / "plot.svg").read_text() == "<svg/>"
    assert "secret" not in page
    assert not good.holds
    assert not bad.holds


def test_a_scenario_that_was_measured_apart_is_put_into_the_page(tmp_path: Path) -> None:
    paper.write([Outcome(1, "First", "How."), Outcome(7, "Old", "Old way.")], tmp_path, is_quick=False)
    again, new = Outcome(7, "New", "New way."), Outcome(4, "Between", "How.")
    again.plots.append(("plot", "A plot", "<svg/>"))

    paper.add([again, new], tmp_path)

    page = (tmp_path / "fairness.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == ["# Fairness, measured", "## 1. First", "## 4. Between", "## 7. New"]
    assert "Old way." not in page
    # The page's own circumstances, and those of the two that were added.
    assert page.count(", commit ") == 3
    assert (tmp_path / "fairness" / "plot.svg").read_text() == "<svg/>"


def test_only_takes_numbers_that_there_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fairness", "--only", "1,8"])

    with pytest.raises(SystemExit):
        main()

    assert "takes numbers from 1 to 7" in capsys.readouterr().err
