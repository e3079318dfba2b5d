"""Arrays for `unnest`, without the elements that are not needed.

Writing an element, and reading it in PostgreSQL, costs about as much as an index
look-up.  An array that contains only NULL can be left out, because unnest fills it
up; an array that contains only one value is sent as that value.
"""

from typing import TypeVar

Value = TypeVar("Value")


def sparse(column: list[Value]) -> list[Value] | None:
    """The array; None if all its elements are None."""
    return column if any(column) else None


def same(column: list[Value]) -> tuple[list[Value] | None, Value | None]:
    """The array, or the single value that all its places have."""
    if column and column.count(column[0]) == len(column):
        return None, column[0]
    return column, None
