"""Charts as SVG, written by hand: bars that compare peers, and lines over minutes.

A chart is drawn on a card of its own and follows the reader's light or dark
scheme; a viewer without schemes shows the light one.  duetime has the accent colour.
Every value is written beside its mark, so nothing has to be read off an axis.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 720
_MARGIN = 24
_BAR, _GAP = 18, 10
_TITLE_HEIGHT = 62
#: The average width of letters in names and figures at 13 px, estimated high; text is never measured.
_LETTER = 7.4
_PANEL_HEIGHT = 190
_AXIS_HEIGHT = 22
_LABEL_HEIGHT = 15

_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2937; }
    .title { font-size: 16px; font-weight: 600; }
    .quiet { fill: #6b7280; font-size: 12px; }
    .our { font-weight: 600; }
    .card { fill: #fbfbfc; stroke: #e5e7eb; }
    .grid { stroke: #e5e7eb; }
    .mark { stroke: #6b7280; stroke-dasharray: 4 4; }
    .bar { fill: #b6bdc8; } .bar.faint { fill: #dfe3e8; }
    .bar.ours { fill: #2563eb; } .bar.ours.faint { fill: #bfd3fb; }
    .spread { stroke: #4b5563; stroke-width: 1.5; }
    .line { fill: none; stroke: #2563eb; stroke-width: 2; }
    .line.second { stroke: #d97706; }
    .dot { fill: #2563eb; } .dot.second { fill: #d97706; }
    text.first { fill: #1d4ed8; } text.second { fill: #b45309; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e5e7eb; }
      .quiet { fill: #9ca3af; }
      .card { fill: #171a21; stroke: #2d333d; }
      .grid { stroke: #2d333d; }
      .mark { stroke: #9ca3af; }
      .bar { fill: #5b6472; } .bar.faint { fill: #353c47; }
      .bar.ours { fill: #60a5fa; } .bar.ours.faint { fill: #274064; }
      .spread { stroke: #cbd5e1; }
      .line { stroke: #60a5fa; } .line.second { stroke: #fbbf24; }
      .dot { fill: #60a5fa; } .dot.second { fill: #fbbf24; }
      text.first { fill: #93c5fd; } text.second { fill: #fcd34d; }
    }
"""


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart; without a value only its label is shown, as the reason."""

    name: str
    value: float | None
    label: str
    is_ours: bool = False
    #: A fainter bar behind it, such as the p99 behind the p50.
    behind: float | None = None
    #: The lowest and the highest value of several runs.
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    name: str
    #: (x, y), in the order of x.
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One set of axes: at most two lines, with values from zero on."""

    title: str
    unit: str
    lines: Sequence[Line]
    #: The requirement: a level, and its name.
    level: tuple[float, str] | None = None
    #: An event: an x, and its name.
    event: tuple[float, str] | None = None


