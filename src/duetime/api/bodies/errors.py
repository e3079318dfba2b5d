"""Everything that is wrong with a body, after its decoder has found the first error.

The decoder is quick because it stops at the first wrong value.  Here the same body is taken apart level by level, each
field is decoded by its own type, and each wrong field is named.  The right parts are put together again, so that
checks beyond types can report their errors as well.  Only bodies that were refused come here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct, UnsetType

from duetime.api.bodies.right_values import fields_at, words_at
from duetime.api.bodies.seconds import decode_hook
from duetime.errors import FieldError

#: The most errors of one body; further errors are found once these are corrected.
MAX_ERRORS = 50
#: A body with more values is not taken apart, because each value would become an object.
MAX_VALUES = 100_000
#: The most parts that are checked, each in a few microseconds; errors after them are found once these are corrected.
MAX_LOOKS = 2_000

_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_NO_WORD = "Invalid enum value "
_SHOWN_NAME = 80
#: Replacements for required values that are wrong or missing, so that the rest can be checked.
_PLACEHOLDERS = (
    *(b'"x"', b"1", b"{}", b"[]", b"true"),
    *(b'"00000000-0000-0000-0000-000000000000"', b'"2000-01-01T00:00:00Z"'),
)
_cut_object = msgspec.json.Decoder(dict[str, Raw]).decode
_cut_array = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Found:
    errors: list[FieldError]
    #: The body without its wrong parts; None: too little is left.
    repaired: bytes | None


def find_errors(body: bytes, kind: Any) -> Found:
    """What is wrong with a JSON body that cannot be read as this type; no errors: the cause cannot be found."""
    if not _is_struct(kind) or body.count(b",") > MAX_VALUES:
        return Found([], None)
    walk = _Walk(kind)
    repaired = walk.struct(body, kind, "")
    return Found(walk.errors, repaired)


def field_error(text: str, kind: Any, within: str = "") -> FieldError:
    """What the decoder reported for the body, or for the part of it that is at `within`."""
    found = _AT.match(text)
    assert found is not None
    message, path = found["message"], _join(within, found["path"] or "")
    if unknown := _UNKNOWN.fullmatch(message):
        return _no_such_field(path, unknown["name"], fields_at(kind, path))
    if missing := _MISSING.fullmatch(message):
        return FieldError(_join(path, missing["name"]), "is required")
    if message.startswith(_NO_WORD) and (words := words_at(kind, path)):
        message = f"{message.removeprefix(_NO_WORD)} is none of: {', '.join(words)}"
    return FieldError(path, message[:1].lower() + message[1:])


def _no_such_field(path: str, name: str, known: list[str]) -> FieldError:
    hint = f"; there are: {', '.join(known)}" if known else ""
    return FieldError(_join(path, name[:_SHOWN_NAME]), f"there is no such field{hint}")


class _Kind:
    """A type taken apart as far as the walk needs it."""

    def __init__(self, kind: Any) -> None:
        self.decode = msgspec.json.Decoder(kind, dec_hook=decode_hook).decode
        self.struct: Any = None
        self.item: _Kind | None = None
        self.value: _Kind | None = None
        self._words: list[bytes] = []
        for each in _alternatives(kind):
            origin = get_origin(each)
            if _is_struct(each):
                self.struct = each
            elif origin is Literal:
                self._words += [_encode(word) for word in get_args(each)]
            elif origin in (list, set, frozenset) or (origin is tuple and get_args(each)[1:] == (...,)):
                self.item = _Kind(get_args(each)[0])
            elif origin is dict:
                self.value = _Kind(get_args(each)[1])

    def wrong_with(self, data: bytes) -> msgspec.ValidationError | None:
        try:
            self.decode(data)
        except msgspec.ValidationError as error:
            return error
        return None

    @cached_property
    def placeholder(self) -> bytes | None:
        """Any valid value."""
        candidates = [*self._words, *_PLACEHOLDERS]
        if self.struct is not None:
            required = {name: kind.placeholder for name, (needed, kind) in _fields_of(self.struct).items() if needed}
            candidates.append(_object({name: value for name, value in required.items() if value is not None}))
        return next((each for each in candidates if self.wrong_with(each) is None), None)


@cache
def _fields_of(struct: Any) -> dict[str, tuple[bool, _Kind]]:
    """Its fields by their names in JSON: whether each is required, and its type."""
    return {field.encode_name: (field.required, _Kind(field.type)) for field in msgspec.structs.fields(struct)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _alternatives(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _alternatives(each)
    elif kind not in (NoneType, UnsetType):
        yield kind


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._looks = 0
        self.errors: list[FieldError] = []

    def struct(self, data: bytes, struct: Any, path: str) -> bytes | None:
        try:
            parts = _cut_object(data)
        except msgspec.ValidationError as error:
            self._add(error, path)
            return None
        known = _fields_of(struct)
        right: dict[str, bytes] = {}
        for name, part in parts.items():
            if self._is_full:
                return None
            field = known.get(name)
            if field is None:
                if struct.__struct_config__.forbid_unknown_fields:
                    self.errors.append(_no_such_field(path, name, list(known)))
            elif (repaired := self._value(bytes(part), field[1], _join(path, name))) is not None:
                right[name] = repaired
        is_whole = True
        for name, (is_required, kind) in known.items():
            if is_required and name not in right:
                if name not in parts:
                    self.errors.append(FieldError(_join(path, name), "is required"))
                if kind.placeholder is None:
                    is_whole = False
                else:
                    right[name] = kind.placeholder
        return _object(right) if is_whole else None

    def _value(self, data: bytes, kind: _Kind, path: str) -> bytes | None:
        self._looks += 1
        wrong = kind.wrong_with(data)
        if wrong is None:
            return data
        before = len(self.errors)
        first = data.lstrip()[:1]
        if first == b"{" and kind.struct is not None:
            return self.struct(data, kind.struct, path)
        is_deeper = "`$" in str(wrong)
        repaired = None
        if first == b"[" and kind.item is not None and is_deeper:
            items: list[bytes | None] = []
            for place, part in enumerate(_cut_array(data)):
                item = self._value(bytes(part), kind.item, f"{path}[{place}]")
                if self._is_full:
                    return None
                # The other items keep their places, because errors name items by place.
                items.append(kind.item.placeholder if item is None else item)
            repaired = _array(items)
            if repaired is not None and (deeper := kind.wrong_with(repaired)) is not None:
                # For example there are too many of them: the decoder checks each item first.
                self._add(deeper, path)
                return None
        elif first == b"{" and kind.value is not None and is_deeper:
            entries = {
                name: self._value(bytes(part), kind.value, _join(path, name[:_SHOWN_NAME]))
                for name, part in _cut_object(data).items()
                if not self._is_full
            }
            repaired = _object({name: entry for name, entry in entries.items() if entry is not None})
        if len(self.errors) == before:
            self._add(wrong, path)
            return None
        return repaired

    def _add(self, error: msgspec.ValidationError, path: str) -> None:
        self.errors.append(field_error(str(error), self._root, path))

    @property
    def _is_full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS or self._looks >= MAX_LOOKS


def _array(items: list[bytes | None]) -> bytes | None:
    """Join the items; None if one of them is wrong and nothing can replace it."""
    right = [item for item in items if item is not None]
    return b"[%s]" % b",".join(right) if len(right) == len(items) else None


def _object(fields: dict[str, bytes]) -> bytes:
    return b"{%s}" % b",".join([b"%s:%s" % (_encode(name), value) for name, value in fields.items()])


def _join(path: str, name: str) -> str:
    if not path or not name:
        return path or name
    return f"{path}{name}" if name[0] == "[" else f"{path}.{name}"
