"""Move claims onward: write down how attempts ended and let their tasks go on.

The one statement behind settling, lapsing and releasing.  It takes the claim
row of (task, number, holder); whoever comes second finds no row and changes
nothing.  What a claim row says never changes while it is there, so reading it,
deciding, and then taking it under the same three facts is safe.
"""

import random
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import msgspec

from duetime.database.partitions import Partitions
from duetime.database.pool import Database
from duetime.database.statements import load
from duetime.ids import lane_of
from duetime.lifecycle.tasks.outcomes import OutcomeCounts
from duetime.model.attempt import Again, Attempt, Bury, Ended, Past, what_follows
from duetime.model.task import Options, Outcome, Waiting
from duetime.signals import ignore

SQL = load(__package__, "onward.sql")
decode_options = msgspec.json.Decoder(Options).decode
#: Told of rows that were put into due.
Wake = Callable[[Collection[uuid.UUID]], None]
#: Called with attempts that have ended: somebody may wait for their place.
OnEnded = Callable[[Sequence[Past]], None]
#: Called with new dead letters, after the commit.
OnDead = Callable[[Sequence["Dead"]], None]
#: A wait may cross into the next partition between here and the database.
_MARGIN_MS = 3_600_000


@dataclass(frozen=True)
class End:
    """One attempt's end, and what is kept of it."""

    task: uuid.UUID
    number: int
    ended: Ended
    started_at: datetime | None = None
    completed_at: datetime | None = None
    result: bytes | None = None
    detail: bytes | None = None
    never_began: bool = False


@dataclass(frozen=True)
class HowItEnded:
    """The end of an attempt that nobody holds any more, and whose it was."""

    outcome: Outcome
    by: tuple[int | None, str | None]
    #: Its task is a dead letter since.
    is_dead: bool = False


@dataclass(frozen=True)
class Claimed:
    """A claim row with its task's options: what a decision needs."""

    lane: int
    task: uuid.UUID
    number: int
    holder: int
    waiting: Waiting
    options: Options | None
    first_picked_at: datetime


@dataclass(frozen=True)
class Dead:
    """A task that became a dead letter with this attempt."""

    lane: int
    task: uuid.UUID
    number: int
    reason: str
    #: What is kept of the attempt, as in `End`.
    detail: bytes | None


