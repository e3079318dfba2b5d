"""Holders: who runs attempts, and whether they are alive.

A holder is one process from its start to its end.  Its beats raise a counter
and name what it holds: an attempt that two beats in a row do not name never
reached it, and is released.  Whoever ends a holder (`lapse`) does so only while
its counter is the one that was seen.  A holder that stops signs off: it is
ended at once, and what it still holds is given back at no cost.  What a holder
names for longer than its time-out is taken from it (`overtime`).
"""

import math
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
import structlog

from duetime import metrics
from duetime.clock import Monotonic
from duetime.database.changing import run_once
from duetime.database.gather import Gatherer
from duetime.database.pool import Database
from duetime.database.repeating import repeat
from duetime.database.statements import load
from duetime.errors import WorkerNameTaken
from duetime.ids import lane_of
from duetime.lifecycle.holders.names import HolderNames
from duetime.lifecycle.holders.overtime import Overtime, named_by
from duetime.lifecycle.tasks.onward import Claimed, End, Onward, claimed_of, may_exist
from duetime.model.attempt import Attempt, Ended
from duetime.model.task import Outcome
from duetime.signals import ignore

log = structlog.get_logger()
SQL = load(__package__, "holders.sql")
BEAT_EVERY_SECONDS = 3.0
#: The shortest time between two beats that leave an attempt unnamed before it is released. A holder may beat out of
#: turn while a lease is on its way to it.
UNNAMED_SECONDS = 0.8 * BEAT_EVERY_SECONDS
#: How long after its claim an attempt may begin if no beat has named it yet. The rest of the time until two beats can
#: release it allows for a beat that was sent before the lease arrived and is still on its way.
BEGIN_WITHIN_SECONDS = 1.5
#: How much later than its pick time a claim may become visible.
LATE_COMMIT = timedelta(seconds=15)
#: How often all claims of a holder are read anew, in case one became visible later still.
ALL_AGAIN_SECONDS = 300.0
_SIGN_OFF_BATCH = 1_000
#: If the beats of a holder go to several nodes at once, no node raises its counter for this beat.
_MOST_RECALLS = 3
#: How many time-outs are read at one beat.
_MOST_TIMEOUTS_READ = 1_000
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
#: Outcomes that a holder reports itself; an attempt that ended with one of them was not lost by its holder.
_OWN_ENDS = {Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SNOOZED}


class Named(msgspec.Struct, frozen=True):
    """An attempt that a holder says it has: started, or still waiting to start."""

    id: uuid.UUID
    number: int
    started: bool = True


class BeatResult(msgspec.Struct, frozen=True):
    """What a holder must stop. Nodes of older versions name only the tasks."""

    lost: list[uuid.UUID]
    cancelled: list[uuid.UUID]
    #: Only between nodes: the name belongs to another key, and nothing was done.
    is_taken: bool = False
    #: The same with attempt numbers, because a holder may have several attempts of one task.
    lost_attempts: list[Attempt] = []
    cancelled_attempts: list[Attempt] = []
    #: The holder that the beat was counted for. It is a new one if the holder of that name had ended.
    holder: int | None = None


@dataclass(frozen=True)
class _Beat:
    tenant: int
    name: str
    attempts: Sequence[Named]
    holder: int
    key: int | None


@dataclass(frozen=True)
class Look:
    """From which time a holder's claims are to be read, and when all of them are to be read again."""

    since: datetime = _BEGINNING
    all_again_at: float = math.inf

    def after(self, looked_at: datetime, now: float) -> "Look":
        since = looked_at - LATE_COMMIT
        if since < self.since:
            # The database's clock went back: claims may look older than they are.
            return Look()
        return Look(since, now + ALL_AGAIN_SECONDS if self.since == _BEGINNING else self.all_again_at)


