"""What judging by a JSON Schema can cost, before it is done: a schema is code from outside, and has no time limit.

Every keyword has a weight in nanoseconds, as measured with jsonschema-rs 0.60 and
rounded up.  For each level of a payload the weights are added up: the most that a
single value there may cost, and the most for each byte of its texts.  References are
written out, so a schema that refers to itself several times for the same value
grows with each level.  The number of values and bytes of a payload on each level,
multiplied by these weights, bounds the time of a judgement.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from duetime.model.pattern_weight import MAX_PATTERN_BYTES, PatternError, PatternWeight, weigh_pattern
from duetime.model.schema_parts import (
    IN_PLACE_UNEVALUATED,
    References,
    list_of,
    map_of,
    parts_of,
)

#: A walk with more steps than this counts as endless.
_MAX_STEPS = 100_000
#: Deeper parts of a payload cost what this level costs, or cannot be judged.
MAX_LEVELS = 40
_EXACT_LEVELS = 6
#: This many values and bytes of text on any level must be judged in time, or the schema is too costly for any payload.
SMALL_VALUES, SMALL_BYTES, SMALL_LEVELS = 32, 1_024, 4

_SCHEMA_NS = 20
_CHILD_NS = 100
_NAME_NS = 60
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
#: The time to compare a number with an integer, and with any other number, which is done in fractions.
_WHOLE_NS, _FRACTION_NS = 300, 1_500
_FORMAT_NS, _FORMAT_BYTE_NS = 300, 12
#: The time for a value of an enum: texts and integers are looked up in one step, others are compared one by one.
_NODE_NS, _DIGIT_NS = 150, 50
_LOOKED_UP_NS = 100
_LISTED_PER_CHECK = 50
#: Items are compared with up to 15 others, or sorted into a table.
_UNIQUE_NS, _UNIQUE_BYTE_NS = 500, 2
#: Numbers beyond 64 bits are each compared with all others.
_BIG_PAIR_NS = 500
#: Numbers near the ends of the range of a float count this many times, because their fractions are that long.
_FAR = 8
_NEAREST, _FARTHEST = 1e-20, 1e30
#: For `unevaluated…`, everything that is applied in place is searched once more.
_UNEVALUATED = 3

_BASE_BYTES, _SCHEMA_BYTES, _VALUE_BYTES, _TEXT_BYTES = 10_000, 1_000, 200, 4


class EndlessError(ValueError):
    """Written out, the schema has more parts than can be counted."""


class Cost(NamedTuple):
    """The most that one value may cost."""

    ns: int = 0
    #: For each byte of its text.
    byte_ns: int = 0
    #: How many checks can fail.
    checks: int = 0
    #: If it is a number; a number with many digits costs this several times.
    number_ns: int = 0

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        return Cost(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    def or_(self, other: "Cost") -> "Cost":
        return Cost(*map(max, self, other))


_NOTHING = Cost()


@dataclass(frozen=True)
class Weight:
    #: For a value on each level of a payload; empty levels are left out.
    levels: tuple[Cost, ...]
    #: The same for everything that is deeper; None: it cannot be known.
    beyond: Cost | None
    #: How many times all items of an array must be different.
    uniques: int
    #: Whether errors in a payload are reported for each of several alternatives.
    has_alternatives: bool
    #: The memory that the compiled schema holds.
    held_bytes: int
    #: The memory that its largest pattern holds.
    pattern_bytes: int

    @property
    def small_ns(self) -> int:
        """What a small and shallow payload costs."""
        most = _most_of(self.levels[:SMALL_LEVELS])
        return SMALL_VALUES * (most.ns + most.number_ns) + SMALL_BYTES * most.byte_ns

    def bound_of(self, size: int) -> int:
        """Nanoseconds that no payload of this many bytes exceeds."""
        if self.beyond is None and size > 2 * MAX_LEVELS:
            return _TOO_DEEP
        # There is one value at the top, and each value below takes at least two bytes.
        top, below = self.levels[0], _most_of((*self.levels[1:], self.beyond or _NOTHING))
        words = size // 19
        bound = top.ns + (size // 2) * below.ns + size * max(top.byte_ns, below.byte_ns)
        # Written as short as possible, a number that counts several times has four bytes for each time.
        bound += (2 * size + _FAR + 1) * max(top.number_ns, below.number_ns)
        return bound + self.uniques * words * words * _BIG_PAIR_NS

    def cost_of(self, payload: object) -> tuple[int, int, int]:
        """The most nanoseconds for judging this payload, how many checks can fail, and how many values it has."""
        ns, checks, words, all_values = 0, 0, 0, 0
        level, values = 0, [payload]
        while values:
            cost = self.levels[level] if level < len(self.levels) else self.beyond
            if cost is None:
                return _TOO_DEEP, _TOO_DEEP, 0
            count, size, numbers, big, values = _measure(values)
            ns += count * cost.ns + size * cost.byte_ns + numbers * cost.number_ns
            checks += count * cost.checks
            words += big
            all_values += count
            level += 1
        return ns + self.uniques * words * words * _BIG_PAIR_NS, checks, all_values


_TOO_DEEP = 1 << 60


def _most_of(levels: Iterable[Cost]) -> Cost:
    most = _NOTHING
    for each in levels:
        most = most.or_(each)
    return most


def _measure(values: list[object]) -> tuple[int, int, int, int, list[object]]:
    """Count values, bytes of text, numbers, and parts of long numbers; return them with the values one level below."""
    size, numbers, big = 0, 0, 0
    below: list[object] = []
    for each in values:
        if isinstance(each, str):
            size += len(each) if each.isascii() else 4 * len(each)
        elif isinstance(each, dict):
            size += sum(len(key) if key.isascii() else 4 * len(key) for key in each)
            below.extend(each.values())
        elif isinstance(each, list):
            below.extend(each)
        elif isinstance(each, int):
            numbers += 1
            if each.bit_length() > 62:
                big += each.bit_length() // 64 + 1
                numbers += each.bit_length() // 6
        elif isinstance(each, float):
            numbers += 1 if _NEAREST < abs(each) < _FARTHEST else 1 + _FAR
    return len(values), size, numbers, big, below


def weigh(schema: Any) -> Weight:
    return _Weighing(schema).weigh()


class _Weighing:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._references = References(root)
        self._own: dict[int, tuple[Cost, Cost]] = {}
        #: The costs that are known, by level and schema.
        self._costs: dict[int, dict[int, Cost]] = {}
        self._open: set[tuple[int, int]] = set()
        self._patterns: dict[str, PatternWeight] = {}
        self._steps = 0
        self._room = MAX_PATTERN_BYTES

    def weigh(self) -> Weight:
        held = self._held_bytes()
        levels, beyond = self._levels()
        pattern_bytes = max((each.bytes for each in self._patterns.values()), default=0)
        uniques = sum(each.get("uniqueItems") is True for each in self._objects())
        has_alternatives = any("anyOf" in each or "oneOf" in each for each in self._objects())
        return Weight(levels, beyond, uniques, has_alternatives, held, pattern_bytes)

    def _levels(self) -> tuple[tuple[Cost, ...], Cost | None]:
        levels: list[Cost] = []
        applied = self._find_applied()
        for level in range(MAX_LEVELS):
            cost = self._cost(self._root, level)
            for each in applied:
                self._cost(each, level)
            # The first two levels differ from all others: keywords look at a value and its children.
            if level > 2 and level != _EXACT_LEVELS + 1 and self._costs.get(level) == self._costs.get(level - 1):
                return tuple(levels), cost
            levels.append(cost)
        return tuple(levels), None

    def _find_applied(self) -> list[dict[str, Any]]:
        """All subschemas that are applied to any value, each once."""
        found: dict[int, dict[str, Any]] = {}
        left = [self._root]
        while left:
            each = left.pop()
            if isinstance(each, dict) and id(each) not in found:
                found[id(each)] = each
                left.extend(part for _, part in parts_of(each))
                left.extend(target for meant in self._references.of(each) for target in meant)
        return list(found.values())

    def _cost(self, schema: Any, level: int) -> Cost:
        """The most that a value this many levels below may cost by this part of the schema."""
        if not isinstance(schema, dict):
            return Cost(_SCHEMA_NS, 0, 1) if level == 0 else _NOTHING
        place = id(schema)
        known = self._costs.setdefault(level, {})
        if place in known:
            return known[place]
        if (place, level) in self._open:
            raise EndlessError("refers to itself for the same value")
        self._open.add((place, level))
        self._step()
        own, of_child = self._own_costs(schema)
        here, one, several = _NOTHING, _NOTHING, _NOTHING
        for meant in self._references.of(schema):
            cost = _NOTHING
            for target in meant:
                cost = cost.or_(self._cost(target, level))
            here = here.plus(cost)
        for kind, part in parts_of(schema):
            if kind == "here":
                here = here.plus(self._cost(part, level))
            elif kind == "names":
                # A name costs as much as a value; its bytes are counted with the object that contains it.
                ns, byte_ns, checks, _ = self._cost(part, 0)
                if level < 2:
                    several = several.plus(Cost(ns, 0, checks) if level == 1 else Cost(0, byte_ns, 0))
            elif level and kind == "one":
                one = one.or_(self._cost(part, level - 1))
            elif level:
                several = several.plus(self._cost(part, level - 1))
        times = _UNEVALUATED if any(name in schema for name in IN_PLACE_UNEVALUATED) else 1
        total = several.plus(one).plus(here, times)
        if level == 0:
            total = total.plus(own)
        if level == 1:
            total = total.plus(of_child)
        if level and schema.get("uniqueItems") is True:
            total = total.plus(Cost(_UNIQUE_NS, _UNIQUE_BYTE_NS))
        if level > _EXACT_LEVELS:
            # The cost of indirect self-references alternates from level to level; its maximum becomes constant.
            total = total.or_(self._cost(schema, level - 1))
        self._open.remove((place, level))
        known[place] = total
        return total

    def _own_costs(self, schema: dict[str, Any]) -> tuple[Cost, Cost]:
        """What the keywords of one schema cost for a value, and for each value in it."""
        found = self._own.get(id(schema))
        if found is None:
            found = self._own[id(schema)] = self._weigh_keywords(schema)
        return found

    def _weigh_keywords(self, schema: dict[str, Any]) -> tuple[Cost, Cost]:
        ns, byte_ns = _SCHEMA_NS + 5 * len(schema), 1
        number_ns = sum(_WHOLE_NS if _is_whole(schema[name]) else _FRACTION_NS for name in _BOUNDS if name in schema)
        ns += _NAME_NS * (len(list_of(schema.get("required"))) + len(map_of(schema.get("properties"))))
        for names in (*map_of(schema.get("dependentRequired")).values(), *map_of(schema.get("dependencies")).values()):
            ns += 2 * _NAME_NS * (1 + len(list_of(names)))
        checks = 1 + len(schema)
        for values in (list_of(schema.get("enum")), [schema["const"]] if "const" in schema else []):
            costs = [_comparison(value) for value in values]
            found = _weigh_enum(values, costs)
            ns, number_ns = ns + found.ns, number_ns + found.number_ns
            # An error contains everything that is listed.
            checks += sum(each.checks for each in costs) // _LISTED_PER_CHECK
        if "format" in schema:
            ns, byte_ns = ns + _FORMAT_NS, byte_ns + _FORMAT_BYTE_NS
        if "minLength" in schema or "maxLength" in schema:
            byte_ns += 1
        if isinstance(schema.get("pattern"), str):
            pattern = self._pattern(schema["pattern"])
            ns, byte_ns = ns + pattern.text_ns, byte_ns + pattern.byte_ns
        child_ns = _CHILD_NS * (1 + sum(name in schema for name in _LOOKING_AT_CHILDREN))
        for text in map_of(schema.get("patternProperties")):
            # The same patterns run again to find out which properties are not additional.
            pattern = self._pattern(text)
            child_ns, byte_ns = child_ns + 2 * pattern.text_ns, byte_ns + 2 * pattern.byte_ns
        return Cost(ns, byte_ns, checks, number_ns), Cost(child_ns, 0, 1)

    def _pattern(self, text: str) -> PatternWeight:
        if text not in self._patterns:
            found = self._patterns[text] = weigh_pattern(text, self._room)
            self._room -= found.bytes
        return self._patterns[text]

    def _held_bytes(self) -> int:
        """The memory for all of it, whether it is applied or not: all of it is compiled."""
        held, left = _BASE_BYTES, [self._root]
        while left:
            each = left.pop()
            held += _SCHEMA_BYTES if isinstance(each, dict) else _VALUE_BYTES
            if isinstance(each, str):
                held += _TEXT_BYTES * len(each)
            elif isinstance(each, list):
                left.extend(each)
            elif isinstance(each, dict):
                held += sum(_VALUE_BYTES + _TEXT_BYTES * len(key) for key in each)
                left.extend(each.values())
                held += sum(self._pattern(text).bytes for text in _patterns_in(each))
        return held

    def _objects(self) -> Iterator[dict[str, Any]]:
        """All objects in it, whether they are schemas or not."""
        left = [self._root]
        while left:
            each = left.pop()
            if isinstance(each, dict):
                yield each
                left.extend(each.values())
            elif isinstance(each, list):
                left.extend(each)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise EndlessError("has too many references")


_LOOKING_AT_CHILDREN = (
    "properties",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "contains",
)


def _patterns_in(schema: dict[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    yield from map_of(schema.get("patternProperties"))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64


def _weigh_enum(values: list[Any], costs: list[Cost]) -> Cost:
    if all(isinstance(value, str) for value in values) or all(_is_whole(value) for value in values):
        # They are in a table; a text is compared only with the one that equals it.
        return Cost(_LOOKED_UP_NS).plus(_most_of(costs))
    return Cost(_LOOKED_UP_NS + sum(each.ns for each in costs), 0, 0, sum(each.number_ns for each in costs))


def _comparison(value: Any) -> Cost:
    """The cost of comparing a value with this one; each value inside counts as one check."""
    nodes, ns, number_ns, left = 0, 0, 0, [value]
    while left:
        each = left.pop()
        nodes += 1
        ns += _NODE_NS
        if isinstance(each, str):
            ns += len(each) // 4
        elif isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            ns += _NODE_NS * len(each)
            left.extend(each.values())
        elif isinstance(each, float):
            number_ns += _FRACTION_NS if _NEAREST < abs(each) < _FARTHEST else _FRACTION_NS * (1 + _FAR)
        elif isinstance(each, int) and each.bit_length() > 62:
            number_ns += _FRACTION_NS + _DIGIT_NS * each.bit_length() // 3
    # A number inside a value is compared with a number inside a value.
    return Cost(ns if number_ns == 0 or nodes == 1 else ns + (1 + _FAR) * number_ns, 0, nodes, number_ns)


__all__ = ["Cost", "EndlessError", "PatternError", "Weight", "weigh"]
