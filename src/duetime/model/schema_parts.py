"""What a JSON Schema is made of: its subschemas by the values that they are applied to, and what references mean."""

from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import unquote, urljoin

_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
IN_PLACE_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
#: Each value meets at most one of these.
_ONE_OF_CHILDREN = ("additionalProperties", "additionalItems", *IN_PLACE_UNEVALUATED)
_EVERY_CHILD = ("contains", "contentSchema")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
#: A base that no reference can name.
_NOWHERE = "http://schema.invalid/"

#: Applied to the same value, to at most one value below it, to each value below it, or to the names in an object.
PartKind = Literal["here", "one", "several", "names"]


def parts_of(schema: dict[str, Any]) -> Iterator[tuple[PartKind, Any]]:
    """Its subschemas; references are not followed."""
    for name in _IN_PLACE:
        if name in schema:
            yield "here", schema[name]
    for name in _IN_PLACE_LISTS:
        for part in list_of(schema.get(name)):
            yield "here", part
    for name in _IN_PLACE_MAPS:
        for part in map_of(schema.get(name)).values():
            yield "here", part
    for part in map_of(schema.get("properties")).values():
        yield "one", part
    for part in map_of(schema.get("patternProperties")).values():
        yield "several", part
    for name in _ONE_OF_CHILDREN:
        if name in schema:
            yield "one", schema[name]
    for part in list_of(schema.get("prefixItems")) + list_of(schema.get("items")):
        yield "one", part
    if isinstance(schema.get("items"), dict):
        yield "one", schema["items"]
    for name in _EVERY_CHILD:
        if name in schema:
            yield "several", schema[name]
    if "propertyNames" in schema:
        yield "names", schema["propertyNames"]


class References:
    """Finds what the references in a schema mean; one that cannot be resolved counts as the whole schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        #: Parts by their address, and the base of each part.
        self._named: dict[str, Any] = {_NOWHERE: root}
        self._bases: dict[int, str] = {}
        #: Parts by their dynamic anchor, which is empty for `$recursiveAnchor`.
        self._dynamic: dict[str, list[Any]] = {}
        self._read(root)

    def of(self, schema: dict[str, Any]) -> list[list[Any]]:
        """For each of its references, what it may mean: exactly one schema, if it is not dynamic."""
        found = []
        for name in _REFERENCES:
            if isinstance(reference := schema.get(name), str):
                meant = [self._resolve(schema, reference)]
                if name != "$ref":
                    meant += self._dynamic.get(reference.partition("#")[2], [])
                found.append(list({id(each): each for each in meant}.values()))
        return found

    def _read(self, root: Any) -> None:
        left = [(root, _NOWHERE)]
        while left:
            each, base = left.pop()
            if isinstance(each, list):
                left.extend((inner, base) for inner in each)
            if not isinstance(each, dict):
                continue
            for key in ("$id", "id"):
                if isinstance(each.get(key), str):
                    base = _join(base, each[key])
                    self._named.setdefault(base.removesuffix("#"), each)
            self._bases[id(each)] = base
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(each.get(key), str):
                    self._named.setdefault(f"{base.partition('#')[0]}#{each[key]}", each)
            if isinstance(each.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(each["$dynamicAnchor"], []).append(each)
            if each.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("", []).append(each)
            left.extend((inner, base) for inner in each.values())

    def _resolve(self, schema: dict[str, Any], reference: str) -> Any:
        address = _join(self._bases[id(schema)], reference)
        if address in self._named:
            return self._named[address]
        base, _, fragment = address.partition("#")
        found = self._named.get(base, self._root)
        if not fragment.startswith("/"):
            return self._named.get(f"{base}#{fragment}", found)
        for part in unquote(fragment[1:]).split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                return self._root
        return found


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def map_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
