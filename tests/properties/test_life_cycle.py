"""The whole life of tasks on a real database, step by step beside the model.

One database serves all examples; each example has a tenant of its own.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from depth import far
from duetime.ids import make_id
from duetime.model.retry import RetryPolicy
from duetime.model.task import Options, Outcome, TaskState
from duetime.model.transitions import Move, sources_of
from properties.life_model import Naming, Place, Said
from properties.life_world import LANES, Life, SetClock, TimedDatabase, Walked
from services import Server

T = TypeVar("T")
MAX_TASKS = 8
WORKERS = ["ann", "bob", "cid"]
# Claims carry real time, and everything else passes in steps of ten seconds: no decision hangs on how fast a test runs.
SECONDS = [10.0, 20.0, 60.0, 1800.0, 3 * 3600.0]
VERBS = [Move.CANCEL, Move.PAUSE, Move.RESUME, Move.RUN_NOW, Move.RESCHEDULE, Move.REDRIVE, Move.DROP]
OPTIONS = [
    None,
    Options(retry=RetryPolicy(max_attempts=1)),
    Options(retry=RetryPolicy(max_crashes=1)),
    Options(retry=RetryPolicy(max_attempts=3, min_backoff=0.0)),
    Options(retry=RetryPolicy(min_backoff=30.0, max_backoff=100.0, max_attempts=6)),
    Options(retry=RetryPolicy(min_backoff=10.0, max_retry_duration=51.0)),
    Options(delivery="at_most_once"),
    Options(timeout=5.0),
    Options(timeout=5.0, delivery="at_most_once"),
]
NO_TASK = make_id(1, 1, 1)


class World:
    """One loop, one database; every life in it has a tenant of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._numbers = itertools.count(1)
        self.walked: Walked = Counter()

    def __enter__(self) -> "World":
        self._database = self.run(TimedDatabase.open(self._url, clock=SetClock()))
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._database.close())
        self._runner.close()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self._runner.run(work)

    def begin(self) -> Life:
        return self.run(Life.begin(self._database, f"tenant-{next(self._numbers)}", self.walked))


@pytest.fixture(scope="module")
def world(postgres_server: Server) -> Iterator[World]:
    name = postgres_server.make_database()
    with World(postgres_server.url_of(name)) as world:
        yield world
    postgres_server.drop_database(name)


# Every move from every state


async def arrange(life: Life, state: TaskState) -> uuid.UUID:
    """A task in that state, whose end is an hour away."""
    far = 3 * 3600.0
    delay = far if state is TaskState.SCHEDULED else None
    expires_in = 0.5 if state is TaskState.EXPIRED else 3600.0
    task = await life.submit(delay=delay, expires_in=expires_in)
    assert task is not None
    match state:
        case TaskState.RUNNING | TaskState.SUCCEEDED | TaskState.RETRYING | TaskState.DEAD:
            await life.claim([("ann", 1)])
            await life.compare()
        case TaskState.PAUSED | TaskState.BLOCKED:
            await life.steer(Move.PAUSE, [task])
        case TaskState.CANCELLED:
            await life.steer(Move.CANCEL, [task])
        case TaskState.EXPIRED:
            await life.let_pass(1.0)
            await life.expire()
    match state:
        case TaskState.SUCCEEDED:
            await life.settle("ann", [Said(task, 1, Outcome.SUCCEEDED)])
        case TaskState.RETRYING:
            await life.settle("ann", [Said(task, 1, Outcome.FAILED, retry_after=far)])
        case TaskState.DEAD:
            await life.settle("ann", [Said(task, 1, Outcome.FAILED, is_permanent=True)])
        case TaskState.BLOCKED:
            await life.block(task)
    await life.compare()
    assert life.model.state(task) is state
    return task


async def do(life: Life, move: Move, task: uuid.UUID) -> None:
    known = life.model.tasks[task]
    is_running = known.place is Place.CLAIM
    match move:
        case Move.CLAIM:
            await life.claim([("bob", 5)])
        case Move.SUCCEED:
            await life.settle("ann", [Said(task, known.number, Outcome.SUCCEEDED)])
        case Move.FAIL:
            await life.settle("ann", [Said(task, known.number, Outcome.FAILED)])
        case Move.SNOOZE:
            await life.settle("ann", [Said(task, known.number, Outcome.SNOOZED, retry_after=10.0)])
        case Move.RELEASE:
            await life.settle("ann", [Said(task, known.number, Outcome.RELEASED)])
        case Move.LAPSE:
            await life.beat("ann", [Naming(task, known.number, True)])
            await life.end_holder("ann")
            await life.sweep()
        case Move.EXPIRE if is_running:
            await life.settle("ann", [Said(task, known.number, Outcome.EXPIRED)])
        case Move.EXPIRE:
            await life.let_pass(3600.0)
            await life.expire()
        case _:
            await life.steer(move, [task, NO_TASK], run_in=60.0)
    await life.compare()


