"""What is committed with what, when more waits than a commit can hold."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from duetime.database.gather import AMPLE, LATE_SECONDS, Backlog, Gatherer
from duetime.errors import Overloaded
from duetime.lifecycle.admission.pressure import (
    CALM_PART,
    CALM_SECONDS,
    MARKS,
    Pressure,
    least_important,
)
from duetime.lifecycle.submission.batch import rank_of, size_of
from duetime.model.task import Kind, LaneKey, NewTask, PriorityClass


class Part(NamedTuple):
    name: str
    rank: int = 0
    weight: int = 1
    size: int = 0


class Commits:
    """A gatherer whose commits end when the test says so."""

    def __init__(self, *, is_evened: bool = False, **options: int) -> None:
        self.now = 100.0
        #: How many may be in progress at once.
        self.most = 1
        self.begun: list[list[str]] = []
        self._ends: list[asyncio.Future[None]] = []
        self.gatherer: Gatherer[Part, str] = Gatherer(
            self._commit,
            ranks=4,
            at_once=lambda: self.most,
            is_evened=is_evened,
            monotonic=lambda: self.now,
            **{"limit": 3, "size_limit": 100, **options},
        )

    def put(self, part: Part) -> "asyncio.Future[str]":
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.gatherer.put(part, lambda told: answer.set_result(str(told)), part.weight, part.size, part.rank)
        return answer

    async def _commit(self, parts: list[Part]) -> list[str]:
        self.begun.append([part.name for part in parts])
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.append(end)
        await end
        return [part.name for part in parts]

    async def end_oldest(self) -> None:
        await settle()
        self._ends.pop(0).set_result(None)
        await settle()


async def settle() -> None:
    """Let everything happen that need not wait for anything."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_commits_are_in_progress_as_may_be_just_now() -> None:
    commits = Commits(limit=AMPLE)
    commits.most = 3
    answers = [commits.put(Part(name, weight=AMPLE)) for name in "abcdef"]
    await settle()
    assert commits.begun == [["a"], ["b"], ["c"]]

    # The next that ends leaves what waits to the other two.
    commits.most = 2
    await commits.end_oldest()
    assert commits.begun == [["a"], ["b"], ["c"]]
    await commits.end_oldest()
    await commits.end_oldest()
    assert commits.begun == [["a"], ["b"], ["c"], ["d"], ["e"]]

    # With none allowed one goes on all the same.
    commits.most = 0
    await commits.end_oldest()
    await commits.end_oldest()
    await commits.end_oldest()
    assert [answer.result() for answer in answers] == list("abcdef")
    await commits.gatherer.close()


async def test_small_commits_go_beside_each_other_when_as_much_waits_as_is_being_committed() -> None:
    commits = Commits(limit=10, is_evened=True)
    commits.most = 2
    answers = [commits.put(Part(name)) for name in "ab"]
    await settle()
    answers.append(commits.put(Part("c")))
    await settle()
    assert commits.begun == [["a", "b"]]

    answers += [commits.put(Part(name)) for name in "de"]
    await settle()
    assert commits.begun == [["a", "b"], ["c", "d", "e"]]

    # Three are under way: one that waits goes when they are done.
    answers.append(commits.put(Part("f")))
    await commits.end_oldest()
    assert len(commits.begun) == 2
    await commits.end_oldest()
    assert commits.begun[2:] == [["f"]]

    # Beside one that takes long, less is enough.
    commits.now += LATE_SECONDS
    answers.append(commits.put(Part("heavy", weight=9)))
    await settle()
    answers.append(commits.put(Part("g")))
    commits.now += 2 * LATE_SECONDS
    await commits.end_oldest()
    assert commits.begun[3:] == [["heavy"], ["g"]]

    await commits.end_oldest()
    await commits.end_oldest()
    assert [answer.result() for answer in answers] == [*"abcdef", "heavy", "g"]
    await commits.gatherer.close()


async def test_a_better_rank_goes_first_and_the_oldest_goes_always() -> None:
    commits = Commits()
    answers = [commits.put(Part("under way"))]
    await settle()
    waiting = [
        Part("low 1", 3),
        Part("low 2", 3),
        Part("normal", 2),
        Part("high", 1),
        Part("critical", 0),
        Part("low 3", 3),
    ]
    for part in waiting:
        commits.now += 1
        answers.append(commits.put(part))

    for _ in range(3):
        await commits.end_oldest()

    assert commits.begun == [["under way"], ["low 1", "critical", "high"], ["low 2", "normal", "low 3"]]
    assert [answer.result() for answer in answers] == ["under way", *(part.name for part in waiting)]
    await commits.gatherer.close()


async def test_what_is_worse_does_not_overtake_what_does_not_fit() -> None:
    commits = Commits()
    commits.put(Part("under way"))
    await settle()
    for part in (Part("first", 2), Part("large", 1, weight=3), Part("small", 2)):
        commits.now += 1
        commits.put(part)

    for _ in range(4):
        await commits.end_oldest()

    assert commits.begun[1:] == [["first"], ["large"], ["small"]]


async def test_a_commit_is_bounded_by_size_too_and_a_part_that_is_larger_goes_alone() -> None:
    commits = Commits()
    commits.put(Part("under way"))
    await settle()
    for part in (Part("a", size=60), Part("b", size=60), Part("c", size=30), Part("d", size=500)):
        commits.put(part)

    for _ in range(4):
        await commits.end_oldest()

    assert commits.begun[1:] == [["a"], ["b", "c"], ["d"]]


async def test_the_backlog_is_what_waits_and_the_bytes_of_what_is_being_committed() -> None:
    commits = Commits()
    empty = commits.gatherer.backlog
    commits.put(Part("under way", size=10))
    await settle()
    commits.now += 5
    commits.put(Part("a", 3, weight=2, size=7))
    commits.now += 2
    commits.put(Part("b", 0))
    busy = commits.gatherer.backlog

    for _ in range(2):
        await commits.end_oldest()

    assert empty == commits.gatherer.backlog == Backlog(0, 0, 0.0)
    assert busy == Backlog(3, 17, 2.0)


def new_task(priority: PriorityClass, payload: bytes = b"{}") -> NewTask:
    return NewTask(LaneKey(1, "q", priority, Kind.PULL), "a", payload)


def test_a_batch_ranks_as_the_least_important_of_its_tasks() -> None:
    tasks = [new_task(PriorityClass.CRITICAL), new_task(PriorityClass.LOW), new_task(PriorityClass.HIGH)]

    assert least_important(tasks) is PriorityClass.LOW
    assert rank_of(tasks, [1, 2, 3]) == 3
    assert rank_of(tasks[:1], [1]) == 0
    assert size_of([new_task(PriorityClass.LOW, b"x" * 1000)] * 2) >= 2000


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
