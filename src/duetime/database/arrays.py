"""Arrays for `unnest`, with what need not be in them left out.

Writing an element, and taking it out again in PostgreSQL, costs about as much as
an index look-up.  An array of nothing but NULL is as good as none, because unnest
fills it up; one of nothing but a single value is given as that value.
"""

from typing import TypeVar

Value = TypeVar("Value")


def sparse(column: list[Value]) -> list[Value] | None:
    """The array, or None if there is nothing in it."""
    return column if any(column) else None


def same(column: list[Value]) -> tuple[list[Value] | None, Value | None]:
    """The array, or the value that is in all its places."""
    if column and column.count(column[0]) == len(column):
        return None, column[0]
    return column, None
