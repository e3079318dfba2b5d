"""Pages of lists whose rows may be large: as many rows as fit, whatever the limit is.

The statement itself stops, so that rows that do not fit are neither sent nor kept.  It
adds up the bytes of a page's rows and returns each row that has less than `PAGE_BYTES`
before it, and with each row how many it found.  The first row is always returned.
"""

from collections.abc import Sequence

import asyncpg

#: The most bytes in the rows of a page, without the last row.
PAGE_BYTES = 4 * 1024 * 1024


def cut_page(rows: Sequence[asyncpg.Record], limit: int) -> tuple[Sequence[asyncpg.Record], bool]:
    """The rows of the page, and whether there are more; the statement asked for one row more than the limit."""
    shown = rows[:limit]
    return shown, bool(rows) and rows[0]["found"] > len(shown)
