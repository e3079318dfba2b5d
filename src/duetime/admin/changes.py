"""How often each kind of rule has changed: one look says which of them have to be read again.

Each change also notes the tenant whose rules they are, so that a node reads what
that one changed and not what all tenants have.  A change by a release that does
not note it is seen as well: then everything is read.
"""

from typing import Literal, NamedTuple

from duetime.database.pool import Database
from duetime.database.statements import load

RuleKind = Literal["tenants", "types", "limits", "breakers"]
_SQL = load(__package__, "changes.sql")


class Change(NamedTuple):
    """The latest change of a kind of rules."""

    number: int
    #: How many of the changes do not name a tenant.
    unnamed: int

    def follows(self, seen: "Change | None") -> bool:
        """Whether it is noted whose rules have changed since."""
        return seen is not None and seen.unnamed == self.unnamed


async def read_changes(database: Database) -> dict[RuleKind, Change]:
    """A number for each kind that rises in the commit of a change. What is read after it is at least as new."""
    return {row["kind"]: Change(row["change"], row["unnamed"]) for row in await database.run(_SQL["read_changes"])}
