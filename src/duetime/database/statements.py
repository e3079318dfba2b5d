"""SQL in files: named blocks with named parameters.

A block begins with `-- name: claim_due`; `@lanes` in it is a parameter.  The
loader numbers the parameters in the order of their first appearance, because
PostgreSQL knows only `$1`.
"""

import re
from dataclasses import dataclass
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![@\w<])@([a-z][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")


@dataclass(frozen=True)
class Statement:
    name: str
    sql: str
    parameters: tuple[str, ...]

    def arguments(self, given: dict[str, object]) -> list[object]:
        if len(given) != len(self.parameters):
            raise TypeError(f"{self.name} takes {self.parameters}, not {tuple(given)}")
        return [given[parameter] for parameter in self.parameters]


def load(package: str, file: str) -> dict[str, Statement]:
    """Read the named statements of a file that lies beside its module."""
    text = files(package).joinpath(file).read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {name: _statement(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _statement(name: str, body: str) -> Statement:
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    bare = _COMMENT.sub("", body).strip().rstrip(";")
    return Statement(name, _PARAMETER.sub(number, bare), tuple(parameters))
