"""A task's life as a page of plain Python: what the database must agree with.

The model knows nothing of SQL, batches or races.  It holds every task in one
place, moves it by the rules of the documentation, and predicts every answer.
Its clock is a number.
"""

import enum
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duetime.ids import due_ms_of
from duetime.model.retry import RetryPolicy
from duetime.model.task import DEFAULT_TIMEOUT_SECONDS, Options, Outcome, TaskState

OVER_WORDS = {
    Outcome.SUCCEEDED: TaskState.SUCCEEDED,
    Outcome.CANCELLED: TaskState.CANCELLED,
    Outcome.EXPIRED: TaskState.EXPIRED,
}
FREE_RELEASES = 3
UNNAMED_MS = 2_400
Verdict = tuple[bool, TaskState | None]


class Place(enum.StrEnum):
    DUE = "due"
    CLAIM = "claim"
    HELD = "held"
    DEAD = "dead"
    OVER = "over"


@dataclass
class Attempt:
    outcome: Outcome
    is_final: bool
    #: The name of the worker that had it, if one had.
    worker: str | None
    #: It went on beyond its time-out, and was ended in its worker's place.
    by_server: bool = False


@dataclass
class Task:
    id: uuid.UUID
    lane: int
    options: Options
    expires_ms: int | None
    wake: uuid.UUID | None
    wake_ms: int
    place: Place = Place.DUE
    number: int = 1
    failures: int = 0
    crashes: int = 0
    releases: int = 0
    is_blocked: bool = False
    #: Its new time, if it was rescheduled.
    moved_us: int | None = None
    holder: int | None = None
    reason: str | None = None
    #: When the attempt under way was picked, and the first of the failures that count.
    picked_us: int | None = None
    first_picked_us: int | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)

    def state(self, now_ms: int) -> TaskState:
        match self.place:
            case Place.CLAIM:
                return TaskState.RUNNING
            case Place.HELD:
                return TaskState.BLOCKED if self.is_blocked else TaskState.PAUSED
            case Place.DEAD:
                return TaskState.DEAD
            case Place.OVER:
                return OVER_WORDS[self.attempts[max(self.attempts)].outcome]
            case Place.DUE:
                if self.wake_ms <= now_ms:
                    return TaskState.READY
                return TaskState.RETRYING if self.failures + self.crashes else TaskState.SCHEDULED

    @property
    def is_paused(self) -> bool:
        return self.place is Place.HELD and not self.is_blocked


@dataclass
class Key:
    task: uuid.UUID
    fingerprint: bytes
    expires_ms: int


@dataclass(frozen=True)
class Said:
    """A worker's report of one attempt."""

    task: uuid.UUID
    number: int
    outcome: Outcome
    is_permanent: bool = False
    retry_after: float | None = None
    #: Of what is given back: it was begun.
    has_begun: bool = False


@dataclass(frozen=True)
class Naming:
    """An attempt that a beat names."""

    task: uuid.UUID
    number: int
    is_started: bool


