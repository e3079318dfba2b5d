"""Steer tasks: cancel, pause, resume, reschedule, run now, redrive, drop.

A verb takes the row in which the task waits; of two movers one finds nothing.
A verb that found nothing reads where the task is in one statement, answers
with that state, and tries again if the task could be taken after all: a look
and a move are two statements, and the task may have moved in between.

Each verb is a change in several messages (`database/changing.py`): it is never
carried out after it was given up, nor twice.
"""

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from duetime.clock import to_ms_rounded_up
from duetime.database.changing import run_once_with
from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.repeating import wait_for_standbys
from duetime.database.statements import load
from duetime.errors import Unavailable, Unknown
from duetime.ids import lane_of, looks_like_id
from duetime.lifecycle.tasks.onward import OnEnded, Wake
from duetime.lifecycle.tasks.state import read_states
from duetime.model.attempt import Past
from duetime.model.task import TaskState
from duetime.model.transitions import Move, sources_of
from duetime.signals import ignore

SQL = load(__package__, "steer.sql")
_TRIES = 8
#: Something may have been moved, so nobody may be told that nothing was done.
_IN_DOUBT = "a part of it was done; look at the task's state and ask again"
_DAY_MS = 86_400_000


class SteerResult(msgspec.Struct, frozen=True):
    """What became of one task: whether the verb moved it, and its state now."""

    changed: bool
    #: None: there is no such task.
    state: TaskState | None


class Steering:
    """The verbs, with what they need: the store, and whom to tell of rows in due."""

    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        wake: Wake = ignore,
        now: datetime | None = None,
        *,
        on_ended: OnEnded = ignore,
    ) -> None:
        """`on_ended` is told of attempts that may have been running."""
        self._database = database
        self._partitions = partitions
        self._wake = wake
        self._now = now
        self._on_ended = on_ended

    async def cancel(self, ids: Sequence[uuid.UUID], reason: str | None = None) -> dict[uuid.UUID, SteerResult]:
        """End tasks for good; a running one's holder hears of it at its next word."""
        detail = None if reason is None else msgspec.json.encode({"reason": reason})
        return await self._move(Move.CANCEL, ids, now=self._now, detail=detail)

    async def pause(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, SteerResult]:
        return await self._move(Move.PAUSE, ids)

    async def resume(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, SteerResult]:
        return await self._move(Move.RESUME, ids, now=self._now)

    async def run_now(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, SteerResult]:
        return await self._move(Move.RUN_NOW, ids, now=self._now)

    async def reschedule(self, ids: Sequence[uuid.UUID], run_at: datetime) -> dict[uuid.UUID, SteerResult]:
        run_at_ms = to_ms_rounded_up(run_at)
        now_ms = self._database.clock.now_ms()
        await self._partitions.ensure([max(run_at_ms, now_ms), now_ms])
        return await self._move(Move.RESCHEDULE, ids, now=self._now, run_at=run_at, run_at_ms=run_at_ms)

    async def redrive(self, ids: Sequence[uuid.UUID], rate: float | None = None) -> dict[uuid.UUID, SteerResult]:
        """Give dead letters new budgets; with a rate, that many a second from now on."""
        step_ms = 0.0 if rate is None else 1000.0 / rate
        now_ms = self._database.clock.now_ms()
        last_ms = now_ms + int(step_ms * len(ids)) + 3_600_000
        await self._partitions.ensure([*range(now_ms, last_ms, _DAY_MS), last_ms])
        return await self._move(Move.REDRIVE, ids, now=self._now, step_ms=step_ms)

    async def drop(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, SteerResult]:
        return await self._move(Move.DROP, ids, detail=b'{"reason":"dropped"}')

    async def _move(self, move: Move, ids: Sequence[uuid.UUID], **parameters: object) -> dict[uuid.UUID, SteerResult]:
        real = [each for each in dict.fromkeys(ids) if looks_like_id(each) and lane_of(each) < 1 << 31]
        # A rate spreads tasks in the order given; every other verb sorts, so that two cannot deadlock.
        pending = real if move is Move.REDRIVE else sorted(real)
        verdicts = dict.fromkeys(ids, SteerResult(False, None))
        moved: set[uuid.UUID] = set()
        for _ in range(_TRIES):
            try:
                rows = await run_once_with(
                    self._database,
                    SQL[move.value],
                    {"lanes": [lane_of(each) for each in pending], "tasks": pending, **parameters},
                )
            except Unavailable as error:
                raise _doubt(error, moved) from error
            moved |= {row["task"] for row in rows}
            if move is Move.CANCEL:
                self._on_ended([Past(row["task"], row["number"]) for row in rows])
            self._wake([row["wake"] for row in rows if row["wake"] is not None])
            try:
                states = await read_states(self._database, pending, now=self._now)
            except Unavailable as error:
                raise _doubt(error, moved) from error
            again = []
            for task in pending:
                state = states.get(task)
                if task in moved:
                    verdicts[task] = SteerResult(True, state)
                elif move is Move.RUN_NOW and state is TaskState.READY:
                    verdicts[task] = SteerResult(False, state)
                elif state in sources_of(move):
                    again.append(task)
                else:
                    verdicts[task] = SteerResult(False, state)
            pending = again
            if not pending:
                if not moved.issuperset(real):
                    await self._wait_for_standbys(moved)
                return verdicts
        raise _doubt(Unavailable("the task is moving all the time; ask again"), moved)

    async def _wait_for_standbys(self, moved: Collection[uuid.UUID]) -> None:
        """Some are told of a state that they had already."""
        try:
            await wait_for_standbys(self._database)
        except Unavailable as error:
            raise _doubt(error, moved) from error


def _doubt(error: Unavailable, moved: Collection[uuid.UUID]) -> Unavailable:
    """`Unavailable` would say that nothing was done."""
    return Unknown(_IN_DOUBT) if moved else error
