"""Recovered attempts run side by side, and only what kills workers is charged for it in the end."""

import random
import uuid
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import far
from duetime.lifecycle.holders.holders import ends_left_behind
from duetime.model.attempt import Again, Bury, what_follows
from duetime.model.retry import DEFAULT_MAX_CRASHES
from duetime.sdk.worker.context import Held
from duetime.sdk.worker.handlers import Handler
from duetime.sdk.worker.protocol import LeasedTask
from duetime.sdk.worker.recovery import ALONE, ONE_AT_A_TIME, TRIAL_SECONDS, Recovery

NOW = datetime(2030, 1, 1, tzinfo=UTC)
#: A poisonous task may share the blame twice, and is charged alone then.
MOST_DEATHS = DEFAULT_MAX_CRASHES + 1


async def run(payload: object) -> None: ...


ASYNC = Handler("a", run, None)


def make(crashes: int | None = 0, name: str = "") -> Held:
    return Held(LeasedTask(name or str(uuid.uuid4()), "a", 2, recovered=True, crashes=crashes), ASYNC)


class Slots:
    """A worker's slots, in virtual time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.now = 0.0
        self.queue: deque[Held] = deque()
        self.running: list[Held] = []

    def free_slots(self, is_async: bool) -> int:
        return self.count - len(self.running) if is_async else 0

    def add_first(self, held: Iterable[Held]) -> None:
        self.queue.extendleft(reversed(list(held)))

    def begin(self) -> list[Held]:
        begun = []
        while self.queue and len(self.running) < self.count:
            held = self.queue.popleft()
            held.begin()
            held.began = self.now
            self.running.append(held)
            begun.append(held)
        return begun


class Worker:
    """One process, from its start to its death: it beats whenever it is asked to."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(slots)
        self.beats: list[int] = []
        self._is_beat_wanted = False
        self.recovery = Recovery(self.slots, self._want_beat, lambda: self.slots.now)
        self.held: list[Held] = []

    def _want_beat(self) -> None:
        self._is_beat_wanted = True

    def take(self, held: Held, *, is_recovered: bool = True) -> None:
        self.held.append(held)
        if is_recovered:
            self.recovery.add(held)
        else:
            self.slots.queue.append(held)

    def go(self) -> list[Held]:
        """Announce, beat if that is wanted, and begin what may begin."""
        self.recovery.announce()
        if self._is_beat_wanted:
            self._is_beat_wanted = False
            self.beats.append(sum(held.has_started and held.started_us is None for held in self.held))
            self.recovery.acknowledge([(held, held.has_started) for held in self.held])
        return self.slots.begin()

    def end(self, held: Held) -> None:
        self.slots.running.remove(held)
        self.held.remove(held)
        self.recovery.discard(held)


def test_what_was_lost_in_one_crash_is_named_in_one_beat_and_runs_side_by_side() -> None:
    worker = Worker(40)
    for _ in range(40):
        worker.take(make(crashes=1))

    assert len(worker.go()) == 40
    assert worker.beats == [40]


def test_no_more_are_named_than_can_begin() -> None:
    worker = Worker(10)
    for _ in range(40):
        worker.take(make(crashes=1))

    first = worker.go()
    assert (len(first), worker.beats) == (10, [10])
    worker.end(first[0])
    assert len(worker.go()) == 1
    assert worker.beats == [10, 1]


def test_fresh_ones_take_the_slots_until_the_beat_is_acknowledged() -> None:
    worker = Worker(1)
    recovered, fresh = make(crashes=1), make()
    worker.take(recovered)
    worker.recovery.announce()
    worker.take(fresh, is_recovered=False)

    assert worker.slots.begin() == [fresh]
    worker.go()
    worker.end(fresh)
    assert worker.go() == [recovered]


def test_what_was_lost_twice_begins_one_at_a_time() -> None:
    worker = Worker(10)
    first, second, calm = make(ONE_AT_A_TIME), make(ONE_AT_A_TIME), make(1)
    for held in (first, second, calm):
        worker.take(held)

    assert set(worker.go()) == {first, calm}
    worker.slots.now += TRIAL_SECONDS
    assert worker.go() == [second]


def test_a_server_that_does_not_count_crashes_makes_all_of_them_suspects() -> None:
    worker = Worker(10)
    for _ in range(2):
        worker.take(make(None))

    assert len(worker.go()) == 1


