"""docs/benchmarks.md and its plots, from the results of a run, or of several.

`write(results, folder)` is what `python -m bench` calls at its end;
`python -m bench.report [RESULTS.json …]` does it anew from stored files.  Every
number on the page comes from them.  A scenario is taken as a whole from the first
file that has it, because only figures that were measured side by side can be compared;
a scenario in none of them is left out; a peer that failed is shown with the reason.  The
results that the page was made of are beside it (`benchmarks/results.json`), so that a
part can be measured anew:
`python -m bench.report NEW.json docs/benchmarks/results.json`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import alone, promises, readme
from bench.heading import add_heading
from bench.page import Page, cell, ms, rate, table
from bench.plots import Bar, draw_bars
from bench.results import Measurement, PeerFacts, Results, find_latest, load, save_all

ROOT = Path(__file__).parents[1]
OURS = "duetime"
BY_WRK = "duetime, driven by wrk"
SERVERS = {"postgres": "PostgreSQL", "redis": "Redis", "duetime": "PostgreSQL"}
PARTS = {"producer": "producer", "wrk": "producer", "workers": "workers", "node": "node", "server": "server"}


@dataclass(frozen=True)
class Compared:
    """One column of the tables that compare peers."""

    title: str
    scenario: str
    variant: str = ""
    figures: tuple[str, ...] = ("rate",)

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.figures != ("rate",)

    @property
    def name(self) -> str:
        """The title without its units."""
        return self.title.removesuffix(", ms").removesuffix(" ms")


COLUMNS = (
    Compared("submit one by one", "submit", "one"),
    Compared("submit 20 at a time", "submit", "twenty"),
    Compared("submit in bulk", "submit", "bulk"),
    Compared("drain a backlog", "drain"),
    Compared("sustained, produce and consume", "sustained"),
    Compared("start after submit, p50 / p99 ms", "lag", "", ("p50_ms", "p99_ms")),
    Compared("2,000 tasks due in one second: last start, ms", "burst", "", ("last_ms",)),
)
PLOTS = {
    ("submit", "one"): ("submit-one", "Submit one by one", "tasks a second, one connection; more is better"),
    ("submit", "twenty"): ("submit-twenty", "Submit 20 at a time", "tasks a second; more is better"),
    ("submit", "bulk"): ("submit-bulk", "Submit in bulk", "tasks a second, each with its bulk API; more is better"),
    ("drain", ""): ("drain", "Drain a backlog", "tasks a second; more is better"),
    ("sustained", ""): ("sustained", "Sustained: produce and consume at once", "tasks a second; more is better"),
    ("lag", ""): ("lag", "Start after submission, 20 tasks a second", "milliseconds, p50 / p99; less is better"),
    ("burst", ""): (
        "burst",
        "2,000 tasks due in one second: last start",
        "milliseconds after it; less is better",
    ),
}


def write(results: Results, folder: Path, *more: Results) -> None:
    """Write the page and its plots; plots of an earlier run are removed."""
    page = Page()
    runs = _take_apart(results, *more)
    add_heading(page, runs)
    results = merge(runs)
    _side_by_side(page, results)
    _ratios(page, results)
    _promises(page, results)
    _cpu(page, results)
    alone.add(page, results)
    _tuning(page, results)
    page.save(folder, "benchmarks")
    save_all(runs, folder / "benchmarks" / "results.json")
    if (file := folder.parent / "README.md").exists():
        readme.update(file, results)


def merge(runs: list[Results]) -> Results:
    """The parts of several runs that the page shows, as one run."""
    return msgspec.structs.replace(
        runs[0], measurements=[each for run in runs for each in run.measurements], peers=_all_peers(runs)
    )


def _take_apart(*runs: Results) -> list[Results]:
    """Keep each scenario only in the first run that has it; leave out runs of which nothing is left."""
    seen: set[str] = set()
    left = []
    for run in runs:
        own = [each for each in run.measurements if each.scenario not in seen]
        seen |= {each.scenario for each in own}
        if own or not left:
            left.append(msgspec.structs.replace(run, measurements=own))
    return left


def _all_peers(runs: list[Results]) -> list[PeerFacts]:
    """Every peer of any run, in the order of the run with the most peers."""
    by_name: dict[str, PeerFacts] = {}
    for run in sorted(runs, key=lambda run: -len(run.peers)):
        for peer in run.peers:
            by_name.setdefault(peer.name, peer)
    return [*by_name.values()]


def _side_by_side(page: Page, results: Results) -> None:
    columns = [column for column in COLUMNS if _all_of(results, column.scenario, column.variant)]
    if not columns:
        return
    page.add("## Side by side")
    page.add("The figures are tasks per second, or milliseconds where the title says so.")
    rows = []
    for peer in results.peers:
        name = f"**{peer.name}**" if peer.name == OURS else _title(peer)
        rows.append([name, *(_figure_cell(results, column, peer.name) for column in columns)])
        if peer.name == OURS and any(each.variant.endswith(" wrk") for each in results.measurements):
            rows.append([BY_WRK, *(_figure_cell(results, column, OURS, " wrk") for column in columns)])
    rows += _limit_row(results, columns)
    page.add(table(["", *(column.title for column in columns)], rows))
    _errors(page, results)
    for (scenario, variant), (file, title, subtitle) in PLOTS.items():
        bars = list(_bars(results, scenario, variant))
        if len(bars) > 1:
            page.draw(file, title, draw_bars(title, subtitle, bars))


def _title(peer: PeerFacts) -> str:
    server = SERVERS.get(peer.server, peer.server)
    return peer.name if server == "PostgreSQL" else f"{peer.name} ({server})"


def _all_of(results: Results, scenario: str, variant: str) -> list[Measurement]:
    return [each for each in results.measurements if (each.scenario, each.variant) == (scenario, variant)]


def _figure_cell(results: Results, column: Compared, peer: str, suffix: str = "") -> str:
    if suffix and not column.variant:
        return "–"
    found = [each for each in _all_of(results, column.scenario, column.variant + suffix) if each.peer == peer]
    if not found:
        return "–"
    if found[0].error:
        return "failed"
    show = ms if column.is_time else rate
    return " / ".join(show(found[0].figures.get(name)) for name in column.figures)


def _limit_row(results: Results, columns: Sequence[Compared]) -> list[list[str]]:
    limit = results.find("limit", OURS, "minimal")
    if limit is None:
        return []
    names = {
        ("submit", "one"): "one",
        ("submit", "bulk"): "bulk",
        ("drain", ""): "drain",
        ("sustained", ""): "sustained",
    }
    cells = [rate(limit.figures.get(names.get((column.scenario, column.variant), ""))) for column in columns]
    return [["_raw limit: the same moves by SQL alone_", *cells]]


def _errors(page: Page, results: Results) -> None:
    """Each reason once, however many figures it cost."""
    missing = [f"- {peer.name} could not be installed: {cell(peer.error)}" for peer in results.peers if peer.error]
    uninstalled = {peer.name for peer in results.peers if peer.error}
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in results.measurements:
        if each.error and each.peer not in uninstalled:
            what = f"{each.scenario} ({each.variant})" if each.variant else each.scenario
            reasons.setdefault((each.peer, cell(each.error)), []).append(what)
    missing += [f"- {peer}, {', '.join(of)}: {reason}" for (peer, reason), of in reasons.items()]
    if missing:
        page.add("What failed, and why:")
        page.add("\n".join(missing))


def _bars(results: Results, scenario: str, variant: str) -> Iterable[Bar]:
    """One bar for each peer, the best first; peers that failed come last."""
    is_time = scenario in ("lag", "burst")
    names = {peer.name: _title(peer) for peer in results.peers}
    good, failed = [], []
    for suffix in ("", " wrk"):
        for each in _all_of(results, scenario, variant + suffix) if variant or not suffix else []:
            name = BY_WRK if suffix else names.get(each.peer, each.peer)
            if each.error:
                failed.append(Bar(name, None, "failed", each.peer == OURS))
            elif (bar := _bar(name, each, scenario)) is not None:
                good.append(bar)
    return [*sorted(good, key=lambda bar: bar.value or 0.0, reverse=not is_time), *failed]


def _bar(name: str, measurement: Measurement, scenario: str) -> Bar | None:
    figures, is_ours = measurement.figures, measurement.peer == OURS
    key = {"lag": "p50_ms", "burst": "last_ms"}.get(scenario, "rate")
    value = figures.get(key)
    if value is None:
        return None
    seen = [run.figures[key] for run in measurement.runs if key in run.figures]
    spread = (min(seen), max(seen)) if len(seen) > 1 and scenario != "lag" else None
    if scenario == "lag":
        p99 = figures.get("p99_ms")
        return Bar(name, value, f"{ms(value)} / {ms(p99)}", is_ours, p99)
    # A start may be early, but a bar begins at zero.
    return Bar(name, max(0.0, value), rate(value) if key == "rate" else ms(value), is_ours, spread=spread)


def _ratios(page: Page, results: Results) -> None:
    columns = [column for column in COLUMNS if results.find(column.scenario, OURS, column.variant) is not None]
    rows = []
    for peer in results.peers:
        cells = [_ratio_cell(results, column, peer.name) for column in columns]
        if peer.name != OURS and any(each != "–" for each in cells):
            rows.append([_title(peer), *cells])
    if not rows:
        return
    page.add("## How many times as fast duetime is")
    page.add(
        "For rates this is our figure divided by theirs, for times theirs divided by ours: above 1 duetime is "
        "faster. For submissions one by one and 20 at a time, the first figure is with wrk as the client, if it "
        "was measured, and the one in brackets is with the SDK. wrk needs so little itself that its figure is "
        "that of the server; the SDK's figure includes a Python program."
    )
    page.add(table(["duetime beside", *(column.name for column in columns)], rows))


def _ratio_cell(results: Results, column: Compared, peer: str) -> str:
    scenario, variant = column.scenario, column.variant
    shown = []
    for name in column.figures:
        theirs = results.figure(name, scenario, peer, variant)
        by_sdk = results.figure(name, scenario, OURS, variant)
        by_wrk = results.figure(name, scenario, OURS, f"{variant} wrk") if scenario == "submit" else None
        ours = by_wrk if by_wrk is not None else by_sdk
        if not theirs or not ours:
            continue
        ratio = theirs / ours if column.is_time else ours / theirs
        in_brackets = f" ({by_sdk / theirs:.2f})" if by_wrk is not None and by_sdk is not None else ""
        shown.append(f"{ratio:.2f}{in_brackets}")
    return " / ".join(shown) or "–"


def _promises(page: Page, results: Results) -> None:
    judged = promises.judge(results)
    if not any(each.holds is not None for each in judged):
        return
    page.add("## What we hold ourselves to")
    page.add(f"These are our own targets, checked against the figures on this page. {promises.summarize(judged)}")
    verdicts = {True: "holds", False: "**does not hold**", None: "–"}
    rows, previous = [], 0
    for each in judged:
        number = str(each.number) if each.number != previous else ""
        rows.append([number, each.what, each.target, cell(each.figure), verdicts[each.holds]])
        previous = each.number
    page.add(table(["", "what", "target", "measured", ""], rows))


def _cpu(page: Page, results: Results) -> None:
    sections: list[tuple[str, Callable[[Measurement], bool]]] = [
        ("sustained", lambda each: each.scenario == "sustained"),
        ("drain", lambda each: each.scenario == "drain"),
        ("submit in bulk", lambda each: (each.scenario, each.variant) == ("submit", "bulk")),
        ("submit 20 at a time", lambda each: each.scenario == "submit" and each.variant.startswith("twenty")),
    ]
    parts = []
    for title, wanted in sections:
        found = [each for each in results.measurements if wanted(each) and each.cpu]
        if found:
            parts += [f"### {title.capitalize()}", _cpu_table(results, found)]
    if not parts:
        return
    page.add("## CPU time a task")
    page.add(
        "This is the processor time in microseconds that each part spends on one task. It is steadier than a rate, "
        "and it is what you pay for. The server is PostgreSQL or Redis. A node is duetime's own process."
    )
    for part in parts:
        page.add(part)


def _cpu_table(results: Results, measurements: Sequence[Measurement]) -> str:
    names = {peer.name: _title(peer) for peer in results.peers}
    columns = [
        part
        for part in dict.fromkeys(PARTS.values())
        if any(PARTS.get(name) == part for m in measurements for name in m.cpu)
    ]
    rows = []
    for each in sorted(measurements, key=lambda each: sum(each.cpu.values())):
        spent: dict[str, float] = {}
        for name, microseconds in each.cpu.items():
            spent[PARTS.get(name, name)] = spent.get(PARTS.get(name, name), 0.0) + microseconds
        name = names.get(each.peer, each.peer)
        if each.peer == OURS:
            name = f"**{BY_WRK if each.variant.endswith(' wrk') else name}**"
        if each.variant == "no keys":
            name += ", without idempotency keys"
        cells = [f"{spent[part]:,.0f}" if part in spent else "–" for part in columns]
        rows.append([name, *cells, f"{sum(each.cpu.values()):,.0f}"])
    return table(["", *columns, "all"], rows)


def _tuning(page: Page, results: Results) -> None:
    if not results.peers:
        return
    page.add("## How each was set up")
    rows = [
        [
            peer.name,
            SERVERS.get(peer.server, peer.server),
            ", ".join(f"`{package}`" for package in peer.packages) or "as checked out",
            str(peer.workers or "–"),
            cell(peer.tuning) or "–",
        ]
        for peer in results.peers
    ]
    page.add(table(["", "store", "packages", "worker processes", "settings"], rows))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description="Write the report of stored runs; a scenario is taken from the first that has it.",
    )
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS.json", help="(the latest of .bench/results)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", metavar="DIR", help="(docs)")
    arguments = parser.parse_args(words)
    latest = find_latest(ROOT / ".bench" / "results")
    files: list[Path] = arguments.results or ([latest] if latest else [])
    if not files:
        print("bench.report: there are no results yet: run make bench", file=sys.stderr)
        return 2
    runs: list[Results] = []
    for file in files:
        try:
            runs += load(file)
        except (OSError, msgspec.DecodeError) as error:
            print(f"bench.report: {file} cannot be read: {error}", file=sys.stderr)
            return 2
    write(runs[0], arguments.output, *runs[1:])
    print(f"wrote {arguments.output / 'benchmarks.md'} from {', '.join(map(str, files))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
