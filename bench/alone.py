"""The part of the report that is about duetime alone: its limits, and what it does over time."""

import math
from collections.abc import Callable, Sequence

from bench.page import Page, cell, ms, rate, table
from bench.plots import Line, Panel, draw_lines
from bench.promises import OURS
from bench.results import Measurement, Results

Row = dict[str, float | str]

_MOVES = {"one": "submit one by one", "bulk": "submit in bulk", "drain": "drain", "sustained": "sustained"}
_LAYERS = {
    "minimal": "raw limit: four bare tables",
    "statements": "our schema and statements",
    "lifecycle": "the modules around them",
}
_WAITING = {
    "sustained": ("sustained, a second", rate),
    "drain": ("drain, a second", rate),
    "p50_ms": ("start after submission p50, ms", ms),
    "p99_ms": ("start after submission p99, ms", ms),
    "burst_last_ms": ("2,000 due in one second: last start, ms", ms),
}


def add(page: Page, results: Results) -> None:
    """A section for each of the scenarios that were measured."""
    sections: list[tuple[str, str, Callable[[Page, Results], None]]] = [
        ("limit", "The raw limit", _add_limit),
        ("waiting", "Waiting tasks", _add_waiting),
        ("snapshot", "Beside an old snapshot", _add_snapshot),
        ("soak", "A soak", _add_soak),
        ("targets", "HTTP targets", _add_targets),
        ("load", "Cost by load", _add_load),
    ]
    is_begun = False
    for scenario, title, add_section in sections:
        made = [each for each in results.measurements if each.scenario == scenario]
        if not made:
            continue
        if not is_begun:
            page.add("## duetime by itself")
            is_begun = True
        page.add(f"### {title}")
        for each in made:
            if each.error:
                page.add(f"Failed{f' ({each.variant})' if each.variant else ''}: {cell(each.error)}")
        if not all(each.error for each in made):
            add_section(page, results)


def _add_limit(page: Page, results: Results) -> None:
    page.add(
        "What this machine's PostgreSQL does when the moves of a task are made by SQL alone, in batches of 1,000 and "
        "without HTTP, and what is left of it layer by layer. Tasks a second."
    )
    rows = []
    for variant, title in _LAYERS.items():
        if (limit := results.find("limit", OURS, variant)) is not None:
            rows.append([title, *(rate(limit.figures.get(name)) for name in _MOVES)])
    ours = {
        "one": _first(results.figure("rate", "submit", OURS, "one wrk"), results.figure("rate", "submit", OURS, "one")),
        "bulk": results.figure("rate", "submit", OURS, "bulk"),
        "drain": results.figure("rate", "drain", OURS),
        "sustained": results.figure("rate", "sustained", OURS),
    }
    raw = results.find("limit", OURS, "minimal")
    if any(value is not None for value in ours.values()):
        rows.append(["**duetime**, through HTTP and the SDK", *(rate(ours[name]) for name in _MOVES)])
        if raw is not None:
            shares = [_percent(ours[name], raw.figures.get(name)) for name in _MOVES]
            rows.append(["of the raw limit", *shares])
    page.add(table(["", *_MOVES.values()], rows))
    spent = [
        [title, _MOVES.get(str(row.get("move")), str(row.get("move"))), _us(row, "client"), _us(row, "server")]
        for variant, title in _LAYERS.items()
        for row in _best_rows(results.find("limit", OURS, variant))
    ]
    if spent:
        page.add("CPU microseconds a task of the programs that make the moves, and of PostgreSQL:")
        page.add(table(["", "move", "programs", "PostgreSQL"], spent))


def _best_rows(limit: Measurement | None) -> list[Row]:
    """For each move, the division of work that gave the figure."""
    best: dict[str, Row] = {}
    for row in _rows(limit):
        move = str(row.get("move"))
        if move not in best or (_number(row.get("rate")) or 0.0) > (_number(best[move].get("rate")) or 0.0):
            best[move] = row
    return list(best.values())


def _add_waiting(page: Page, results: Results) -> None:
    found = {variant: results.find("waiting", OURS, variant) for variant in ("tomorrow", "today")}
    titles = {"tomorrow": "due from tomorrow on", "today": "due later today"}
    measured = {variant: each for variant, each in found.items() if each is not None}
    tasks = max((each.figures.get("tasks", 0.0) for each in measured.values()), default=0.0)
    page.add(
        f"The same scenarios with {tasks:,.0f} waiting tasks in the lane that they go through, in turns with an empty "
        "database on the same server. Kept is with by without for rates and without by with for times: 100 % is "
        "unchanged, more is better."
    )
    columns = [f"{word}, {titles[variant]}" for variant in measured for word in ("without", "with", "kept")]
    rows = []
    for name, (title, show) in _WAITING.items():
        cells = []
        for each in measured.values():
            figures = each.figures
            cells += [show(figures.get(f"{name}_empty")), show(figures.get(f"{name}_waiting"))]
            cells.append(_percent(figures.get(f"{name}_percent"), 100.0))
        rows.append([title, *cells])
    page.add(table(["", *columns], rows))
    memory = [
        [
            titles[variant],
            *(
                f"{each.figures[name]:.0f} MB" if name in each.figures else "–"
                for name in ("memory_empty_mb", "memory_filled_mb", "memory_waiting_mb")
            ),
        ]
        for variant, each in measured.items()
    ]
    page.add(table(["memory of the node", "empty", "after taking them in", "just started with them"], memory))


