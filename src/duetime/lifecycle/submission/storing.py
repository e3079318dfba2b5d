"""Store what was prepared, in one statement, and find out about one whose answer was lost.

After a broken connection the same statement is repeated with the same ids: if
nothing of it can be stored again, it had happened.  A statement refuses ids that
have become too old on the way, or that lie ahead because the database's clock went back:
then they have to be minted anew.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from duetime.clock import Asked
from duetime.database.pool import Database
from duetime.database.repeating import repeat, wait_for_standbys
from duetime.database.statements import Statement
from duetime.errors import Unavailable, Unknown
from duetime.lifecycle.submission.handover import Seats
from duetime.lifecycle.submission.rows import columns, keyed_columns
from duetime.lifecycle.submission.winners import SQL, Call, Submission, sort_out
from duetime.lifecycle.tasks.keys import Run, free_keys

#: How far behind the database's clock an id may be when it is stored.
MINT_TOLERANCE_MS = 5_000
#: How far ahead of it.  The node's bound is never ahead but by what two clocks drift apart in a second.
MINT_AHEAD_MS = 10
_TRIES = 5
#: A transaction that is still storing the same ids is waited for.
_PROBE_SECONDS = 60.0
_LOST = "the connection to the database broke while the task was stored; ask again with the same key"

#: An answer for each task of each call; None in its place: it must be tried once more.
Answers = list[Sequence[Submission | None]]


@dataclass(frozen=True)
class _Stored:
    """What a statement stored, when, and whether an earlier try is in doubt."""

    count: int
    #: None: all that were asked for.
    ids: set[uuid.UUID] | None
    #: The time of the statement; None: the ids were too old.
    at: datetime | None
    was_in_doubt: bool

    def ids_of(self, calls: list[Call]) -> set[uuid.UUID]:
        return {identifier for call in calls for identifier in call.ids} if self.ids is None else self.ids


class Store:
    """The statements behind a submission; None for an answer means: mint anew."""

    def __init__(self, database: Database, now: datetime | None) -> None:
        self._database = database
        self._now = now

    async def store(self, calls: list[Call], minted_ms: int, seats: Seats | None) -> Answers | None:
        """All calls in one commit."""
        if any(call.request or call.has_keys for call in calls):
            return await self.store_keyed(calls, minted_ms, seats)
        return await self.store_plain(calls, minted_ms, seats)

    async def store_plain(self, calls: list[Call], minted_ms: int, seats: Seats | None) -> Answers | None:
        """Without keys."""
        asked = self._database.clock.ask()
        try:
            rows = await self._database.run_with(SQL["submit"], columns(calls, seats) | self._time(minted_ms))
        except asyncpg.UniqueViolationError:
            return None
        except Unknown:
            return await self.store_keyed(calls, minted_ms, None, is_repeat=True)
        if not rows:
            return None
        self._hear(asked, rows[0]["at"])
        if seats is not None:
            seats.picked_at = rows[0]["at"]
        return _all_new(calls)

    async def store_keyed(
        self, calls: list[Call], minted_ms: int, seats: Seats | None, *, is_repeat: bool = False
    ) -> Answers | None:
        """With keys, or to find out about a commit whose answer was lost."""
        firsts, parameters = keyed_columns(calls, seats)
        asked = self._database.clock.ask()
        try:
            stored = await self._store_through_doubt(parameters | self._time(minted_ms), was_in_doubt=is_repeat)
        except asyncpg.UniqueViolationError:
            return None
        if stored.at is not None:
            self._hear(asked, stored.at)
        if seats is not None and not stored.was_in_doubt:
            # In doubt, what was stored for a holder that hears nothing of it is released by its beats.
            seats.picked_at = stored.at
        if stored.count == sum(len(call.tasks) for call in calls):
            return _all_new(calls)
        happened = stored.was_in_doubt and not stored.count
        if stored.at is None:
            # Nothing of this age can begin to be stored any more; what had begun is waited for.
            if not stored.was_in_doubt:
                return None
            happened = await self._is_there(calls)
            if not happened:
                return _minted_anew(calls)
        answers = await sort_out(self._database.run_with, calls, firsts, stored.ids_of(firsts), happened, self._now)
        await wait_for_standbys(self._database)
        return answers

    async def _store_through_doubt(self, parameters: dict[str, object], *, was_in_doubt: bool) -> _Stored:
        async def store(was_in_doubt: bool) -> _Stored:
            statement = SQL["submit_repeated" if was_in_doubt else "submit_keyed"]
            return _stored(await self._database.run_with(statement, _for(statement, parameters)), was_in_doubt)

        return await repeat(store, tries=_TRIES, lost=_LOST, was_in_doubt=was_in_doubt)

    async def _is_there(self, calls: list[Call]) -> bool:
        lanes = [lane for call in calls for lane in call.lanes]
        ids = [identifier for call in calls for identifier in call.ids]
        try:
            async with self._database.connection() as connection:
                probe = connection.transaction()
                await probe.start()
                rows = await self._database.run_in(
                    connection, SQL["probe"], {"lanes": lanes, "ids": ids}, _PROBE_SECONDS
                )
                await probe.rollback()
        except Unavailable as error:
            raise Unknown(_LOST) from error
        return len(rows) < len(ids)

    async def store_in(self, connection: asyncpg.Connection, calls: list[Call], minted_ms: int) -> Answers | None:
        """The same in the caller's transaction."""
        firsts, parameters = keyed_columns(calls, None)
        run = _runner(connection)
        stored = _stored(await run(SQL["submit_keyed"], parameters | self._time(minted_ms)), False)
        if stored.at is None:
            return None
        return await sort_out(run, calls, firsts, stored.ids_of(firsts), False, self._now)

    async def free_keys(self, calls: list[Call]) -> None:
        """For good what `store_in` freed in a transaction that was rolled back."""
        if keys := {key for call in calls for key in call.keys}:
            await free_keys(self._database.run_with, keys, self._now)

    def _hear(self, asked: Asked, at: datetime) -> None:
        if self._now is None:
            self._database.clock.hear(asked, at)

    def _time(self, minted_ms: int) -> dict[str, object]:
        return times_of(minted_ms, self._now)


