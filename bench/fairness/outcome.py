"""The result of a scenario: figures, each beside its requirement, and plots."""

import math
import sys
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    is_quick: bool
    #: Node processes; None: the scenario's own number.
    processes: int | None = None


@dataclass(frozen=True)
class Figure:
    name: str
    #: The requirement in words; empty for a figure without one.
    asked: str
    seen: str
    #: None: nothing is required.
    holds: bool | None
    value: float

    @property
    def verdict(self) -> str:
        return "" if self.holds is None else "holds" if self.holds else "does not hold"


@dataclass
class Outcome:
    number: int
    title: str
    #: How it was measured, for the page.
    method: str
    figures: list[Figure] = field(default_factory=list)
    #: (name, title, SVG)
    plots: list[tuple[str, str, str]] = field(default_factory=list)
    #: Why it could not be measured.
    error: str = ""

    def ask(self, name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> None:
        """A figure that must lie within bounds."""
        bounds = [f"at least {_tell(least)}{unit}"] if least is not None else []
        bounds += [f"at most {_tell(most)}{unit}"] if most is not None else []
        holds = (least is None or value >= least) and (most is None or value <= most)
        self.figures.append(Figure(name, " and ".join(bounds), f"{_tell(value)}{unit}", holds, value))

    def tell(self, name: str, value: float, unit: str = "") -> None:
        self.figures.append(Figure(name, "", f"{_tell(value)}{unit}", None, value))

    @property
    def holds(self) -> bool:
        return not self.error and all(figure.holds is not False for figure in self.figures)


def _tell(value: float) -> str:
    if math.isinf(value):
        return "no end of"
    return f"{value:,.0f}" if abs(value) >= 1_000 or value == int(value) else f"{value:,.3g}"


def say(line: str) -> None:
    """Print progress for people who wait."""
    print(f"    {line}", file=sys.stderr, flush=True)