def draw_bars(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars in the order given."""
    left = _MARGIN + max(_width_of(bar.name, bar.is_ours) for bar in bars) + 12
    # The label beside the longest bar still has room.
    labels = [_width_of(bar.label, bar.is_ours) for bar in bars if bar.value is not None]
    room = WIDTH - _MARGIN - left - max(labels, default=0.0)
    most = max(_reach(bar) for bar in bars) or 1.0
    height = _TITLE_HEIGHT + len(bars) * (_BAR + _GAP) - _GAP + _MARGIN
    parts = []
    for place, bar in enumerate(bars):
        parts += _draw_bar(bar, _TITLE_HEIGHT + place * (_BAR + _GAP), left, (room - 12) / most)
    return _card(title, subtitle, height, parts)


def _draw_bar(bar: Bar, top: float, left: float, scale: float) -> list[str]:
    middle = top + _BAR / 2
    ours = " ours" if bar.is_ours else ""
    name = _text(left - 12, middle + 4.5, bar.name, "our" if bar.is_ours else "", "end")
    if bar.value is None:
        return [name, _text(left, middle + 4.5, bar.label, "quiet")]
    parts = [name]
    if bar.behind is not None:
        parts.append(_rectangle(left, top, bar.behind * scale, _BAR, f"bar{ours} faint"))
    parts.append(_rectangle(left, top, bar.value * scale, _BAR, f"bar{ours}"))
    if bar.spread is not None and bar.spread[1] > bar.spread[0]:
        low, high = (left + each * scale for each in bar.spread)
        parts.append(_stroke(low, middle, high, middle, "spread"))
        parts += [_stroke(x, middle - 4, x, middle + 4, "spread") for x in (low, high)]
    return [*parts, _text(left + _reach(bar) * scale + 8, middle + 4.5, bar.label, "our" if bar.is_ours else "")]


def _reach(bar: Bar) -> float:
    """How far to the right a bar reaches with everything that is drawn on it."""
    return max(bar.value or 0.0, bar.behind or 0.0, bar.spread[1] if bar.spread else 0.0)


def draw_lines(title: str, subtitle: str, x_name: str, panels: Sequence[Panel]) -> str:
    """Panels one above the other, with one x axis for all."""
    xs = [x for panel in panels for line in panel.lines for x, _ in line.points]
    names = [_end_label(panel, line) for panel in panels for line in panel.lines]
    left, right = _MARGIN + 56, WIDTH - _MARGIN - max(_width_of(name) for name in names) - 12
    step = _PANEL_HEIGHT + _AXIS_HEIGHT + 34
    height = _TITLE_HEIGHT + len(panels) * step + 4
    parts = []
    for place, panel in enumerate(panels):
        frame = _Frame(left, right, _TITLE_HEIGHT + 22 + place * step, (min(xs), max(xs)), _ticks_of(panel))
        parts += _draw_panel(panel, frame)
        parts += _draw_x_axis(frame, sorted(set(xs)), x_name)
    return _card(title, subtitle, height, parts)


@dataclass(frozen=True)
class _Frame:
    """The place of a panel's axes, and the range that they cover."""

    left: float
    right: float
    top: float
    span: tuple[float, float]
    #: From zero to the end of the panel.
    ticks: Sequence[float]

    @property
    def bottom(self) -> float:
        return self.top + _PANEL_HEIGHT

    def x(self, value: float) -> float:
        first, last = self.span
        return self.left + (value - first) / ((last - first) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value / self.ticks[-1] * _PANEL_HEIGHT


def _draw_panel(panel: Panel, frame: _Frame) -> list[str]:
    parts = [_text(frame.left - 48, frame.top - 12, f"{panel.title}, {panel.unit}", "quiet")]
    for tick in frame.ticks:
        parts.append(_stroke(frame.left, frame.y(tick), frame.right, frame.y(tick), "grid"))
        parts.append(_text(frame.left - 8, frame.y(tick) + 4, _short(tick), "quiet", "end"))
    if panel.level is not None:
        level, name = panel.level
        parts.append(_stroke(frame.left, frame.y(level), frame.right, frame.y(level), "mark"))
        parts.append(_text(frame.left + 6, _beside_level(panel, frame, level), name, "quiet"))
    if panel.event is not None:
        at, name = panel.event
        parts.append(_stroke(frame.x(at), frame.top, frame.x(at), frame.bottom, "mark"))
        parts.append(_text(frame.x(at), frame.top - 12, name, "quiet", "middle"))
    ends = _spread_out([frame.y(line.points[-1][1]) for line in panel.lines], frame.bottom)
    for line, end, kind in zip(panel.lines, ends, ("first", "second"), strict=False):
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line {kind}" points="{path}"/>')
        parts += [
            f'<circle class="dot {kind}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5"/>' for x, y in line.points
        ]
        parts.append(_text(frame.right + 10, end + 4.5, _end_label(panel, line), kind))
    return parts


def _beside_level(panel: Panel, frame: _Frame, level: float) -> float:
    """The place of a level's name: on the side away from the lines, but never below the panel."""
    below = frame.y(level) + 15
    is_above_all = all(line.points[0][1] < level for line in panel.lines)
    return frame.y(level) - 6 if is_above_all or below > frame.bottom - 2 else below


def _draw_x_axis(frame: _Frame, xs: Sequence[float], name: str) -> list[str]:
    # As many labels as have room, at equal distances.
    every = math.ceil(len(xs) * 26 / (frame.right - frame.left)) or 1
    parts = [
        _text(frame.x(x), frame.bottom + 17, f"{x:g}", "quiet", "middle")
        for place, x in enumerate(xs)
        if place % every == 0
    ]
    return [*parts, _text(frame.right + 20, frame.bottom + 17, name, "quiet")]


def _end_label(panel: Panel, line: Line) -> str:
    """The line's name with its last value."""
    return f"{line.name} {_exact(line.points[-1][1])}"


def _ticks_of(panel: Panel) -> list[float]:
    """Round values from zero to just above everything that is drawn."""
    most = max([y for line in panel.lines for _, y in line.points] + ([panel.level[0]] if panel.level else []))
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [place * step for place in range(math.ceil(most / step * 1.02) + 1)]


def _spread_out(ys: list[float], lowest: float) -> list[float]:
    """Heights for labels, moved apart if two would touch, and none below the lowest."""
    order = sorted(range(len(ys)), key=lambda place: ys[place])
    moved = list(ys)
    for before, place in itertools.pairwise(order):
        if (lacking := moved[before] + _LABEL_HEIGHT - moved[place]) > 0:
            moved[before] -= lacking / 2
            moved[place] += lacking / 2
    beyond = max(0.0, max(moved) - lowest)
    return [y - beyond for y in moved]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1_000 else f"{value:g}"


def _exact(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _card(title: str, subtitle: str, height: float, parts: Sequence[str]) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title, _QUOTE)}">',
        f"  <style>{_STYLE}  </style>",
        f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>',
        "  " + _text(_MARGIN, 30, title, "title"),
        "  " + _text(_MARGIN, 48, subtitle, "quiet"),
        *("  " + part for part in parts),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


_QUOTE = {'"': "&quot;"}


def _text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(content)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.0):.1f}" height="{height}" rx="2"/>'


def _stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _width_of(text: str, is_bold: bool = False) -> float:
    return len(text) * _LETTER * (1.12 if is_bold else 1.0)
