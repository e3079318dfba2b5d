"""Pages of lists whose rows may be large: as many rows as fit, whatever the limit.

The statement itself stops, so that what does not fit is neither sent nor kept:
it weighs the rows of a page and gives those before which less than `PAGE_BYTES`
stand, each with how many it found.  The first row is always among them.
"""

from collections.abc import Sequence

import asyncpg

#: Of what the rows of a page hold, without the last of them.
PAGE_BYTES = 4 * 1024 * 1024


def cut_page(rows: Sequence[asyncpg.Record], limit: int) -> tuple[Sequence[asyncpg.Record], bool]:
    """The rows of the page, and whether there are more; the statement was asked for one more than the limit."""
    shown = rows[:limit]
    return shown, bool(rows) and rows[0]["found"] > len(shown)
