"""What duetime changes in the driver.

A connection that is given up is dropped, and its statement is not cancelled: a
commit that waits for a synchronous standby would become visible when its wait
is cancelled, although no standby has it.

Long arrays of plain values are quicker.  For every element of an array asyncpg
asks two abstract base classes whether it is an array itself, which took a sixth
of a busy node's time.  The arrays of duetime are lists and never nested, so a check
against plain types gives the same answer.
"""

import asyncio

import asyncpg
import asyncpg.protocol.protocol as _protocol

_ARRAYS = (list, tuple)


def hasten_arrays() -> None:
    """Look for nested arrays among lists and tuples only; has no effect on a driver with other internals."""
    if hasattr(_protocol, "IterableABC"):
        _protocol.IterableABC = _ARRAYS


class DroppedConnection(asyncpg.Connection):
    """A connection that closes its socket when asyncpg would ask the server to cancel the statement."""

    __slots__ = ()

    def _cancel_current_command(
        self, waiter: "asyncio.Future[None]", cancel_waiter: "asyncio.Future[None] | None" = None
    ) -> None:
        # asyncpg calls this when a statement runs out of time or its caller is cancelled; when the connection is lost,
        # it stops waiting for both futures.
        self._transport.abort()
