"""SQL in files: named blocks with named parameters.

A block begins with `-- name: claim_due`; `@lanes` in it is a parameter.  The
loader numbers the parameters in the order of their first appearance, because
PostgreSQL knows only `$1`.

Text that several statements share is a fragment, written once: a block that begins
with `-- fragment: fresh_ids`.  `{fresh_ids}` in a statement, or in another fragment,
stands for its text.  A file may use its own fragments and those of
`database/fragments.sql`.  The text is inserted when the file is loaded: PostgreSQL
sees only whole statements.

Where PostgreSQL takes no parameter, as in DDL, a statement has places that
`Statement.spelled` fills, in the notation of psql: `:"partition"` for a name and
`:'until'` for a value.  Both are quoted.

A statement that changes something and commits itself may be carried out long
after it was given up and repeated.  `-- Copies:` in its comment says why such a
late copy does no harm.  Without that line it may only run in a transaction
whose COMMIT is a message of its own (`changing.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_USE = re.compile(r"\{([a-z]\w*)\}")
_PLACE = re.compile(r""":(["'])([a-z]\w*)\1""")
_PARAMETER = re.compile(r"(?<![@\w<])@([a-z][a-z0-9_]*)")
_COMMENT = re.compile(r"--[^\n]*")
_COPIES = re.compile(r"^-- Copies:((?:[^\n]*\n--   )*[^\n]*)$", re.MULTILINE)
#: The words that mark a statement that changes something; a row lock ends with its statement.
_CHANGE = re.compile(
    r"\b(INSERT INTO|UPDATE (?!OF\b|SKIP\b|NOWAIT\b)\w+(?: AS \w+)?\s+SET|DELETE FROM"
    r"|nextval|pg_logical_emit_message|(?:CREATE|ALTER|DROP) (?:SCHEMA|TABLE|ROLE|DATABASE)|COMMENT ON)\b"
)


@dataclass(frozen=True)
class Statement:
    name: str
    sql: str
    parameters: tuple[str, ...]
    #: Why a copy that is carried out late does no harm; None: it may do harm.
    copies: str | None = None
    is_change: bool = False
    #: Whether it may run without a transaction around it.
    commits_itself: bool = True

    def spelled(self, **given: str) -> "Statement":
        """The statement with names and values filled into the places that take no parameter."""
        places = {place[2] for place in _PLACE.finditer(self.sql)}
        if places != given.keys():
            raise TypeError(f"{self.name} has places for {sorted(places)}, not for {sorted(given)}")

        def fill(place: re.Match[str]) -> str:
            quote = place[1]
            return quote + given[place[2]].replace(quote, quote * 2) + quote

        return replace(self, sql=_PLACE.sub(fill, self.sql))

    def arguments(self, given: dict[str, object]) -> list[object]:
        if len(given) != len(self.parameters):
            raise TypeError(f"{self.name} takes {self.parameters}, not {tuple(given)}")
        return [given[parameter] for parameter in self.parameters]


class SqlFileError(ValueError):
    """An SQL file cannot be loaded: its blocks and fragments do not fit together."""


def load(package: str, file: str) -> dict[str, Statement]:
    """Read the named statements of a file in the folder of its package."""
    return parse(file, files(package).joinpath(file).read_text("utf-8"), shared_fragments())


@cache
def shared_fragments() -> dict[str, str]:
    """The fragments that every file may use, without their comments."""
    file = "fragments.sql"
    statements, fragments = _blocks(file, files(__package__).joinpath(file).read_text("utf-8"))
    if statements:
        raise SqlFileError(f"{file} holds fragments only: move the statement {min(statements)} beside its module")
    return fragments


def parse(file: str, text: str, shared: Mapping[str, str]) -> dict[str, Statement]:
    """The statements in a file's text, with the text of the fragments that they use."""
    statements, own = _blocks(file, text)
    if twice := own.keys() & shared:
        raise SqlFileError(f"{file}: the fragment {min(twice)} is in fragments.sql too: give it another name")
    fragments = {**shared, **own}
    used: set[str] = set()
    parsed = {}
    for name, body in statements.items():
        bare = _expand(f"{file}: {name}", _bare(body), fragments, (), used)
        parsed[name] = _statement(name, bare, _COPIES.search(body))
    if unused := own.keys() - used:
        raise SqlFileError(f"{file}: no statement uses the fragment {min(unused)}: remove it")
    return parsed


def _blocks(file: str, text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The bodies of the statements, and of the fragments, by name."""
    statements: dict[str, str] = {}
    fragments: dict[str, str] = {}
    parts = _BLOCK.split(text)[1:]
    for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        blocks, kept = (statements, body) if kind == "name" else (fragments, _bare(body))
        if name in blocks:
            raise SqlFileError(f"{file}: two blocks begin with -- {kind}: {name}")
        blocks[name] = kept
    return statements, fragments


def _bare(body: str) -> str:
    return _COMMENT.sub("", body).strip().rstrip(";")


def _expand(place: str, text: str, fragments: Mapping[str, str], within: tuple[str, ...], used: set[str]) -> str:
    """Insert the text of each named fragment, and of the fragments that it names."""

    def put_in(match: re.Match[str]) -> str:
        name = match[1]
        if name not in fragments:
            raise SqlFileError(f"{place}: there is no fragment {name}, neither in this file nor in fragments.sql")
        if name in within:
            raise SqlFileError(f"{place}: the fragment {name} uses itself")
        used.add(name)
        return _expand(place, fragments[name], fragments, (*within, name), used)

    return _USE.sub(put_in, text)


def _statement(name: str, bare: str, copies: re.Match[str] | None) -> Statement:
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    is_change = _CHANGE.search(bare) is not None
    return Statement(
        name,
        _PARAMETER.sub(number, bare),
        tuple(parameters),
        None if copies is None else " ".join(copies[1].replace("\n--", " ").split()),
        is_change,
        copies is not None or not is_change,
    )
