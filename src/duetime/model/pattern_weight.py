"""What a pattern of a JSON Schema can cost, before it is compiled: memory, and time for each byte of a text.

The engine runs in linear time, but it writes bounded repetition out: `.{1000}`
becomes a thousand places, and each costs memory.  If many places can be reached at
once, each byte of a text is compared in all of them.  Both are counted here, as
upper bounds.  The figures were measured with jsonschema-rs 0.60 and are rounded up.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

#: The most memory that a pattern may hold, and the most places that it may be written out to.
MAX_PATTERN_BYTES = 8 * 1024 * 1024
#: The memory for states that a pattern makes while it runs, in each direction.
DFA_BYTES = 128 * 1024

_BASE_BYTES = 16_000
_PLACE_BYTES = 250
_GROUP_BYTES = 100
#: For a class beyond ASCII, and for one that is a property of Unicode.
_WIDE_BYTES = 3_000
_RANGE_BYTES = 1_000
_PROPERTY_BYTES = 60_000
#: A pattern may have to be compared in other cases, too.
_CASES = 4
_STATE_BYTES = 600
_MAX_NESTING = 100
_REPEAT = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)([:)])")
_NAME = re.compile(r"\(\?P?<[^>]*>")
#: Up to this many places at once, the engine soon finds its next state in a table.
_FEW_PLACES = 3


class PatternError(ValueError):
    """The pattern is too large, or cannot be counted."""


class Span(NamedTuple):
    """The fewest and the most characters after which a place may be reached."""

    least: float
    most: float


@dataclass(frozen=True)
class _Place:
    """One character of a text, or an assertion, which takes none."""

    bytes: int
    #: How much a comparison costs, relative to ASCII; 0: it takes no character.
    width: int
    #: `^` or `$`, which fix where a match begins or ends.
    anchor: str = ""

    @property
    def least(self) -> float:
        return 1 if self.width else 0

    most = least


@dataclass(frozen=True)
class _Repeat:
    body: "_Node"
    low: int
    high: float

    @cached_property
    def copies(self) -> int:
        return max(1, self.low) if self.high is inf else int(self.high)

    @cached_property
    def bytes(self) -> int:
        return _GROUP_BYTES + self.copies * self.body.bytes

    @cached_property
    def least(self) -> float:
        return self.low * self.body.least

    @cached_property
    def most(self) -> float:
        return self.high * self.body.most if self.body.most else 0


@dataclass(frozen=True)
class _Sequence:
    parts: "tuple[_Node, ...]"

    @cached_property
    def bytes(self) -> int:
        return _GROUP_BYTES + sum(each.bytes for each in self.parts)

    @cached_property
    def least(self) -> float:
        return sum(each.least for each in self.parts)

    @cached_property
    def most(self) -> float:
        return sum(each.most for each in self.parts)


@dataclass(frozen=True)
class _Choice:
    parts: "tuple[_Node, ...]"

    @cached_property
    def bytes(self) -> int:
        return _GROUP_BYTES + sum(each.bytes for each in self.parts)

    @cached_property
    def least(self) -> float:
        return min(each.least for each in self.parts)

    @cached_property
    def most(self) -> float:
        return max(each.most for each in self.parts)


_Node = _Place | _Repeat | _Sequence | _Choice


@dataclass(frozen=True)
class PatternWeight:
    #: The memory that it holds, including what it makes while it runs.
    bytes: int
    #: Nanoseconds for each byte of a text, and for a text however short.
    byte_ns: int
    text_ns: int


def weigh_pattern(pattern: str, room: int = MAX_PATTERN_BYTES) -> PatternWeight:
    """Raise PatternError if there is no room for this many bytes."""
    reading = _Reading(pattern)
    node = reading.read()
    cases = _CASES if reading.ignores_case else 1
    held = _BASE_BYTES + node.bytes * cases
    if held > min(room, MAX_PATTERN_BYTES):
        raise _too_large(pattern)
    at_once = _count_at_once(node, "^")
    if not _begins_with(node, "^"):
        # The engine may search from the end as well.
        at_once = max(at_once, _count_at_once(node, "$"))
    at_once *= cases
    is_simple = at_once <= _FEW_PLACES and not reading.has_word_boundary
    byte_ns = 50 if is_simple else 400 + 7 * at_once
    # Each set of places that is reached at once is a state.
    made = min(2 * DFA_BYTES, held // 2 + _STATE_BYTES * (1 << min(at_once, 10)))
    return PatternWeight(held + made, byte_ns, 100 + 2 * byte_ns)


def _too_large(pattern: str) -> PatternError:
    return PatternError(
        f"the pattern {_shown(pattern)} would take too much memory when it is compiled, with those before it: "
        "shorten what it repeats, or use maxLength"
    )


def _shown(pattern: str) -> str:
    return pattern if len(pattern) <= 80 else f"{pattern[:80]}…"


class _Reading:
    """Parses a pattern as the engine does; what the engine refuses may be read in any way."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self.ignores_case = False
        self.has_word_boundary = False
        self._has_lines = False

    def read(self) -> _Node:
        parts = []
        while self._at < len(self._text):
            parts.append(self._choice())
            # A parenthesis that closes nothing.
            self._at += 1
        return _Sequence(tuple(parts))

    def _choice(self) -> _Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (char := self._peek()) and char not in "|)":
            parts.append(self._repeated(self._atom(char)))
        return _Sequence(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        while char := self._peek():
            found = _REPEAT.match(self._text, self._at)
            if found is not None:
                low = int(found[1])
                high = low if found[2] is None else int(found[3]) if found[3] is not None else inf
                self._at = found.end()
            elif char in "*+?":
                low, high = (1 if char == "+" else 0), (1 if char == "?" else inf)
                self._at += 1
            else:
                break
            node = _Repeat(node, low, high)
            if node.bytes > MAX_PATTERN_BYTES:
                raise _too_large(self._text)
            if self._peek() == "?":
                self._at += 1
        return node

    def _atom(self, char: str) -> _Node:
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        self._at += 1
        if char in "^$":
            return _Place(_PLACE_BYTES, 0, "" if self._has_lines else char)
        if char == ".":
            return _Place(_WIDE_BYTES // 2, 2)
        return _Place(_PLACE_BYTES if char.isascii() else 2 * _PLACE_BYTES, 1 if char.isascii() else 2)

    def _group(self) -> _Node:
        if flags := _FLAGS.match(self._text, self._at):
            if "x" in flags[1]:
                raise PatternError(f"the pattern {_shown(self._text)} has the flag x, which cannot be used here")
            self.ignores_case |= "i" in flags[1]
            self._has_lines |= "m" in flags[1]
            self._at = flags.end()
            if flags[2] == ")":
                return _Sequence(())
        elif named := _NAME.match(self._text, self._at):
            self._at = named.end()
        else:
            self._at += 1
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise PatternError(f"the pattern {_shown(self._text)} is nested too deeply")
        inner = self._choice()
        self._depth -= 1
        self._at += 1
        return inner

    def _class(self) -> _Node:
        """Read a class. Brackets do not nest; a closing bracket is literal where it comes first."""
        self._at += 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        held, width, is_first = _PLACE_BYTES, 1, True
        while (char := self._peek()) and (char != "]" or is_first):
            is_first = False
            if char == "\\":
                each = self._escape()
                held, width = held + each.bytes - _PLACE_BYTES, max(width, each.width, 1)
                continue
            self._at += 1
            if not char.isascii():
                held, width = held + _RANGE_BYTES, 2
        self._at += 1
        if is_negated:
            held, width = held + _WIDE_BYTES // 2, max(2, width)
        return _Place(held, width)

    def _escape(self) -> _Place:
        name = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        in_braces = ""
        if name in "pPxuUbB" and self._peek() == "{" and (name not in "bB" or not _REPEAT.match(self._text, self._at)):
            end = self._text.find("}", self._at)
            in_braces = self._text[self._at : end + 1] if end > 0 else ""
            self._at += len(in_braces)
        elif name in "pPc":
            self._at += 1
        elif name in "xuU":
            self._at += {"x": 2, "u": 4, "U": 8}[name]
        if name in "pP":
            return _Place(_PROPERTY_BYTES, 4)
        if name in "bB":
            self.has_word_boundary = True
            return _Place(_PLACE_BYTES, 0)
        if name in "Az":
            return _Place(_PLACE_BYTES, 0)
        if name in "sSDW":
            return _Place(_WIDE_BYTES, 2)
        if name in "uUx" or not name.isascii():
            return _Place(_PLACE_BYTES + _RANGE_BYTES, 2)
        return _Place(_PLACE_BYTES, 1)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]


def _begins_with(node: _Node, anchor: str) -> bool:
    if isinstance(node, _Place):
        return node.anchor == anchor
    if isinstance(node, _Choice):
        return all(_begins_with(each, anchor) for each in node.parts)
    if isinstance(node, _Repeat):
        return node.low > 0 and _begins_with(node.body, anchor)
    first = next((each for each in node.parts if each.bytes > _GROUP_BYTES), None)
    return first is not None and _begins_with(first, anchor)


def _count_at_once(node: _Node, anchor: str) -> int:
    """How many places the same character may reach, counted from the side of an anchor."""
    begins: dict[float, int] = {}
    ends: dict[float, int] = {}

    def walk(node: _Node, at: Span) -> Span:
        if isinstance(node, _Place):
            if node.anchor == anchor:
                return Span(0, 0)
            if not node.width:
                return at
            begins[at.least] = begins.get(at.least, 0) + node.width
            ends[at.most] = ends.get(at.most, 0) + node.width
            return Span(at.least + 1, at.most + 1)
        if isinstance(node, _Sequence):
            for part in node.parts if anchor == "^" else reversed(node.parts):
                at = walk(part, at)
            return at
        if isinstance(node, _Choice):
            reached = [walk(part, at) for part in node.parts]
            return Span(min(each.least for each in reached), max(each.most for each in reached))
        return repeat(node, at)

    def repeat(node: _Repeat, at: Span) -> Span:
        after = at
        least = at.least if node.low == 0 else inf
        for count in range(1, node.copies + 1):
            if count == node.copies and node.high is inf and node.body.most:
                after = Span(after.least, inf)
            after = walk(node.body, after)
            if count >= node.low:
                least = min(least, after.least)
        return Span(least, max(at.most, after.most) if node.low == 0 else after.most)

    walk(node, Span(0, inf))
    return _most_open(begins, ends)


def _most_open(begins: dict[float, int], ends: dict[float, int]) -> int:
    most = now = 0
    closing = sorted(ends.items(), reverse=True)
    for at, opened in sorted(begins.items()):
        while closing and closing[-1][0] < at:
            now -= closing.pop()[1]
        now += opened
        most = max(most, now)
    return most
