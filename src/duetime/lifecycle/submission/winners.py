"""Who was first: answers for submissions whose key or request was there before.

The submit statement stores a task only if its key and its request were new.
Those who lost read the winner by a second statement: in the first one they
could not see what another transaction was about to commit.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple, overload

import msgspec

from duetime.database.statements import load
from duetime.errors import DuetimeError, IdempotencyConflict, QuotaExceeded, Unavailable
from duetime.ids import due_ms_of, unpack_ids
from duetime.lifecycle.tasks.keys import Key, Run, free_keys
from duetime.model.task import NewTask
from duetime.model.vault import is_same_fingerprint

SQL = load(__package__, "submit.sql")


class Submitted(msgspec.Struct, frozen=True, gc=False):
    id: uuid.UUID
    is_new: bool
    run_at_ms: int
    #: When a new task was made; 0 for one that was there before.
    created_at_ms: int = 0
    #: The waiting task whose place it took.
    replaces: uuid.UUID | None = None


Submission = Submitted | DuetimeError


class AllNew(Sequence[Submitted]):
    """The answers to a call whose tasks were all stored just now; each is made when somebody looks at it."""

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


@dataclass(slots=True)
class Call:
    """What one caller wants stored, with the ids that were minted for it."""

    tasks: Sequence[NewTask]
    lanes: list[int]
    tenant: int
    request: uuid.UUID | None
    fingerprint: bytes
    ids: list[uuid.UUID] = field(default_factory=list)
    minted_ms: int = 0
    #: When each was asked to run, in microseconds since 1970, None: now; None in all: all are even.
    run_us: list[int | None] | None = None
    is_of_one_lane: bool = field(init=False)
    #: All are due now, in one lane: most calls, and much is simpler for it.
    is_even: bool = field(init=False)
    #: None has more than a type, a payload, a lane and a time.
    is_bare: bool = field(init=False)
    #: All were stored just now.
    is_stored: bool = False

    def __post_init__(self) -> None:
        tasks = self.tasks
        self.is_of_one_lane = len(set(self.lanes)) == 1
        self.is_even = self.is_of_one_lane and not [task for task in tasks if task.run_at or task.delay]
        self.is_bare = not [
            task
            for task in tasks
            if task.options is not None
            or task.labels is not None
            or task.expires_at is not None
            or task.idempotency_key is not None
        ]

    @property
    def has_keys(self) -> bool:
        return not self.is_bare and any(task.idempotency_key is not None for task in self.tasks)

    @property
    def is_named(self) -> bool:
        """Whether a key keeps each of the tasks from being stored twice."""
        return self.request is not None or all(task.idempotency_key is not None for task in self.tasks)

    @property
    def keys(self) -> list[Key]:
        return [(self.tenant, task.idempotency_key) for task in self.tasks if task.idempotency_key is not None]

    def new(self, identifier: uuid.UUID) -> Submitted:
        return Submitted(identifier, True, due_ms_of(identifier), self.minted_ms)

    def all_new(self) -> AllNew:
        self.is_stored = True
        return AllNew(self.ids, self.minted_ms)


class _Winner(NamedTuple):
    task: uuid.UUID
    fingerprint: bytes
    #: The key's ttl has passed; it holds on if the task is open.
    has_ended: bool


async def sort_out(
    run: Run,
    calls: list[Call],
    firsts: list[Call],
    stored: set[uuid.UUID],
    happened: bool,
    now: datetime | None,
) -> list[Sequence[Submission | None]]:
    """Answers for each call: its own tasks, or the winners'.

    `happened`: nothing was stored now, because an earlier try had stored it.
    None stands for a task that must be tried once more: its id is a stranger's, or
    its key had ended, and has been freed.
    """
    lost_keys = [
        (call.tenant, task.idempotency_key)
        for call in calls
        for identifier, task in zip(call.ids, call.tasks, strict=True)
        if task.idempotency_key is not None and identifier not in stored
    ]
    lost_requests = [
        (call.request, call.tenant)
        for call in calls
        if call.request is not None and (call not in firsts or not stored.issuperset(call.ids))
    ]
    winners = await _read_keys(run, lost_keys, now) if lost_keys else {}
    answered = await read_requests(run, lost_requests) if lost_requests else {}
    if any(winner.has_ended for winner in winners.values()):
        # A repeated request is given its tasks, and what is stored under our own id is our own.
        asked = {key for call in calls if call.request not in answered for key in call.keys}
        ours = {identifier for call in calls for identifier in call.ids}
        ended = {key for key in asked if key in winners and winners[key].has_ended and winners[key].task not in ours}
        for key in ended - await free_keys(run, ended, now):
            del winners[key]
    return [
        _answer(call, stored, happened, winners, answered.get(call.request) if call.request else None) for call in calls
    ]


def _answer(
    call: Call,
    stored: set[uuid.UUID],
    happened: bool,
    winners: dict[Key, _Winner],
    known: tuple[bytes, list[uuid.UUID]] | None,
) -> list[Submission | None]:
    ids = call.ids
    if known is not None:
        fingerprint, ids = known
        if not is_same_fingerprint(fingerprint, call.fingerprint):
            # One error for all: it is the request that is refused, not each of its tasks.
            conflict = IdempotencyConflict("this Idempotency-Key was used for another request; make a new one")
            return [conflict for _ in call.ids]
        if len(ids) > len(call.ids):
            # Refused in part, while a call with the same key was stored as a whole.
            busy = Unavailable("this request is being done by another call; ask again with the same Idempotency-Key")
            return [busy for _ in call.ids]
    is_replay = ids != call.ids
    answer: list[Submission | None] = []
    for mine, identifier, task in zip_longest(call.ids, ids, call.tasks):
        if identifier is None:
            # Quotas refuse the rest of a request, which stays refused under its key.
            answer.append(QuotaExceeded("refused when this request was first made; send it in a new request"))
            continue
        winner = winners.get((call.tenant, task.idempotency_key)) if task.idempotency_key is not None else None
        if mine in stored:
            answer.append(call.new(mine))
        elif winner is not None:
            answer.append(_of_winner(winner, task, identifier, is_replay))
        elif task.idempotency_key is None and is_replay:
            answer.append(Submitted(identifier, False, due_ms_of(identifier)))
        elif task.idempotency_key is None and happened:
            answer.append(call.new(mine))
        else:
            answer.append(None)
    return answer


def _of_winner(winner: _Winner, task: NewTask, mine: uuid.UUID, is_replay: bool) -> Submission:
    identifier, fingerprint, _ = winner
    if not is_same_fingerprint(fingerprint, task.fingerprint):
        return IdempotencyConflict(
            f"idempotency_key {task.idempotency_key!r} already stands for another task ({identifier})"
        )
    return Submitted(identifier, identifier == mine and not is_replay, due_ms_of(identifier))


async def _read_keys(run: Run, keys: list[Key], now: datetime | None) -> dict[Key, _Winner]:
    rows = await run(
        SQL["read_keys"],
        {"tenants": [tenant for tenant, _ in keys], "keys": [key for _, key in keys], "now": now},
    )
    return {(row["tenant"], row["key"]): _Winner(row["task"], row["fingerprint"], row["has_ended"]) for row in rows}


async def read_requests(
    run: Run, requests: list[tuple[uuid.UUID, int]]
) -> dict[uuid.UUID, tuple[bytes, list[uuid.UUID]]]:
    rows = await run(
        SQL["read_requests"],
        {"ids": [request for request, _ in requests], "tenants": [tenant for _, tenant in requests]},
    )
    return {row["id"]: (row["fingerprint"], unpack_ids(row["tasks"])) for row in rows}
