"""What is submitted together and what is stored together. The shape of it decides how it is stored.

A `Batch` is what one caller submits: usually one task, sometimes thousands.  A `Load`
is the batches that one commit stores.  The shape of both is the class of the
task in it that has the most fields (`model.task`): a load of `NewTask` is plain,
and the simplest statements can store it.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import overload

import msgspec

from duetime.errors import DuetimeError
from duetime.ids import due_ms_of
from duetime.lifecycle.tasks.keys import Key
from duetime.model.task import DetailedTask, NewTask, TimedTask

#: About how many bytes a task takes in addition to its payload.
TASK_BYTES = 500


class Submitted(msgspec.Struct, frozen=True, gc=False):
    id: uuid.UUID
    is_new: bool
    run_at_ms: int
    #: When a new task was created. 0 for a task that existed already.
    created_at_ms: int = 0
    #: The waiting task that it replaced.
    replaces: uuid.UUID | None = None


Submission = Submitted | DuetimeError
#: An answer for each task of each batch. None means that the task must be tried once more.
Answers = list[Sequence[Submission | None]]


class AllNew(Sequence[Submitted]):
    """The answers to a batch whose tasks were all stored just now. Each one is created when it is read."""

    __slots__ = ("_minted_ms", "ids")

    def __init__(self, ids: list[uuid.UUID], minted_ms: int) -> None:
        self.ids = ids
        self._minted_ms = minted_ms

    @property
    def earliest_ms(self) -> int:
        """Ids sort by due time."""
        return due_ms_of(min(self.ids))

    @property
    def latest_ms(self) -> int:
        return due_ms_of(max(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Submitted]:
        return map(self._make, self.ids)

    @overload
    def __getitem__(self, place: int) -> Submitted: ...
    @overload
    def __getitem__(self, place: slice) -> list[Submitted]: ...
    def __getitem__(self, place: int | slice) -> Submitted | list[Submitted]:
        return [*map(self._make, self.ids[place])] if isinstance(place, slice) else self._make(self.ids[place])

    def _make(self, identifier: uuid.UUID) -> Submitted:
        return Submitted(identifier, True, due_ms_of(identifier), self._minted_ms)


class Batch(msgspec.Struct, eq=False, gc=False):
    """The tasks that one caller submits, all of one tenant, and the ids that were minted for them."""

    tasks: Sequence[NewTask]
    lanes: list[int]
    tenant: int
    #: The id of the request, bound to the tenant. It identifies the whole batch.
    request: uuid.UUID | None
    fingerprint: bytes
    shape: type[NewTask]
    #: No task has a time, so all are due now. A task with a time that has passed is due now too, and counts as timed.
    is_untimed: bool
    ids: list[uuid.UUID] = []
    minted_ms: int = 0
    #: When each task was asked to run, in microseconds since 1970; None: now. None for the whole: all are due now.
    run_us: list[int | None] | None = None

    @property
    def is_row(self) -> bool:
        """Whether all ids follow from the first, because all tasks have the same lane and time."""
        return self.is_untimed and len(set(self.lanes)) == 1

    @property
    def keys(self) -> list[Key]:
        if self.shape is not DetailedTask:
            return []
        return [(self.tenant, key) for key in map(key_of, self.tasks) if key is not None]

    @property
    def is_named(self) -> bool:
        """Whether a key protects each of the tasks from being stored twice."""
        return self.request is not None or len(self.keys) == len(self.tasks)

    def new(self, identifier: uuid.UUID) -> Submitted:
        return Submitted(identifier, True, due_ms_of(identifier), self.minted_ms)


def batch_of(
    tasks: Sequence[NewTask],
    lanes: list[int],
    tenant: int,
    request: uuid.UUID | None = None,
    fingerprint: bytes = b"",
) -> Batch:
    shape = widest_of(map(type, tasks))
    is_untimed = shape is NewTask or not any(map(has_time, tasks))
    return Batch(tasks, lanes, tenant, request, fingerprint, shape, is_untimed)


def size_of(tasks: Sequence[NewTask]) -> int:
    return sum(map(len, [task.payload for task in tasks])) + TASK_BYTES * len(tasks)


def rank_of(tasks: Sequence[NewTask], lanes: Sequence[int]) -> int:
    """The rank of a batch is that of its least important task. Else one critical task would pull many others."""
    # Many tasks share a lane.
    return max([task.lane.priority for task in dict(zip(lanes, tasks, strict=True)).values()])


class Load:
    """The batches that one commit stores, with all their tasks in a row."""

    __slots__ = (
        "batches",
        "has_one_lane",
        "ids",
        "is_stored",
        "is_untimed",
        "lanes",
        "moments_ms",
        "requests",
        "shape",
        "tasks",
    )

    def __init__(self, batches: list[Batch]) -> None:
        """Make a load of batches that have no ids yet. `minted` is for batches that have them."""
        self.batches = batches
        self.tasks: Sequence[NewTask]
        if len(batches) == 1:
            batch = batches[0]
            self.tasks, self.lanes = batch.tasks, batch.lanes
            self.shape, self.is_untimed = batch.shape, batch.is_untimed
            self.requests = [] if batch.request is None else [batch.request]
        else:
            self.tasks = [task for batch in batches for task in batch.tasks]
            self.lanes = [lane for batch in batches for lane in batch.lanes]
            self.shape = widest_of([batch.shape for batch in batches])
            self.is_untimed = self.shape is NewTask or all(batch.is_untimed for batch in batches)
            self.requests = [batch.request for batch in batches if batch.request is not None]
        self.has_one_lane = len(set(self.lanes)) == 1
        self.ids: list[uuid.UUID] = []
        #: When the tasks are due, in milliseconds since 1970.
        self.moments_ms: Collection[int] = ()
        #: All were stored just now.
        self.is_stored = False

    @classmethod
    def minted(cls, batches: list[Batch]) -> "Load":
        load = cls(batches)
        load.ids = [identifier for batch in batches for identifier in batch.ids]
        return load

    @property
    def has_keys(self) -> bool:
        return self.shape is DetailedTask and any(batch.keys for batch in self.batches)

    def without_repeats(self) -> "Load":
        """Return the batches that may store their tasks: of two with the same request, only the first."""
        if len(set(self.requests)) == len(self.requests):
            return self
        firsts: dict[uuid.UUID, Batch] = {}
        return Load.minted(
            [
                batch
                for batch in self.batches
                if batch.request is None or firsts.setdefault(batch.request, batch) is batch
            ]
        )

    def mark_stored(self) -> Answers:
        """Note that every task was stored just now; returns the answers."""
        self.is_stored = True
        if len(self.batches) == len(self.tasks) and self.is_untimed:
            minted_ms = self.batches[0].minted_ms
            return [[Submitted(identifier, True, minted_ms, minted_ms)] for identifier in self.ids]
        return [AllNew(batch.ids, batch.minted_ms) for batch in self.batches]


def widest_of(shapes: Iterable[type[NewTask]]) -> type[NewTask]:
    """Return the shape that has all fields of these shapes."""
    found = set(shapes)
    if DetailedTask in found:
        return DetailedTask
    return TimedTask if TimedTask in found else NewTask


def key_of(task: NewTask) -> str | None:
    return task.idempotency_key if isinstance(task, DetailedTask) else None


def has_time(task: NewTask) -> bool:
    return isinstance(task, TimedTask) and bool(task.run_at or task.delay)