class Holders:
    def __init__(
        self,
        database: Database,
        onward: Onward,
        monotonic: Monotonic = time.monotonic,
        *,
        on_ended: Callable[[set[int]], None] = ignore,
    ) -> None:
        """`on_ended` is called with holders that have ended, as soon as this node knows."""
        self._database = database
        self._onward = onward
        self._monotonic = monotonic
        self._names = HolderNames(database)
        self._unnamed: dict[int, dict[Attempt, float]] = {}
        self._counts: dict[int, int] = {}
        self._looks: dict[int, Look] = {}
        self._overtime = Overtime()
        #: What the rows say, as far as this node knows; unknown values are left out.
        self._silences: dict[int, float] = {}
        self._on_ended = on_ended
        self._gather: Gatherer[_Beat, BeatResult] = Gatherer(self._commit, limit=5_000, monotonic=monotonic)

    async def register(self, tenant: int, name: str, key: int | None = None) -> int:
        """Return the id of the living holder of that name. Raise if the name belongs to another key (`names.py`)."""
        return await self._names.register(tenant, name, key)

    async def find(self, tenant: int, name: str, key: int | None = None) -> int | None:
        """Like `find`, but only for a holder that has spoken before; None if there is none."""
        return await self._names.find(tenant, name, key)

    async def allow_silence(self, holder: int, seconds: float | None) -> None:
        """Set how long the holder may be silent from now on; None: as the node that watches it is configured."""
        if self._silences.get(holder) != seconds:
            await run_once(self._database, SQL["allow_silence"], holder=holder, seconds=seconds)
            self.learn_silences({**self._silences, holder: seconds})

    def learn_silences(self, silences: Mapping[int, float | None]) -> None:
        """How long the living holders may be silent."""
        self._silences = {holder: seconds for holder, seconds in silences.items() if seconds is not None}

    async def beat(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> BeatResult:
        """Raise the holder's counter; the answer names what it must stop."""
        holder = await self._names.register(tenant, name, key)
        return await self._gather.add(_Beat(tenant, name, attempts, holder, key), len(attempts) + 1)

    async def sign_off(
        self, tenant: int, name: str, attempts: Sequence[Named] = (), key: int | None = None
    ) -> int | None:
        """The holder of that name signs off and names what it still holds, all of which is given back.

        Returns the holder that has ended; None if none of that name is alive.
        """
        started = [named for named in attempts if named.started and may_exist(named.id, named.number)]
        rows = await run_once(
            self._database,
            SQL["sign_off"],
            tenant=tenant,
            name=name,
            key=key,
            started_tasks=[named.id for named in started],
            started_numbers=[named.number for named in started],
        )
        if not rows:
            # Raises if there is one that is not the key's.
            await self._names.find(tenant, name, key)
            return None
        holder: int = rows[0]["id"]
        self.forget({holder})
        while True:
            held = await self._database.run(SQL["read_signed_off"], holder=holder, batch=_SIGN_OFF_BATCH)
            ends = ends_left_behind(held, are_all=len(held) < _SIGN_OFF_BATCH)
            moved = await self._onward.move(ends)
            metrics.count_settled(Counter(end.ended.outcome.word for _, end in ends if (end.task, end.number) in moved))
            if len(held) < _SIGN_OFF_BATCH:
                return holder

    def known(self) -> set[int]:
        """The holders that this node knows by name."""
        return self._names.holders()

    def knows(self, holder: int) -> bool:
        return holder in self._names.holders()

    def forget(self, holders: set[int]) -> None:
        """Forget holders that have ended: the next call under one of their names makes a new holder."""
        self._names.forget(holders)
        for holder in holders:
            self._forget(holder)
        if holders:
            self._on_ended(holders)

    def _forget(self, holder: int) -> None:
        self._unnamed.pop(holder, None)
        self._counts.pop(holder, None)
        self._looks.pop(holder, None)
        self._overtime.forget(holder)

    async def _commit(self, beats: list[_Beat]) -> list[BeatResult]:
        return await repeat(lambda _: self._beat(beats), tries=3, lost="the beat may not have been heard")

    async def _beat(self, beats: list[_Beat]) -> list[BeatResult]:
        now = self._monotonic()
        ids = [beat.holder for beat in beats]
        alive = await self._raise_counters(beats, ids, now)
        renewed: set[int] = set()
        for place, (beat, holder) in enumerate(zip(beats, ids, strict=True)):
            if holder not in alive:
                # The holder was ended in the meantime: what it held is lost, and it starts anew. Or its beats go to
                # several nodes.
                self._names.forget({holder})
                self._forget(holder)
                # Another key has taken the name in the meantime. The next beat is told so.
                with suppress(WorkerNameTaken):
                    ids[place] = await self.register(beat.tenant, beat.name, beat.key)
                    if ids[place] == holder:
                        continue
                    renewed.add(ids[place])
                self.forget({holder})
        if renewed:
            # It holds nothing of what it named, but its beat counts.
            await self._recall(renewed, now)
            await self._raise({holder: {} for holder in renewed if holder in self._counts}, now)
        held = await self._read_held(beats, ids, now)
        await self._release_unnamed(beats, ids, held, now)
        await self._end_overdue(beats, ids, held, now)
        return await self._answers(beats, ids, held)

    async def _read_held(self, beats: list[_Beat], ids: list[int], now: float) -> dict[int, set[Attempt]]:
        """What holders have of what they name, of what they did not name before, and of what is new to them."""
        held: dict[int, set[Attempt]] = {holder: set() for holder in ids}
        looks = {holder: self._looks.get(holder, Look()) for holder in held}
        looks = {holder: Look() if now >= look.all_again_at else look for holder, look in looks.items()}
        asked = {(named.id, named.number) for beat in beats for named in beat.attempts}
        for holder in held:
            asked.update(self._unnamed.get(holder, ()))
        attempts = [attempt for attempt in asked if may_exist(*attempt)]
        rows = await self._database.run(
            SQL["read_held"],
            holders=list(looks),
            sinces=[look.since for look in looks.values()],
            lanes=[lane_of(task) for task, _ in attempts],
            tasks=[task for task, _ in attempts],
            numbers=[number for _, number in attempts],
        )
        for row in rows:
            if row["looked_at"] is not None:
                looked_at = row["looked_at"]
            elif row["holder"] in held:
                held[row["holder"]].add((row["task"], row["number"]))
        self._looks |= {holder: look.after(looked_at, now) for holder, look in looks.items()}
        return held

    async def _raise_counters(self, beats: list[_Beat], ids: list[int], now: float) -> set[int]:
        """Note what is named, and since when. Return the holders that are alive."""
        named = named_by(
            [
                (holder, [((named.id, named.number), named.started) for named in beat.attempts])
                for beat, holder in zip(beats, ids, strict=True)
            ]
        )
        await self._recall([holder for holder in named if holder not in self._counts], now)
        alive: set[int] = set()
        for _ in range(_MOST_RECALLS):
            waiting = {holder: attempts for holder, attempts in named.items() if holder in self._counts.keys() - alive}
            if not waiting:
                break
            alive |= await self._raise(waiting, now)
            # Beats in between went to another node, which knows what they named. Start counting anew.
            missed = waiting.keys() - alive
            for holder in missed:
                self._forget(holder)
            await self._recall(missed, now)
        return alive

    async def _recall(self, holders: Collection[int], now: float) -> None:
        """Read the counters of these holders; forget what is known of those that have ended."""
        if not holders:
            return
        now_us = self._database.clock.now_us()
        for row in await self._database.run(SQL["read_started"], holders=list(holders)):
            started = zip(zip(row["running"], row["running_numbers"], strict=True), row["running_us"], strict=False)
            self._counts[row["id"]] = row["beats"]
            self._overtime.recall(row["id"], started, now, now_us)

    async def _raise(self, named: Mapping[int, Mapping[Attempt, bool]], now: float) -> set[int]:
        self._overtime.note(named, now, self._database.clock.now_us())
        started = [
            (holder, *attempt, self._overtime.started_us(holder, attempt))
            for holder, attempts in named.items()
            for attempt, is_started in attempts.items()
            if is_started and may_exist(*attempt)
        ]
        holders = sorted(named)
        rows = await self._database.run(
            SQL["beat"],
            holders=holders,
            counts=[self._counts[holder] for holder in holders],
            started_holders=[holder for holder, _, _, _ in started],
            started_tasks=[task for _, task, _, _ in started],
            started_numbers=[number for _, _, number, _ in started],
            started_us=[since_us for _, _, _, since_us in started],
        )
        self._counts |= {row["id"]: row["beats"] for row in rows}
        return {row["id"] for row in rows}

    async def _end_overdue(self, beats: list[_Beat], ids: list[int], held: dict[int, set[Attempt]], now: float) -> None:
        """Take from its holder what is over its time-out and still named."""
        unread = [each for holder in held for each in self._overtime.unread(holder, now) if each in held[holder]]
        if unread:
            # The next beats read the rest.
            for claimed in (await self._onward.read(unread[:_MOST_TIMEOUTS_READ])).values():
                self._overtime.learn(claimed)
        names = {holder: beat.name for beat, holder in zip(beats, ids, strict=True)}
        overdue = {
            attempt: holder
            for holder in held
            for attempt in self._overtime.overdue(holder, now)
            if attempt in held[holder]
        }
        if not overdue:
            return
        ends = [
            (claimed, self._overtime.end_of(claimed))
            for attempt, claimed in (await self._onward.read(list(overdue))).items()
            if claimed.holder == overdue[attempt]
        ]
        moved = await self._onward.move(ends)
        metrics.count_settled(Counter(end.ended.outcome.word for _, end in ends if (end.task, end.number) in moved))
        for attempt in moved:
            held[overdue[attempt]].discard(attempt)
            log.warning("an attempt outlasted its time-out", task=str(attempt[0]), holder=names[overdue[attempt]])

    async def _release_unnamed(
        self, beats: list[_Beat], ids: list[int], held: dict[int, set[Attempt]], now: float
    ) -> None:
        suspects: list[Attempt] = []
        for beat, holder in zip(beats, ids, strict=True):
            before = self._unnamed.get(holder, {})
            unnamed = held[holder] - {(named.id, named.number) for named in beat.attempts}
            if not unnamed <= before.keys():
                # Not `now`: this beat may have waited for the database, and the attempt was claimed meanwhile.
                before = dict.fromkeys(unnamed, self._monotonic()) | before
            self._unnamed[holder] = {attempt: before[attempt] for attempt in unnamed}
            suspects += [attempt for attempt, since in self._unnamed[holder].items() if now - since >= UNNAMED_SECONDS]
        if suspects:
            claimed = await self._onward.read(suspects)
            await self._onward.move(
                [
                    (claim, End(claim.task, claim.number, Ended(Outcome.RELEASED), never_began=True))
                    for claim in claimed.values()
                    if claim.holder in held
                ]
            )

    async def _answers(self, beats: list[_Beat], ids: list[int], held: dict[int, set[Attempt]]) -> list[BeatResult]:
        ends = await self._onward.read_ends(
            [
                (named.id, named.number)
                for beat, holder in zip(beats, ids, strict=True)
                for named in beat.attempts
                if (named.id, named.number) not in held[holder]
            ]
        )
        answers = []
        for beat, holder in zip(beats, ids, strict=True):
            answer = BeatResult([], [], False, [], [], holder)
            for named in beat.attempts:
                if (named.id, named.number) in held[holder]:
                    continue
                end = ends.get((named.id, named.number))
                outcome = end.outcome if end is not None and end.by == (beat.tenant, beat.name) else None
                if outcome is Outcome.CANCELLED:
                    answer.cancelled.append(named.id)
                    answer.cancelled_attempts.append((named.id, named.number))
                elif outcome not in _OWN_ENDS:
                    answer.lost.append(named.id)
                    answer.lost_attempts.append((named.id, named.number))
            answers.append(answer)
        return answers


def ends_left_behind(rows: Sequence[asyncpg.Record], *, are_all: bool) -> list[tuple[Claimed, End]]:
    """Decide how the attempts of ended holders end: released if the holder signed off, else lost if they were started.

    Unless these are all attempts that the holders had, no task is taken to be the only one to blame.
    """
    started: dict[int, list[int]] = {}
    for row in rows:
        if row["was_started"]:
            started.setdefault(row["holder"], []).append(row["crashes"])
    for crashes in started.values():
        crashes.sort()
    ends = []
    for row in rows:
        was_started = row["was_started"]
        if row["signed_off"]:
            ended = Ended(Outcome.RELEASED, is_certain=True, has_begun=was_started)
        elif was_started:
            crashes = started[row["holder"]]
            alike = len(crashes) - bisect_left(crashes, row["crashes"])
            ended = Ended(Outcome.LAPSED, has_rivals=alike > 1 or not are_all)
        else:
            ended = Ended(Outcome.RELEASED)
        never_began = row["signed_off"] and not was_started
        ends.append((claimed_of(row), End(row["task"], row["number"], ended, never_began=never_began)))
    return ends
