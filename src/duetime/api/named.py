"""Named things in lists and in paths: queues, limits, types, tiers, tenants."""

from collections.abc import Sequence
from typing import Protocol

from duetime.api.server.http import Request
from duetime.api.tasks.filters import not_a_cursor, read_page
from duetime.errors import NotFound


class Named(Protocol):
    @property
    def name(self) -> str: ...


def read_named_page(request: Request) -> tuple[str, int]:
    """The name after which a page begins, and how many items it may have."""
    cursor, limit = read_page(request.query())
    if cursor is not None and "\0" in cursor:
        raise not_a_cursor()
    return cursor or "", limit


def next_name(found: Sequence[Named], limit: int) -> str | None:
    """The cursor of the next page, if one more than the page was found."""
    return found[limit - 1].name if len(found) > limit else None


def name_in_path(request: Request, what: str) -> str:
    """The name in the path; a name that PostgreSQL cannot store does not exist."""
    name = request.path["name"]
    if "\0" in name:
        raise NotFound(f"there is no such {what}")
    return name
