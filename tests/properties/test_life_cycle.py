"""The whole life of tasks on a real database, step by step beside the model.

One database serves all examples; each example has a tenant of its own.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from duetime.ids import make_id
from duetime.model.retry import RetryPolicy
from duetime.model.task import Options, Outcome, TaskState
from duetime.model.transitions import TRANSITIONS, Move, sources_of
from properties.life_model import Naming, Place, Said
from properties.life_world import LANES, Life, TimedDatabase, SetClock, Walked
from services import Server

T = TypeVar("T")
MAX_TASKS = 8
WORKERS = ["ann", "bob", "cid"]
SECONDS = [0.001, 1.0, 20.0, 61.0, 1800.0, 3 * 3600.0]
VERBS = [Move.CANCEL, Move.PAUSE, Move.RESUME, Move.RUN_NOW, Move.RESCHEDULE, Move.REDRIVE, Move.DROP]
OPTIONS = [
    None,
    Options(retry=RetryPolicy(max_attempts=1)),
    Options(retry=RetryPolicy(max_attempts=3, min_backoff=0.0)),
    Options(retry=RetryPolicy(min_backoff=30.0, max_backoff=100.0, max_attempts=6)),
    Options(retry=RetryPolicy(max_retry_duration=100.0)),
    Options(delivery="at_most_once"),
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
    world.walked.clear()

    for state in TaskState:
        life = world.begin()
        task = world.run(arrange(life, state))
        world.run(do(life, move, task))

    tried = {(state, changed) for (walked, state, changed) in world.walked if walked is move}
    assert {state for state, changed in tried if changed} | {TaskState.READY} >= sources_of(move)
    assert {state for state, changed in tried if changed} <= sources_of(move)
    assert {state for state, changed in tried if not changed} >= set(TaskState) - sources_of(move)


def test_only_running_a_task_now_that_is_ready_changes_nothing(world: World) -> None:
    """The one pair of the table that has nothing to do."""
    idle = []
    for move, (sources, _) in TRANSITIONS.items():
        for state in sources:
            world.walked.clear()
            life = world.begin()
            world.run(do(life, move, world.run(arrange(life, state))))
            if not world.walked[move, state, True]:
                idle.append((move, state))

    assert idle == [(Move.RUN_NOW, TaskState.READY)]


# Any moves in any order

workers = st.sampled_from(WORKERS)
seconds = st.sampled_from([0.0, *SECONDS])
picks = st.integers(0, 1_000)


class LifeCycle(RuleBasedStateMachine):
    """Rules pick tasks and attempts by number, so that a failure shrinks well."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.life = world.begin()
        self.unique = itertools.count(1)

    # Asking for tasks

    @precondition(lambda self: len(self.tasks) < MAX_TASKS)
    @rule(lane=st.integers(0, len(LANES) - 1), options=st.sampled_from(OPTIONS))
    def submit_for_now(self, lane: int, options: Options | None) -> None:
        self.do(self.life.submit(lane, options=options))

    @precondition(lambda self: len(self.tasks) < MAX_TASKS)
    @rule(
        lane=st.integers(0, len(LANES) - 1),
        wait=seconds,
        is_instant=st.booleans(),
        options=st.sampled_from(OPTIONS),
        expires_in=st.none() | st.sampled_from(SECONDS),
    )
    def submit_for_later(
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
    @rule(count=st.integers(1, 2))
    def submit_a_request(self, count: int) -> None:
        self.do(self.life.request(self.life.new_request(next(self.unique)), b"a", count))

    @precondition(lambda self: self.life.model.requests)
    @rule(pick=picks, is_another=st.booleans())
    def repeat_a_request(self, pick: int, is_another: bool) -> None:
        request = self.pick(list(self.life.model.requests), pick)
        fingerprint, ids = self.life.model.requests[request]
        self.do(self.life.request(request, b"b" if is_another else fingerprint, len(ids)))

    # Running them

    @rule(
        rooms=st.lists(st.tuples(workers, st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda pair: pair[0]),
        lanes=st.sets(st.integers(0, len(LANES) - 1), min_size=1),
    )
    def claim(self, rooms: list[tuple[str, int]], lanes: set[int]) -> None:
        self.do(self.life.claim(rooms, sorted(lanes)))

    @precondition(lambda self: self.life.leased)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(
            [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FAILED, Outcome.SNOOZED, Outcome.RELEASED, Outcome.EXPIRED]
        ),
        is_permanent=st.booleans(),
        retry_after=st.none() | seconds,
    )
    def settle(self, data: st.DataObject, outcome: Outcome, is_permanent: bool, retry_after: float | None) -> None:
        """Some attempts that were ever handed out: most by who has them, some again, late, or by a stranger."""
        chosen = data.draw(st.lists(st.integers(0, len(self.attempts) - 1), min_size=1, max_size=3, unique=True))
        attempts = {self.attempts[place][0]: self.attempts[place][1] for place in chosen}
        holder = self.life.model.tasks[next(iter(attempts))].holder
        owner = self.life.model.names.get(holder or 0, WORKERS[0])
        worker = data.draw(st.sampled_from([owner, owner, owner, *WORKERS]))
        reports = [Said(task, number, outcome, is_permanent, retry_after) for task, number in attempts.items()]
        self.do(self.life.settle(worker, reports))

    @rule(data=st.data(), worker=workers)
    def beat(self, data: st.DataObject, worker: str) -> None:
        """It names what it has, or part of it, and perhaps what it has not."""
        mine = sorted(self.life.model.held_by(self.life.model.holders.get(worker, 0)))
        others = [attempt for attempt in self.attempts if attempt not in mine]
        namings = {}
        for task, number in mine:
            word = data.draw(st.sampled_from(["started", "waiting", "unnamed"]))
            if word != "unnamed":
                namings[task] = Naming(task, number, word == "started")
        if others:
            for task, number in data.draw(st.lists(st.sampled_from(others), max_size=2)):
                namings.setdefault(task, Naming(task, number, False))
        self.do(self.life.beat(worker, list(namings.values())))

    @rule(worker=workers)
    def beat_and_name_nothing(self, worker: str) -> None:
        self.do(self.life.beat(worker, []))

    @rule(worker=workers)
    def lapse(self, worker: str) -> None:
        self.do(self.life.end_holder(worker))
        self.do(self.life.sweep())

    @rule(worker=workers, is_stale=st.booleans())
    def end_holder(self, worker: str, is_stale: bool) -> None:
        self.do(self.life.end_holder(worker, is_stale=is_stale))

    @rule(worker=workers)
    def leave(self, worker: str) -> None:
        self.do(self.life.leave(worker))

    @rule()
    def sweep(self) -> None:
        self.do(self.life.sweep())

    @precondition(lambda self: self.life.leased)
    @rule(first=picks, second=picks, delay=seconds)
    def give_back(self, first: int, second: int, delay: float) -> None:
        leased = {pick % len(self.life.leased) for pick in (first, second)}
        chosen = {self.life.leased[place].id: self.life.leased[place] for place in leased}
        self.do(self.life.give_back(list(chosen.values()), delay))

    # Steering them

    @precondition(lambda self: self.tasks)
    @rule(
        move=st.sampled_from(VERBS),
        chosen=st.lists(picks, min_size=1, max_size=4),
        run_in=seconds,
        rate=st.none() | st.sampled_from([0.5, 3.0, 1000.0]),
    )
    def steer(self, move: Move, chosen: list[int], run_in: float, rate: float | None) -> None:
        ids = [self.pick([*self.tasks, NO_TASK], pick) for pick in chosen]
        self.do(self.life.steer(move, ids, run_in - 5.0, rate))

    @precondition(lambda self: any(task.is_paused for task in self.life.model.tasks.values()))
    @rule(pick=picks)
    def block(self, pick: int) -> None:
        self.do(self.life.block(self.pick([task for task in self.tasks if self.life.model.tasks[task].is_paused], pick)))

    # Time

    @rule(step=st.sampled_from(SECONDS))
    def let_time_pass(self, step: float) -> None:
        self.do(self.life.let_pass(step))

    @rule()
    def expire(self) -> None:
        self.do(self.life.expire())

    @invariant()
    def the_database_agrees_with_the_model(self) -> None:
        self.do(self.life.compare())

    @property
    def tasks(self) -> list[uuid.UUID]:
        return list(self.life.model.tasks)

    @property
    def attempts(self) -> list[tuple[uuid.UUID, int]]:
        return list(dict.fromkeys((task.id, task.number) for task in self.life.leased))

    def pick(self, choices: Sequence[T], pick: int) -> T:
        return choices[pick % len(choices)]

    def do(self, work: Coroutine[object, object, T]) -> T:
        return self.world.run(work)


def test_the_database_lives_as_the_model_says(world: World) -> None:
    world.walked.clear()
    machine: Callable[[], LifeCycle] = lambda: LifeCycle(world)  # noqa: E731

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            derandomize=True,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

    walked = {(move, state) for move, state, _ in world.walked}
    assert {(move, state) for move, (sources, _) in TRANSITIONS.items() for state in sources} - walked == set()
