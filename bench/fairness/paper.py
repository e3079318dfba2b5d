"""The page: the requirements and the figures, with the machine, the versions and the commit."""

import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.fairness.outcome import Outcome
from bench.page import Page, cell, table
from bench.results import Machine, read_commit
from duetime.database.binaries import find_account, find_binaries

NAME = "fairness"
_ROOT = Path(__file__).parents[2]
_HEAD = """# Fairness, measured

What [tenancy](tenancy.md) promises, on a real node with an embedded PostgreSQL, real workers and real HTTP targets, all
on one machine.  Written by `python -m bench.fairness`; all figures of a section are of one run. A section that has a
date of its own was measured apart."""


def write(outcomes: Sequence[Outcome], folder: Path, *, is_quick: bool) -> None:
    page = Page(NAME)
    page.add(_HEAD)
    page.add(_circumstances(is_quick))
    for outcome in outcomes:
        _write_section(page, outcome)
    page.save(folder, NAME)


def add(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Put these scenarios into the page of an earlier run, each with its own date, machine and commit."""
    file = folder / f"{NAME}.md"
    head, *old = re.split(r"^(?=## )", file.read_text("utf-8"), flags=re.MULTILINE)
    sections = {_number_of(section): section for section in old}
    for outcome in outcomes:
        page = Page(NAME)
        _write_section(page, outcome, _circumstances(is_quick=False))
        sections[outcome.number] = page.text()
        page.save_plots(folder / NAME)
    file.write_text("\n\n".join(part.strip() for part in [head, *(sections[each] for each in sorted(sections))]) + "\n")


def _number_of(section: str) -> int:
    return int(section.removeprefix("## ").partition(".")[0])


def _write_section(page: Page, outcome: Outcome, circumstances: str = "") -> None:
    page.add(f"## {outcome.number}. {outcome.title}")
    if circumstances:
        page.add(circumstances)
    page.add(outcome.method)
    if outcome.error:
        page.add(f"It could not be measured: {cell(outcome.error)}")
    if outcome.figures:
        rows = [_row(outcome, place) for place in range(len(outcome.figures))]
        page.add(table(["figure", "asked for", "seen", ""], rows))
    for name, title, plot in outcome.plots:
        page.draw(name, title, plot)


def _row(outcome: Outcome, place: int) -> list[str]:
    figure = outcome.figures[place]
    return [figure.name, figure.asked or "–", figure.seen, figure.verdict]


def _circumstances(is_quick: bool) -> str:
    machine = Machine.here()
    commit, is_dirty = read_commit(_ROOT)
    lines = [
        f"- {datetime.now(UTC):%Y-%m-%d}, commit {commit[:12] or 'unknown'}{' with changes' if is_dirty else ''}",
        f"- {machine.cores} cores ({machine.cpu}), {machine.memory_gb:g} GB, {machine.system}, Linux {machine.kernel}",
        f"- duetime {version('duetime')}, Python {platform.python_version()}, {_postgres()}",
    ]
    if is_quick:
        lines.append("- `--quick`: shortened, good for trying it out and not for judging")
    return "\n".join(lines)


def _postgres() -> str:
    """The embedded server and its version."""
    program = find_binaries(find_account()).postgres
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    # "postgres (PostgreSQL) 17.2"
    return f"PostgreSQL {told.split()[2]}"
