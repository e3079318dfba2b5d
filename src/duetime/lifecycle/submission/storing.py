"""Store minted tasks in one statement, and find out what happened if its answer was lost.

The shape of the load decides the statement: the simplest that can store it.  After a
broken connection the load is stored again under the same ids, by the statement
that can recognise repeats: if nothing of it can be stored again, the first try
succeeded.  A statement refuses ids that have become too old on the way, or that
are in the future because the database's clock went back: then new ids are minted.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import asyncpg

from duetime.clock import SentAt
from duetime.database.pool import Database
from duetime.database.repeating import repeat, wait_for_standbys
from duetime.database.statements import Statement
from duetime.database.statements import load as load_statements
from duetime.errors import Unavailable, Unknown
from duetime.lifecycle.submission.batch import Answers, Load, key_of
from duetime.lifecycle.submission.columns import all_columns, key_columns, plain_columns, request_columns
from duetime.lifecycle.submission.earlier import sort_out
from duetime.lifecycle.submission.handover import Reservation
from duetime.lifecycle.tasks.keys import free_keys
from duetime.model.task import DetailedTask, NewTask

SQL = load_statements(__package__, "submit.sql")
#: How far behind the database's clock an id may be when it is stored.
MINT_TOLERANCE_MS = 5_000
#: How far ahead of the database's clock it may be. The node's bound is ahead only by the drift of two clocks in a
#: second.
MINT_AHEAD_MS = 10
_TRIES = 5
#: Wait for a transaction that is still storing the same ids.
_PROBE_SECONDS = 60.0
_LOST = "the connection to the database broke while the task was stored; ask again with the same key"
#: A repeat hands nothing over, so it takes no holders. It accepts ids that are in the future.
_NOT_REPEATED = ("holders", "ahead_ms")


@dataclass(frozen=True)
class _Stored:
    """What a statement stored and when, and whether the result of an earlier try is unknown."""

    count: int
    #: None: all tasks of the load.
    ids: set[uuid.UUID] | None
    #: The time of the statement. None: the ids were too old.
    at: datetime | None
    was_in_doubt: bool


class Store:
    """The statements that store tasks. None as an answer means: mint new ids."""

    def __init__(self, database: Database, now: datetime | None) -> None:
        self._database = database
        self._now = now
        #: The parameters of a statement other than the columns and the time of minting.
        self._limits: dict[str, object] = {
            "now": now,
            "tolerance_ms": MINT_TOLERANCE_MS,
            "ahead_ms": MINT_AHEAD_MS,
        }

    async def store(self, load: Load, minted_ms: int, reservation: Reservation | None) -> Answers | None:
        """Store the whole load in one commit."""
        if load.requests or (load.shape is DetailedTask and load.has_keys):
            return await self.store_keyed(load, minted_ms, reservation)
        statement, columns = _without_keys(load, reservation)
        asked = None if statement is _SUBMIT_ONE else self._database.clock.ask()
        columns |= self._limits
        columns["minted_ms"] = minted_ms
        try:
            rows = await self._database.run_with(statement, columns)
        except asyncpg.UniqueViolationError:
            return None
        except Unknown:
            return await self.store_keyed(load, minted_ms, None, is_repeat=True)
        if not rows:
            return None
        if asked is not None:
            self._hear(asked, rows[0]["at"])
        if reservation is not None:
            reservation.picked_at = rows[0]["at"]
        return load.mark_stored()

    async def store_keyed(
        self, load: Load, minted_ms: int, reservation: Reservation | None, *, is_repeat: bool = False
    ) -> Answers | None:
        """Store tasks with keys, or find out about a commit whose answer was lost."""
        firsts = load.without_repeats()
        asked = self._database.clock.ask()
        try:
            stored = await repeat(
                partial(self._try_keyed, firsts, minted_ms, reservation),
                tries=_TRIES,
                lost=_LOST,
                was_in_doubt=is_repeat,
            )
        except asyncpg.UniqueViolationError:
            return None
        if stored.at is not None:
            self._hear(asked, stored.at)
        if reservation is not None and not stored.was_in_doubt:
            # If the result was unknown, a holder does not learn of the tasks that were stored for it. Its beats
            # release them.
            reservation.picked_at = stored.at
        if stored.count == len(load.tasks):
            return load.mark_stored()
        happened = stored.was_in_doubt and not stored.count
        if stored.at is None:
            # No load of this age can be stored any more by a new statement. A statement in progress is waited for.
            if not stored.was_in_doubt:
                return None
            happened = await self._is_there(load)
            if not happened:
                return _minted_anew(load)
        ids = set(firsts.ids) if stored.ids is None else stored.ids
        answers = await sort_out(self._database.run_with, load.batches, firsts.batches, ids, happened, self._now)
        await wait_for_standbys(self._database)
        return answers

    async def _try_keyed(
        self, load: Load, minted_ms: int, reservation: Reservation | None, was_in_doubt: bool
    ) -> _Stored:
        times = {**self._limits, "minted_ms": minted_ms}
        if was_in_doubt:
            columns = all_columns(load, None) | request_columns(load) | key_columns(load) | times
            again = {name: value for name, value in columns.items() if name not in _NOT_REPEATED}
            return _stored(await self._database.run_with(SQL["submit_repeated"], again), was_in_doubt)
        if load.shape is NewTask and reservation is None:
            columns = plain_columns(load) | request_columns(load) | times
            return _stored(await self._database.run_with(SQL["submit_plain_keyed"], columns), was_in_doubt)
        columns = all_columns(load, reservation) | request_columns(load) | key_columns(load) | times
        return _stored(await self._database.run_with(SQL["submit_keyed"], columns), was_in_doubt)

    async def _is_there(self, load: Load) -> bool:
        try:
            async with self._database.connection() as connection:
                probe = connection.transaction()
                await probe.start()
                rows = await self._database.run_in(
                    connection, SQL["probe"], {"lanes": load.lanes, "ids": load.ids}, _PROBE_SECONDS
                )
                await probe.rollback()
        except Unavailable as error:
            raise Unknown(_LOST) from error
        return len(rows) < len(load.ids)

    async def store_in(self, connection: asyncpg.Connection, load: Load, minted_ms: int) -> Answers | None:
        """Do the same in the caller's transaction."""
        firsts = load.without_repeats()
        columns = all_columns(firsts, None) | request_columns(firsts) | key_columns(firsts)
        run = partial(self._database.run_in, connection)
        stored = _stored(await run(SQL["submit_keyed"], {**columns, **self._limits, "minted_ms": minted_ms}), False)
        if stored.at is None:
            return None
        ids = set(firsts.ids) if stored.ids is None else stored.ids
        return await sort_out(run, load.batches, firsts.batches, ids, False, self._now)

    async def free_keys(self, load: Load) -> None:
        """Free permanently the keys that `store_in` freed in a transaction that was rolled back."""
        if keys := {key for batch in load.batches for key in batch.keys}:
            await free_keys(self._database.run_with, keys, self._now)

    def _hear(self, asked: SentAt, at: datetime) -> None:
        if self._now is None:
            self._database.clock.hear(asked, at)


