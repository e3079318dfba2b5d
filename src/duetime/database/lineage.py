"""Whether a server continues the history of writes that this process knows.

A standby that is promoted begins a new timeline.  If it did not have everything that
the former primary had acknowledged, rows that this process remembers do not exist
there, and their ids are given to others.  So what was learned from one history must not
be used on another one.

Each connection reads its server's position when it is opened, and the query for the
time reads it every second.  A server belongs to the same history if it has the same
system identifier, database and timeline, and has written no less than before.  A server
on an older timeline was replaced and is not used.  Any other difference ends the
history: everything that was learned from it is invalid.
"""

from dataclasses import dataclass

import asyncpg
import msgspec
import structlog

from duetime.database.statements import load
from duetime.errors import FailingOver, Unavailable

SQL = load(__package__, "lineage.sql")
log = structlog.get_logger()
READ_ONLY = "the database is read-only: it is a standby, or default_transaction_read_only is on"
#: Errors of a server that does not let this role, or any role, ask for its position.
_NOT_TOLD = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedFunctionError,
    asyncpg.FeatureNotSupportedError,
)


class TimelinePosition(msgspec.Struct, frozen=True):
    """The position of a server in the history of its writes."""

    system: int
    #: The oid: a database that was restored under its old name is a different one.
    database: int
    timeline: int
    #: How many bytes of its log are on disk.
    written: int

    def is_before(self, other: "TimelinePosition") -> bool:
        """Whether this is the same server or its standby, on an older timeline than the other."""
        return (self.system, self.database) == (other.system, other.database) and self.timeline < other.timeline


@dataclass(frozen=True)
class Answer:
    now_us: int
    #: None: the server does not allow the question.
    place: TimelinePosition | None


class Lineage:
    """The history that one `Database` belongs to: that of the first server it connects to."""

    def __init__(self, after: TimelinePosition | None = None) -> None:
        #: The newest known position; servers on an older timeline are not used.
        self.newest = after
        self._is_begun = False
        self.is_over = False
        self._can_tell = True

    async def ask(self, connection: asyncpg.Connection, timeout: float) -> Answer:
        """Ask the server for its time and position. Raise if it must not be used."""
        if not self._can_tell:
            return await _ask_time(connection, timeout)
        # What is on disk according to an earlier answer is on disk when the server reads this question.
        written = self.newest.written if self._is_begun and self.newest is not None else 0
        try:
            row = await connection.fetchrow(SQL["ask"].sql, timeout=timeout)
        except _NOT_TOLD as error:
            self._can_tell = False
            log.warning(
                "the server does not tell its timeline: restart the nodes after a failover to a standby that was not "
                "waited for",
                error=str(error),
            )
            return await _ask_time(connection, timeout)
        if row["timeline"] is None:
            raise Unavailable(READ_ONLY)
        place = TimelinePosition(row["system"], row["database"], row["timeline"], row["written"])
        self._check(place, written)
        return Answer(row["now_us"], place)

    def end(self, newest: TimelinePosition) -> None:
        """End the history: there is a newer one."""
        if not self.is_over:
            log.warning(
                "the database has failed over or was replaced",
                timeline=newest.timeline,
                was=None if self.newest is None else self.newest.timeline,
                is_same_system=self.newest is not None and self.newest.system == newest.system,
            )
        self.is_over = True
        if self.newest is None or not newest.is_before(self.newest):
            self.newest = newest

    def _check(self, place: TimelinePosition, written: int) -> None:
        if self.is_over:
            raise failing_over()
        newest = self.newest
        if newest is not None and place.is_before(newest):
            raise Unavailable(
                f"the server at the database's address is on timeline {place.timeline}, and there is a server on "
                f"timeline {newest.timeline} that has replaced it; if this one is right after all, restart the node"
            )
        if not self._is_begun or newest is None:
            self._is_begun, self.newest = True, place
            return
        is_same = (place.system, place.database, place.timeline) == (newest.system, newest.database, newest.timeline)
        if not is_same or place.written < written:
            self.end(place)
            raise failing_over()
        if place.written > newest.written:
            self.newest = place


async def _ask_time(connection: asyncpg.Connection, timeout: float) -> Answer:
    return Answer(await connection.fetchval(SQL["ask_time"].sql, timeout=timeout), None)


def failing_over() -> FailingOver:
    return FailingOver("the database has failed over to another server; the node starts anew and is back in a moment")
