"""The pull protocol: lease, settle, beat.

A lease is a long poll.  If the client goes away while it waits, its poll is withdrawn;
if it goes away before its answer was sent, what was claimed for it is given back, so
that no task waits until the worker counts as dead.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType, structs

from duetime.admin.keyring import Keys
from duetime.admin.limits import LimitRules
from duetime.api.auth import need_reach, need_type
from duetime.api.bodies.answers import BeatAnswer, EndedAttempt, LeaseAnswer, LeasedAnswer, SettleAnswer
from duetime.api.bodies.errors import MAX_ERRORS
from duetime.api.bodies.payloads import read_payload
from duetime.api.bodies.requests import BeatRequest, FailureBody, LeaseRequest, Priority, Settlement, SettleRequest
from duetime.api.reach import Reach
from duetime.api.server.bounds import ClientGoneError, OpenPolls
from duetime.api.server.http import Answer, Request, Route, encode, json_answer, make_decoder
from duetime.api.tasks.validation import wrong_names, wrong_worker_name
from duetime.api.workers import operations
from duetime.api.workers.poll import LeasePoll
from duetime.clock import DatabaseClock, to_us
from duetime.config import DEFAULT_SILENCE_SECONDS
from duetime.errors import DuetimeError, FieldError, Forbidden, InvalidInput, Overloaded, TooLarge, Unavailable
from duetime.lifecycle.holders.holders import BEAT_EVERY_SECONDS, BEGIN_WITHIN_SECONDS, BeatResult, Named
from duetime.lifecycle.lanes import Lanes
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.long_work import LONG_TASKS, LongWork
from duetime.model.attempt import Attempt
from duetime.model.task import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_RESULT_BYTES,
    Kind,
    LeasedTask,
    Options,
    Outcome,
    PriorityClass,
)
from duetime.scheduler.feed import Ask

#: The range of times that the database can hold in every zone.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
#: Even a poll that does not want to wait needs the time of a claim.
LEAST_WAIT_SECONDS = 0.05
#: The most characters of all types of one lease together: they are kept while it waits, and for a while after.
MAX_TYPES_LENGTH = 64 * 1024
#: The most bytes of reports that wait to be stored; a worker keeps its own until they are.
MAX_UNSETTLED_BYTES = 256 * 1024 * 1024
_NO_LABELS = Raw(b"{}")
_NO_OPTIONS = Options()
_WORDS: dict[PriorityClass, Priority] = {
    PriorityClass.CRITICAL: "critical",
    PriorityClass.HIGH: "high",
    PriorityClass.NORMAL: "normal",
    PriorityClass.LOW: "low",
}
_OUTCOMES = {
    "succeeded": Outcome.SUCCEEDED,
    "failed": Outcome.FAILED,
    "snoozed": Outcome.SNOOZED,
    "released": Outcome.RELEASED,
}
_decode_lease = make_decoder(LeaseRequest)
_decode_settle = make_decoder(SettleRequest)
_decode_beat = make_decoder(BeatRequest)


class Leasing(Protocol):
    """Gives workers their tasks: this node's feeder, or the feeders of all nodes that share the shards."""

    @property
    def is_stopping(self) -> bool: ...
    async def lease(self, ask: Ask, wait_seconds: float) -> list[LeasedTask]: ...
    async def give_back(self, tasks: Sequence[LeasedTask], delay_seconds: float = 0.0) -> None: ...


class Beating(Protocol):
    """Keeps the workers and their beats."""

    async def register(self, tenant: int, name: str, key: int | None = None) -> int: ...
    async def allow_silence(self, holder: int, seconds: float | None) -> None: ...
    async def beat(self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None) -> BeatResult: ...
    async def sign_off(
        self, tenant: int, name: str, attempts: Sequence[Named], key: int | None = None
    ) -> int | None: ...


