"""Settle attempts: append each outcome and decide what its task does next.

Settling takes the claim row of (task, number, holder).  Whoever comes second,
a late holder or a lapse, finds no row, changes nothing, and is told that the
lease is lost; the same holder's report repeated gets the same answer.
Concurrent reports share one commit.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec

from duetime import metrics
from duetime.clock import Monotonic, from_us
from duetime.database.arrays import same, sparse
from duetime.database.gather import Backlog, Gatherer
from duetime.database.pool import Database
from duetime.database.repeating import repeat, wait_for_standbys
from duetime.errors import WorkerNameTaken
from duetime.lifecycle.holders.holders import Holders
from duetime.lifecycle.tasks.onward import SQL, Claimed, End, HowItEnded, Onward, may_exist
from duetime.long_work import LONG_TASKS, LongWork
from duetime.model.attempt import Attempt, Ended, Past
from duetime.model.task import Outcome

#: Half of what a worker may report at once. Building such a statement is the longest piece of work on the loop.
MAX_ROWS_PER_COMMIT = 500
MAX_BYTES_PER_COMMIT = 32 * 1024 * 1024
#: About how much a report takes beside its result.
_REPORT_BYTES = 300
_REPEATS = 4
_LOST = "the connection to the database broke; report the same again"
#: Lanes are positive four-byte numbers: an id with this bit set belongs to nobody.
_IMPOSSIBLE_LANE = 1 << 31
_BY_KEY = itemgetter(0, 1, 2)


class Report(msgspec.Struct, frozen=True, gc=False):
    """What a holder reports of one attempt."""

    id: uuid.UUID
    number: int
    outcome: Outcome
    #: JSON, as the holder sent it.
    result: bytes | None = None
    #: A JSON object: message, kind, detail.
    error: bytes | None = None
    is_permanent: bool = False
    #: In seconds; for a snooze, how long.
    retry_after: float | None = None
    #: Microseconds since 1970 by the holder's clock, as the database takes them; datetime objects would have to be
    #: made.
    started_us: int | None = None
    completed_us: int | None = None
    #: A JSON object: status, headers, body, timings of an HTTP call.
    response: bytes | None = None

    def detail(self) -> bytes | None:
        if self.error is None and self.response is None:
            return None
        parts = []
        if self.error is not None:
            parts.append(b'"error":' + self.error)
        if self.response is not None:
            parts.append(b'"response":' + self.response)
        return b"{" + b",".join(parts) + b"}"


class Settled(msgspec.Struct, frozen=True):
    settled: list[uuid.UUID]
    lost: list[uuid.UUID]
    cancelled: list[uuid.UUID]
    #: Those of the settled whose task is a dead letter now.
    dead: list[uuid.UUID] = []
    #: The lost and the cancelled with their attempt numbers.
    lost_attempts: list[Attempt] = []
    cancelled_attempts: list[Attempt] = []


@dataclass(frozen=True)
class _Part:
    tenant: int
    holder_name: str
    reports: Sequence[Report]
    key: int | None


def _size_of(reports: Sequence[Report]) -> int:
    return sum(
        [
            _REPORT_BYTES + len(each.result or b"") + len(each.error or b"") + len(each.response or b"")
            for each in reports
        ]
    )


class Settler:
    def __init__(
        self,
        database: Database,
        holders: Holders,
        onward: Onward,
        *,
        commits_at_once: int = 2,
        turns: LongWork | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._turns = turns or LongWork()
        self._database = database
        self._holders = holders
        self._onward = onward
        self._gather: Gatherer[_Part, Settled] = Gatherer(
            self._commit,
            limit=MAX_ROWS_PER_COMMIT,
            at_once=lambda: commits_at_once,
            size_limit=MAX_BYTES_PER_COMMIT,
            monotonic=monotonic,
        )

    @property
    def backlog(self) -> Backlog:
        """Reports that wait to be stored."""
        return self._gather.backlog

    async def settle(self, tenant: int, holder_name: str, reports: Sequence[Report], key: int | None = None) -> Settled:
        """Settle one holder's reports; returns after the commit. Raises if the name belongs to another key."""
        await self._holders.find(tenant, holder_name, key)
        if not reports:
            return Settled([], [], [])
        if len(reports) <= MAX_ROWS_PER_COMMIT:
            return await self._gather.add(_Part(tenant, holder_name, reports, key), len(reports), _size_of(reports))
        slices = [reports[at : at + MAX_ROWS_PER_COMMIT] for at in range(0, len(reports), MAX_ROWS_PER_COMMIT)]
        answers = await asyncio.gather(
            *[self._gather.add(_Part(tenant, holder_name, each, key), len(each), _size_of(each)) for each in slices]
        )
        return Settled(
            [each for answer in answers for each in answer.settled],
            [each for answer in answers for each in answer.lost],
            [each for answer in answers for each in answer.cancelled],
            [each for answer in answers for each in answer.dead],
            [each for answer in answers for each in answer.lost_attempts],
            [each for answer in answers for each in answer.cancelled_attempts],
        )

    async def close(self) -> None:
        await self._gather.close()

    async def _commit(self, parts: list[_Part]) -> list[Settled]:
        # Attempts that this holder had settled before are recognised by its own report.
        return await repeat(lambda _: self._settle(parts), tries=_REPEATS, lost=_LOST)

    async def _settle(self, parts: list[_Part]) -> list[Settled]:
        holders = [await self._holder_of(part) for part in parts]
        if sum(len(part.reports) for part in parts) > LONG_TASKS:
            await self._turns.take()
        taken = await self._take_succeeded(parts, holders)
        if taken is None:
            metrics.count_settled({Outcome.SUCCEEDED.word: sum(len(part.reports) for part in parts)})
            return [Settled([report.id for report in part.reports], [], []) for part in parts]
        metrics.count_settled({Outcome.SUCCEEDED.word: len(taken)})
        others = await self._take_others(parts, holders)
        taken |= others.keys()
        missing = [
            (report.id, report.number)
            for part, holder in zip(parts, holders, strict=True)
            for report in part.reports
            if (holder, report.id, report.number) not in taken
        ]
        ends = await self._onward.read_ends(missing)
        if ends:
            await wait_for_standbys(self._database)
        dead = {attempt for attempt, is_dead in others.items() if is_dead}
        return [_answer(part, holder, taken, dead, ends) for part, holder in zip(parts, holders, strict=True)]

    async def _holder_of(self, part: _Part) -> int | None:
        try:
            return await self._holders.find(part.tenant, part.holder_name, part.key)
        except WorkerNameTaken:
            # The holder has ended since the question, and the name belongs to another one by now: it holds nothing.
            return None

    async def _take_succeeded(
        self, parts: list[_Part], holders: list[int | None]
    ) -> set[tuple[int | None, uuid.UUID, int]] | None:
        """The attempts that existed; None: every report was of a different attempt that succeeded, and all existed."""
        # Ids as numbers: UUID objects are compared and hashed in Python.
        reports = [
            (report.id.int, report.number, holder, report)
            for part, holder in zip(parts, holders, strict=True)
            if holder is not None
            for report in part.reports
            if report.outcome is Outcome.SUCCEEDED and not report.id.int & _IMPOSSIBLE_LANE
        ]
        if len({report[0] for report in reports}) < len(reports):
            reports = list({report[:3]: report for report in reports}.values())
        if not reports:
            return set()
        reports.sort(key=_BY_KEY)
        numbers, owners = [report[1] for report in reports], [report[2] for report in reports]
        ordered = [report[3] for report in reports]
        lanes, lane = same([report[0] & 0xFFFFFFFF for report in reports])
        different_numbers, number = same(numbers)
        different_holders, holder = same(owners)
        details = [None if report.error is report.response is None else report.detail() for report in ordered]
        [(count, places)] = await self._database.run(
            SQL["end_succeeded"],
            lanes=lanes,
            lane=lane,
            tasks=[report.id for report in ordered],
            numbers=different_numbers,
            number=number,
            holders=different_holders,
            holder=holder,
            started_us=[report.started_us for report in ordered],
            completed_us=[report.completed_us for report in ordered],
            results=sparse([report.result for report in ordered]),
            details=sparse(details),
        )
        ended = range(len(ordered)) if places is None else [place - 1 for place in places]
        ended_lanes = lanes if lanes is None or places is None else [lanes[place] for place in ended]
        self._onward.counts.succeeded(ended_lanes, lane, len(ended))
        self._onward.ended([Past(ordered[place].id, ordered[place].number) for place in ended])
        if count == sum(len(part.reports) for part in parts):
            return None
        return {(owners[place], ordered[place].id, numbers[place]) for place in ended}

    async def _take_others(
        self, parts: list[_Part], holders: list[int | None]
    ) -> dict[tuple[int | None, uuid.UUID, int], bool]:
        """Those that were there, and whether their task is a dead letter now."""
        others = [
            (holder, report)
            for part, holder in zip(parts, holders, strict=True)
            for report in part.reports
            if report.outcome is not Outcome.SUCCEEDED and holder is not None and may_exist(report.id, report.number)
        ]
        if not others:
            return {}
        claimed = await self._onward.read([(report.id, report.number) for _, report in others])
        ends: dict[Attempt, tuple[Claimed, End]] = {}
        for holder, report in others:
            claim = claimed.get((report.id, report.number))
            if claim is not None and claim.holder == holder:
                # The first of two reports of one attempt counts.
                ends.setdefault((report.id, report.number), (claim, _end_of(report)))
        moved = await self._onward.move(list(ends.values()))
        metrics.count_settled(Counter(ends[attempt][1].ended.outcome.word for attempt in moved))
        return {(claimed[attempt].holder, *attempt): is_dead for attempt, is_dead in moved.items()}


