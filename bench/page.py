"""A Markdown page with plots beside it, and how figures are written on it."""

from collections.abc import Sequence
from pathlib import Path

from bench.results import hide_folders


class Page:
    """Paragraphs, tables and plots, in the order in which they were added."""

    def __init__(self, plots: str = "benchmarks") -> None:
        #: The folder of the plots, beside the page.
        self._folder = plots
        self._parts: list[str] = []
        self._plots: dict[str, str] = {}

    def add(self, part: str) -> None:
        self._parts.append(part.strip())

    def draw(self, name: str, title: str, plot: str) -> None:
        self._plots[name] = plot
        self._parts.append(f"![{title}]({self._folder}/{name}.svg)")

    def save(self, folder: Path, name: str) -> None:
        """Write NAME.md, and the plots into a folder NAME; plots of an earlier page are removed."""
        plots = folder / name
        plots.mkdir(parents=True, exist_ok=True)
        for old in plots.glob("*.svg"):
            if old.stem not in self._plots:
                old.unlink()
        self.save_plots(plots)
        (folder / f"{name}.md").write_text(self.text(), "utf-8")

    def text(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def save_plots(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for each, plot in self._plots.items():
            (folder / f"{each}.svg").write_text(plot, "utf-8")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    """Text from elsewhere: on one line, without characters that end a cell, without the folders of this machine."""
    return hide_folders(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
