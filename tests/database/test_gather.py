"""What flies with what, when more waits than a flight can hold."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from duetime.database.gather import AMPLE, LATE_SECONDS, Backlog, Gather
from duetime.errors import Overloaded
from duetime.lifecycle.admission.pressure import (
    CALM_PART,
    CALM_SECONDS,
    MARKS,
    Pressure,
    least_important,
    rank_of,
    size_of,
)
from duetime.lifecycle.submission.winners import Call
from duetime.model.task import Kind, LaneKey, NewTask, PriorityClass


class Part(NamedTuple):
    name: str
    rank: int = 0
    weight: int = 1
    size: int = 0


class Runway:
    """A gather whose flights land when the test says so."""

    def __init__(self, *, is_even: bool = False, **options: int) -> None:
        self.now = 100.0
        #: How many may be in the air at once.
        self.most = 1
        self.flights: list[list[str]] = []
        self._landings: list[asyncio.Future[None]] = []
        self.gather: Gather[Part, str] = Gather(
            self._fly,
            weigh=lambda part: part.weight,
            measure=lambda part: part.size,
            rank=lambda part: part.rank,
            ranks=4,
            flights=lambda: self.most,
            is_even=is_even,
            monotonic=lambda: self.now,
            **{"limit": 3, "size_limit": 100, **options},
        )

    async def _fly(self, parts: list[Part]) -> list[str]:
        self.flights.append([part.name for part in parts])
        landing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._landings.append(landing)
        await landing
        return [part.name for part in parts]

    async def land(self) -> None:
        await asyncio.sleep(0)
        self._landings.pop(0).set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_as_many_fly_at_once_as_may_just_now() -> None:
    runway = Runway(limit=AMPLE)
    runway.most = 3
    answers = [runway.gather.put(Part(name, weight=AMPLE)) for name in "abcdef"]
    await asyncio.sleep(0)
    assert runway.flights == [["a"], ["b"], ["c"]]

    # The next to land leaves what waits to the other two.
    runway.most = 2
    await runway.land()
    assert runway.flights == [["a"], ["b"], ["c"]]
    await runway.land()
    await runway.land()
    assert runway.flights == [["a"], ["b"], ["c"], ["d"], ["e"]]

    # With none allowed one goes on all the same.
    runway.most = 0
    await runway.land()
    await runway.land()
    await runway.land()
    assert [answer.result() for answer in answers] == list("abcdef")
    await runway.gather.close()


async def test_even_flights_go_beside_each_other_when_as_much_waits_as_is_in_the_air() -> None:
    runway = Runway(limit=10, is_even=True)
    runway.most = 2
    answers = [runway.gather.put(Part(name)) for name in "ab"]
    await asyncio.sleep(0)
    answers.append(runway.gather.put(Part("c")))
    await asyncio.sleep(0)
    assert runway.flights == [["a", "b"]]

    answers += [runway.gather.put(Part(name)) for name in "de"]
    await asyncio.sleep(0)
    assert runway.flights == [["a", "b"], ["c", "d", "e"]]

    # Three are in the air: one that waits goes when they have landed.
    answers.append(runway.gather.put(Part("f")))
    await runway.land()
    assert len(runway.flights) == 2
    await runway.land()
    assert runway.flights[2:] == [["f"]]

    # Beside one that takes long, less is enough.
    runway.now += LATE_SECONDS
    answers.append(runway.gather.put(Part("heavy", weight=9)))
    await asyncio.sleep(0)
    answers.append(runway.gather.put(Part("g")))
    runway.now += 2 * LATE_SECONDS
    await runway.land()
    assert runway.flights[3:] == [["heavy"], ["g"]]

    await runway.land()
    await runway.land()
    assert [answer.result() for answer in answers] == [*"abcdef", "heavy", "g"]
    await runway.gather.close()


async def test_a_better_rank_goes_first_and_the_oldest_goes_always() -> None:
    runway = Runway()
    answers = [runway.gather.put(Part("in the air"))]
    await asyncio.sleep(0)
    waiting = [
        Part("low 1", 3),
        Part("low 2", 3),
        Part("normal", 2),
        Part("high", 1),
        Part("critical", 0),
        Part("low 3", 3),
    ]
    for part in waiting:
        runway.now += 1
        answers.append(runway.gather.put(part))

    for _ in range(3):
        await runway.land()

    assert runway.flights == [["in the air"], ["low 1", "critical", "high"], ["low 2", "normal", "low 3"]]
    assert [answer.result() for answer in answers] == ["in the air", *(part.name for part in waiting)]
    await runway.gather.close()


async def test_what_is_worse_does_not_overtake_what_does_not_fit() -> None:
    runway = Runway()
    runway.gather.put(Part("in the air"))
    await asyncio.sleep(0)
    for part in (Part("first", 2), Part("large", 1, weight=3), Part("small", 2)):
        runway.now += 1
        runway.gather.put(part)

    for _ in range(4):
        await runway.land()

    assert runway.flights[1:] == [["first"], ["large"], ["small"]]


async def test_a_flight_is_bounded_by_size_too_and_a_part_that_is_larger_flies_alone() -> None:
    runway = Runway()
    runway.gather.put(Part("in the air"))
    await asyncio.sleep(0)
    for part in (Part("a", size=60), Part("b", size=60), Part("c", size=30), Part("d", size=500)):
        runway.gather.put(part)

    for _ in range(4):
        await runway.land()

    assert runway.flights[1:] == [["a"], ["b", "c"], ["d"]]


async def test_the_backlog_is_what_waits_and_the_bytes_of_what_flies() -> None:
    runway = Runway()
    empty = runway.gather.backlog
    runway.gather.put(Part("in the air", size=10))
    await asyncio.sleep(0)
    runway.now += 5
    runway.gather.put(Part("a", 3, weight=2, size=7))
    runway.now += 2
    runway.gather.put(Part("b", 0))
    busy = runway.gather.backlog

    for _ in range(2):
        await runway.land()

    assert empty == runway.gather.backlog == Backlog(0, 0, 0.0)
    assert busy == Backlog(3, 17, 2.0)


def new_task(priority: PriorityClass, payload: bytes = b"{}") -> NewTask:
    return NewTask(LaneKey(1, "q", priority, Kind.PULL), "a", payload)


def test_a_call_ranks_as_the_least_important_of_its_tasks() -> None:
    tasks = [new_task(PriorityClass.CRITICAL), new_task(PriorityClass.LOW), new_task(PriorityClass.HIGH)]

    assert least_important(tasks) is PriorityClass.LOW
    assert rank_of(Call(tasks, [1, 2, 3], 1, None, b"")) == 3
    assert rank_of(Call(tasks[:1], [1], 1, None, b"")) == 0
    assert size_of(Call([new_task(PriorityClass.LOW, b"x" * 1000)] * 2, [1, 1], 1, None, b"")) >= 2000


@pytest.mark.parametrize(
    "make",
    [
        lambda mark: Backlog(1, 1, mark.seconds),
        lambda mark: Backlog(mark.tasks, 1, 0.0),
        lambda mark: Backlog(1, mark.size, 0.0),
    ],
    ids=["age", "tasks", "bytes"],
)
def test_low_classes_are_refused_first_and_critical_last(make: Callable[..., Backlog]) -> None:
    worst_first = sorted(PriorityClass, reverse=True)
    for refused_up_to, priority in enumerate(worst_first):
        beyond = make(MARKS[priority])

        refusals = [Pressure(lambda: beyond).refuse(each) for each in worst_first]  # noqa: B023

        assert [isinstance(each, Overloaded) for each in refusals] == [
            place <= refused_up_to for place in range(len(worst_first))
        ]
    assert Pressure(lambda: Backlog(0, 0, 0.0)).refuse(PriorityClass.LOW) is None


def test_where_little_waits_nobody_looks_again_for_a_moment() -> None:
    now, looks = 100.0, 0
    waiting = Backlog(0, 0, 0.0)

    def look() -> Backlog:
        nonlocal looks
        looks += 1
        return waiting

    pressure = Pressure(look, lambda: now)
    assert [pressure.refuse(PriorityClass.LOW) for _ in range(3)] == [None] * 3
    assert looks == 1

    now += CALM_SECONDS
    waiting = Backlog(MARKS[PriorityClass.LOW].tasks // CALM_PART, 0, 0.0)
    assert [pressure.refuse(PriorityClass.LOW) for _ in range(3)] == [None] * 3
    assert looks == 4
    waiting = Backlog(MARKS[PriorityClass.LOW].tasks, 0, 0.0)
    assert isinstance(pressure.refuse(PriorityClass.LOW), Overloaded)
