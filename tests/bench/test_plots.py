"""Charts: what is drawn is well-formed, inside its card, and nothing stands on anything else."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from bench.plots import WIDTH, Bar, Line, Panel, draw_bars, draw_lines

SVG = "{http://www.w3.org/2000/svg}"
#: Letters are at most this wide on average, and lines this high.
LETTER, HEIGHT = 7.0, 12.0


@dataclass(frozen=True)
class Label:
    content: str
    left: float
    right: float
    base: float

    def touches(self, other: "Label") -> bool:
        return self.left < other.right and other.left < self.right and abs(self.base - other.base) < HEIGHT


def labels_of(plot: str) -> list[Label]:
    found = []
    for text in ElementTree.fromstring(plot).iter(f"{SVG}text"):
        content = text.text or ""
        size = {"title": 9.5, "quiet": 6.4}.get(text.get("class", ""), LETTER)
        x, width = float(text.attrib["x"]), len(content) * size
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
        found.append(Label(content, left, left + width, float(text.attrib["y"])))
    return found


def check_labels(plot: str) -> None:
    labels = labels_of(plot)
    height = float(ElementTree.fromstring(plot).attrib["height"])
    for label in labels:
        assert label.left >= 0, label
        assert label.right <= WIDTH, label
        assert label.base <= height, label
    for one, other in itertools.combinations(labels, 2):
        assert not one.touches(other), (one, other)


BARS = [
    Bar("duetime, driven by wrk", 5_900, "5,900", True, spread=(5_800, 6_100)),
    Bar("bullmq (Redis)", 5_332, "5,332", spread=(4_900, 5_700)),
    Bar("procrastinate", 0.4, "0.4"),
    Bar("pgqueuer", None, "failed"),
]


def test_bars_keep_their_labels_apart_and_inside() -> None:
    check_labels(draw_bars("Submit 20 at a time", "tasks a second", BARS))


def test_a_bar_is_as_long_as_its_value() -> None:
    root = ElementTree.fromstring(draw_bars("T", "", [Bar("a", 100.0, "100", True), Bar("b", 25.0, "25")]))

    ours, other = (float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect") if "bar" in bar.attrib["class"])

    assert ours / other == pytest.approx(4.0, abs=0.01)
    assert [bar.attrib["class"] for bar in root.iter(f"{SVG}rect")] == ["card", "bar ours", "bar"]


def test_what_failed_has_no_bar_and_says_so() -> None:
    plot = draw_bars("T", "", [Bar("a", None, "failed"), Bar("b", None, "failed")])

    assert "bar" not in re.findall(r'<rect class="(\w+)', plot)
    assert plot.count(">failed<") == 2


@pytest.mark.parametrize("level", [5.0, 40.0, 900.0])
@pytest.mark.parametrize("values", [(3.0, 4.0), (40.0, 41.0), (0.0, 0.0), (20_000.0, 0.5)])
def test_lines_keep_their_labels_apart_and_inside(level: float, values: tuple[float, float]) -> None:
    minutes = [float(minute) for minute in range(1, 16)]
    first, second = ([(minute, value) for minute in minutes] for value in values)
    panels = [
        Panel("Lag", "ms", [Line("p99", first), Line("p50", second)], (level, "what is asked for"), (7.5, "restart")),
        Panel("Memory of the node", "MB", [Line("memory", first)]),
    ]

    check_labels(draw_lines("A soak", "by minute", "minute", panels))


def test_points_stay_within_their_panel() -> None:
    points = [(1.0, 0.0), (2.0, 250.0), (3.0, 90.0)]

    root = ElementTree.fromstring(draw_lines("T", "", "minute", [Panel("Lag", "ms", [Line("p99", points)])]))

    grid = [float(line.attrib["y1"]) for line in root.iter(f"{SVG}line") if line.attrib["class"] == "grid"]
    dots = [float(dot.attrib["cy"]) for dot in root.iter(f"{SVG}circle")]
    assert max(grid) == pytest.approx(dots[0])
    assert min(grid) <= min(dots)


def test_words_from_elsewhere_are_escaped() -> None:
    plot = draw_bars('<"&">', "<b>", [Bar("<script>", 1.0, "&")])

    assert ElementTree.fromstring(plot).attrib["aria-label"] == '<"&">'
    assert "<script>" not in plot


def test_a_chart_follows_the_reader_s_scheme() -> None:
    assert "prefers-color-scheme: dark" in draw_bars("T", "", BARS)
