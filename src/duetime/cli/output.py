"""Output for people: tables, details, times, progress; and raw JSON for programs.

Tables fit the terminal. Other outputs get them at full width and without colour.
Text from outside is made printable first, so that no error message can control
the reader's terminal.
"""

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_STATE_COLOURS = {
    "running": "blue",
    "succeeded": "green",
    "retrying": "yellow",
    "paused": "magenta",
    "blocked": "magenta",
    "dead": "red",
    "cancelled": "dim",
    "expired": "dim",
    "failed": "red",
    "lapsed": "red",
    "unknown": "red",
    "wrong": "red",
    "ok": "green",
}
_LEAST_WIDTH = 8
_QUIET_SECONDS = 5.0


@dataclass(frozen=True)
class Column:
    title: str
    #: May be cut to fit the terminal.
    shrinks: bool = False
    #: A column that has only this value is left out if there is not enough room.
    plain: str | None = None
    paint: Callable[[str], str] | None = None


def has_colour(stream: TextIO | None = None) -> bool:
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if has_colour() else text


def paint_state(text: str) -> str:
    colour = _STATE_COLOURS.get(text.strip())
    return paint(text, colour) if colour else text


def printable(text: str) -> str:
    """Return the text on one line, without characters that control a terminal."""
    return "".join(letter if letter.isprintable() else " " if letter in "\n\r\t" else "�" for letter in text)


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def shorten(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return text + "…"


def print_line(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def print_raw(body: bytes) -> None:
    """What the server sent, on one line."""
    sys.stdout.write(body.decode("utf-8").rstrip("\n") + "\n")


def print_note(text: str) -> None:
    """Write a message for the person at the terminal, not for programs that read the output."""
    print(text, file=sys.stderr, flush=True)


class Table:
    """Print rows under their titles. A long list comes in parts, with the titles printed once."""

    def __init__(self, columns: Sequence[Column], *, indent: str = "") -> None:
        self._columns = list(columns)
        self._indent = indent
        self._widths: list[int] | None = None
        self._shown: list[int] = []

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        cells = [[printable(cell) for cell in row] for row in rows]
        is_first = self._widths is None
        if self._widths is None:
            self._shown = list(range(len(self._columns)))
            self._widths = [
                max([width_of(column.title), *(width_of(row[place]) for row in cells)])
                for place, column in enumerate(self._columns)
            ]
            self._fit(cells)
        if is_first:
            titles = [paint(cell, "bold") for cell in self._padded([column.title for column in self._columns])]
            print_line((self._indent + "  ".join(titles)).rstrip())
        for row in cells:
            padded = self._padded(row)
            painted = [
                column.paint(cell) if (column := self._columns[place]).paint else cell
                for place, cell in zip(self._shown, padded, strict=True)
            ]
            print_line((self._indent + "  ".join(painted)).rstrip())

    def _fit(self, cells: list[list[str]]) -> None:
        assert self._widths is not None
        if not sys.stdout.isatty():
            return
        room = shutil.get_terminal_size().columns - len(self._indent)
        for place, column in enumerate(self._columns):
            if self._total() > room and column.plain is not None and all(row[place] == column.plain for row in cells):
                self._shown.remove(place)
        while self._total() > room:
            widest = max(
                (place for place in self._shown if self._columns[place].shrinks),
                key=lambda place: (self._widths or [])[place],
                default=None,
            )
            if widest is None or self._widths[widest] <= _LEAST_WIDTH:
                break
            self._widths[widest] -= 1

    def _total(self) -> int:
        assert self._widths is not None
        return sum(self._widths[place] for place in self._shown) + 2 * (len(self._shown) - 1)

    def _padded(self, row: Sequence[str]) -> list[str]:
        assert self._widths is not None
        is_cut = sys.stdout.isatty()
        padded = []
        for place in self._shown:
            width = self._widths[place]
            cell = shorten(row[place], width) if is_cut and self._columns[place].shrinks else row[place]
            padded.append(cell + " " * max(0, width - width_of(cell)))
        return padded


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        print_line(f"  {paint(name.ljust(width), 'dim')}  {value}")


def print_json(title: str, value: object) -> None:
    """A value of a task, laid out for people."""
    print_text(title, json.dumps(value, ensure_ascii=False, indent=2))


def print_text(title: str, text: str) -> None:
    """Lines as they are, under a title."""
    print_line(paint(title, "bold"))
    for line in text.rstrip("\n").split("\n"):
        print_line(("  " + printable(line)).rstrip())


def local_time(instant: datetime | None) -> str:
    """Return a short time in the reader's zone, with the year only if it is not the current one."""
    if instant is None:
        return "-"
    local = instant.astimezone()
    if local.year == datetime.now(UTC).astimezone().year:
        return f"{local:%b} {local.day:2} {local:%H:%M:%S}"
    return f"{local:%Y-%m-%d %H:%M}"


def whole_time(instant: datetime | None, now: datetime | None = None) -> str:
    """Return a full time in the reader's zone, and its distance from now."""
    if instant is None:
        return "-"
    away = (instant - (now or datetime.now(UTC))).total_seconds()
    distance = f"in {span(away)}" if away > 0 else f"{span(-away)} ago"
    return f"{instant.astimezone().isoformat(sep=' ', timespec='milliseconds')} ({distance})"


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, name, below, below_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit}{name}" + (f" {rest}{below_name}" if rest else "")
    return f"{whole}s"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Progress:
    """Show the progress of a long command on standard error: one line that changes, or a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._is_open = False

    def say(self, text: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._is_open = True
        elif time.monotonic() - self._said_at >= _QUIET_SECONDS:
            self._said_at = time.monotonic()
            print_note(text)

    def clear(self) -> None:
        if self._is_open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_open = False
