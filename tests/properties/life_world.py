"""Every move of a task's life, done on a real database and in the model, and compared.

Time stands still until a test lets it pass: the statements' `@now` and the
lower bound of the database's clock are the same settable number.  What must
hold is looked at after every step: each task lies in exactly one place, with
the number, counts, time and holder that the model says.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta

import asyncpg

from duetime.clock import DatabaseClock, SentAt, to_us
from duetime.database.pool import Database
from duetime.database.statements import Statement
from duetime.errors import IdempotencyConflict
from duetime.ids import EARLIEST, due_ms_of, just_after, make_id
from duetime.lifecycle.holders.holders import Holders, Named
from duetime.lifecycle.holders.lapse import end_silent_holders, sweep_left_behind
from duetime.lifecycle.submission.batch import Submission, Submitted
from duetime.lifecycle.tasks.claim import LaneOrder, claim_due
from duetime.lifecycle.tasks.onward import Onward
from duetime.lifecycle.tasks.settle import Report, Settler
from duetime.lifecycle.tasks.state import read_states
from duetime.lifecycle.tasks.steer import SteerResult
from duetime.model.task import Kind, LaneKey, LeasedTask, NewTask, Options, Outcome, PriorityClass, TaskState, make_task
from duetime.model.transitions import TRANSITIONS, Move
from duetime.scheduler.feed import Feeder
from duetime.scheduler.upkeep import Upkeep
from engine import Engine
from properties.life_model import Key, Model, Naming, Place, Said, Task

LANES = [
    ("mail", PriorityClass.NORMAL, ()),
    ("mail", PriorityClass.HIGH, ()),
    ("video", PriorityClass.NORMAL, ("gpu",)),
]
MOVES = {
    Outcome.SUCCEEDED: Move.SUCCEED,
    Outcome.FAILED: Move.FAIL,
    Outcome.SNOOZED: Move.SNOOZE,
    Outcome.RELEASED: Move.RELEASE,
    Outcome.EXPIRED: Move.EXPIRE,
}
#: Which moves were tried on a task in which state, and whether it changed.
Walked = Counter[tuple[Move, TaskState, bool]]
_ROWS = """
SELECT 'due' AS place, task, number, failures, crashes, releases, wake, NULL::bigint AS holder, NULL::text AS word,
       NULL::timestamptz AS picked_at, NULL::smallint AS outcome, NULL::boolean AS final
  FROM due WHERE lane = ANY ($1)
 UNION ALL
SELECT 'claim', task, number, failures, crashes, releases, NULL, holder, NULL, picked_at, NULL, NULL
  FROM claim WHERE lane = ANY ($1)
 UNION ALL
SELECT 'held', task, number, failures, crashes, releases, wake, NULL, reason::text, NULL, NULL, NULL
  FROM held WHERE lane = ANY ($1)
 UNION ALL
SELECT 'dead', task, number, NULL, NULL, NULL, NULL, NULL, reason, NULL, NULL, NULL
  FROM dead WHERE lane = ANY ($1)
 UNION ALL
SELECT 'attempt', task, number, NULL, NULL, NULL, NULL, NULL, (SELECT name FROM holder WHERE id = attempt.holder),
       NULL, outcome, final
  FROM attempt WHERE lane = ANY ($1)
"""


class SetClock(DatabaseClock):
    """Stands still until it is set; what the database says does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.set_ms = 0

    def observe(self, answered_us: int, asked: SentAt | None = None) -> int:
        self.set_ms = self.set_ms or answered_us // 1000
        return 0

    def now_us(self) -> int:
        return self.set_ms * 1000


class TimedDatabase(Database):
    """Gives every statement that asks for it the set time."""

    async def run(self, statement: Statement, *, timeout: float = 10.0, **parameters: object) -> list[asyncpg.Record]:
        return await self.run_with(statement, parameters, timeout)

    async def run_with(
        self, statement: Statement, parameters: dict[str, object], timeout: float = 10.0
    ) -> list[asyncpg.Record]:
        if "now" in statement.parameters:
            parameters = parameters | {"now": self.clock.now()}
        return await super().run_with(statement, parameters, timeout)

    async def run_in(
        self,
        connection: asyncpg.Connection,
        statement: Statement,
        parameters: dict[str, object],
        timeout: float = 10.0,
    ) -> list[asyncpg.Record]:
        if "now" in statement.parameters:
            parameters = parameters | {"now": self.clock.now()}
        return await super().run_in(connection, statement, parameters, timeout)