def _add_snapshot(page: Page, results: Results) -> None:
    measurement = results.find("snapshot", OURS)
    assert measurement is not None
    figures, rows = measurement.figures, _rows(measurement)
    page.add(
        "Full load while a reader holds an old snapshot, so that nothing which was deleted can be removed; the node is "
        f"restarted in minute 8. Before: {rate(figures.get('rate_before'))} a second; in the last minute "
        f"{rate(figures.get('rate_last'))}, which is {figures.get('last_percent', 0):.0f} %. Index entries read "
        f"for each task claimed: {_exact(figures.get('entries_per_task_before'))} before, "
        f"{_exact(figures.get('most_entries_per_task'))} in the worst minute."
    )
    rates, entries = _points(rows, "rate"), _points(rows, "entries_per_task")
    if len(rates) > 1:
        level = (0.7 * figures["rate_before"], "70 % of the rate without it") if "rate_before" in figures else None
        # This lies between the points of minutes 7 and 8.
        restart = (7.5, "restart") if rates[-1][0] >= 8 else None
        panels = [Panel("Tasks run", "a second", [Line("rate", rates)], level, restart)]
        if len(entries) > 1:
            panels.append(
                Panel(
                    "Index entries of due read", "for each task claimed", [Line("entries", entries)], (5.0, "at most 5")
                )
            )
        title = "Full load beside an old snapshot"
        page.draw("snapshot", title, draw_lines(title, "by minute", "minute", panels))
    stolen = [_number(row.get("stolen_percent")) for row in rows]
    told = ", ".join(_stolen(each) for each in stolen if each is not None)
    if told:
        page.add(f"What the host gave to others of this machine's processor time, minute by minute: {told}.")


def _add_soak(page: Page, results: Results) -> None:
    measurement = results.find("soak", OURS)
    assert measurement is not None
    figures, rows = measurement.figures, _rows(measurement)
    page.add(
        f"{len(rows)} minutes at {rate(figures.get('rate'))} a second, 60 % of what is sustained "
        f"({rate(figures.get('sustained_rate'))}). Lag is from a task's time to its handler's start. Within 5 s: "
        f"{figures.get('within_5s_percent', 0):.3f} %; too early: {figures.get('early', 0):,.0f}; errors: "
        f"{figures.get('errors', 0):,.0f}."
    )
    p50, p99, memory = (_points(rows, name) for name in ("p50_ms", "p99_ms", "memory_mb"))
    if len(p99) > 1:
        panels = [Panel("Lag", "ms", [Line("p99", p99), Line("p50", p50)])]
        if len(memory) > 1:
            panels.append(Panel("Memory of the node", "MB", [Line("memory", memory)]))
        title = "A soak at 60 % of the sustained rate"
        page.draw("soak", title, draw_lines(title, "by minute", "minute", panels))
    cells = [
        [
            _whole(row.get("minute")),
            _whole(row.get("tasks")),
            *(ms(_number(row.get(name))) for name in ("p50_ms", "p99_ms", "max_ms")),
            _whole(row.get("memory_mb")),
            _stolen(row.get("stolen_percent")),
        ]
        for row in rows
    ]
    page.add(table(["minute", "tasks", "p50 ms", "p99 ms", "slowest ms", "memory MB", "stolen"], cells))
    page.add("Stolen is what the host gave to others of this machine's processor time.")


def _add_targets(page: Page, results: Results) -> None:
    measurement = results.find("targets", OURS)
    assert measurement is not None
    figures, cpu = measurement.figures, measurement.cpu
    page.add(
        "Calls from one node process to nginx on the same machine, over connections that are kept open, signed, and "
        "with the egress guard on; aiohttp's own client does nothing but the calls."
    )
    rows = [
        ["duetime: claim, call, settle", rate(figures.get("rate")), _micro(cpu.get("node"))],
        ["aiohttp: call", rate(figures.get("aiohttp_rate")), _micro(figures.get("aiohttp_us"))],
    ]
    page.add(table(["", "calls a second", "CPU µs a call"], rows))


def _add_load(page: Page, results: Results) -> None:
    measurement = results.find("load", OURS)
    assert measurement is not None
    figures, rows = measurement.figures, _rows(measurement)
    idle = figures.get("idle_percent")
    polled = figures.get("idle_polled_percent")
    words = [f"An idle node uses {idle:.2f} % of a core" if idle is not None else "CPU of each part by load"]
    words += [f"{polled:.2f} % with workers that wait for tasks"] if polled is not None else []
    page.add(", ".join(words) + ". CPU microseconds a task at a share of the sustained rate:")
    parts = [
        name
        for name in ("producer", "workers", "node", "server")
        if any(isinstance(row.get(name), float | int) for row in rows)
    ]
    cells = [
        [
            f"{row.get('load_percent', '–')} %",
            rate(_number(row.get("rate"))),
            *(_us(row, name) for name in parts),
            f"{sum(_number(row.get(name)) or 0.0 for name in parts):,.0f}",
        ]
        for row in rows
    ]
    page.add(table(["load", "tasks a second", *parts, "all"], cells))


def _rows(measurement: Measurement | None) -> Sequence[Row]:
    """What changed during the last of the runs."""
    return measurement.runs[-1].rows if measurement is not None and measurement.runs else []


def _points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    points = []
    for row in rows:
        minute, value = _number(row.get("minute")), _number(row.get(name))
        if minute is not None and value is not None:
            points.append((minute, value))
    return points


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _whole(value: float | str | None) -> str:
    return rate(_number(value))


def _stolen(value: float | str | None) -> str:
    number = _number(value)
    return "–" if number is None else f"{number:.0f} %"


def _us(row: Row, name: str) -> str:
    return _micro(_number(row.get(name)))


def _micro(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _exact(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _percent(value: float | None, of: float | None) -> str:
    return "–" if value is None or not of else f"{100 * value / of:.0f} %"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
