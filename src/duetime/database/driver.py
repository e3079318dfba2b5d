"""Make the driver quicker at what we ask of it: long arrays of plain values.

For every element of an array asyncpg asks two abstract base classes whether it
is an array itself, which took a sixth of a busy node's time.  Our arrays are
lists and never nested, so a check against plain types says the same.
"""

import asyncpg.protocol.protocol as _protocol

_ARRAYS = (list, tuple)


def hasten_arrays() -> None:
    """Look for nested arrays among lists and tuples only; without effect on a driver that is built otherwise."""
    if hasattr(_protocol, "IterableABC"):
        _protocol.IterableABC = _ARRAYS
