"""Find earlier tasks: answers for submissions whose key or request was stored before.

The submit statement stores a task only if its key and its request are new.
A second statement looks for the others: the first one could not see what
another transaction was about to commit.
"""

import uuid
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

from duetime.database.statements import load
from duetime.errors import IdempotencyConflict, QuotaExceeded, Unavailable
from duetime.ids import due_ms_of, unpack_ids
from duetime.lifecycle.submission.batch import Answers, Batch, Submission, Submitted, key_of
from duetime.lifecycle.tasks.keys import Key, Run, free_keys
from duetime.model.task import DetailedTask
from duetime.model.vault import is_same_fingerprint

SQL = load(__package__, "earlier.sql")


class _Earlier(NamedTuple):
    task: uuid.UUID
    fingerprint: bytes
    #: The key's ttl has passed. The key still holds if its task is open.
    has_ended: bool


async def sort_out(
    run: Run,
    batches: list[Batch],
    firsts: list[Batch],
    stored: set[uuid.UUID],
    happened: bool,
    now: datetime | None,
) -> Answers:
    """Return the answers for each batch: its own tasks, or the earlier ones.

    `happened`: nothing was stored now because an earlier try had stored it.
    None means that a task must be tried once more: its id belongs to another task, or
    its key had expired and has been freed.
    """
    lost_keys = [
        (batch.tenant, task.idempotency_key)
        for batch in batches
        if batch.shape is DetailedTask
        for identifier, task in zip(batch.ids, batch.tasks, strict=True)
        if isinstance(task, DetailedTask) and task.idempotency_key is not None and identifier not in stored
    ]
    lost_requests = [
        (batch.request, batch.tenant)
        for batch in batches
        if batch.request is not None and (batch not in firsts or not stored.issuperset(batch.ids))
    ]
    earlier = await _read_keys(run, lost_keys, now) if lost_keys else {}
    answered = await read_requests(run, lost_requests) if lost_requests else {}
    if any(each.has_ended for each in earlier.values()):
        # A repeated request gets its tasks. A task that is stored under our own id is our own.
        asked = {key for batch in batches if batch.request not in answered for key in batch.keys}
        ours = {identifier for batch in batches for identifier in batch.ids}
        ended = {key for key in asked if key in earlier and earlier[key].has_ended and earlier[key].task not in ours}
        for key in ended - await free_keys(run, ended, now):
            del earlier[key]
    return [
        _answer(batch, stored, happened, earlier, answered.get(batch.request) if batch.request else None)
        for batch in batches
    ]


def _answer(
    batch: Batch,
    stored: set[uuid.UUID],
    happened: bool,
    earlier: dict[Key, _Earlier],
    known: tuple[bytes, list[uuid.UUID]] | None,
) -> list[Submission | None]:
    ids = batch.ids
    if known is not None:
        fingerprint, ids = known
        if not is_same_fingerprint(fingerprint, batch.fingerprint):
            # One error for all tasks, because the whole request is refused.
            conflict = IdempotencyConflict("this Idempotency-Key was used for another request; make a new one")
            return [conflict for _ in batch.ids]
        if len(ids) > len(batch.ids):
            # This call was refused in part, while a call with the same key was stored as a whole.
            busy = Unavailable("this request is being done by another call; ask again with the same Idempotency-Key")
            return [busy for _ in batch.ids]
    is_replay = ids != batch.ids
    answer: list[Submission | None] = []
    for mine, identifier, task in zip_longest(batch.ids, ids, batch.tasks):
        if identifier is None:
            # Quotas refuse the rest of a request. It stays refused under its key.
            answer.append(QuotaExceeded("refused when this request was first made; send it in a new request"))
            continue
        key = key_of(task)
        first = None if key is None else earlier.get((batch.tenant, key))
        if mine in stored:
            answer.append(batch.new(mine))
        elif first is not None and isinstance(task, DetailedTask):
            answer.append(_answer_of(first, task, identifier, is_replay))
        elif key is None and is_replay:
            answer.append(Submitted(identifier, False, due_ms_of(identifier)))
        elif key is None and happened:
            answer.append(batch.new(mine))
        else:
            answer.append(None)
    return answer


def _answer_of(first: _Earlier, task: DetailedTask, mine: uuid.UUID, is_replay: bool) -> Submission:
    identifier, fingerprint, _ = first
    if not is_same_fingerprint(fingerprint, task.fingerprint):
        return IdempotencyConflict(
            f"idempotency_key {task.idempotency_key!r} already stands for another task ({identifier})"
        )
    return Submitted(identifier, identifier == mine and not is_replay, due_ms_of(identifier))


async def _read_keys(run: Run, keys: list[Key], now: datetime | None) -> dict[Key, _Earlier]:
    rows = await run(
        SQL["read_keys"],
        {"tenants": [tenant for tenant, _ in keys], "keys": [key for _, key in keys], "now": now},
    )
    return {(row["tenant"], row["key"]): _Earlier(row["task"], row["fingerprint"], row["has_ended"]) for row in rows}


async def read_requests(
    run: Run, requests: list[tuple[uuid.UUID, int]]
) -> dict[uuid.UUID, tuple[bytes, list[uuid.UUID]]]:
    rows = await run(
        SQL["read_requests"],
        {"ids": [request for request, _ in requests], "tenants": [tenant for _, tenant in requests]},
    )
    return {row["id"]: (row["fingerprint"], unpack_ids(row["tasks"])) for row in rows}