@dataclass(frozen=True)
class Workers:
    lanes: Lanes
    feeder: Leasing
    holders: Beating
    settler: Settler
    limits: LimitRules
    keys: Keys
    reach: Reach
    clock: DatabaseClock
    #: How long workers may be silent if nothing else is set.
    max_silence: float = DEFAULT_SILENCE_SECONDS
    turns: LongWork = field(default_factory=LongWork)
    polls: OpenPolls = field(default_factory=OpenPolls)
    _polls: set[LeasePoll] = field(default_factory=set)

    def routes(self) -> list[Route]:
        return [
            Route(operations.LEASE, self.lease),
            Route(operations.SETTLE, self.settle),
            Route(operations.BEAT, self.beat),
        ]

    async def lease(self, request: Request) -> Answer:
        arrived_at = time.monotonic()
        request.query()
        asked = await request.json(_decode_lease, judge=_check_lease)
        _check_lease(asked)
        if self.feeder.is_stopping:
            # An empty answer would make the worker ask again at once, until the node is gone.
            raise Unavailable("the node is stopping; ask another one, or this one later")
        queues = None if asked.queues is None else frozenset(asked.queues)
        if request.caller.queues:
            if queues is None:
                allowed = ", ".join(request.caller.queues)
                raise Forbidden(f"this key is for the queues {allowed}; name the queues to lease from")
            for queue in queues:
                need_reach(request.caller, None, queue)
        tags = frozenset(asked.tags)
        types = None if asked.types is None else frozenset(asked.types)
        if request.caller.types:
            if types is None:
                allowed = ", ".join(request.caller.types)
                raise Forbidden(f"this key is for the types {allowed}; name the types to lease")
            for type in types:
                need_type(request.caller, type)
        tenant = request.caller.tenant
        poll = LeasePoll()
        with self.polls.wait(tenant), self.keys.watch.watch(request.caller, poll.judge):
            if not await self.keys.is_valid(request.caller):
                poll.judge(None)
            poll.check()
            holder = await self.holders.register(tenant, asked.worker, request.caller.family)
            said = asked.max_silence
            silence = self.limits.silence_of(tenant, queues) if said is None else float(said)
            await self.holders.allow_silence(holder, silence)
            ask = Ask(holder, tenant, Kind.PULL, queues, tags, asked.max, types, asked.worker)
            leased = await self._poll(poll, request, ask, max(asked.wait, LEAST_WAIT_SECONDS))
            tasks = await self.turns.spread(leased, lambda some: [self._answer(task) for task in some])
        if poll.is_void:
            await self._give_back(leased)
            leased, tasks = [], []
            poll.check()
        begin_within = self._begin_within(leased, arrived_at)
        answer = LeaseAnswer(tasks, BEAT_EVERY_SECONDS, silence or self.max_silence, begin_within, _sign(holder))
        if request.is_gone():
            await self._give_back(leased)
            raise ClientGoneError
        return Answer(200, encode(answer), on_lost=lambda: self.feeder.give_back(leased))

    async def _poll(self, poll: LeasePoll, request: Request, ask: Ask, wait: float) -> list[LeasedTask]:
        # The search runs in the request's own task, so that the answer is sent in the next round of the event loop.
        if poll.is_void:
            return []
        poll.begin()
        gone = asyncio.ensure_future(request.disconnected())
        gone.add_done_callback(poll.leave)
        self._polls.add(poll)
        leased: list[LeasedTask] = []
        try:
            leased = await self.feeder.lease(ask, wait)
        except asyncio.CancelledError:
            if not poll.is_ended:
                raise
        finally:
            gone.cancel()
            self._polls.discard(poll)
            poll.close()
        if poll.is_left:
            await self._give_back(leased)
            raise ClientGoneError
        return leased

    def _begin_within(self, leased: Sequence[LeasedTask], arrived_at: float) -> float:
        """How long the worker has to begin, counted from the arrival of its request: the worker sent it before."""
        waited = time.monotonic() - arrived_at
        if leased:
            picked_at = min([task.picked_at for task in leased])
            waited -= max(0.0, (self.clock.now() - picked_at).total_seconds())
        return round(max(0.0, waited + BEGIN_WITHIN_SECONDS), 3)

    async def _give_back(self, leased: list[LeasedTask]) -> None:
        if leased:
            await self.feeder.give_back(leased)

    def end_polls(self) -> None:
        """Answer every waiting poll now, with nothing: the worker asks another node."""
        for poll in self._polls:
            poll.end()

    def _answer(self, task: LeasedTask) -> LeasedAnswer:
        lane = self.lanes.key_of(task.lane)
        assert lane is not None, "a leased task's lane is known to its feeder"
        options = task.options
        if options is None:
            options = _NO_OPTIONS
        timeout = DEFAULT_TIMEOUT_SECONDS if options.timeout is None else options.timeout
        return LeasedAnswer(
            task.id,
            task.type,
            lane.queue,
            Raw(task.payload),
            task.number,
            task.run_at,
            timeout,
            _NO_LABELS if task.labels is None else Raw(task.labels),
            options.trace,
            _WORDS[lane.priority],
            options.delivery,
            task.is_recovered,
            task.crashes,
        )

    async def settle(self, request: Request) -> Answer:
        request.query()
        asked = await request.json(_decode_settle, _check_settle, takes_turn=True)
        if (waiting := self.settler.backlog.size) >= MAX_UNSETTLED_BYTES:
            raise Overloaded(f"reports of {waiting // 2**20:,} MiB wait to be stored; keep these and report again")
        wrong = _wrong_with_worker(asked)
        read = partial(_read_reports, wrong=wrong)
        reports = await self.turns.spread(list(enumerate(asked.settlements)), read)
        if wrong:
            raise _all_of(wrong)
        caller, unreached = request.caller, list[Attempt]()
        if caller.is_confined:
            reached = await self.reach.of_tasks(caller, [report.id for report in reports])
            unreached = [(report.id, report.number) for report in reports if report.id not in reached]
            reports = [report for report in reports if report.id in reached]
        settled = await self.settler.settle(caller.tenant, asked.worker, reports, caller.family)
        answer = SettleAnswer(
            len(settled.settled),
            settled.lost + [task for task, _ in unreached],
            settled.cancelled,
            settled.dead or UNSET,
            _name(settled.lost_attempts + unreached),
            _name(settled.cancelled_attempts),
        )
        return json_answer(200, answer)

    async def beat(self, request: Request) -> Answer:
        request.query()
        asked = await request.json(_decode_beat, judge=_check_worker)
        _check_worker(asked)
        named = await self.turns.spread(
            asked.attempts, lambda some: [Named(each.id, each.attempt, each.started) for each in some]
        )
        if len(named) > LONG_TASKS:
            await self.turns.take()
        caller, unreached = request.caller, list[Attempt]()
        if caller.is_confined:
            reached = await self.reach.of_tasks(caller, [each.id for each in named])
            unreached = [(each.id, each.number) for each in named if each.id not in reached]
            named = [each for each in named if each.id in reached]
        if asked.leaving:
            await self.holders.sign_off(caller.tenant, asked.worker, named, caller.family)
            return json_answer(200, BeatAnswer([], []))
        heard = await self.holders.beat(caller.tenant, asked.worker, named, caller.family)
        answer = BeatAnswer(
            heard.lost + [task for task, _ in unreached],
            heard.cancelled,
            _name(heard.lost_attempts + unreached),
            _name(heard.cancelled_attempts),
            UNSET if heard.holder is None else _sign(heard.holder),
        )
        return json_answer(200, answer)


