"""What would be right at a place of a body: the fields of an object, or the words of a choice.

The decoder says what is wrong and where; this module looks into the type that the body
was read as, so that the answer can say what to write instead.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

from duetime.model.task import SHOWN_STATES, TaskState

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


@cache
def _shape_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def fields_at(kind: Any, path: str) -> list[str]:
    """The field names of the object at this place; none if there is no such object."""
    return [
        field.encode_name
        for shape in _shapes_at(kind, path)
        if isinstance(shape, inspect.StructType)
        for field in shape.fields
    ]


def words_at(kind: Any, path: str) -> list[str]:
    """The words of the choice at this place; none if it is not a choice."""
    found: list[str] = []
    for shape in _shapes_at(kind, path):
        if isinstance(shape, inspect.EnumType):
            members = SHOWN_STATES if shape.cls is TaskState else shape.cls
            found += [str(member.value) for member in members]
        elif isinstance(shape, inspect.LiteralType):
            found += [str(value) for value in shape.values]
    return found


def _shapes_at(kind: Any, path: str) -> list[inspect.Type]:
    shapes = list(_plain(_shape_of(kind)))
    for step in _STEP.findall(path):
        shapes = [plain for shape in shapes for inner in _inside(shape, step) for plain in _plain(inner)]
    return shapes


def _plain(shape: inspect.Type) -> Iterator[inspect.Type]:
    """The shape without its metadata; for a union, each of its members."""
    if isinstance(shape, inspect.Metadata):
        yield from _plain(shape.type)
    elif isinstance(shape, inspect.UnionType):
        for each in shape.types:
            yield from _plain(each)
    else:
        yield shape


def _inside(shape: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match shape:
        case inspect.StructType():
            yield from (field.type for field in shape.fields if field.encode_name == step)
        case inspect.ListType():
            yield shape.item_type
        case inspect.DictType():
            yield shape.value_type
        case _:
            return
