"""What a key is confined to: the tasks whose type and queue fit its patterns.

For a confined key every other task does not exist.  A pattern is a name in
which `*` stands for any text and `?` for any one character.
"""

import re
from fnmatch import translate
from functools import lru_cache

import msgspec


class Confinement(msgspec.Struct, frozen=True):
    """Patterns of types and of queues; without patterns of a kind, everything of that kind fits."""

    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.types or self.queues)

    def has_type(self, name: str) -> bool:
        """Whether the key reaches tasks of this type, in the queues that it reaches."""
        return not self.types or _compile(self.types).fullmatch(name) is not None

    def has_queue(self, name: str) -> bool:
        """Whether the key reaches tasks in this queue, of the types that it reaches."""
        return not self.queues or _compile(self.queues).fullmatch(name) is not None

    @property
    def type_likes(self) -> list[str] | None:
        """The patterns of types for LIKE in the database; None: every type fits."""
        return [_like(pattern) for pattern in self.types] or None


@lru_cache(maxsize=1_000)
def _compile(patterns: tuple[str, ...]) -> "re.Pattern[str]":
    return re.compile("|".join(map(translate, patterns)))


def _like(pattern: str) -> str:
    for mark in "\\%_":
        pattern = pattern.replace(mark, "\\" + mark)
    return pattern.replace("*", "%").replace("?", "_")