@pytest.mark.parametrize("move", Move)
def test_a_move_takes_a_task_from_the_states_of_the_table_and_from_no_other(world: World, move: Move) -> None:
    for state in TaskState:
        life = world.begin()
        task = world.run(arrange(life, state))
        world.walked.clear()
        world.run(do(life, move, task))

        # To run now what is ready already has nothing to do.
        changes = state in sources_of(move) and (move, state) != (Move.RUN_NOW, TaskState.READY)
        assert world.walked[move, state, changes] == 1, state
        assert world.walked[move, state, not changes] == 0, state


# Any moves in any order

workers = st.sampled_from(WORKERS)
seconds = st.sampled_from([0.0, *SECONDS])
picks = st.integers(0, 1_000)
lanes = st.integers(0, len(LANES) - 1)
rates = st.none() | st.sampled_from([0.5, 4.0])
outcomes = st.sampled_from(
    [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FAILED, Outcome.SNOOZED, Outcome.RELEASED, Outcome.EXPIRED]
)


class LifeCycle(RuleBasedStateMachine):
    """Rules pick tasks and attempts by number, so that a failure shrinks well."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.life = world.begin()
        self.unique = itertools.count(1)

    # Asking for tasks

    @initialize(options=st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4))
    def begin_with_some_tasks(self, options: list[Options | None]) -> None:
        for place, each in enumerate(options):
            self.do(self.life.submit(place % len(LANES), options=each))

    @precondition(lambda self: len(self.tasks) < MAX_TASKS)
    @rule(
        lane=lanes,
        wait=seconds,
        is_instant=st.booleans(),
        options=st.sampled_from(OPTIONS),
        expires_in=st.none() | st.sampled_from(SECONDS),
    )
    def submit(
        self, lane: int, wait: float, is_instant: bool, options: Options | None, expires_in: float | None
    ) -> None:
        run_in, delay = (wait - 5.0, None) if is_instant else (None, wait)
        self.do(self.life.submit(lane, run_in=run_in, delay=delay, options=options, expires_in=expires_in))

    @precondition(lambda self: len(self.tasks) < MAX_TASKS)
    @rule(
        key=st.sampled_from(["k", "l"]), fingerprint=st.sampled_from([b"a", b"b"]), ttl=st.sampled_from([30.0, 7200.0])
    )
    def submit_with_a_key(self, key: str, fingerprint: bytes, ttl: float) -> None:
        self.do(self.life.submit(key=key, fingerprint=fingerprint, ttl=ttl))

    @precondition(lambda self: len(self.tasks) < MAX_TASKS)
    @rule(pick=picks, count=st.integers(1, 2), is_another=st.booleans())
    def submit_a_request(self, pick: int, count: int, is_another: bool) -> None:
        """A new one, or one that was sent before: the same, or another under its name."""
        requests = self.life.model.requests
        chosen = self.pick([None, *requests], pick)
        if chosen is None:
            self.do(self.life.request(self.life.new_request(next(self.unique)), b"a", count))
        else:
            fingerprint, ids = requests[chosen]
            self.do(self.life.request(chosen, b"b" if is_another else fingerprint, len(ids)))

    # Running them

    @rule(
        rooms=st.lists(st.tuples(workers, st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda pair: pair[0]),
        lanes=st.sets(lanes, min_size=1),
    )
    def claim(self, rooms: list[tuple[str, int]], lanes: set[int]) -> None:
        self.do(self.life.claim(rooms, sorted(lanes)))

    @rule(worker=workers)
    def claim_all(self, worker: str) -> None:
        self.do(self.life.claim([(worker, MAX_TASKS)]))

    @precondition(lambda self: self.running)
    @rule(
        chosen=st.lists(picks, min_size=1, max_size=3),
        outcome=outcomes,
        is_permanent=st.booleans(),
        retry_after=st.none() | seconds,
    )
    def settle(self, chosen: list[int], outcome: Outcome, is_permanent: bool, retry_after: float | None) -> None:
        """A worker reports on what it has."""
        holder = self.life.model.tasks[self.pick(self.running, chosen[0])[0]].holder
        assert holder is not None
        mine = sorted(self.life.model.held_by(holder))
        attempts = dict(self.pick(mine, pick) for pick in chosen)
        reports = [
            Said(task, number, outcome, is_permanent, retry_after, has_begun=is_permanent)
            for task, number in attempts.items()
        ]
        self.do(self.life.settle(self.life.model.names[holder], reports))

    @precondition(lambda self: self.life.leased)
    @rule(chosen=st.lists(picks, min_size=1, max_size=3), worker=workers, outcome=outcomes, is_permanent=st.booleans())
    def settle_late_or_wrongly(self, chosen: list[int], worker: str, outcome: Outcome, is_permanent: bool) -> None:
        """Any attempts that were ever handed out, by whomever."""
        leased = [self.pick(self.life.leased, pick) for pick in chosen]
        attempts = {task.id: task.number for task in leased}
        reports = [Said(task, number, outcome, is_permanent) for task, number in attempts.items()]
        self.do(self.life.settle(worker, reports))

    @precondition(lambda self: self.life.leased)
    @rule(
        worker=workers,
        words=st.lists(st.sampled_from(["started", "waiting", "unnamed"]), min_size=MAX_TASKS, max_size=MAX_TASKS),
        strangers=st.lists(picks, max_size=2),
    )
    def beat(self, worker: str, words: list[str], strangers: list[int]) -> None:
        """It names what it has, or part of it, and perhaps what it has not."""
        mine = sorted(self.life.model.held_by(self.life.model.holders.get(worker, 0)))
        namings = {
            task: Naming(task, number, word == "started")
            for (task, number), word in zip(mine, words, strict=False)
            if word != "unnamed"
        }
        others = [(task.id, task.number) for task in self.life.leased if (task.id, task.number) not in mine]
        for pick in strangers if others else []:
            task, number = self.pick(others, pick)
            namings.setdefault(task, Naming(task, number, True))
        self.do(self.life.beat(worker, list(namings.values())))

    @rule(worker=workers, how=st.sampled_from(["crash", "lapse", "end", "leave", "speaks"]), is_started=st.booleans())
    def lose_holder(self, worker: str, how: str, is_started: bool) -> None:
        """It dies while it runs all it has, or before it said so; it signs off; or it speaks at the last moment."""
        if how == "crash":
            mine = self.life.model.held_by(self.life.model.holders.get(worker, 0))
            self.do(self.life.beat(worker, [Naming(task, number, True) for task, number in sorted(mine)]))
        if how == "leave":
            mine = self.life.model.held_by(self.life.model.holders.get(worker, 0))
            self.do(self.life.leave(worker, [Naming(task, number, is_started) for task, number in sorted(mine)[:1]]))
        else:
            self.do(self.life.end_holder(worker, is_stale=how == "speaks"))
        if how in ("crash", "lapse"):
            self.do(self.life.sweep())

    @precondition(lambda self: self.is_something_left_behind)
    @rule()
    def sweep(self) -> None:
        self.do(self.life.sweep())

    @precondition(lambda self: self.life.leased)
    @rule(chosen=st.lists(picks, min_size=1, max_size=2), delay=seconds)
    def give_back(self, chosen: list[int], delay: float) -> None:
        leased = [self.pick(self.life.leased[::-1], pick) for pick in chosen]
        self.do(self.life.give_back(list({task.id: task for task in leased}.values()), delay))

    # Steering them

    @precondition(lambda self: self.tasks)
    @rule(move=st.sampled_from(VERBS), chosen=st.lists(picks, min_size=1, max_size=4), run_in=seconds, rate=rates)
    def steer(self, move: Move, chosen: list[int], run_in: float, rate: float | None) -> None:
        """Any verb on any tasks."""
        ids = [self.pick([*self.tasks, NO_TASK], pick) for pick in chosen]
        self.do(self.life.steer(move, ids, run_in - 5.0, rate))

    @precondition(lambda self: self.tasks)
    @rule(move=st.sampled_from(VERBS), chosen=st.lists(picks, min_size=1, max_size=2), run_in=seconds, rate=rates)
    def steer_on(self, move: Move, chosen: list[int], run_in: float, rate: float | None) -> None:
        """A verb on tasks that are in a state for it."""
        fitting = [task for task in self.tasks if self.life.model.state(task) in sources_of(move)]
        if fitting:
            self.do(self.life.steer(move, [self.pick(fitting, pick) for pick in chosen], run_in, rate))

    @precondition(lambda self: any(task.is_paused for task in self.life.model.tasks.values()))
    @rule(pick=picks)
    def block(self, pick: int) -> None:
        paused = [task for task in self.tasks if self.life.model.tasks[task].is_paused]
        self.do(self.life.block(self.pick(paused, pick)))

    # Time

    @rule(step=st.sampled_from(SECONDS), is_upkeep_alive=st.booleans())
    def let_time_pass(self, step: float, is_upkeep_alive: bool) -> None:
        self.do(self.life.let_pass(step))
        if is_upkeep_alive:
            self.do(self.life.expire())

    @invariant()
    def the_database_agrees_with_the_model(self) -> None:
        self.world.run(self.life.compare())

    @property
    def tasks(self) -> list[uuid.UUID]:
        return list(self.life.model.tasks)

    @property
    def running(self) -> list[tuple[uuid.UUID, int]]:
        return [(task.id, task.number) for task in self.life.model.tasks.values() if task.place is Place.CLAIM]

    @property
    def is_something_left_behind(self) -> bool:
        living = self.life.model.holders.values()
        return any(task.place is Place.CLAIM and task.holder not in living for task in self.life.model.tasks.values())

    def pick(self, choices: Sequence[T], pick: int) -> T:
        return choices[pick % len(choices)]

    def do(self, work: Coroutine[object, object, T]) -> T:
        """Then a millisecond passes, so that the order of wakes hangs on the steps alone."""
        done = self.world.run(work)
        self.life.tick()
        return done


def test_the_database_lives_as_the_model_says(world: World) -> None:
    run_state_machine_as_test(
        partial(LifeCycle, world),
        settings=settings(
            max_examples=far(50, 1_000),
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