@lru_cache(maxsize=4096)
def _sign(holder: int) -> str:
    """A text that distinguishes holders without revealing how many there are."""
    return blake2b(b"duetime holder %d" % holder, digest_size=8).hexdigest()


def _name(attempts: Sequence[Attempt]) -> list[EndedAttempt] | UnsetType:
    """The attempts; left out if there are none, as nearly always."""
    return [EndedAttempt(task, number) for task, number in attempts] or UNSET


def _check_worker(asked: BeatRequest) -> None:
    if errors := wrong_worker_name(asked.worker):
        raise InvalidInput.all(errors)


# A worker asks for the same types again and again. The limit on types bounds this cache: 8 MiB.
@lru_cache(maxsize=128)
def _wrong_types(types: tuple[str, ...]) -> tuple[FieldError, ...]:
    if sum(map(len, types)) > MAX_TYPES_LENGTH:
        return (FieldError("types", f"have more than {MAX_TYPES_LENGTH:,} characters together; leave them out"),)
    return tuple(wrong_names("types", types))


def _check_lease(asked: LeaseRequest) -> None:
    errors = wrong_worker_name(asked.worker)
    errors += wrong_names("queues", asked.queues or ())
    errors += wrong_names("tags", asked.tags)
    errors += _wrong_types(tuple(asked.types or ()))
    if errors:
        raise InvalidInput.all(errors)


