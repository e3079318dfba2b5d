"""New tasks as the columns that the submit statements take."""

import uuid

import msgspec

from duetime.clock import to_us
from duetime.database.arrays import same, sparse
from duetime.ids import pack_ids
from duetime.lifecycle.submission.handover import Seats
from duetime.lifecycle.submission.winners import Call
from duetime.model.task import NewTask
from duetime.model.vault import FINGERPRINT_BYTES

_encode = msgspec.json.Encoder().encode


def run_us_of(task: NewTask, now_ms: int) -> int | None:
    """When it was asked to run, in microseconds since 1970; None: now."""
    if task.run_at is not None:
        return to_us(task.run_at)
    if task.delay:
        return 1000 * (now_ms + -int(-task.delay * 1000 // 1))
    return None


def columns(calls: list[Call], seats: Seats | None) -> dict[str, object]:
    tasks = [task for call in calls for task in call.tasks]
    ids = [identifier for call in calls for identifier in call.ids]
    is_bare = all(call.is_bare for call in calls)
    lanes, lane = same([lane for call in calls for lane in call.lanes])
    types, type = same([task.type for task in tasks])
    return {
        "lanes": lanes,
        "lane": lane,
        "ids": ids,
        "types": types,
        "type": type,
        "payloads": [task.payload for task in tasks],
        "options": None if is_bare else sparse([task.options and _encode(task.options) for task in tasks]),
        "labels": None
        if is_bare
        else sparse([_encode(task.labels).decode() if task.labels else None for task in tasks]),
        "run_us": None
        if all(call.run_us is None for call in calls)
        else [us for call in calls for us in call.run_us or [None] * len(call.tasks)],
        "expires_ats": None if is_bare else sparse([task.expires_at for task in tasks]),
        "holders": None
        if seats is None
        else sparse(
            [
                seats.take(lane, identifier, task.type) if task.run_at is None and not task.delay else None
                for call in calls
                for task, lane, identifier in zip(call.tasks, call.lanes, call.ids, strict=True)
            ]
        ),
    }


def keyed_columns(calls: list[Call], seats: Seats | None) -> tuple[list[Call], dict[str, object]]:
    """The calls that may store their tasks (of two under one request the first), and the statement's arrays."""
    keys: dict[tuple[int, str], tuple[uuid.UUID, NewTask, uuid.UUID | None]] = {}
    requests: dict[uuid.UUID, Call] = {}
    firsts = [call for call in calls if call.request is None or requests.setdefault(call.request, call) is call]
    for call in firsts:
        if call.is_bare:
            continue
        for identifier, task in zip(call.ids, call.tasks, strict=True):
            if task.idempotency_key is not None:
                keys.setdefault((call.tenant, task.idempotency_key), (identifier, task, call.request))
    ordered = sorted(keys.items())
    asked = sorted(requests.items())
    # PostgreSQL counts the places of an array from 1.
    places: dict[uuid.UUID | None, int | None] = {request: place for place, (request, _) in enumerate(asked, 1)}
    places[None] = None
    of_tasks, of_all = same([place for call in firsts for place in [places[call.request]] * len(call.tasks)])
    return firsts, columns(firsts, seats) | {
        "request_ids": [request for request, _ in asked],
        "request_tenants": [call.tenant for _, call in asked],
        "request_fingerprints": [call.fingerprint[:FINGERPRINT_BYTES] for _, call in asked],
        "request_tasks": [pack_ids(call.ids, is_row=call.is_even) for _, call in asked],
        "key_tenants": [tenant for (tenant, _), _ in ordered] or None,
        "keys": [key for (_, key), _ in ordered] or None,
        "key_tasks": [identifier for _, (identifier, _, _) in ordered] or None,
        "key_fingerprints": [task.fingerprint[:FINGERPRINT_BYTES] for _, (_, task, _) in ordered] or None,
        "key_ttls": [task.idempotency_ttl for _, (_, task, _) in ordered] or None,
        "key_requests": [request for _, (_, _, request) in ordered] or None,
        "requests": of_tasks,
        "request": of_all,
        "is_keyed": [task.idempotency_key is not None for call in firsts for task in call.tasks] if keys else None,
    }
