"""The report: what was measured is on the page, what was not is left out, and what failed says why."""

import re
from pathlib import Path

import msgspec
import pytest
from bench.promises import Promise, judge
from bench.readme import BEGIN, END, tell_figures
from bench.report import main, merge, write
from bench.results import Measurement, Results, load

from bench_results import make_results, measure_alone, measure_peers, measured


def page_of(results: Results, folder: Path) -> str:
    write(results, folder)
    return (folder / "benchmarks.md").read_text("utf-8")


def plots_in(folder: Path) -> set[str]:
    return {file.stem for file in (folder / "benchmarks").glob("*.svg")}


def promises_of(results: Results, number: int) -> list[Promise]:
    return [promise for promise in judge(results) if promise.number == number]


def test_a_whole_run_has_every_section_and_plot(tmp_path: Path) -> None:
    page = page_of(make_results(*measure_peers(), *measure_alone()), tmp_path)

    headings = re.findall(r"^##+ (.*)$", page, re.MULTILINE)
    assert headings == [
        "Side by side",
        "How many times as fast duetime is",
        "What we hold ourselves to",
        "CPU time a task",
        "Sustained",
        "Drain",
        "Submit in bulk",
        "Submit 20 at a time",
        "duetime by itself",
        "The raw limit",
        "Waiting tasks",
        "Beside an old snapshot",
        "A soak",
        "HTTP targets",
        "Cost by load",
        "How each was set up",
    ]
    assert set(re.findall(r"\(benchmarks/([\w-]+)\.svg\)", page)) == plots_in(tmp_path)
    assert len(plots_in(tmp_path)) == 9


