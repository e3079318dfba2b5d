"""How deep a payload is, without a look at each of its values."""

import json
from typing import Any

import pytest

from duetime.api.bodies.payloads import MAX_DEPTH, is_deep


def nest(levels: int, innermost: Any) -> bytes:
    """So many levels of lists and objects, whose keys and texts are full of brackets."""
    value = innermost
    for level in range(levels):
        value = [value, "]}"] if level % 2 else {'{"\\[{': value, "b": "\\"}
    return json.dumps(value).encode()


@pytest.mark.parametrize("innermost", [1, "", '"[[[{\\', "\\\\", "é}"])
def test_only_brackets_outside_of_texts_are_levels(innermost: Any) -> None:
    assert not is_deep(nest(MAX_DEPTH, innermost))
    assert is_deep(nest(MAX_DEPTH + 1, innermost))


def test_many_values_beside_each_other_are_not_deep() -> None:
    assert not is_deep(b"[" + b"[{}]," * 10_000 + b"1]")
    assert not is_deep(b"1")