def test_what_was_lost_more_often_runs_alone_to_its_end() -> None:
    worker = Worker(10)
    calm, alone, later = make(1), make(ALONE), make(1)
    worker.take(calm)
    worker.go()
    for held in (alone, later):
        worker.take(held)

    # Fresh ones go on meanwhile.
    fresh = make()
    worker.take(fresh, is_recovered=False)
    assert set(worker.go()) == {later, fresh}
    worker.end(calm)
    assert worker.go() == []
    worker.end(later)
    assert worker.go() == [alone]
    after = make(1)
    worker.take(after)
    worker.slots.now += 10 * TRIAL_SECONDS
    assert worker.go() == []
    worker.end(alone)
    assert worker.go() == [after]


def test_what_is_lost_while_it_waits_keeps_nobody() -> None:
    worker = Worker(1)
    lost, other = make(ONE_AT_A_TIME), make(ONE_AT_A_TIME)
    for held in (lost, other):
        worker.take(held)
    worker.recovery.announce()

    worker.held.remove(lost)
    worker.recovery.discard(lost)

    assert worker.go() == [other]


class Life:
    """Tasks, one of which may kill its worker, over as many workers as it takes."""

    def __init__(self, seconds: list[float], poison: int | None, kills_after: float, slots: int) -> None:
        self.seconds = seconds
        self.poison = poison
        self.kills_after = kills_after
        self.slots = slots
        self.crashes = [0] * len(seconds)
        self.open = set(range(len(seconds)))
        self.dead: set[int] = set()
        self.deaths = 0

    def work(self, order: random.Random, kill_at: float | None) -> bool:
        """One worker's life; True: it has done everything that was to be done."""
        worker = Worker(self.slots)
        tasks = sorted(self.open)
        order.shuffle(tasks)
        for task in tasks:
            worker.take(make(self.crashes[task], str(task)), is_recovered=self.crashes[task] > 0)
        while worker.held:
            worker.go()
            ends = {held: held.began + self._takes(int(held.task.id)) for held in worker.slots.running}
            first = min(ends, key=lambda held: ends[held])
            at = min(ends[first], worker.slots.now + TRIAL_SECONDS if worker.recovery.waiting else float("inf"))
            if kill_at is not None and kill_at <= at:
                self._die(worker)
                return False
            worker.slots.now = max(worker.slots.now, at)
            if ends[first] > at:
                continue
            if int(first.task.id) == self.poison:
                self._die(worker)
                return False
            worker.end(first)
            self.open.discard(int(first.task.id))
        return True

    def _takes(self, task: int) -> float:
        return self.kills_after if task == self.poison else self.seconds[task]

    def _die(self, worker: Worker) -> None:
        self.deaths += 1
        rows = [
            {
                "lane": 1,
                "task": uuid.UUID(int=int(held.task.id)),
                "number": 1,
                "holder": 1,
                "failures": 0,
                "crashes": held.task.crashes,
                "releases": 0,
                "options": None,
                "first_picked_at": NOW,
                "was_started": held.has_started,
                "signed_off": False,
            }
            for held in worker.held
        ]
        for claimed, end in ends_left_behind(rows, are_all=True):
            _, following = what_follows(
                end.ended, claimed.waiting, None, first_picked_at=NOW, now=NOW, chance=random.Random(0)
            )
            task = claimed.task.int
            if isinstance(following, Bury):
                assert following.reason == "crashes"
                self.open.discard(task)
                self.dead.add(task)
            else:
                assert isinstance(following, Again)
                self.crashes[task] = following.waiting.crashes


lives = st.tuples(
    st.lists(st.floats(0.1, 60.0), min_size=1, max_size=40), st.floats(0.01, 90.0), st.integers(1, 40), st.randoms()
)


@settings(max_examples=far(150, 5_000), deadline=None)
@given(lives)
def test_what_kills_its_workers_is_given_up_and_nobody_beside_it(
    life: tuple[list[float], float, int, random.Random],
) -> None:
    seconds, kills_after, slots, order = life
    poison = order.randrange(len(seconds))
    world = Life(seconds, poison, kills_after, slots)

    while not world.work(order, None):
        assert world.deaths <= MOST_DEATHS

    assert world.dead == {poison}
    assert not world.open


@settings(max_examples=far(150, 5_000), deadline=None)
@given(lives)
def test_workers_that_are_killed_twice_for_other_reasons_lose_nothing(
    life: tuple[list[float], float, int, random.Random],
) -> None:
    seconds, kill_at, slots, order = life
    world = Life(seconds, None, 0.0, slots)
    for _ in range(2):
        if world.work(order, kill_at):
            break

    while not world.work(order, None):
        pass

    assert not world.dead
    assert not world.open
