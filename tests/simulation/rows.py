"""What a statement gives: rows that are asked by place or by name, as the driver's are."""

from collections.abc import Callable, Iterable
from typing import Any

Record = tuple[Any, ...]


def record_of(*names: str) -> Callable[[Iterable[Any]], Record]:
    """A kind of row with these columns."""
    places = {name: place for place, name in enumerate(names)}

    class Row(tuple[Any, ...]):
        __slots__ = ()

        def __getitem__(self, key: Any) -> Any:
            return tuple.__getitem__(self, places[key] if type(key) is str else key)

    return Row


def column(values: list[Any] | None, one: Any, count: int) -> list[Any]:
    """An array, or what is given in its place: one value for all, or nothing."""
    return [one] * count if values is None else values