class Model:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.tasks: dict[uuid.UUID, Task] = {}
        self.keys: dict[str, Key] = {}
        self.requests: dict[uuid.UUID, tuple[bytes, list[uuid.UUID]]] = {}
        #: The living holder of each name, and whose each holder was.
        self.holders: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.running: dict[int, set[tuple[uuid.UUID, int]]] = {}
        #: Since when the beats of a holder have named what it has as it is, started or not.
        self.named: dict[int, dict[tuple[uuid.UUID, int], tuple[int, bool]]] = {}
        #: Since when the beats of a holder have not named what it has.
        self.unnamed: dict[int, dict[tuple[uuid.UUID, int], int]] = {}

    def state(self, task: uuid.UUID) -> TaskState | None:
        return self.tasks[task].state(self.now_ms) if task in self.tasks else None

    # Submitting

    def key_is_free(self, key: str) -> bool:
        known = self.keys.get(key)
        if known is None:
            return True
        return known.expires_ms <= self.now_ms and self.tasks[known.task].place is Place.OVER

    def add(self, task: uuid.UUID, lane: int, due_ms: int, options: Options, expires_ms: int | None) -> None:
        assert task not in self.tasks
        assert due_ms_of(task) == max(due_ms, self.now_ms)
        self.tasks[task] = Task(task, lane, options, expires_ms, task, due_ms_of(task))

    # Holding

    def register(self, name: str, holder: int) -> None:
        """The worker spoke, and was given this number."""
        if name in self.holders:
            assert self.holders[name] == holder
        else:
            assert holder not in self.names
            self.holders[name] = holder
            self.names[holder] = name

    def claim(self, lanes: Sequence[int], slots: Sequence[int]) -> list[tuple[uuid.UUID, int]]:
        """The first slots go to the first rows of the first lane, and so on: (task, holder)."""
        taken = []
        share = len(slots) // len(lanes)
        for turn, lane in enumerate(lanes):
            ready = [
                task
                for task in self.tasks.values()
                if task.lane == lane and task.place is Place.DUE and task.wake_ms <= self.now_ms
            ]
            ready.sort(key=lambda task: task.wake or task.id)
            for task, holder in zip(ready, slots[turn * share : (turn + 1) * share], strict=False):
                task.place, task.holder = Place.CLAIM, holder
                taken.append((task.id, holder))
        return taken

    def held_by(self, holder: int) -> set[tuple[uuid.UUID, int]]:
        return {
            (task.id, task.number)
            for task in self.tasks.values()
            if task.place is Place.CLAIM and task.holder == holder
        }

    def settle(self, name: str, reports: Iterable[Said]) -> dict[uuid.UUID, str]:
        """What each task's report is answered with."""
        answers = {}
        for said in reports:
            task = self.tasks[said.task]
            has_it = task.place is Place.CLAIM and task.holder == self.holders.get(name)
            if has_it and task.number == said.number:
                self._end(
                    task, said.outcome, said.is_permanent, said.retry_after, is_certain=True, has_begun=said.has_begun
                )
                answers[said.task] = "settled"
                continue
            outcome = self._own_end(name, said.task, said.number)
            if outcome is said.outcome or (outcome is Outcome.UNKNOWN and said.outcome is Outcome.RELEASED):
                answers[said.task] = "settled"
            else:
                answers[said.task] = "cancelled" if outcome is Outcome.CANCELLED else "lost"
        return answers

    def beat(self, name: str, namings: Sequence[Naming]) -> dict[uuid.UUID, str]:
        """What the worker must stop, and why; what beats have not named for a while is released."""
        holder = self.holders[name]
        held = self.held_by(holder)
        self.running[holder] = {(naming.task, naming.number) for naming in namings if naming.is_started}
        unnamed = held - {(naming.task, naming.number) for naming in namings}
        before = self.unnamed.get(holder, {})
        self.unnamed[holder] = {attempt: before.get(attempt, self.now_ms) for attempt in unnamed}
        for (task, _), since_ms in self.unnamed[holder].items():
            if self.now_ms - since_ms >= UNNAMED_MS:
                self._end(self.tasks[task], Outcome.RELEASED)
        self._end_overdue(holder, held, namings)
        answers = {}
        for naming in namings:
            if (naming.task, naming.number) not in held:
                outcome = self._own_end(name, naming.task, naming.number)
                if outcome is Outcome.CANCELLED:
                    answers[naming.task] = "cancelled"
                elif outcome not in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SNOOZED):
                    answers[naming.task] = "lost"
        return answers

    def _end_overdue(self, holder: int, held: set[tuple[uuid.UUID, int]], namings: Sequence[Naming]) -> None:
        """What is named beyond its time-out and five seconds is ended; what was never begun is given back."""
        before = self.named.get(holder, {})
        self.named[holder] = {}
        for naming in namings:
            attempt = (naming.task, naming.number)
            since_ms, was_started = before.get(attempt, (self.now_ms, naming.is_started))
            if naming.is_started and not was_started:
                since_ms, was_started = self.now_ms, True
            self.named[holder][attempt] = since_ms, was_started
            task = self.tasks[naming.task]
            limit_ms = ((task.options.timeout or DEFAULT_TIMEOUT_SECONDS) + 5) * 1000
            is_safe = was_started or task.options.delivery != "at_most_once"
            if attempt in held and self.now_ms - since_ms >= limit_ms and is_safe:
                self._end(task, Outcome.FAILED if was_started else Outcome.RELEASED, is_certain=True)
                task.attempts[naming.number].by_server = True
                held.discard(attempt)

    def end_holder(self, name: str) -> None:
        """It is known to be dead; what it holds is still with it."""
        self.unnamed.pop(self.holders.pop(name, 0), None)

    def leave(self, name: str, namings: Iterable[Naming]) -> None:
        """It signs off: what it holds is given back at no cost."""
        holder = self.holders.get(name, 0)
        started = self.running.get(holder, set())
        started |= {(naming.task, naming.number) for naming in namings if naming.is_started}
        self.end_holder(name)
        for task, number in self.held_by(holder):
            self._end(self.tasks[task], Outcome.RELEASED, is_certain=True, has_begun=(task, number) in started)

    def sweep(self) -> None:
        for task in self.tasks.values():
            if task.place is Place.CLAIM and task.holder not in self.holders.values():
                assert task.holder is not None
                was_started = (task.id, task.number) in self.running.get(task.holder, set())
                self._end(task, Outcome.LAPSED if was_started else Outcome.RELEASED)

    def give_back(self, attempts: Iterable[tuple[uuid.UUID, int, int]], delay: float) -> None:
        for identifier, number, holder in attempts:
            task = self.tasks[identifier]
            if task.place is Place.CLAIM and (task.number, task.holder) == (number, holder):
                self._end(task, Outcome.RELEASED, retry_after=delay, is_certain=True)

    def expire(self) -> None:
        for task in self.tasks.values():
            is_late = task.expires_ms is not None and task.expires_ms <= self.now_ms
            if is_late and task.place in (Place.DUE, Place.HELD):
                self._finish(task, task.number, Outcome.EXPIRED)

    # Steering

    def cancel(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
        def cancel(task: Task) -> bool:
            if task.place is Place.OVER:
                return False
            # A dead letter's own number has been tried.
            self._finish(task, task.number + (task.place is Place.DEAD), Outcome.CANCELLED)
            return True

        return self._each(ids, cancel)

    def pause(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
        def pause(task: Task) -> bool:
            if task.place is not Place.DUE:
                return False
            task.place, task.is_blocked = Place.HELD, False
            return True

        return self._each(ids, pause)

    def block(self, task: uuid.UUID) -> None:
        assert self.tasks[task].is_paused
        self.tasks[task].is_blocked = True

    def resume(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
        def resume(task: Task) -> bool:
            if not task.is_paused:
                return False
            if task.wake_ms > self.now_ms:
                task.place = Place.DUE
            else:
                self._wait(task, self.now_ms)
            return True

        return self._each(ids, resume)

    def run_now(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
        def run_now(task: Task) -> bool:
            if not (task.is_paused or (task.place is Place.DUE and task.wake_ms > self.now_ms)):
                return False
            self._wait(task, self.now_ms)
            return True

        return self._each(ids, run_now)

    def reschedule(self, ids: Sequence[uuid.UUID], run_at_us: int) -> dict[uuid.UUID, Verdict]:
        def reschedule(task: Task) -> bool:
            if not (task.is_paused or task.place is Place.DUE):
                return False
            place = task.place
            self._wait(task, max(run_at_us // 1000, self.now_ms))
            task.place = place
            task.moved_us = max(run_at_us, self.now_ms * 1000)
            return True

        return self._each(ids, reschedule)

    def redrive(self, ids: Sequence[uuid.UUID], rate: float | None) -> dict[uuid.UUID, Verdict]:
        driven = 0

        def redrive(task: Task) -> bool:
            nonlocal driven
            if task.place is not Place.DEAD:
                return False
            task.number += 1
            task.failures = task.crashes = task.releases = 0
            self._wait(task, self.now_ms + (0 if rate is None else math.floor(driven * 1000 / rate)))
            driven += 1
            return True

        return self._each(ids, redrive)

    def drop(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Verdict]:
        def drop(task: Task) -> bool:
            if task.place is not Place.DEAD:
                return False
            self._finish(task, task.number + 1, Outcome.CANCELLED)
            return True

        return self._each(ids, drop)

    # The rules

    def _each(self, ids: Sequence[uuid.UUID], verb: Callable[[Task], bool]) -> dict[uuid.UUID, Verdict]:
        changed = {task: verb(self.tasks[task]) for task in dict.fromkeys(ids) if task in self.tasks}
        return {task: (changed.get(task, False), self.state(task)) for task in ids}

    def _own_end(self, name: str, task: uuid.UUID, number: int) -> Outcome | None:
        attempt = self.tasks[task].attempts.get(number)
        if attempt is None or attempt.by_server or attempt.worker != name:
            return None
        return attempt.outcome

    def _end(
        self,
        task: Task,
        outcome: Outcome,
        is_permanent: bool = False,
        retry_after: float | None = None,
        *,
        is_certain: bool = False,
        has_begun: bool = False,
    ) -> None:
        is_once_only = task.options.delivery == "at_most_once"
        match outcome:
            case Outcome.SUCCEEDED | Outcome.EXPIRED:
                self._finish(task, task.number, outcome)
            case Outcome.FAILED:
                self._fail(task, is_permanent, is_once_only, retry_after)
            case Outcome.SNOOZED:
                self._again(task, outcome, retry_after or 0.0)
            case Outcome.RELEASED if is_certain and not (has_begun and is_once_only):
                self._again(task, outcome, retry_after or 0.0)
            case Outcome.LAPSED | Outcome.RELEASED if is_once_only:
                self._bury(task, Outcome.UNKNOWN, "unknown")
            case Outcome.LAPSED if task.crashes + 1 >= (task.options.retry or RetryPolicy()).max_crashes:
                self._bury(task, outcome, "crashes")
            case Outcome.LAPSED:
                task.crashes += 1
                self._again(task, outcome, 0.0)
            case Outcome.RELEASED:
                task.releases += 1
                wait = 2 ** (task.releases - FREE_RELEASES - 1) if task.releases > FREE_RELEASES else 0
                self._again(task, outcome, min(wait, 300))
            case _:
                raise AssertionError(outcome)

    def _fail(self, task: Task, is_permanent: bool, is_once_only: bool, retry_after: float | None) -> None:
        retry = task.options.retry or RetryPolicy(max_attempts=20)
        wait = retry_after if retry_after is not None else min(retry.min_backoff * 2**task.failures, retry.max_backoff)
        if task.failures == 0:
            task.first_picked_us = task.picked_us
        assert task.first_picked_us is not None
        end_us = task.first_picked_us + (retry.max_retry_duration or math.inf) * 1_000_000
        if is_permanent:
            self._bury(task, Outcome.FAILED, "permanent")
        elif is_once_only:
            self._bury(task, Outcome.FAILED, "at_most_once")
        elif task.failures + 1 >= retry.max_attempts:
            self._bury(task, Outcome.FAILED, "attempts")
        elif self.now_ms * 1000 + wait * 1_000_000 > end_us:
            self._bury(task, Outcome.FAILED, "retry_duration")
        else:
            task.failures += 1
            self._again(task, Outcome.FAILED, wait)

    def _write_down(self, task: Task, number: int, outcome: Outcome, *, is_final: bool) -> None:
        assert number not in task.attempts
        worker = self.names[task.holder] if task.holder is not None else None
        task.attempts[number] = Attempt(outcome, is_final, worker)
        task.holder = None

    def _finish(self, task: Task, number: int, outcome: Outcome) -> None:
        self._write_down(task, number, outcome, is_final=True)
        task.place = Place.OVER

    def _bury(self, task: Task, outcome: Outcome, reason: str) -> None:
        self._write_down(task, task.number, outcome, is_final=False)
        task.place, task.reason = Place.DEAD, reason

    def _again(self, task: Task, outcome: Outcome, wait: float) -> None:
        self._write_down(task, task.number, outcome, is_final=False)
        task.number += 1
        self._wait(task, self.now_ms + math.ceil(wait * 1000))

    def _wait(self, task: Task, wake_ms: int) -> None:
        # Which wake of that millisecond it is, the database decides.
        task.place, task.wake, task.wake_ms = Place.DUE, None, wake_ms