def times_of(minted_ms: int, now: datetime | None) -> dict[str, object]:
    """What a statement has to know that stores ids minted at that time."""
    return {"now": now, "minted_ms": minted_ms, "tolerance_ms": MINT_TOLERANCE_MS, "ahead_ms": MINT_AHEAD_MS}


def _runner(connection: asyncpg.Connection) -> Run:
    async def run(statement: Statement, parameters: dict[str, object]) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await connection.fetch(
            statement.sql, *statement.arguments(parameters), timeout=10.0
        )
        return rows

    return run


def _stored(rows: list[asyncpg.Record], was_in_doubt: bool) -> _Stored:
    if not rows:
        return _Stored(0, set(), None, was_in_doubt)
    [(at, count, ids)] = rows
    return _Stored(count, None if ids is None else set(ids), at, was_in_doubt)


def _all_new(calls: list[Call]) -> Answers:
    return [call.all_new() for call in calls]


def _minted_anew(calls: list[Call]) -> Answers | None:
    """What a key of its own keeps from being stored twice is tried again; the other is not.

    A copy that is still under way is refused as too old, but if the database's clock goes back it is not any more.
    What only its request names is asked for again with that: tried again by itself it would not be written down
    under the request, and whoever repeats that would have it stored once more.
    """
    if all(call.is_named for call in calls):
        return None
    return [[Unknown(_LOST) if task.idempotency_key is None else None for task in call.tasks] for call in calls]


def _for(statement: Statement, parameters: dict[str, object]) -> dict[str, object]:
    """A repeat hands nothing over, so it takes no holders, and it does not refuse ids that lie ahead."""
    if "holders" in statement.parameters:
        return parameters
    return {name: value for name, value in parameters.items() if name not in ("holders", "ahead_ms")}