_SUBMIT_ONE = SQL["submit_one"]


def _without_keys(load: Load, reservation: Reservation | None) -> tuple[Statement, dict[str, object]]:
    """Return the simplest statement that can store the load."""
    if load.shape is not NewTask or reservation is not None:
        return SQL["submit"], all_columns(load, reservation)
    if len(load.tasks) > 1:
        return SQL["submit_plain"], plain_columns(load)
    task = load.tasks[0]
    return _SUBMIT_ONE, {"lane": load.lanes[0], "id": load.ids[0], "type": task.type, "payload": task.payload}


def _stored(rows: list[asyncpg.Record], was_in_doubt: bool) -> _Stored:
    if not rows:
        return _Stored(0, set(), None, was_in_doubt)
    [(at, count, ids)] = rows
    return _Stored(count, None if ids is None else set(ids), at, was_in_doubt)


def _minted_anew(load: Load) -> Answers | None:
    """Return None if each task can be stored under new ids, else the answers for an unknown result.

    A task with a key of its own cannot be stored twice, so it is tried again. A task without one is not: a copy that is
    still being stored is refused as too old, but if the database's clock goes back it is not.
    A task that only its request identifies must be repeated by the caller with the request: tried again alone, it would
    not be recorded under the request, and a repetition of the request would store it once more.
    """
    if all(batch.is_named for batch in load.batches):
        return None
    return [[Unknown(_LOST) if key_of(task) is None else None for task in batch.tasks] for batch in load.batches]
