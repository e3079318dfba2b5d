"""How often each kind of rule has changed: one look says which of them have to be read again."""

from typing import Literal

from duetime.database.pool import Database

RuleKind = Literal["tenants", "types", "limits", "breakers"]
_READ_ALL = "SELECT kind, change FROM rule_change"


async def read_changes(database: Database) -> dict[RuleKind, int]:
    """A number for each kind, which rises in the commit of a change: what is read after it is at least as new."""
    return {row["kind"]: row["change"] for row in await database.fetch(_READ_ALL)}
