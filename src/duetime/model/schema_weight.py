"""What judging by a JSON Schema can cost, before it is done: a schema is code from outside, and has no clock.

Two things let a small schema take for ever: references that are written out again
and again (each definition names the next one twice), and a schema that refers to
itself in several ways for the same value, which doubles with each level of a
payload.  Both are counted here, as an upper bound: `size`, the subschemas when
everything is written out, and `branching`, the times that a schema which refers
to itself may be applied to one value below it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: A walk that takes longer is as good as endless.
_MAX_STEPS = 500_000
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
#: Of these each value meets at most one.
_ONE_OF_CHILDREN = ("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems")
_EVERY_CHILD = ("contains", "propertyNames", "contentSchema")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class EndlessError(ValueError):
    """Written out, the schema has more parts than can be counted."""


@dataclass(frozen=True)
class Weight:
    size: int
    #: 1: it refers to itself at most once for each value; what it costs grows with the payload.
    branching: int
    #: What is wrong with a payload is told for each of the alternatives.
    has_alternatives: bool

    def cost_of(self, payload: object) -> int:
        """How many times some part of the schema meets some value of the payload, at the most."""
        values, depth = _measure(payload)
        # Beyond this no power need be taken: it is too much.
        return int(values * self.size * self.branching ** min(depth, 64))


def weigh(schema: Any) -> Weight:
    return _Weighing(schema).weigh()


def _measure(payload: object) -> tuple[int, int]:
    """Values in a payload, long texts counting for more, and how deep they are."""
    values, depth, left = 0, 0, [(payload, 1)]
    while left:
        each, level = left.pop()
        depth = max(depth, level)
        values += 1
        if isinstance(each, dict):
            values += len(each)
            left.extend((inner, level + 1) for inner in each.values())
        elif isinstance(each, list):
            left.extend((inner, level + 1) for inner in each)
        elif isinstance(each, str):
            values += len(each) // 64
    return values, depth


class _Weighing:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._named = dict(_find_names(root))
        self._sizes: dict[tuple[int, bool], int] = {}
        #: Targets of references that come back to themselves.
        self._cyclic: set[int] = set()
        self._steps = 0

    def weigh(self) -> Weight:
        targets = {id(each): each for each in [self._root, *self._targets()]}
        reaches = {
            place: {id(found) for inner in self._everything(target) for found in self._references(inner)}
            for place, target in targets.items()
        }
        self._cyclic = {place for place in reaches if _comes_back(place, reaches)}
        cycles = [targets[place] for place in self._cyclic]
        size = max(self._size(each, {id(each)}, True) for each in [self._root, *cycles])
        branching = max((self._times(each, {id(each)}, True) for each in cycles), default=1)
        has_alternatives = any("anyOf" in each or "oneOf" in each for each in self._everything(self._root))
        return Weight(size, max(1, branching), has_alternatives)

    def _size(self, schema: Any, open_now: set[int], is_top: bool) -> int:
        """Subschemas with references written out; what refers to itself counts again only for the same value."""
        if not isinstance(schema, dict):
            return 1
        place = (id(schema), is_top)
        if place in self._sizes:
            return self._sizes[place]
        self._step()
        # Names that are looked up in each object cost about as much as a subschema does.
        total = 1 + len(_map(schema.get("dependentRequired"))) + len(_list(schema.get("required")))
        for target in self._references(schema):
            if id(target) not in self._cyclic:
                total += self._size(target, open_now, is_top)
            elif is_top and id(target) not in open_now:
                total += self._size(target, open_now | {id(target)}, True)
        for kind, part in _parts(schema):
            total += self._size(part, open_now, is_top and kind == "here")
        if not is_top or not self._cyclic:
            self._sizes[place] = total
        return total

    def _times(self, schema: Any, open_now: set[int], is_top: bool) -> int:
        """How often something that refers to itself is applied to one value at or below this one."""
        if not isinstance(schema, dict):
            return 0
        self._step()
        total, one, several = 0, 0, 0
        for target in self._references(schema):
            if id(target) not in self._cyclic:
                total += self._times(target, open_now, is_top)
            elif not is_top:
                total += 1
            elif id(target) not in open_now:
                total += self._times(target, open_now | {id(target)}, True)
        for kind, part in _parts(schema):
            if kind == "here":
                total += self._times(part, open_now, is_top)
            elif kind == "one":
                one = max(one, self._times(part, open_now, False))
            else:
                several += self._times(part, open_now, False)
        return total + one + several

    def _targets(self) -> list[Any]:
        return [target for each in self._everything(self._root) for target in self._references(each)]

    def _everything(self, schema: Any) -> Iterator[dict[str, Any]]:
        """All objects in it, whether they are schemas or not."""
        left = [schema]
        while left:
            each = left.pop()
            self._step()
            if isinstance(each, dict):
                yield each
                left.extend(each.values())
            elif isinstance(each, list):
                left.extend(each)

    def _references(self, schema: dict[str, Any]) -> list[Any]:
        return [self._resolve(schema[name]) for name in _REFERENCES if isinstance(schema.get(name), str)]

    def _resolve(self, reference: str) -> Any:
        """What is meant; what cannot be found within is taken for the whole, which is the most that it can be."""
        base, _, fragment = reference.partition("#")
        if base and base in self._named and not fragment:
            return self._named[base]
        if base:
            return self._root
        if not fragment.startswith("/"):
            return self._named.get(f"#{fragment}", self._root)
        found = self._root
        for part in fragment[1:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                return self._root
        return found

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise EndlessError("has too many references")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Its subschemas: applied to the same value, to at most one value below, or to several alike."""
    for name in _IN_PLACE:
        if name in schema:
            yield "here", schema[name]
    for name in _IN_PLACE_LISTS:
        for part in _list(schema.get(name)):
            yield "here", part
    for name in _IN_PLACE_MAPS:
        for part in _map(schema.get(name)).values():
            yield "here", part
    for part in _map(schema.get("properties")).values():
        yield "one", part
    for part in _map(schema.get("patternProperties")).values():
        yield "several", part
    for name in _ONE_OF_CHILDREN:
        if name in schema:
            yield "one", schema[name]
    for part in _list(schema.get("prefixItems")) + _list(schema.get("items")):
        yield "one", part
    if isinstance(schema.get("items"), dict):
        yield "one", schema["items"]
    for name in _EVERY_CHILD:
        if name in schema:
            yield "several", schema[name]


def _comes_back(target: int, reaches: dict[int, set[int]]) -> bool:
    seen: set[int] = set()
    left = list(reaches[target])
    while left:
        each = left.pop()
        if each == target:
            return True
        if each not in seen:
            seen.add(each)
            left.extend(reaches.get(each, ()))
    return False


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _find_names(root: Any) -> Iterator[tuple[str, Any]]:
    """Parts of it by their `$id`, and by their anchors."""
    left = [root]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for key, prefix in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                if isinstance(each.get(key), str):
                    yield prefix + each[key], each
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)