def _check_settle(asked: SettleRequest) -> None:
    """Raise what is wrong with the values of a report in which something else is wrong."""
    wrong = _wrong_with_worker(asked)
    _read_reports(list(enumerate(asked.settlements)), wrong)
    if wrong:
        raise _all_of(wrong)


def _wrong_with_worker(asked: SettleRequest) -> list[DuetimeError]:
    named = wrong_worker_name(asked.worker)
    return [InvalidInput.all(named)] if named else []


def _read_reports(settlements: Sequence[tuple[int, Settlement]], wrong: list[DuetimeError]) -> list[Report]:
    """Return the reports that are right; add what is wrong with the others to `wrong`."""
    reports = []
    for place, each in settlements:
        try:
            reports.append(_read_report(each))
        except DuetimeError:
            if len(wrong) < MAX_ERRORS:
                wrong += _wrong_with(each, f"settlements[{place}]")
    return reports


def _read_report(settlement: Settlement) -> Report:
    started, completed = settlement.started_at, settlement.completed_at
    return Report(
        settlement.id,
        settlement.attempt,
        _OUTCOMES[settlement.outcome],
        None if settlement.result is UNSET else read_payload(settlement.result, "result", MAX_RESULT_BYTES),
        None if settlement.error is None else _read_failure(settlement.error),
        settlement.error is not None and settlement.error.kind == "permanent",
        None if settlement.retry_after is None else float(settlement.retry_after),
        _read_time("started_at", started) if isinstance(started, datetime) else started,
        _read_time("completed_at", completed) if isinstance(completed, datetime) else completed,
    )


def _wrong_with(settlement: Settlement, path: str) -> list[DuetimeError]:
    """Everything that is wrong with a report that has an error."""
    found: list[DuetimeError] = []
    nothing = {"result": UNSET, "error": None, "started_at": None, "completed_at": None}
    for name in nothing:
        try:
            _read_report(structs.replace(settlement, **nothing | {name: getattr(settlement, name)}))
        except DuetimeError as error:
            error.errors = tuple(FieldError(f"{path}.{each.path}", each.message) for each in error.errors)
            found.append(error)
    return found


def _all_of(wrong: list[DuetimeError]) -> DuetimeError:
    """One error for all of them; TooLarge only if nothing else is wrong."""
    errors = [each for error in wrong for each in error.errors]
    if len(wrong) == 1:
        return wrong[0]
    if all(isinstance(error, TooLarge) for error in wrong):
        return TooLarge(f"{len(wrong)} values are too large", tuple(errors[:MAX_ERRORS]))
    return InvalidInput.all(errors)


def _read_failure(error: FailureBody) -> bytes:
    detail = read_payload(error.detail, "error.detail", MAX_RESULT_BYTES)
    return msgspec.json.encode({"message": error.message, "kind": error.kind, "detail": Raw(detail)})


def _read_time(path: str, instant: datetime) -> int:
    if not _FIRST <= instant < _LAST:
        raise InvalidInput.at(path, "must be between the years 1970 and 9999")
    return to_us(instant)