def test_every_row_of_a_table_has_as_many_cells_as_its_titles(tmp_path: Path) -> None:
    page = page_of(make_results(*measure_peers(), *measure_alone()), tmp_path)

    for block in re.findall(r"(?:^\|.*\|$\n?)+", page, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


def test_figures_and_ratios_are_those_of_the_file(tmp_path: Path) -> None:
    page = page_of(make_results(*measure_peers()), tmp_path)

    assert "| graphile-worker | 634 | 938 | 31,751 | 29,244 | 15,697 | 4.2 / 14 | 186 |" in page
    assert "| dramatiq (Redis) | 2,301 | – | – | 4,857 |" in page
    # Driven by wrk, then the SDK's; rates are ours by theirs, times theirs by ours.
    assert "| graphile-worker | 2.24 (1.55) | 6.29 (3.30) | 1.39 | 0.95 | 1.17 | 1.62 / 1.54 | 1.24 |" in page
    assert "2 cores, A processor, 24.6 GB" in page
    assert "`0123456789ab`" in page


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    page = page_of(make_results(measured("drain", "duetime", rate=10), measured("drain", "celery", rate=5)), tmp_path)

    assert plots_in(tmp_path) == {"drain"}
    assert "|  | drain a backlog |" in page
    assert "A soak" not in page
    assert "| celery (Redis) | 2.00 |" in page


def test_a_run_of_nothing_still_makes_a_page(tmp_path: Path) -> None:
    page = page_of(make_results(), tmp_path)

    assert page.startswith("# Benchmarks")
    assert "Side by side" not in page
    assert "What we hold ourselves to" not in page


def test_plots_of_a_former_run_do_not_stay(tmp_path: Path) -> None:
    write(make_results(*measure_peers()), tmp_path)

    write(make_results(measured("lag", "duetime", p50_ms=1, p99_ms=2), measured("lag", "bullmq", p50_ms=1)), tmp_path)

    assert plots_in(tmp_path) == {"lag"}


def test_what_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    broken = [Measurement(scenario, "pgqueuer", error="it did not\n  start | at all") for scenario in ("drain", "lag")]
    page = page_of(make_results(measured("drain", "duetime", rate=10), *broken, errors={"celery": "no such"}), tmp_path)

    assert "| pgqueuer | failed | failed |" in page
    assert r"- pgqueuer, drain, lag: it did not start \| at all" in page
    assert "- celery could not be installed: no such" in page
    assert ">failed<" in (tmp_path / "benchmarks" / "drain.svg").read_text()


def test_a_scenario_of_ours_that_failed_says_why(tmp_path: Path) -> None:
    page = page_of(make_results(Measurement("soak", "duetime", error="the node went away")), tmp_path)

    assert "### A soak\n\nFailed: the node went away" in page
    assert plots_in(tmp_path) == set()


def test_folders_of_the_machine_are_not_told(tmp_path: Path) -> None:
    place = "/".join(("", "home", "ada", "bench", "peers", "x.mjs"))
    broken = Measurement("drain", "bullmq", error=f"no package in {place}:3 for redis://127.0.0.1:6379/0 (./a/b)")

    page = page_of(make_results(measured("drain", "duetime", rate=10), broken), tmp_path)

    assert "no package in …/x.mjs:3 for redis://127.0.0.1:6379/0 (./a/b)" in page


def test_of_two_ways_to_the_raw_limit_the_faster_one_counts(tmp_path: Path) -> None:
    rows: list[dict[str, float | str]] = [
        {"move": "bulk", "layout": "one", "rate": 5, "client": 11, "server": 12},
        {"move": "bulk", "layout": "two", "rate": 9, "client": 21, "server": 22},
    ]

    page = page_of(make_results(measured("limit", "duetime", "minimal", rows=rows, bulk=9)), tmp_path)

    assert "| raw limit: four bare tables | submit in bulk | 21 | 22 |" in page
    assert "| 11 | 12 |" not in page


def test_a_quick_run_warns(tmp_path: Path) -> None:
    assert "not for comparing" in page_of(make_results(is_quick=True), tmp_path)
    assert "not for comparing" not in page_of(make_results(), tmp_path)


def test_all_ten_promises_are_judged() -> None:
    promises = judge(make_results(*measure_peers(), *measure_alone()))

    assert {promise.number for promise in promises} == set(range(1, 11))
    assert all(promise.holds is not None for promise in promises)
    # The double's node grew by 23 MB while it took the waiting tasks in.
    assert [promise.what for promise in promises if not promise.holds] == [
        "With 10 million waiting tasks, due from tomorrow on: memory of a node",
        "With 10 million waiting tasks, due later today: memory of a node",
    ]


@pytest.mark.parametrize(("ours", "holds"), [(899.0, False), (900.0, True)])
def test_a_ratio_holds_from_its_bound_on(ours: float, holds: bool) -> None:
    results = make_results(measured("drain", "duetime", rate=ours), measured("drain", "graphile-worker", rate=1000))

    (promise,) = promises_of(results, 2)

    assert promise.holds is holds


@pytest.mark.parametrize(
    ("number", "scenario", "figures"),
    [
        (4, "lag", {"p50_ms": 3.1, "p99_ms": 12.1}),
        (4, "burst", {"early": 1, "last_ms": 200}),
        (6, "snapshot", {"last_percent": 69.9, "most_entries_per_task": 5.1}),
        (
            7,
            "soak",
            {"worst_p99_ms": 250, "within_5s_percent": 99.8, "memory_first_mb": 50, "memory_last_mb": 56, "errors": 1},
        ),
        (8, "targets", {"rate": 3_999}),
        (10, "load", {"idle_percent": 2.0}),
    ],
)
def test_what_is_beyond_its_bound_does_not_hold(number: int, scenario: str, figures: dict[str, float]) -> None:
    theirs = measured("burst", "graphile-worker", early=0, last_ms=186)

    judged = [
        promise
        for promise in promises_of(make_results(measured(scenario, "duetime", **figures), theirs), number)
        if promise.holds is not None
    ]

    assert judged
    assert not any(promise.holds for promise in judged)


def test_a_peer_that_failed_leaves_its_promise_open(tmp_path: Path) -> None:
    results = make_results(
        measured("drain", "duetime", rate=10), Measurement("drain", "graphile-worker", error="it broke")
    )

    (promise,) = promises_of(results, 2)

    assert promise.holds is None
    assert "not measured" in promise.figure


def test_a_stored_run_is_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    make_results(*measure_peers(), *measure_alone()).save(file)

    assert main([str(file), "--output", str(tmp_path / "docs")]) == 0
    assert main([str(file), "--output", str(tmp_path / "again")]) == 0

    first, second = ((tmp_path / folder / "benchmarks.md").read_text() for folder in ("docs", "again"))
    assert first == second
    assert "wrote " in capsys.readouterr().out


def test_a_scenario_is_taken_whole_from_the_first_run_that_has_it(tmp_path: Path) -> None:
    first = make_results(measured("drain", "duetime", rate=10), measured("drain", "pgqueuer", rate=5))
    second = msgspec.structs.replace(
        make_results(
            measured("drain", "duetime", rate=8_888),
            measured("drain", "bullmq", rate=7_777),
            measured("lag", "duetime", p50_ms=3, p99_ms=4),
        ),
        commit="f" * 40,
    )
    for place, run in enumerate((first, second, first)):
        run.save(tmp_path / f"{place}.json")

    assert main([*(str(tmp_path / f"{place}.json") for place in range(3)), "--output", str(tmp_path)]) == 0

    page = (tmp_path / "benchmarks.md").read_text()
    measured_rows = [line for line in page.splitlines() if line.startswith("| measured |")]
    assert [line.split("|")[2].split(":")[0].strip() for line in measured_rows] == ["drain", "lag"]
    assert "`0123456789ab`" in measured_rows[0]
    assert "`ffffffffffff`" in measured_rows[1]
    assert "7,777" not in page
    assert "8,888" not in page
    assert "3.0 / 4.0" in page


def test_a_part_that_was_measured_anew_joins_what_the_page_was_made_of(tmp_path: Path) -> None:
    whole = make_results(measured("drain", "duetime", rate=10), measured("lag", "duetime", p50_ms=3, p99_ms=4))
    write(msgspec.structs.replace(whole, arguments=["--output", "/mnt/somebody/results"]), tmp_path)
    anew = tmp_path / "anew.json"
    make_results(measured("drain", "duetime", rate=8_888)).save(anew)
    stored = tmp_path / "benchmarks" / "results.json"
    assert "somebody" not in stored.read_text()

    assert main([str(anew), str(stored), "--output", str(tmp_path)]) == 0

    page = (tmp_path / "benchmarks.md").read_text()
    assert "8,888" in page
    assert "3.0 / 4.0" in page
    assert [[each.scenario for each in run.measurements] for run in load(stored)] == [["drain"], ["lag"]]


def test_peers_of_any_run_are_on_the_page(tmp_path: Path) -> None:
    compared = make_results(*measure_peers())
    alone = make_results(measured("soak", "duetime", worst_p99_ms=1))
    alone = msgspec.structs.replace(alone, peers=[peer for peer in alone.peers if peer.name == "duetime"], versions={})

    write(alone, tmp_path, compared)

    page = (tmp_path / "benchmarks.md").read_text()
    assert "| graphile-worker | 634" in page.replace("**", "")
    assert "Redis 7.0.15" in page


def test_a_run_on_another_machine_says_so(tmp_path: Path) -> None:
    here = make_results(measured("lag", "duetime", p50_ms=1, p99_ms=2))
    machine = msgspec.structs.replace(here.machine, cpu="Another processor")
    there = msgspec.structs.replace(make_results(measured("drain", "duetime", rate=10)), machine=machine)

    write(here, tmp_path, there)

    page = (tmp_path / "benchmarks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| measured |")]
    assert ["Another processor" in row for row in rows] == [False, True]
    assert "Not all of it was measured on one machine" in page


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("{")

    assert main([str(tmp_path / "bad.json")]) == 2
    assert main([str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("cannot be read") == 2


def test_readme_gets_its_figures_from_the_results(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# A\n\n- **Fast**: <!-- figures -->old\nwords<!-- /figures -->, and more.\n", "utf-8")

    write(make_results(*measure_peers()), tmp_path / "docs")

    assert readme.read_text("utf-8") == (
        "# A\n\n- **Fast**: <!-- figures -->18,400 tasks a second produced and run at once (1.17 × graphile-worker) "
        "and 27,900 tasks a second drained from a backlog (0.95 × graphile-worker) on 2 shared cores"
        "<!-- /figures -->, and more.\n"
    )


def test_readme_of_the_repository_says_what_its_page_says() -> None:
    root = Path(__file__).parents[2]

    figures = tell_figures(merge(load(root / "docs" / "benchmarks" / "results.json")))

    assert figures
    assert f"{BEGIN}{figures}{END}" in (root / "README.md").read_text("utf-8")


def test_bullmq_is_judged_where_it_is_as_durable_and_shown_where_it_is_not(tmp_path: Path) -> None:
    results = make_results(*measure_peers())

    judged = {(promise.what, promise.target): promise for promise in promises_of(results, 3)}

    twenty = judged["Submit 20 at a time, driven by wrk", "at least 1.0 × bullmq-synced"]
    one = judged["Submit one by one, driven by wrk", "at least 1.0 × bullmq-synced"]
    assert (twenty.figure, twenty.holds) == ("2.18 × (5,900 by 2,702 a second)", True)
    assert (one.figure, one.holds) == ("1.29 × (1,420 by 1,101 a second)", True)
    assert not any(target.endswith("× bullmq") for _, target in judged)
    assert "| bullmq (Redis) | 2,585 |" in page_of(results, tmp_path)
