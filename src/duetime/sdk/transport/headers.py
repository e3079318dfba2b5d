"""The headers of an answer, found by name without regard to case."""

from collections.abc import Iterator, Mapping

from duetime.http1.messages import Fields


class Headers(Mapping[str, str]):
    """Headers that are parsed only when one is read."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1")
        for each, value in self._fields:
            if each.lower() == wanted:
                return value.decode("latin-1")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.decode("latin-1").lower() for name, _ in self._fields))

    def __len__(self) -> int:
        return sum(1 for _ in self)
