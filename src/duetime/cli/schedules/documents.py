"""Read YAML, TOML and JSON text into plain values, and remember where each value is.

YAML is read as version 1.2: `on`, `yes` and dates are text.  A duplicate key is an
error in all three formats, because one of the two values would be lost.  The
values are those that JSON can hold.  No I/O.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, cast

import yaml

from duetime.errors import UsageError

#: The keys and indexes from the top of a document to a value.
Path = tuple[str | int, ...]

YAML_SUFFIXES = (".yaml", ".yml")
SUFFIXES = (*YAML_SUFFIXES, ".toml", ".json")
MAX_VALUES = 1_000_000
_TAG = "tag:yaml.org,2002:"

_LOADER = cast(
    type[yaml.SafeLoader],
    type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": {}}),
)
for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
):
    _letters = [*_first, ""] if _name == "null" else list(_first)
    _LOADER.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _letters)


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    name: str
    value: object
    lines: Mapping[Path, int] = field(default_factory=dict)

    def error(self, path: Path, message: str) -> UsageError:
        """Describe an error at a place: the file, the line if it is known, and the key."""
        line = next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None)
        where = f"{self.name} line {line}" if line is not None else self.name
        return UsageError(f"{where}: {dotted(path) or 'it'} {message}")


def dotted(path: Path) -> str:
    """A path as people write it: task.payload.to[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Text to append to an unknown key: the key that was probably meant."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    return f"is not known here; did you mean {near[0]}?" if near else f"is not known here; there is {', '.join(names)}"


def is_text(text: str) -> bool:
    """Whether the text can be sent: JSON can contain half a character, UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_documents(name: str, body: bytes) -> list[Document]:
    """Return the documents of a file. Its suffix decides the format; anything but .toml and .json is YAML."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: it is not UTF-8 text") from error
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    try:
        if suffix == ".toml":
            return [_read_toml(name, text)]
        if suffix == ".json":
            return [_read_json(name, text)]
        return _read_yaml(name, text)
    except RecursionError as error:
        raise UsageError(f"{name}: it is nested too deep") from error


def _read_toml(name: str, text: str) -> Document:
    try:
        return Document(name, _plain(name, tomllib.loads(text), ()))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: it is not TOML: {_lower(str(error))}") from error


def _read_json(name: str, text: str) -> Document:
    def join(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UsageError(f"{name}: the key {key} is given twice")
            found[key] = value
        return found

    try:
        return Document(name, _plain(name, json.loads(text, object_pairs_hook=join), ()))
    except ValueError as error:
        raise UsageError(f"{name}: it is not JSON: {_lower(str(error))}") from error


def _plain(name: str, value: object, path: Path) -> object:
    match value:
        case dict():
            return {key: _plain(name, inner, (*path, key)) for key, inner in value.items()}
        case list():
            return [_plain(name, inner, (*path, place)) for place, inner in enumerate(value)]
        case datetime() | date() | time():
            return value.isoformat()
        case str() if not is_text(value):
            raise UsageError(f"{name}: {dotted(path)} has characters that are not text")
        case float() if not math.isfinite(value):
            raise UsageError(f"{name}: {dotted(path)} is not a number that JSON can hold")
        case _:
            return value


def _read_yaml(name: str, text: str) -> list[Document]:
    try:
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" line {mark.line + 1}" if mark is not None else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise UsageError(f"{name}{where}: it is not YAML: {said}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: it is not YAML: {' '.join(str(error).split())}") from error
    return [_YamlReading(name).read(node) for node in nodes]


class _YamlReading:
    """Converts the nodes of one document to values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[Path, int] = {}
        self._open: list[yaml.Node] = []
        self._count = 0

    def read(self, node: yaml.Node) -> Document:
        return Document(self._name, self._value(node, ()), self._lines)

    def _wrong(self, node: yaml.Node, message: str) -> UsageError:
        return UsageError(f"{self._name} line {node.start_mark.line + 1}: {message}")

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._count += 1
        # A file of one line can make aliases of aliases grow without end.
        if self._count > MAX_VALUES:
            raise self._wrong(node, f"there are more than {MAX_VALUES:,} values in it")
        if any(each is node for each in self._open):
            raise self._wrong(node, "an alias stands inside of what it stands for")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self._item(inner, (*path, place)) for place, inner in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
        finally:
            self._open.pop()
        raise self._wrong(node, f"the tag {node.tag.replace(_TAG, '!!')} is not known here")

    def _item(self, node: yaml.Node, path: Path) -> object:
        self._lines[path] = node.start_mark.line + 1
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for inherited in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    found = self._value(inherited, path)
                    if not isinstance(found, dict):
                        raise self._wrong(value_node, "what << takes over is not a mapping")
                    merged = found | merged
                continue
            key = self._value(key_node, path)
            if not isinstance(key, str):
                raise self._wrong(key_node, f"the key {_as_written(key_node)} is not text: put it in quotes")
            if key in own:
                raise self._wrong(key_node, f"{dotted((*path, key))} is given twice")
            self._lines[(*path, key)] = key_node.start_mark.line + 1
            own[key] = self._value(value_node, (*path, key))
        return merged | own

    def _scalar(self, node: yaml.ScalarNode) -> object:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str" | "timestamp":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return self._number(node, lambda: int(text, 0))
            case "float":
                return self._number(node, lambda: float(text.replace(".inf", "inf").replace(".nan", "nan")))
            case _:
                raise self._wrong(node, f"the tag {node.tag.replace(_TAG, '!!')} is not known here")

    def _number(self, node: yaml.ScalarNode, read: Any) -> int | float:
        try:
            number: int | float = read()
        except ValueError as error:
            raise self._wrong(node, f"{_as_written(node)} is not a number") from error
        if isinstance(number, float) and not math.isfinite(number):
            raise self._wrong(node, f"{_as_written(node)} is not a number that JSON can hold")
        return number


def _as_written(node: yaml.Node) -> str:
    return str(node.value)[:80] if isinstance(node, yaml.ScalarNode) else "here"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def kind_of(value: object) -> str:
    """Describe a value in the words of a person who writes the file."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "something else"
