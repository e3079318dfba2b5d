"""SQL in files: named blocks with named parameters.

A block begins with `-- name: claim_due`; `@lanes` in it is a parameter.  The
loader numbers the parameters in the order of their first appearance, because
PostgreSQL knows only `$1`.

A statement that changes something and commits itself may be carried out long
after it was given up and repeated.  `-- Copies:` in its comment says why such a
late copy does no harm.  Without that line it may only be run in a transaction
whose COMMIT is a message of its own (`changing.py`).
"""

import re
import uuid
from dataclasses import dataclass
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![@\w<])@([a-z][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")
_COPIES = re.compile(r"^-- Copies:((?:[^\n]*\n--   )*[^\n]*)$", re.MULTILINE)
#: What a statement that changes something has in it; a row lock ends with its statement.
_CHANGE = re.compile(
    r"\b(INSERT INTO|UPDATE (?!OF\b|SKIP\b|NOWAIT\b)\w+(?: AS \w+)?\s+SET|DELETE FROM"
    r"|nextval|pg_logical_emit_message)\b"
)


@dataclass(frozen=True)
class Statement:
    name: str
    sql: str
    parameters: tuple[str, ...]
    #: Why a copy of it that is carried out late does no harm; None: it may do harm.
    copies: str | None = None
    is_change: bool = False
    #: Whether it may be run without a transaction around it.
    commits_itself: bool = True

    def with_uuid(self, identifier: uuid.UUID) -> str:
        """The text of a statement whose only parameter is an id, for a query of several statements."""
        if len(self.parameters) != 1:
            raise TypeError(f"{self.name} takes {self.parameters}, not one id")
        return self.sql.replace("$1", f"'{identifier}'")

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
    copies = _COPIES.search(body)
    is_change = _CHANGE.search(bare) is not None
    return Statement(
        name,
        _PARAMETER.sub(number, bare),
        tuple(parameters),
        None if copies is None else " ".join(copies[1].replace("\n--", " ").split()),
        is_change,
        copies is not None or not is_change,
    )