class NoChance(random.Random):
    """No jitter: the middle of every range."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Life:
    """One tenant's tasks, in the database and in the model."""

    def __init__(self, engine: Engine, clock: SetClock, walked: Walked) -> None:
        self.engine = engine
        self.database = engine.database
        self.clock = clock
        self.walked = walked
        self.model = Model(clock.set_ms)
        self.lanes: list[int] = []
        self.leased: list[LeasedTask] = []
        # The same parts as a node has, without chance.
        engine.onward = Onward(self.database, engine.partitions, engine.woken.extend, NoChance())
        engine.holders = Holders(self.database, engine.onward, lambda: clock.set_ms / 1000)
        engine.settler = Settler(self.database, engine.holders, engine.onward)
        self.feeder = Feeder(self.database, engine.lanes, engine.onward)

    @classmethod
    async def begin(cls, database: Database, tenant: str, walked: Walked) -> "Life":
        clock = database.clock
        assert isinstance(clock, SetClock)
        # Claims carry the database's own time, so each life begins there.
        clock.set_ms = 0
        await database.read_clock()
        life = cls(await Engine.open(database, tenant), clock, walked)
        life.lanes = [await life.engine.lanes.ensure(life.lane_key(place)) for place in range(len(LANES))]
        return life

    def lane_key(self, place: int) -> LaneKey:
        queue, priority, requires = LANES[place]
        return LaneKey(self.engine.tenant, queue, priority, Kind.PULL, requires)

    # Submitting

    async def submit(
        self,
        lane: int = 0,
        *,
        delay: float | None = None,
        run_in: float | None = None,
        options: Options | None = None,
        expires_in: float | None = None,
        key: str | None = None,
        fingerprint: bytes = b"",
        ttl: float = 3600.0,
    ) -> uuid.UUID | None:
        """One task by itself; None: its key stands for another."""
        now = self.clock.now()
        task = make_task(
            self.lane_key(lane),
            "test.task",
            b"{}",
            run_at=None if run_in is None else now + timedelta(seconds=run_in),
            delay=delay,
            expires_at=None if expires_in is None else now + timedelta(seconds=expires_in),
            options=options,
            idempotency_key=key,
            idempotency_ttl=ttl,
            fingerprint=fingerprint,
        )
        [answer] = await self.engine.submitter.submit([task])
        if key is not None and not self.model.key_is_free(key):
            self._check_winner(self.model.keys[key], fingerprint, answer)
            return answer.id if isinstance(answer, Submitted) else None
        identifier = self._check_new(answer, task)
        if key is not None:
            self.model.keys[key] = Key(identifier, fingerprint, self.clock.set_ms + round(ttl * 1000))
        return identifier

    async def request(self, request: uuid.UUID, fingerprint: bytes, count: int) -> None:
        """A whole request, perhaps not for the first time."""
        tasks = [NewTask(self.lane_key(place % len(LANES)), "test.task", b"{}") for place in range(count)]
        answers = await self.engine.submitter.submit(tasks, request, fingerprint)
        known = self.model.requests.get(request)
        if known is None:
            ids = [self._check_new(answer, task) for answer, task in zip(answers, tasks, strict=True)]
            self.model.requests[request] = (fingerprint, ids)
        elif known[0] != fingerprint:
            assert all(isinstance(answer, IdempotencyConflict) for answer in answers)
        else:
            assert [(answer.id, answer.is_new) for answer in answers if isinstance(answer, Submitted)] == [
                (each, False) for each in known[1]
            ]

    def new_request(self, unique: int) -> uuid.UUID:
        return make_id(self.clock.set_ms, unique, 0)

    def _check_winner(self, key: Key, fingerprint: bytes, answer: Submission) -> None:
        if key.fingerprint == fingerprint:
            assert answer == Submitted(key.task, False, due_ms_of(key.task))
        else:
            assert isinstance(answer, IdempotencyConflict)

    def _check_new(self, answer: Submission, new: NewTask) -> uuid.UUID:
        assert isinstance(answer, Submitted), answer
        task = new.detailed()
        due_ms = self.clock.set_ms
        if task.run_at is not None:
            due_ms = to_us(task.run_at) // 1000
        elif task.delay is not None:
            due_ms += round(task.delay * 1000)
        assert (answer.is_new, answer.run_at_ms) == (True, max(due_ms, self.clock.set_ms))
        expires_ms = None if task.expires_at is None else to_us(task.expires_at) // 1000
        lane = self.engine.lanes.find(task.lane)
        assert lane is not None
        self.model.add(answer.id, lane, due_ms, task.options or Options(), expires_ms)
        return answer.id

    # Holding

    async def register(self, worker: str) -> int:
        holder = await self.engine.holders.register(self.engine.tenant, worker)
        self.model.register(worker, holder)
        return holder

    async def claim(self, rooms: Sequence[tuple[str, int]], lanes: Sequence[int] = (0, 1, 2)) -> list[LeasedTask]:
        """Each lane's first rows go to the first worker, and so on."""
        holders = [(await self.register(worker), room) for worker, room in rooms]
        chosen = sorted(self.lanes[place] for place in set(lanes))
        before = self._states(self.model.tasks)
        orders = [LaneOrder(lane, EARLIEST, holders) for lane in chosen]
        claims = await claim_due(self.database, orders, just_after(self.clock.set_ms), self.clock.now())

        slots = [holder for holder, room in holders for _ in range(room)]
        expected = self.model.claim(chosen, slots * len(chosen))
        taken = [task for lane in chosen for _, task in claims.taken.get(lane, [])]
        assert [(task.id, task.holder) for task in taken] == expected
        for task in taken:
            known = self.model.tasks[task.id]
            assert (task.number, task.failures, task.crashes, task.releases) == (
                known.number,
                known.failures,
                known.crashes,
                known.releases,
            )
            assert known.moved_us is None or to_us(task.run_at) == known.moved_us
        for lane in chosen:
            later = [task.wake for task in self._waiting_in(lane) if task.wake_ms > self.clock.set_ms]
            if len(claims.taken.get(lane, [])) == len(slots):
                later = []
            assert claims.later.get(lane) == min(filter(None, later), default=None)
        self.leased += taken
        self._note(Move.CLAIM, before, {task.id for task in taken})
        return taken

    async def settle(self, worker: str, reports: Sequence[Said]) -> dict[uuid.UUID, str]:
        before = self._states(said.task for said in reports)
        had = {said.task: self._has(worker, said.task, said.number) for said in reports}
        answer = await self.engine.settler.settle(
            self.engine.tenant,
            worker,
            [
                Report(
                    said.task,
                    said.number,
                    said.outcome,
                    is_permanent=said.is_permanent,
                    retry_after=said.retry_after,
                    started_us=self.clock.now_us() if said.has_begun else None,
                )
                for said in reports
            ],
        )
        told = {task: word for word in ("settled", "lost", "cancelled") for task in getattr(answer, word)}
        expected = self.model.settle(worker, reports)
        assert told == expected
        for said in reports:
            state = {said.task: before[said.task]}
            self._note(MOVES[said.outcome], state, {said.task} if had[said.task] else set())
        return told

    async def beat(self, worker: str, namings: Sequence[Naming]) -> dict[uuid.UUID, str]:
        await self.register(worker)
        named = [Named(naming.task, naming.number, naming.is_started) for naming in namings]
        before = self._states(self.model.tasks)
        answer = await self.engine.holders.beat(self.engine.tenant, worker, named)
        told = {task: word for word in ("lost", "cancelled") for task in getattr(answer, word)}
        assert told == self.model.beat(worker, namings)
        self._note(Move.RELEASE, before, self._changed(before), only_changed=True)
        return told

    async def end_holder(self, worker: str, *, is_stale: bool = False) -> None:
        """Its beats have stopped; with a counter that is not the last one, nothing happens."""
        holder = await self.register(worker)
        rows = await self.database.fetch("SELECT beats FROM holder WHERE id = $1", holder)
        silent = [(holder, rows[0]["beats"] - is_stale)]
        ended = await end_silent_holders(self.database, self.engine.holders, silent)
        assert ended == (set() if is_stale else {holder})
        if not is_stale:
            self.model.end_holder(worker)

    async def leave(self, worker: str, namings: Sequence[Naming]) -> None:
        """It names what it has, perhaps not all of it, or nothing that is its own."""
        before = self._states(self.model.tasks)
        named = [Named(naming.task, naming.number, naming.is_started) for naming in namings]
        await self.engine.holders.sign_off(self.engine.tenant, worker, named)
        self.model.leave(worker, namings)
        self._note(Move.RELEASE, before, self._changed(before), only_changed=True)

    async def sweep(self) -> None:
        before = self._states(self.model.tasks)
        lost = {task for holder in self.model.names for task, _ in self._left_by(holder)}
        await sweep_left_behind(self.database, self.engine.onward)
        self.model.sweep()
        for task, state in before.items():
            number = max(self.model.tasks[task].attempts, default=0)
            is_lapse = task not in lost or self.model.tasks[task].attempts[number].outcome is not Outcome.RELEASED
            self._note(Move.LAPSE if is_lapse else Move.RELEASE, {task: state}, {task} & lost)

    async def give_back(self, tasks: Sequence[LeasedTask], delay: float = 0.0) -> None:
        before = self._states(task.id for task in tasks)
        await self.feeder.give_back(tasks, delay)
        attempts = [(task.id, task.number, task.holder) for task in tasks]
        had = {task for task, number, holder in attempts if (task, number) in self.model.held_by(holder)}
        self.model.give_back(attempts, delay)
        self._note(Move.RELEASE, before, had)

    async def expire(self) -> None:
        """The whole duty, as a node that has just started does it."""
        before = self._states(self.model.tasks)
        upkeep = Upkeep(
            self.database,
            self.engine.partitions,
            self.engine.lanes,
            self.engine.steering,
            retention=timedelta(days=7),
            dead_retention=timedelta(days=30),
        )
        while await upkeep.expire() == timedelta(0):
            pass
        self.model.expire()
        late = {
            task: state
            for task, state in before.items()
            if (end := self.model.tasks[task].expires_ms) is not None and end <= self.clock.set_ms
        }
        # Who runs has its own way to expire: its holder's report.
        waiting = {task: state for task, state in late.items() if state is not TaskState.RUNNING}
        self._note(Move.EXPIRE, waiting, self._changed(before))

    # Steering

    async def steer(self, move: Move, ids: Sequence[uuid.UUID], run_in: float = 0.0, rate: float | None = None) -> None:
        before = self._states(ids)
        steering, model = self.engine.steering, self.model
        run_at = self.clock.now() + timedelta(seconds=run_in)
        verbs: dict[Move, tuple[Callable[[], Coroutine[object, object, dict[uuid.UUID, SteerResult]]], object]] = {
            Move.CANCEL: (lambda: steering.cancel(ids), lambda: model.cancel(ids)),
            Move.PAUSE: (lambda: steering.pause(ids), lambda: model.pause(ids)),
            Move.RESUME: (lambda: steering.resume(ids), lambda: model.resume(ids)),
            Move.RUN_NOW: (lambda: steering.run_now(ids), lambda: model.run_now(ids)),
            Move.RESCHEDULE: (
                lambda: steering.reschedule(ids, run_at),
                lambda: model.reschedule(ids, to_us(run_at)),
            ),
            Move.REDRIVE: (lambda: steering.redrive(ids, rate), lambda: model.redrive(ids, rate)),
            Move.DROP: (lambda: steering.drop(ids), lambda: model.drop(ids)),
        }
        real, ideal = verbs[move]
        verdicts = await real()
        assert callable(ideal)
        expected = ideal()
        assert {task: (verdict.changed, verdict.state) for task, verdict in verdicts.items()} == expected
        self._note(move, before, {task for task, (changed, _) in expected.items() if changed})

    async def block(self, task: uuid.UUID) -> None:
        """As if it waited for other tasks."""
        await self.database.execute("UPDATE held SET reason = 2 WHERE task = $1", task)
        self.model.block(task)

    async def let_pass(self, seconds: float) -> None:
        self.tick(round(seconds * 1000))
        await self.engine.partitions.ensure([self.clock.set_ms, self.clock.set_ms + 3_600_000])

    def tick(self, ms: int = 1) -> None:
        self.clock.set_ms += ms
        self.model.now_ms = self.clock.set_ms

    # Comparing

    async def compare(self) -> None:
        """Each task lies where the model says, once, with all that belongs to it."""
        found = await self.database.fetch(_ROWS, self.lanes)
        places = [row for row in found if row["place"] != "attempt"]
        attempts = [row for row in found if row["place"] == "attempt"]
        states = await read_states(self.database, list(self.model.tasks))
        assert states == {task: self.model.state(task) for task in self.model.tasks}, self._difference(states)

        rows = {row["task"]: row for row in places}
        assert len(rows) == len(places), "a task is in two places"
        waiting = {task for task, known in self.model.tasks.items() if known.place is not Place.OVER}
        assert set(rows) == waiting
        for task, row in rows.items():
            self._compare_row(task, row)
        assert {
            (row["task"], row["number"], Outcome(row["outcome"]), row["final"], row["word"]) for row in attempts
        } == {
            (task, number, attempt.outcome, attempt.is_final, attempt.worker)
            for task, known in self.model.tasks.items()
            for number, attempt in known.attempts.items()
        }

    def _difference(self, states: dict[uuid.UUID, TaskState]) -> str:
        return "; ".join(
            f"{states.get(task)} in the database, but {known}"
            for task, known in self.model.tasks.items()
            if states.get(task) is not self.model.state(task)
        )

    def _compare_row(self, task: uuid.UUID, row: asyncpg.Record) -> None:
        known = self.model.tasks[task]
        assert (row["place"], row["number"]) == (known.place, known.number)
        if known.place is Place.DEAD:
            assert row["word"] == known.reason
            return
        counts = (row["failures"], row["crashes"], row["releases"])
        assert counts == (known.failures, known.crashes, known.releases)
        if known.place is Place.CLAIM:
            assert row["holder"] == known.holder
            known.picked_us = to_us(row["picked_at"])
            return
        assert due_ms_of(row["wake"]) == known.wake_ms
        assert known.wake in (None, row["wake"])
        known.wake = row["wake"]
        if known.place is Place.HELD:
            assert row["word"] == ("2" if known.is_blocked else "1")

    def _states(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, TaskState]:
        return {task: known.state(self.clock.set_ms) for task in ids if (known := self.model.tasks.get(task))}

    def _waiting_in(self, lane: int) -> list[Task]:
        return [task for task in self.model.tasks.values() if task.lane == lane and task.place is Place.DUE]

    def _has(self, worker: str, task: uuid.UUID, number: int) -> bool:
        holder = self.model.holders.get(worker)
        return holder is not None and (task, number) in self.model.held_by(holder)

    def _left_by(self, holder: int) -> set[tuple[uuid.UUID, int]]:
        return set() if holder in self.model.holders.values() else self.model.held_by(holder)

    def _changed(self, before: dict[uuid.UUID, TaskState]) -> set[uuid.UUID]:
        return {task for task, state in before.items() if self.model.state(task) is not state}

    def _note(
        self, move: Move, before: dict[uuid.UUID, TaskState], changed: set[uuid.UUID], *, only_changed: bool = False
    ) -> None:
        """The table of transitions allows what was done, and nothing else was done."""
        sources, targets = TRANSITIONS[move]
        for task, state in before.items():
            if task in changed:
                assert state in sources, f"{move} took a task that is {state}"
                assert self.model.state(task) in targets, f"{move} left a task {self.model.state(task)}"
            if task in changed or not only_changed:
                self.walked[move, state, task in changed] += 1