class Onward:
    def __init__(
        self,
        database: Database,
        partitions: Partitions,
        wake: Wake,
        chance: random.Random | None = None,
        now: datetime | None = None,
        *,
        on_ended: OnEnded = ignore,
        on_dead: OnDead = ignore,
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._wake = wake
        self._chance = chance or random.Random()
        self._now = now
        self._on_ended = on_ended
        self._on_dead = on_dead
        self.counts = OutcomeCounts()

    def ended(self, attempts: Sequence[Past]) -> None:
        if attempts:
            self._on_ended(attempts)

    async def read(self, attempts: Sequence[Attempt]) -> dict[Attempt, Claimed]:
        rows = await self._database.run(
            SQL["read_claims"],
            lanes=[lane_of(task) for task, _ in attempts],
            tasks=[task for task, _ in attempts],
            numbers=[number for _, number in attempts],
        )
        return {(row["task"], row["number"]): claimed_of(row) for row in rows}

    async def read_ends(self, attempts: Sequence[Attempt]) -> dict[Attempt, HowItEnded]:
        """How attempts ended that their holder does not have any more."""
        asked = [(task, number) for task, number in attempts if may_exist(task, number)]
        if not asked:
            return {}
        rows = await self._database.run(
            SQL["read_ends"],
            lanes=[lane_of(task) for task, _ in asked],
            tasks=[task for task, _ in asked],
            numbers=[number for _, number in asked],
        )
        return {
            (row["task"], row["number"]): HowItEnded(
                Outcome(row["outcome"]), (row["tenant"], row["name"]), row["is_dead"]
            )
            for row in rows
        }

    async def move(self, ends: Sequence[tuple[Claimed, End]]) -> dict[Attempt, bool]:
        """Take these claims and leave what follows; returns those that were there, and whether their task died."""
        if not ends:
            return {}
        now = self._now or self._database.clock.now()
        ends = sorted(ends, key=lambda pair: (pair[0].lane, pair[0].task))
        columns = _Columns()
        buried: dict[Attempt, Dead] = {}
        for claimed, end in ends:
            outcome, following = what_follows(
                end.ended,
                claimed.waiting,
                claimed.options,
                first_picked_at=claimed.first_picked_at,
                now=now,
                chance=self._chance,
            )
            columns.add(claimed, end, outcome, following)
            if isinstance(following, Bury):
                attempt = (end.task, end.number)
                buried[attempt] = Dead(claimed.lane, *attempt, following.reason, end.detail)
        waits = [wait for wait in columns.waits_ms if wait is not None]
        if waits:
            now_ms = self._database.clock.now_ms()
            await self._partitions.ensure(now_ms + wait + margin for wait in waits for margin in (0, _MARGIN_MS))
        rows = await self._database.run(SQL["move_onward"], now=self._now, **vars(columns))
        ended = {(row["task"], row["number"]) for row in rows if row["wake"] is None}
        moved = zip(columns.lanes, columns.tasks, columns.numbers, columns.outcomes, strict=True)
        self.counts.ended((lane, Outcome(how)) for lane, task, number, how in moved if (task, number) in ended)
        # First the ends: who counts what runs is not to take the next attempt's start for this one's.
        never_began = {(end.task, end.number) for _, end in ends if end.never_began}
        self.ended([Past(*attempt, attempt in never_began) for attempt in ended])
        self._wake([row["wake"] for row in rows if row["wake"] is not None])
        if dead := [each for attempt, each in buried.items() if attempt in ended]:
            self._on_dead(dead)
        return {attempt: attempt in buried for attempt in ended}


class _Columns:
    """The statement's arrays, filled row by row."""

    def __init__(self) -> None:
        self.lanes: list[int] = []
        self.tasks: list[uuid.UUID] = []
        self.numbers: list[int] = []
        self.holders: list[int] = []
        self.outcomes: list[int] = []
        self.finals: list[bool] = []
        self.started_ats: list[datetime | None] = []
        self.completed_ats: list[datetime | None] = []
        self.results: list[bytes | None] = []
        self.details: list[bytes | None] = []
        self.waits_ms: list[int | None] = []
        self.failures: list[int] = []
        self.crashes: list[int] = []
        self.releases: list[int] = []
        self.reasons: list[str | None] = []

    def add(self, claimed: Claimed, end: End, outcome: Outcome, following: object) -> None:
        waiting = following.waiting if isinstance(following, Again) else claimed.waiting
        self.lanes.append(claimed.lane)
        self.tasks.append(claimed.task)
        self.numbers.append(claimed.number)
        self.holders.append(claimed.holder)
        self.outcomes.append(int(outcome))
        self.finals.append(not isinstance(following, Again | Bury))
        self.started_ats.append(end.started_at)
        self.completed_ats.append(end.completed_at)
        self.results.append(end.result)
        self.details.append(end.detail)
        self.waits_ms.append(-int(-following.wait_seconds * 1000 // 1) if isinstance(following, Again) else None)
        self.failures.append(waiting.failures)
        self.crashes.append(waiting.crashes)
        self.releases.append(waiting.releases)
        self.reasons.append(following.reason if isinstance(following, Bury) else None)


def claimed_of(row: asyncpg.Record) -> Claimed:
    return Claimed(
        row["lane"],
        row["task"],
        row["number"],
        row["holder"],
        Waiting(row["number"], row["failures"], row["crashes"], row["releases"]),
        decode_options(row["options"]) if row["options"] else None,
        row["first_picked_at"],
    )


def may_exist(task: uuid.UUID, number: int) -> bool:
    """Whether the columns can hold such an attempt at all: ids come from outside."""
    return lane_of(task) < 1 << 31 and 0 < number < 1 << 31