def _answer(
    part: _Part,
    holder: int | None,
    taken: set[tuple[int | None, uuid.UUID, int]],
    dead: set[tuple[int | None, uuid.UUID, int]],
    ends: dict[Attempt, HowItEnded],
) -> Settled:
    answer = Settled([], [], [], [], [], [])
    for report in part.reports:
        end = ends.get((report.id, report.number))
        outcome = end.outcome if end is not None and end.by == (part.tenant, part.holder_name) else None
        attempt = (holder, report.id, report.number)
        if attempt in taken or (outcome is not None and _was_settled(report, outcome)):
            answer.settled.append(report.id)
            if attempt in dead or (attempt not in taken and end is not None and end.is_dead):
                answer.dead.append(report.id)
        elif outcome is Outcome.CANCELLED:
            answer.cancelled.append(report.id)
            answer.cancelled_attempts.append((report.id, report.number))
        else:
            answer.lost.append(report.id)
            answer.lost_attempts.append((report.id, report.number))
    return answer


def _was_settled(report: Report, outcome: Outcome) -> bool:
    """Whether such a report leaves this row behind."""
    # A task that may start only once ends as unknown if it is released after its start.
    return outcome is report.outcome or (outcome is Outcome.UNKNOWN and report.outcome is Outcome.RELEASED)


def _end_of(report: Report) -> End:
    is_released = report.outcome is Outcome.RELEASED
    ended = Ended(
        report.outcome,
        is_permanent=report.is_permanent,
        retry_after=report.retry_after,
        is_certain=is_released,
        has_begun=is_released and report.started_us is not None,
    )
    return End(
        report.id,
        report.number,
        ended,
        started_at=None if report.started_us is None else from_us(report.started_us),
        completed_at=None if report.completed_us is None else from_us(report.completed_us),
        result=report.result,
        detail=report.detail(),
        never_began=is_released and report.started_us is None,
    )
